"""Connections to brokers: sockets, TLS and requests. Nothing here starts a thread."""

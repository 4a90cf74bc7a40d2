"""Encoding and decoding of the Kafka protocol. Nothing here waits, connects or starts a thread.

``messages`` and ``sasl`` use kafka-python's protocol classes. ``produce`` is an encoder and decoder
written for the Produce request, the only one whose cost matters. ``frames``
splits a stream into length-prefixed frames.
"""

from __future__ import annotations


class WireError(ValueError):
    """A malformed message from a broker. Its connection must be closed."""

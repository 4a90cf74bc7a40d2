"""Bytes to and from the broker, pure: nothing in here waits, connects or starts a thread.

``kafka_python`` is the adapter to kafka-python's protocol classes, ``produce`` our own encoder
and decoder for the one request whose cost matters, ``compression`` the codecs, ``frames`` the
length-prefixed frames that everything travels in.
"""

from __future__ import annotations


class WireError(ValueError):
    """A broker sent what does not make sense: the connection it came over is of no more use."""

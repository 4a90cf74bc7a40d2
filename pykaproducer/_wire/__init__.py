"""Encoding and decoding of the Kafka protocol. Nothing here waits, connects or starts a thread.

``produce`` encodes and decodes the Produce request, the only one whose cost matters; ``messages``
and ``sasl`` the others, field by field with a ``RequestWriter`` and a ``Reader``. ``mechanisms``
makes the tokens of SASL. ``frames`` splits a stream into length-prefixed frames.
"""

from __future__ import annotations


class WireError(ValueError):
    """A malformed message from a broker. Its connection must be closed."""

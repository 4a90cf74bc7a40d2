"""Splitting a stream of bytes into Kafka's length-prefixed frames.

A frame is a 4-byte big-endian length and that many bytes. The reader owns one buffer into which
bytes are received. It grows with the bytes that have really arrived, at most twofold at a time, so
a large length sent by a broker does not allocate memory by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pykaproducer._wire import WireError

#: Initial size of the buffer, which an idle connection keeps.
CHUNK = 64 * 1024

#: Maximum length of a frame before the connection is ready, because the broker may be an impostor.
MOST_IN_SETUP = 1 << 20

_length = struct.Struct(">i").unpack_from


class FrameReader:
    """A buffer for received bytes: receive into :meth:`space`, then call :meth:`received`."""

    def __init__(self, most: int) -> None:
        #: Maximum length of a frame (``receive_message_max_bytes``).
        self.most = most
        #: Minimum length: a correlation id. The oldest SASL protocol has frames without one.
        self.least = 4
        #: Whether the next frame belongs to the setup of the connection, and so may only have
        #: :data:`MOST_IN_SETUP` bytes.
        self.in_setup = False
        self._buffer = bytearray(CHUNK)
        # self._buffer[:_filled] has been received and belongs to no frame yet.
        self._filled = 0

    @property
    def partial(self) -> bool:
        """Return whether a part of a frame has been received."""
        return self._filled > 0

    def space(self) -> memoryview:
        """Return free space to receive into, never empty. Any other call invalidates it."""
        if self._filled == len(self._buffer):
            # A new buffer, because the old one may still be exported as a memoryview.
            buffer = bytearray(2 * len(self._buffer))
            buffer[: self._filled] = self._buffer
            self._buffer = buffer
        return memoryview(self._buffer)[self._filled :]

    def received(self, count: int) -> Iterator[bytes]:
        """Add *count* bytes that were received into the space, and yield the complete frames.

        Raises :class:`WireError` for an invalid length, after the frames before it. The stream is
        then unusable.
        """
        filled = self._filled + count
        buffer = self._buffer
        view = memoryview(buffer)
        at = 0
        while filled - at >= 4:
            (length,) = _length(buffer, at)
            most = min(self.most, MOST_IN_SETUP) if self.in_setup else self.most
            if not self.least <= length <= most:
                raise WireError(self._complaint(length))
            end = at + 4 + length
            if end > filled:
                break
            yield bytes(view[at + 4 : end])
            at = end
        self._keep(at, filled)

    def _keep(self, start: int, end: int) -> None:
        """Discard everything except ``buffer[start:end]``."""
        left = end - start
        if left == 0 and len(self._buffer) > CHUNK:
            self._buffer = bytearray(CHUNK)
        elif start and left:
            self._buffer[:left] = self._buffer[start:end]
        self._filled = left

    def _complaint(self, length: int) -> str:
        start = length.to_bytes(4, "big", signed=True)
        if start[:2] in (b"\x15\x03", b"\x16\x03"):
            return "it uses TLS; check security_protocol"
        if start == b"HTTP":
            return "it uses HTTP; is this the address of a Kafka listener?"
        if length < self.least:
            return f"a response has a length of {length} bytes"
        if length <= self.most:
            return (
                f"a response has a length of {length} bytes, more than the {MOST_IN_SETUP} that "
                f"are accepted before the connection is ready"
            )
        return (
            f"a response has a length of {length} bytes, more than receive_message_max_bytes "
            f"({self.most})"
        )

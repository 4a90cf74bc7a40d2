"""Cutting a stream of bytes into Kafka's length-prefixed frames.

A frame is a 4-byte big-endian length and that many bytes. The reader owns one buffer that bytes
are received into; it grows with the bytes that have really come, at most twofold at a time, so a
length that a broker merely claims allocates nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pykaproducer._wire import WireError

#: What is offered to a single receive, and what an idle connection keeps.
CHUNK = 64 * 1024

_length = struct.Struct(">i").unpack_from


class FrameReader:
    """Receive into :meth:`space`, say how much with :meth:`received`, get whole frames back."""

    def __init__(self, most: int) -> None:
        #: The longest frame that is believed (``receive_message_max_bytes``).
        self.most = most
        #: The shortest: a correlation id. The first SASL of all had frames without one.
        self.least = 4
        self._buffer = bytearray(CHUNK)
        # self._buffer[:_filled] has come and belongs to no frame yet.
        self._filled = 0

    @property
    def partial(self) -> bool:
        """True while a part of a frame has come."""
        return self._filled > 0

    def space(self) -> memoryview:
        """Where to receive into: never empty. Of no use after the next call of any method."""
        if self._filled == len(self._buffer):
            # A new one: the old one may still be exported as a memoryview.
            buffer = bytearray(2 * len(self._buffer))
            buffer[: self._filled] = self._buffer
            self._buffer = buffer
        return memoryview(self._buffer)[self._filled :]

    def received(self, count: int) -> Iterator[bytes]:
        """*count* bytes have come into the space: the frames that are complete now.

        :class:`WireError` at a length that no broker sends, behind the frames that stood before
        it; the stream is of no use then.
        """
        filled = self._filled + count
        buffer = self._buffer
        view = memoryview(buffer)
        at = 0
        while filled - at >= 4:
            (length,) = _length(buffer, at)
            if not self.least <= length <= self.most:
                raise WireError(self._complaint(length))
            end = at + 4 + length
            if end > filled:
                break
            yield bytes(view[at + 4 : end])
            at = end
        self._keep(at, filled)

    def _keep(self, start: int, end: int) -> None:
        """Only ``buffer[start:end]`` is wanted any more."""
        left = end - start
        if left == 0 and len(self._buffer) > CHUNK:
            self._buffer = bytearray(CHUNK)
        elif start and left:
            self._buffer[:left] = self._buffer[start:end]
        self._filled = left

    def _complaint(self, length: int) -> str:
        start = length.to_bytes(4, "big", signed=True)
        if start[:2] in (b"\x15\x03", b"\x16\x03"):
            return "it speaks TLS; is security_protocol the one of this listener?"
        if start == b"HTTP":
            return "it speaks HTTP; is this the address of a Kafka listener?"
        if length < self.least:
            return f"it announced a response of {length} bytes"
        return (
            f"it announced a response of {length} bytes, more than receive_message_max_bytes "
            f"({self.most})"
        )

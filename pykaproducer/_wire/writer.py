"""Writing Kafka's primitive types: the counterpart of :class:`Reader` for requests."""

from __future__ import annotations

import struct
from collections.abc import Iterable

_int8 = struct.Struct(">b")
_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")
_int64 = struct.Struct(">q")


class RequestWriter:
    """A request in the making, which starts with its header.

    *flexible*: the version has compact strings, compact arrays and tagged fields (KIP-482), and
    so has its header, except that the client id is a plain string in all versions.
    """

    __slots__ = ("_data", "_flexible")

    def __init__(
        self, key: int, version: int, correlation_id: int, client_id: str | None, *, flexible: bool
    ) -> None:
        self._data = bytearray(4)  # for the length
        self._flexible = False
        self.int16(key)
        self.int16(version)
        self.int32(correlation_id)
        self.string(client_id)
        self._flexible = flexible
        self.no_tags()

    def int8(self, value: int) -> None:
        """Write a signed 8-bit number, or a truth value as 0 or 1."""
        self._data += _int8.pack(value)

    def int16(self, value: int) -> None:
        """Write a signed 16-bit number."""
        self._data += _int16.pack(value)

    def int32(self, value: int) -> None:
        """Write a signed 32-bit number."""
        self._data += _int32.pack(value)

    def int64(self, value: int) -> None:
        """Write a signed 64-bit number."""
        self._data += _int64.pack(value)

    def raw(self, data: bytes) -> None:
        """Write *data* without a length."""
        self._data += data

    def string(self, value: str | None) -> None:
        """Write a string; None is the null string."""
        data = b"" if value is None else value.encode()
        self._length(_int16, -1 if value is None else len(data))
        self._data += data

    def blob(self, value: bytes) -> None:
        """Write a field of bytes."""
        self._length(_int32, len(value))
        self._data += value

    def array(self, count: int) -> None:
        """Write the number of elements of an array; -1 is the null array."""
        self._length(_int32, count)

    def partitions(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Write an array of topics with the numbers of their partitions, from (topic, partition).

        Topics come in the order in which they first appear.
        """
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        self.array(len(topics))
        for topic, numbers in topics.items():
            self.string(topic)
            self.array(len(numbers))
            for number in numbers:
                self.int32(number)
            self.no_tags()

    def no_tags(self) -> None:
        """Write that no tagged fields follow. Every structure of a flexible version ends so."""
        if self._flexible:
            self._data.append(0)

    def frame(self) -> bytes:
        """Return the whole request, after its length."""
        _int32.pack_into(self._data, 0, len(self._data) - 4)
        return bytes(self._data)

    def _length(self, layout: struct.Struct, length: int) -> None:
        """Write a length or a count, -1 for null."""
        if not self._flexible:
            self._data += layout.pack(length)
            return
        value = length + 1
        while value >= 0x80:
            self._data.append(value & 0x7F | 0x80)
            value >>= 7
        self._data.append(value)

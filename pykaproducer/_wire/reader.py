"""Reading Kafka's primitive types, with every length checked against the bytes received."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pykaproducer._errors.formatting import one_line
from pykaproducer._wire import WireError

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: Names have at most 253 characters (RFC 1035).
_LONGEST_HOST = 255
_int16 = struct.Struct(">h")
_int32 = struct.Struct(">i")


class Reader:
    """A position in a message. Reading beyond its end raises a :class:`WireError`.

    *flexible*: the version has compact strings, compact arrays and tagged fields.
    """

    __slots__ = ("_at", "_data", "_flexible")

    def __init__(self, data: Buffer, *, flexible: bool) -> None:
        self._data = memoryview(data)
        self._at = 0
        self._flexible = flexible

    @property
    def left(self) -> int:
        """Return the number of bytes not read yet."""
        return len(self._data) - self._at

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read several fields of fixed size at once."""
        at = self._at
        self._at = at + layout.size
        try:
            return layout.unpack_from(self._data, at)
        except struct.error:
            raise self._short(layout.size, at) from None

    def int32(self) -> int:
        """Read a signed 32-bit number."""
        (value,) = self.fields(_int32)
        return int(value)

    def string(self) -> str | None:
        """Read a string. Return None for the null string."""
        length = self._length(_int16)
        if length < 0:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"a string is not UTF-8: {error.reason}") from error

    def required_string(self) -> str:
        """Read a string that must not be null."""
        value = self.string()
        if value is None:
            raise WireError("a string that is required is null")
        return value

    def text(self) -> str | None:
        """Read a string that is only shown. Return it on one line, None for the null string."""
        value = self.string()
        return None if value is None else one_line(value)

    def host(self) -> str:
        """Read a host name or address. It may be empty."""
        value = self.string()
        if value is None:
            raise WireError("a broker has no host name")
        if len(value) > _LONGEST_HOST or not value.isprintable() or " " in value:
            raise WireError(f"{one_line(value)!r} is not a host name")
        return value

    def blob(self) -> bytes:
        """Read a field of bytes. Return empty bytes for null."""
        length = self._length(_int32)
        return b"" if length < 0 else bytes(self._take(length))

    def array(self, most: int | None = None) -> int:
        """Read the length of an array that must not be null, of elements of at least one byte.

        *most*: raise a :class:`WireError` for a longer one.
        """
        count = self._length(_int32)
        if not 0 <= count <= self.left:
            raise WireError(f"an array of {count} elements in {self.left} bytes")
        if most is not None and count > most:
            raise WireError(f"an array of {count} elements where at most {most} are accepted")
        return count

    def skip_if_next(self, data: bytes) -> bool:
        """Skip *data* if these are the next bytes; return whether they are."""
        end = self._at + len(data)
        if self._data[self._at : end] != data:
            return False
        self._at = end
        return True

    def skip(self, size: int) -> None:
        """Skip *size* bytes."""
        if size > self.left:
            raise self._short(size, self._at)
        self._at += size

    def skip_numbers(self, arrays: int) -> None:
        """Skip *arrays* arrays of 32-bit numbers."""
        data, at = self._data, self._at
        for done in range(arrays):
            # Read one-byte lengths here, because a Metadata response has three of them for each of
            # perhaps ten thousand partitions.
            if not self._flexible or at >= len(data) or not 0 < data[at] < 0x80:
                self._at = at
                for _ in range(done, arrays):
                    self.skip(4 * self.array())
                return
            at += 4 * data[at] - 3
        if at > len(data):
            raise self._short(at - self._at, self._at)
        self._at = at

    def tags(self) -> Iterator[tuple[int, Reader]]:
        """Read the tagged fields. Yield each tag with a reader of its bytes.

        They ascend (KIP-482), so that none comes twice.
        """
        for tag, size in self._tags():
            yield tag, Reader(self._take(size), flexible=True)

    def skip_tags(self) -> None:
        """Skip the tagged fields."""
        if self._flexible:
            data, at = self._data, self._at
            if at < len(data) and not data[at]:
                self._at = at + 1  # there are none, the usual case
                return
        for _, size in self._tags():
            self.skip(size)

    def _tags(self) -> Iterator[tuple[int, int]]:
        """Yield each tag with the size of its field, which must be read or skipped by then."""
        count = self._uvarint() if self._flexible else 0
        if count > self.left:
            raise WireError(f"{count} tagged fields in {self.left} bytes")
        last = -1
        for _ in range(count):
            tag = self._uvarint()
            if tag <= last:
                raise WireError(f"the tagged field {tag} follows {last}")
            last = tag
            yield tag, self._uvarint()

    def _take(self, size: int) -> memoryview:
        at = self._at
        end = at + size
        if end > len(self._data):
            raise self._short(size, at)
        self._at = end
        return self._data[at:end]

    def _length(self, layout: struct.Struct) -> int:
        """Read a length or a count, negative for null."""
        if self._flexible:
            return self._uvarint() - 1
        (length,) = self.fields(layout)
        return int(length)

    def _uvarint(self) -> int:
        data, at = self._data, self._at
        # Nearly all numbers take one byte.
        if at < len(data) and (byte := data[at]) < 0x80:
            self._at = at + 1
            return byte
        value = 0
        try:
            for shift in (0, 7, 14, 21, 28):
                byte = data[at]
                at += 1
                value |= (byte & 0x7F) << shift
                if byte < 0x80:
                    self._at = at
                    return value
        except IndexError:
            raise self._short(1, at) from None
        raise WireError("a varint has more than 5 bytes")

    def _short(self, wanted: int, at: int) -> WireError:
        return WireError(
            f"the message ends after {len(self._data)} bytes, but {wanted} are expected at {at}"
        )

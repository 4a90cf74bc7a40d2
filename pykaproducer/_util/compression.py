"""Compression of the records of a batch, in the formats that Kafka's consumers and brokers read.

One call compresses a whole batch, in C and without the GIL. Several threads may use a compressor at
once. :mod:`pykaproducer.config` has validated types and levels. Each compressor imports its package
when it is made, in the thread of a caller: most producers need none or one of them.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Compressor(Protocol):
    """One compression type at one level."""

    #: The type, as the lowest three bits of a batch's attributes.
    attribute: int

    def compress(self, records: Buffer) -> bytes:
        """Compress the records of a batch."""


class Gzip:
    """Gzip, level 1 (fast) to 9 (small). The default is 6, as in zlib."""

    attribute = 1

    def __init__(self, level: int = 6) -> None:
        self._level = level

    def compress(self, records: Buffer) -> bytes:
        return zlib.compress(records, self._level, wbits=31)


#: The header of a snappy stream as the Java library (xerial) writes it: magic, version 1,
#: readable by version 1.
_XERIAL = b"\x82SNAPPY\0" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
#: Uncompressed bytes in one block. Java writes 32 KiB, but every reader allocates the size that the
#: block states. Larger blocks mean that the GIL is released and reacquired less often.
_XERIAL_BLOCK = 1024 * 1024


class Snappy:
    """Snappy in xerial blocks, without levels."""

    attribute = 2

    def __init__(self) -> None:
        import snappy

        self._compress: Callable[[Buffer], bytes] = snappy.compress

    def compress(self, records: Buffer) -> bytes:
        view = memoryview(records).cast("B")
        pieces = [_XERIAL]
        for start in range(0, len(view), _XERIAL_BLOCK):
            block = self._compress(view[start : start + _XERIAL_BLOCK])
            pieces += (len(block).to_bytes(4, "big"), block)
        return b"".join(pieces)


class Lz4:
    """LZ4, level 1 (fast) to 12 (small). The default is the fast one."""

    attribute = 3

    def __init__(self, level: int = 0) -> None:
        from lz4 import frame

        # Kafka reads independent blocks only. Its own producer writes blocks of 64 KiB, and a
        # reader needs a buffer of the size stated in the header.
        self._compress: Callable[[Buffer], bytes] = functools.partial(
            frame.compress,
            compression_level=level,
            block_size=frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )

    def compress(self, records: Buffer) -> bytes:
        return self._compress(records)


class Zstd:
    """Zstandard, level 1 (fast) to 22 (small), or negative (even faster). The default is 3."""

    attribute = 4

    def __init__(self, level: int = 3) -> None:
        from zstandard import ZstdCompressor

        self._make: Callable[[], Any] = functools.partial(ZstdCompressor, level=level)
        # Each thread has its own context: two threads must not use one at once, and creating one
        # costs more than compressing a small batch.
        self._contexts = threading.local()

    def compress(self, records: Buffer) -> bytes:
        context = getattr(self._contexts, "context", None)
        if context is None:
            context = self._contexts.context = self._make()
        compressed: bytes = context.compress(records)
        return compressed


@dataclass(frozen=True, slots=True)
class Codec:
    """One compression type. To add another, add its record to :data:`CODECS`."""

    #: Its name in ``compression_type``.
    name: str
    #: Kafka's number for it in a batch's attributes (lowest three bits).
    number: int
    #: The lowest and the highest level; None if it has no levels.
    levels: tuple[int, int] | None
    #: Creates a compressor, with a level if one is given.
    factory: Callable[..., Compressor]
    #: The package that it requires and its extra, unless every installation has it.
    package: tuple[str, str] | None = None

    def is_installed(self) -> bool:
        """Return whether its package can be imported."""
        return self.package is None or importlib.util.find_spec(self.package[0]) is not None


#: Codecs by name, in the order of Kafka's numbers.
CODECS: Final = {
    codec.name: codec
    for codec in (
        Codec("gzip", Gzip.attribute, (1, 9), Gzip),
        Codec("snappy", Snappy.attribute, None, Snappy),
        Codec("lz4", Lz4.attribute, (1, 12), Lz4),
        Codec("zstd", Zstd.attribute, (-131072, 22), Zstd, package=("zstandard", "zstd")),
    )
}


def compressor(name: str | None, level: int | None = None) -> Compressor | None:
    """Return a compressor of that type, at its default level if *level* is None; None for None."""
    if name is None:
        return None
    codec = CODECS[name]
    return codec.factory() if level is None else codec.factory(level)

"""Compressing the records of a batch, as Kafka's consumers and brokers read them.

One call compresses a whole batch, in C and without the GIL. A compressor may be used by several
threads at once.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import lz4.frame
import snappy

from pykaproducer.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Compressor(Protocol):
    """One compression type at one level."""

    #: The type, as the lowest three bits of a batch's attributes.
    attribute: int
    name: str

    def compress(self, records: Buffer) -> bytes:
        """The records of a batch, compressed."""


class Gzip:
    """Level 1 (fast) to 9 (small); 6 if none is given, as zlib has it."""

    name = "gzip"
    attribute = 1

    def __init__(self, level: int | None = None) -> None:
        self._level = _checked(self.name, level, 1, 9, default=6)

    def compress(self, records: Buffer) -> bytes:
        return zlib.compress(records, self._level, wbits=31)


#: The header of a snappy stream as the Java library (xerial) writes it: magic, version 1,
#: readable by version 1.
_XERIAL = b"\x82SNAPPY\0" + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
#: Uncompressed bytes in one block. Java writes 32 KiB and every reader allocates what the block
#: says it needs; larger blocks mean fewer times that the GIL is let go and taken again.
_XERIAL_BLOCK = 1024 * 1024


class Snappy:
    """Snappy in xerial's blocks; it has no levels."""

    name = "snappy"
    attribute = 2

    def __init__(self, level: int | None = None) -> None:
        if level is not None:
            raise ConfigurationError(
                f"compression_level={level}: compression_type 'snappy' has no levels; leave it out"
            )

    def compress(self, records: Buffer) -> bytes:
        view = memoryview(records).cast("B")
        pieces = [_XERIAL]
        for start in range(0, len(view), _XERIAL_BLOCK):
            block = snappy.compress(view[start : start + _XERIAL_BLOCK])
            pieces += (len(block).to_bytes(4, "big"), block)
        return b"".join(pieces)


class Lz4:
    """Level 1 (fast) to 12 (small); the fast one if none is given."""

    name = "lz4"
    attribute = 3

    def __init__(self, level: int | None = None) -> None:
        self._level = _checked(self.name, level, 1, 12, default=0)

    def compress(self, records: Buffer) -> bytes:
        # Kafka reads independent blocks only. 64 KiB is the block that its own producer writes:
        # a reader needs a buffer of the size that the header names.
        compressed: bytes = lz4.frame.compress(
            records,
            compression_level=self._level,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        return compressed


class Zstd:
    """Level 1 (fast) to 22 (small), or negative (faster still); 3 if none is given."""

    name = "zstd"
    attribute = 4

    def __init__(self, level: int | None = None) -> None:
        self._level = _checked(self.name, level, -131072, 22, default=3)
        self._make = _zstd_compressor()
        # A context is made once for each thread: it must not be used by two at once, and making
        # one costs more than compressing a small batch.
        self._contexts = threading.local()

    def compress(self, records: Buffer) -> bytes:
        context = getattr(self._contexts, "context", None)
        if context is None:
            context = self._contexts.context = self._make(level=self._level)
        compressed: bytes = context.compress(records)
        return compressed


def _zstd_compressor() -> Callable[..., Any]:
    try:
        from zstandard import ZstdCompressor
    except ImportError as error:
        raise ConfigurationError(
            "compression_type='zstd' needs the package zstandard: "
            "pip install 'pykaproducer[zstd]', or choose gzip, snappy or lz4"
        ) from error
    return ZstdCompressor


_TYPES: dict[str, Callable[[int | None], Compressor]] = {
    "gzip": Gzip,
    "snappy": Snappy,
    "lz4": Lz4,
    "zstd": Zstd,
}

#: What ``compression_type`` can be, besides None.
COMPRESSION_TYPES = ("none", *_TYPES)


def compressor(name: str | None, level: int | None = None) -> Compressor | None:
    """The compressor of a type, at its own default level if *level* is None; None for none.

    :class:`ConfigurationError` if there is no such type or level, or a package is missing.
    """
    if name is None or name == "none":
        return None
    made = _TYPES.get(name)
    if made is None:
        raise ConfigurationError(
            f"compression_type={name!r} is not known; it can be {', '.join(COMPRESSION_TYPES)}"
        )
    return made(level)


def _checked(name: str, level: int | None, least: int, most: int, *, default: int) -> int:
    if level is None:
        return default
    if not least <= level <= most:
        raise ConfigurationError(
            f"compression_level={level}: compression_type {name!r} has levels {least} to {most}"
        )
    return level

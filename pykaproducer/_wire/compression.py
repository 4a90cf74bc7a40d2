"""Compressing the records of a batch, as Kafka's consumers and brokers read them.

One call compresses a whole batch, in C and without the GIL. A compressor may be used by several
threads at once. Types and levels are those that :mod:`pykaproducer.config` has let through.
"""

from __future__ import annotations

import functools
import threading
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import lz4.frame
import snappy

from pykaproducer._settings import COMPRESSION_LEVELS

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Compressor(Protocol):
    """One compression type at one level."""

    #: The type, as the lowest three bits of a batch's attributes.
    attribute: int

    def compress(self, records: Buffer) -> bytes:
        """The records of a batch, compressed."""


class Gzip:
    """Level 1 (fast) to 9 (small); 6 if none is given, as zlib has it."""

    attribute = 1

    def __init__(self, level: int = 6) -> None:
        self._level = level

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

    attribute = 2

    def compress(self, records: Buffer) -> bytes:
        view = memoryview(records).cast("B")
        pieces = [_XERIAL]
        for start in range(0, len(view), _XERIAL_BLOCK):
            block = snappy.compress(view[start : start + _XERIAL_BLOCK])
            pieces += (len(block).to_bytes(4, "big"), block)
        return b"".join(pieces)


class Lz4:
    """Level 1 (fast) to 12 (small); the fast one if none is given."""

    attribute = 3

    def __init__(self, level: int = 0) -> None:
        self._level = level

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

    attribute = 4

    def __init__(self, level: int = 3) -> None:
        # Here: the package is there only where this type is used.
        from zstandard import ZstdCompressor

        self._make: Callable[[], Any] = functools.partial(ZstdCompressor, level=level)
        # A context is made once for each thread: it must not be used by two at once, and making
        # one costs more than compressing a small batch.
        self._contexts = threading.local()

    def compress(self, records: Buffer) -> bytes:
        context = getattr(self._contexts, "context", None)
        if context is None:
            context = self._contexts.context = self._make()
        compressed: bytes = context.compress(records)
        return compressed


#: By name; the classes in the order of Kafka's numbers for them.
_TYPES: dict[str, Callable[..., Compressor]] = dict(
    zip(COMPRESSION_LEVELS, (Gzip, Snappy, Lz4, Zstd), strict=True)
)


def compressor(name: str | None, level: int | None = None) -> Compressor | None:
    """The compressor of a type, at its own default level if *level* is None; None for None."""
    if name is None:
        return None
    return _TYPES[name]() if level is None else _TYPES[name](level)

"""Compression of the records of a batch, in the formats that Kafka's consumers and brokers read.

One call compresses a whole batch, in C and without the GIL. Several threads may use a compressor at
once. :mod:`pykaproducer.config` has validated types and levels.

Each compressor imports its package when it is made, in the thread of a caller. Most producers need
none or one of them. Some packages have no wheel for every platform, and one that is missing must
not prevent the use of the others.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from pykaproducer._kernel import lacks_memory

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Compressor(Protocol):
    """One compression type at one level."""

    #: The type, as the lowest three bits of a batch's attributes.
    attribute: int

    def compress(self, records: Buffer) -> bytes:
        """Compress the records of a batch. Raises MemoryError, and other errors of the package."""


def _is_shortage(error: Exception) -> bool:
    """Return whether a codec's *error* means that there is no memory; it is known by its text."""
    return "alloc" in str(error).lower() or "memory" in str(error).lower()


class Gzip:
    """Gzip, level 1 (fast) to 9 (small). The default is 6, as in zlib."""

    attribute = 1

    def __init__(self, level: int = 6) -> None:
        self._level = level

    def compress(self, records: Buffer) -> bytes:
        return zlib.compress(records, self._level, wbits=31)


def _check_memory(size: int) -> None:
    """Raise MemoryError unless cramjam can allocate the room to compress *size* bytes.

    It would abort the process. It allocates by malloc(), and Python need not: without the GIL, it
    has an allocator of its own.
    """
    if lacks_memory(2 * size):
        raise MemoryError(f"out of memory: cannot compress {size:,} bytes")


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
            _check_memory(min(len(view) - start, _XERIAL_BLOCK))
            block = self._compress(view[start : start + _XERIAL_BLOCK])
            pieces += (len(block).to_bytes(4, "big"), block)
        return b"".join(pieces)


class Lz4:
    """LZ4, level 1 (fast) to 12 (small), by the package lz4. The default is the fast one."""

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
        try:
            return self._compress(records)
        except RuntimeError as error:
            if _is_shortage(error):
                raise MemoryError(str(error)) from error
            raise


#: The header of an LZ4 frame (LZ4 Frame Format 1.6.4) with independent blocks of at most 64 KiB and
#: without checksums: magic, flags, block size, and the second byte of the descriptor's xxHash-32.
_LZ4_HEADER = b"\x04\x22\x4d\x18" + b"\x60\x40" + b"\x82"
_LZ4_BLOCK = 64 * 1024
#: Set in the size of a block that is stored as it is.
_LZ4_STORED = 1 << 31
_LZ4_END = bytes(4)
#: The lowest level of LZ4's slower, high-compression mode.
_LZ4_HIGH = 3


class CramjamLz4:
    """The same frames as :class:`Lz4` writes, by cramjam: for platforms without a wheel of lz4.

    cramjam's own frames have linked blocks, which Kafka does not read. So with the fast levels this
    class compresses the blocks one by one, without the GIL, and writes the frame around them: the
    result is that of lz4, byte for byte. cramjam has the higher levels only in its frame
    compressor, which holds the GIL, for 64 KiB at a time.
    """

    attribute = 3

    def __init__(self, level: int = 0) -> None:
        from cramjam import lz4

        self._level = level
        self._compress_block: Callable[..., Any] = lz4.compress_block
        self._frame: Callable[..., Any] = lz4.Compressor

    def compress(self, records: Buffer) -> bytes:
        view = memoryview(records).cast("B")
        _check_memory(len(view))
        blocks = (view[start : start + _LZ4_BLOCK] for start in range(0, len(view), _LZ4_BLOCK))
        if self._level >= _LZ4_HIGH:
            frame = self._frame(level=self._level, content_checksum=False, block_linked=False)
            for block in blocks:
                frame.compress(bytes(block))  # it takes no other buffer
            return bytes(frame.finish())
        pieces: list[Any] = [_LZ4_HEADER]
        for block in blocks:
            made = self._compress_block(block, store_size=False)
            if len(made) < len(block):
                pieces += (len(made).to_bytes(4, "little"), made)
            else:
                pieces += ((len(block) | _LZ4_STORED).to_bytes(4, "little"), block)
        pieces.append(_LZ4_END)
        return b"".join(pieces)


def lz4_compressor(level: int = 0) -> Compressor:
    """Return an LZ4 compressor by the package lz4, or by cramjam where lz4 is not installed."""
    try:
        return Lz4(level)
    except ImportError:
        return CramjamLz4(level)


class Zstd:
    """Zstandard, level 1 (fast) to 22 (small), or negative (even faster). The default is 3."""

    attribute = 4

    def __init__(self, level: int = 3) -> None:
        from zstandard import ZstdCompressor, ZstdError

        self._error = ZstdError
        self._make: Callable[[], Any] = functools.partial(ZstdCompressor, level=level)
        # Each thread has its own context: two threads must not use one at once, and creating one
        # costs more than compressing a small batch.
        self._contexts = threading.local()

    def compress(self, records: Buffer) -> bytes:
        try:
            context = getattr(self._contexts, "context", None)
            if context is None:
                context = self._contexts.context = self._make()
            compressed: bytes = context.compress(records)
        except self._error as error:
            if _is_shortage(error):
                raise MemoryError(str(error)) from error
            raise
        return compressed


class Codec(NamedTuple):
    """One compression type. To add another, add its record to :data:`CODECS`."""

    #: Its name in ``compression_type``.
    name: str
    #: Kafka's number for it in a batch's attributes (lowest three bits).
    number: int
    #: The lowest and the highest level; None if it has no levels.
    levels: tuple[int, int] | None
    #: Creates a compressor, with a level if one is given.
    factory: Callable[..., Compressor]
    #: The modules of which it imports one, best first; none: Python itself has it.
    modules: tuple[str, ...] = ()
    #: The argument of ``pip install`` that installs the first of them.
    install: str = ""

    def is_installed(self) -> bool:
        """Return whether one of its modules can be imported."""
        return not self.modules or any(map(importlib.util.find_spec, self.modules))


#: Codecs by name, in the order of Kafka's numbers.
CODECS: Final = {
    codec.name: codec
    for codec in (
        Codec("gzip", Gzip.attribute, (1, 9), Gzip),
        Codec("snappy", Snappy.attribute, None, Snappy, ("snappy",), "python-snappy"),
        Codec("lz4", Lz4.attribute, (1, 12), lz4_compressor, ("lz4", "cramjam"), "lz4"),
        Codec("zstd", Zstd.attribute, (-131072, 22), Zstd, ("zstandard",), "pykaproducer[zstd]"),
    )
}


def compressor(name: str | None, level: int | None = None) -> Compressor | None:
    """Return a compressor of that type, at its default level if *level* is None; None for None."""
    if name is None:
        return None
    codec = CODECS[name]
    return codec.factory() if level is None else codec.factory(level)

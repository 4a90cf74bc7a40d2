"""The bytes of text files, as UTF-8: compression, other encodings, pipes, and ranges of bytes."""

from __future__ import annotations

import codecs
import io
import lzma
import select
import sys
import tempfile
from typing import Any, NoReturn

import pyarrow

from pykaproducer._load.names import SourceError
from pykaproducer._load.reader import FilePart

#: Bytes of text that are read at once.
BLOCK = 8 << 20
#: Maximum length of a line of JSON, or of a row of CSV (bytes).
_LONGEST = 128 << 20
_CHUNK = 1 << 20

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: How compressed data begins, and the suffixes of such files.
_COMPRESSED = {
    b"\x1f\x8b\x08": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"\x04\x22\x4d\x18": ".lz4",
    b"\xfd7zXZ\0": ".xz",
}


class Pipe:
    """A pipe, a device or standard input (``-``), which is read once, or twice from its beginning.

    Bytes read through :meth:`first` are kept in an unnamed temporary file for :meth:`second`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._kept: Any = None
        self._file: Any = None

    def first(self) -> io.RawIOBase:
        """Return a stream whose bytes are kept."""
        name = 0 if self._path == "-" else self._path
        self._file = io.FileIO(name, closefd=name != 0)
        self._kept = tempfile.TemporaryFile()  # noqa: SIM115
        return _PipeStream(self._file, self._kept, keep=True)

    def second(self) -> io.RawIOBase:
        """Return a stream of what was kept, and the rest."""
        if self._kept is None:
            raise SourceError(f"{self._path}: a pipe can be read only once; save it to a file")
        kept, self._kept = self._kept, None
        kept.seek(0)
        return _PipeStream(self._file, kept, keep=False)

    def close_after(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Close it if the first pass has ended with an error. A callback for an ``ExitStack``."""
        if error_type is not None:
            self._file.close()
            self._kept.close()

    def __reduce__(self) -> NoReturn:
        raise SourceError(f"{self._path}: a pipe can only be read without --spark")


class _PipeStream(io.RawIOBase):
    def __init__(self, file: Any, kept: Any, *, keep: bool) -> None:
        self._file = file
        self._kept = kept
        self._keep = keep

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._keep and (count := self._kept.readinto(buffer)):
            return int(count)
        # Take what is there, but do not wait for more: somebody may be typing.
        count = self._file.readinto(buffer)
        while 0 < count < len(buffer) and select.select([self._file], [], [], 0)[0]:
            more = self._file.readinto(memoryview(buffer)[count:])
            if not more:
                break
            count += more
        if self._keep:
            self._kept.write(memoryview(buffer)[:count])
        return int(count)

    def tell(self) -> int:
        return 0

    def close(self) -> None:
        if not self._keep and not self.closed:
            self._file.close()
            self._kept.close()
        super().close()


class Range(io.RawIOBase):
    """The lines of a file that begin in a range of its bytes."""

    def __init__(self, file: Any, part: FilePart) -> None:
        self._file = file
        self._stop = sys.maxsize if part.stop is None else part.stop
        self._at = max(part.start - 1, 0)
        self._done = False
        file.seek(self._at)
        if part.start:
            self._skip_line()

    def _skip_line(self) -> None:
        """Skip the line that begins before the range."""
        while data := self._file.read(1 << 16):
            found = data.find(b"\n")
            self._at += len(data) if found < 0 else found + 1
            if found >= 0:
                break
        self._file.seek(self._at)
        self._done = self._at >= self._stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._done:
            return 0
        count: int = self._file.readinto(buffer)
        begin = self._at
        self._at += count
        if self._at >= self._stop:
            end = bytes(buffer[:count]).find(b"\n", max(self._stop - 1 - begin, 0))
            if end >= 0:
                self._done = True
                return end + 1
        return count


class _Xz(io.RawIOBase):
    """A stream that is decompressed. (``lzma.LZMAFile`` ignores what follows an .xz stream.)"""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._decoder: Any = None
        self._data = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._decoder is None or self._decoder.needs_input:
                self._data = self._data or self._file.read(_CHUNK)
                if not self._data and self._decoder is None:
                    return 0
                if not self._data:
                    raise EOFError("Truncated compressed stream")
            self._decoder = self._decoder or lzma.LZMADecompressor(lzma.FORMAT_XZ)
            found = self._decoder.decompress(self._data, len(buffer))
            self._data = b""
            if self._decoder.eof:
                self._data = self._decoder.unused_data
                self._decoder = None
            if found:
                buffer[: len(found)] = found
                return len(found)


def decompressed(file: Any, compression: str | None) -> Any:
    """Return a stream of *file* without its compression. It is an error if the file is cut."""
    if compression is None:
        return file
    return _Xz(file) if compression == "xz" else pyarrow.CompressedInputStream(file, compression)


#: The exceptions for malformed compressed data. An OSError with an errno comes from the system.
CONTENT_ERRORS = (OSError, EOFError, lzma.LZMAError, pyarrow.ArrowException)


class Decoded(io.RawIOBase):
    """A stream of UTF-8 from another encoding."""

    def __init__(self, stream: Any, path: str, encoding: str) -> None:
        self._stream = stream
        self._path = path
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("strict")
        self._text = memoryview(b"")
        self._read = 0
        self._done = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._text and not self._done:
            data = self._stream.read(_CHUNK)
            self._read += len(data)
            self._done = not data
            try:
                self._text = memoryview(self._decoder.decode(data, self._done).encode())
            except UnicodeError as error:
                at = ""
                if isinstance(error, UnicodeDecodeError):
                    at = f" at byte {self._read - len(error.object) + error.start}"
                reason = getattr(error, "reason", error)
                raise SourceError(
                    f"{self._path}: not {self._encoding}{at}: {reason}; set another --encoding"
                ) from None
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count


def is_utf8(encoding: str) -> bool:
    """Return whether *encoding* is UTF-8; SourceError if it is unknown."""
    try:
        name = codecs.lookup(encoding).name
        io.TextIOWrapper(io.BytesIO(), encoding)  # refuses codecs that are not for text
    except (LookupError, ValueError):
        raise SourceError(f"unknown encoding {encoding!r}; for example utf-16, latin-1") from None
    return name == "utf-8"


class Blocks:
    """Blocks of whole lines: ``buffer[start:end]``. The user moves ``start`` on.

    Bytes not used when :meth:`advance` is called are at the beginning of the next block.

    Args:
        stream: the text.
        path (str): the file, for errors.
        carriage_returns (bool): a carriage return alone may end a line.
        marks (bool): the text may begin with a byte order mark.
        eager (bool): return what a pipe has; otherwise fill the block.
        at (int): where *stream* begins in the text, for errors.
    """

    def __init__(
        self,
        stream: Any,
        path: str,
        *,
        carriage_returns: bool,
        marks: bool,
        eager: bool,
        at: int = 0,
    ) -> None:
        self.buffer = bytearray(BLOCK + 1)
        self.start = self.end = 0
        #: Whether this is the last block.
        self.last = False
        self._filled = 0
        self._stream = stream
        self._path = path
        self._carriage_returns = carriage_returns
        self._marks = marks
        self._eager = eager
        self._at = at

    def advance(self) -> bool:
        """Read the next block; return whether there is one."""
        unused, rest = self.end - self.start, self._filled - self.start
        if self.start:
            self.buffer[:rest] = self.buffer[self.start : self._filled]
        self._at += self.start
        self.start, self.end, self._filled = 0, unused, rest
        # An unused row lacks its end. It is looked at again when twice as much is there.
        enough = max(2 * unused, 4 if self._marks else 1)
        if not self._eager:
            enough = len(self.buffer) - 1
        while not self.last:
            seen = max(self._filled - 1, 0)
            self._fill()
            self.end = self._cut(seen) or self.end
            if self.end and self._filled >= enough:
                break
        if self._marks:
            self._marks = False
            self._skip_mark()
        return self.end > self.start

    def _fill(self) -> None:
        if self._filled == len(self.buffer) - 1:
            if self._filled > _LONGEST:
                raise SourceError(
                    f"{self._path}: after byte {self._at:,} a line, or a cell in quotation marks, "
                    f"has more than {_LONGEST >> 20} MiB; is the format right, and is a quotation "
                    f"mark missing?"
                )
            self.buffer.extend(bytes(len(self.buffer)))
        with memoryview(self.buffer) as view:
            count = self._stream.readinto(view[self._filled : -1])
        self._filled += count
        if not count:
            self.last = True
            ends = b"\r\n" if self._carriage_returns else b"\n"
            if self._filled and self.buffer[self._filled - 1] not in ends:
                self.buffer[self._filled] = 10
                self._filled += 1

    def _cut(self, seen: int) -> int:
        """Return the end of the last whole line, of which something is new, or 0."""
        if self.last:
            return self._filled
        found = self.buffer.rfind(b"\n", seen, self._filled) + 1
        if not found and self._carriage_returns:
            # A line feed may follow the last byte.
            found = self.buffer.rfind(b"\r", seen, self._filled - 1) + 1
        return found

    def _skip_mark(self) -> None:
        """Skip the byte order mark of UTF-8, and refuse others, and what is not text."""
        for mark, suffix in _COMPRESSED.items():
            if self.buffer.startswith(mark, 0, self._filled):
                raise SourceError(
                    f"{self._path}: the file is compressed; give its name the suffix {suffix}, or "
                    f"decompress it"
                )
        for mark, encoding in _MARKS.items():
            if self.buffer.startswith(mark, 0, self._filled):
                raise SourceError(
                    f"{self._path}: the text is {encoding}; read it with --encoding {encoding}"
                )
        if self.buffer.startswith(codecs.BOM_UTF8, 0, self._filled):
            self.start = 3

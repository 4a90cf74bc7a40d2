"""Damaged files of every format: ``python -m tests.load.mutilate --files 20000``.

A file is a small valid one in which bits are flipped, or bytes cut, repeated, inserted or replaced.
``load`` must refuse it with one of its own errors, or read it; where a checksum covers the data,
the rows that it reads must be those of the original, and fewer only before an error.

Files are numbered, and read in a child process: see :mod:`tests._support.numbered`.
"""

from __future__ import annotations

import bz2
import collections
import datetime
import decimal
import gzip
import io
import lzma
import pathlib
import random
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import fastavro
import pyarrow
import zstandard
from pyarrow import ipc, orc, parquet

from tests._support import numbered
from tests.load.truth import REFUSALS, RowRefusedError, values


class Original(NamedTuple):
    """A valid file."""

    suffix: str
    content: bytes
    #: Whether a checksum covers all values, so that damage never changes one.
    is_checked: bool = False


def _table(rows: int = 40) -> pyarrow.Table:
    numbers = range(rows)
    return pyarrow.table(
        {
            "id": pyarrow.array(numbers, pyarrow.int64()),
            "name": [None if number % 7 == 3 else f"name{number % 5}" for number in numbers],
            "bytes": [bytes([number, 0, 255]) for number in numbers],
            "price": pyarrow.array(
                [decimal.Decimal(number).scaleb(-2) for number in numbers],
                pyarrow.decimal128(12, 2),
            ),
            "ratio": [number / 3 for number in numbers],
            "flag": [number % 2 == 0 for number in numbers],
            "day": [datetime.date(2024, 1, 1 + number % 28) for number in numbers],
            "at": pyarrow.array([number * 10**9 for number in numbers], pyarrow.timestamp("us")),
            "tags": [[f"t{each}" for each in range(number % 4)] for number in numbers],
            "inner": [{"x": number, "y": str(number)} for number in numbers],
        }
    )


def _parquet(**options: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(_table(), file, row_group_size=20, **options)
    return file.getvalue()


def _orc(**options: Any) -> bytes:
    file = io.BytesIO()
    orc.write_table(_table(), file, **options)
    return file.getvalue()


def _arrow(new: Callable[..., Any], **options: Any) -> bytes:
    file = io.BytesIO()
    table = _table()
    name = table.schema.get_field_index("name")
    table = table.set_column(name, "name", table.column(name).dictionary_encode())
    with new(file, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=20)
    return file.getvalue()


def _avro(codec: str) -> bytes:
    kinds = {
        "id": "long",
        "name": ["null", "string"],
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "tags": {"type": "array", "items": "string"},
        "map": {"type": "map", "values": "double"},
        "key": {"type": "string", "logicalType": "uuid"},
        "side": {"type": "enum", "name": "side", "symbols": ["LEFT", "RIGHT"]},
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    rows = [
        row
        | {"map": {"a": row["ratio"]}, "key": uuid.UUID(int=row["id"])}
        | {"side": "LEFT" if row["flag"] else "RIGHT"}
        | {"at": row["at"].replace(tzinfo=datetime.UTC)}
        for row in _table().to_pylist()
    ]
    schema = {"type": "record", "name": "row", "fields": fields}
    file = io.BytesIO()
    fastavro.writer(file, schema, rows, codec, sync_interval=500)
    return file.getvalue()


_CSV = b"id,name\r\n" + b"".join(
    f'{number},"a ""{number}"", \u20ac\nb"\r\n'.encode() for number in range(40)
)
_LINES = b"".join(
    f'{{"id":{number},"name":"\\u20ac {number}","list":[1.50,null,{{"a":true}}]}}\n'.encode()
    for number in range(40)
)


def _lz4(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    compressed: bytes = sink.getvalue().to_pybytes()
    return compressed


def originals() -> list[Original]:
    """Return a valid file of every kind."""
    found = [
        Original("parquet", _parquet()),
        # Pages with dictionaries, in both formats of pages.
        Original("parquet", _parquet(compression="none", data_page_version="2.0")),
        Original("parquet", _parquet(use_dictionary=False, compression="zstd")),
        Original("parquet", _parquet(write_page_checksum=True, compression="none")),
        Original("parquet", _parquet(use_deprecated_int96_timestamps=True, version="1.0")),
        Original("orc", _orc()),
        Original("orc", _orc(compression="zlib")),
        Original("arrow", _arrow(ipc.new_file)),
        Original("arrows", _arrow(ipc.new_stream)),
        Original("arrows", _arrow(ipc.new_stream, compression="lz4")),
        Original("avro", _avro("null")),
        Original("avro", _avro("deflate")),
    ]
    checked = zstandard.ZstdCompressor(write_checksum=True)
    for suffix, data in (("csv", _CSV), ("jsonl", _LINES)):
        found += [
            Original(suffix, data),
            Original(f"{suffix}.gz", gzip.compress(data, mtime=0), True),
            Original(f"{suffix}.bz2", bz2.compress(data), True),
            Original(f"{suffix}.xz", lzma.compress(data), True),
            Original(f"{suffix}.zst", checked.compress(data), True),
            Original(f"{suffix}.lz4", _lz4(data)),
        ]
    return found


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Return *content* with one to three kinds of damage."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        # The end has the metadata of Parquet, ORC and Arrow files.
        at = chance.randrange(len(data) + 1)
        if chance.random() < 0.3:
            at = max(len(data) - chance.randrange(400), 0)
        many = chance.choice((1, 2, 4, 8, 64, 1000))
        kind = chance.randrange(7)
        if kind <= 2:  # the most telling: the rest of the file stays in its place
            for place in {min(at, len(data) - 1)} if data else ():
                data[place] ^= 1 << chance.randrange(8)
        elif kind == 3:
            data[at : at + many] = chance.choice((bytes(many), b"\xff" * many))
        elif kind == 4:
            del data[at : at + chance.choice((many, len(data)))]
        elif kind == 5:
            data[at:at] = data[at : at + many]
        else:
            data[at:at] = chance.randbytes(many)
    return bytes(data)


class Damage:
    """Files that are damaged, and what came of them."""

    def __init__(self, directory: pathlib.Path, only: str | None = None) -> None:
        self.directory = directory
        self.counts: collections.Counter[str] = collections.Counter()
        self._originals = [each for each in originals() if only in (None, each.suffix)]
        self._rows: dict[int, list[bytes]] = {}

    def one(self, number: int) -> str:
        """Read the file of this number, and return the defect that it shows, or nothing."""
        chance = random.Random(number)
        place = chance.randrange(len(self._originals))
        original = self._originals[place]
        content = damaged(original.content, chance)
        path = self.directory / f"x.{original.suffix}"
        path.write_bytes(content)
        self.counts[original.suffix] += 1
        try:
            found = values(str(path))
        except (*REFUSALS, RowRefusedError):
            self.counts["refused"] += 1
            return ""
        except Exception as error:
            return f"{original.suffix}: {type(error).__name__}: {error}"
        # Behind a whole file, another one of the same compression may follow.
        is_followed = content.startswith(original.content)
        if original.is_checked and not is_followed and found != self._rows_of(place):
            return f"{original.suffix}: other rows than the original's, though it has checksums"
        return ""

    def _rows_of(self, place: int) -> list[bytes]:
        if place not in self._rows:
            path = self.directory / f"original.{self._originals[place].suffix}"
            path.write_bytes(self._originals[place].content)
            self._rows[place] = values(str(path))
        return self._rows[place]


def damage_all(numbers: Iterator[int], only: str | None) -> bool:
    """Read the files of these numbers, print their defects, and return whether there are any."""
    defects = 0
    with tempfile.TemporaryDirectory() as directory:
        damage = Damage(pathlib.Path(directory), only)
        for number in numbers:
            defect = damage.one(number)
            if defect:
                defects += 1
                print(f"{number}: {defect}", flush=True)
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(damage.counts.items()))
        print(counts, flush=True)
    return defects > 0


def main() -> int:
    """Read the files, and return the exit status."""
    return numbered.main(
        "tests.load.mutilate",
        __doc__,
        damage_all,
        unit="files",
        total=20_000,
        kinds=sorted({each.suffix for each in originals()}),
    )


if __name__ == "__main__":
    raise SystemExit(main())

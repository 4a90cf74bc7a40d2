"""Readers of formats that contain the types of their columns: Parquet, ORC and Arrow IPC."""

from __future__ import annotations

import abc
import contextlib
import io
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pyarrow
from pyarrow import compute, fs, ipc, parquet, types

from pykaproducer._load import apart
from pykaproducer._load.encoders import is_list, plain_type
from pykaproducer._load.json_text import is_json
from pykaproducer._load.names import SourceError, is_stored
from pykaproducer._load.reader import WHOLE, FilePart, FileReader, Read, batch_of
from pykaproducer._load.stores import StoredFile

#: Maximum rows of a batch, and approximate bytes of its columns.
_ROWS = 65_536
_BYTES = 4 << 20
#: Approximate bytes of the pieces in which the column chunks of a Parquet file are read; of one in
#: a store, where each piece is a request of some 30 ms; and at least in one request.
_BUFFERS = 4 << 20
_STORED_BUFFERS = 64 << 20
_STORED_BUFFER = 1 << 20
#: Approximate memory for reading one column of Parquet in batches (bytes). A row group that takes
#: less is read as a whole, so many bytes of its columns at once.
_COLUMN = 5 << 19
_STEP = 1 << 20
#: VARIANT as the type of a field, an element or a value in the metadata of Spark.
_VARIANT = re.compile(rb'[tT]ype"\s*:\s*"variant"')
#: Types of the metadata of a VARIANT, by the schema of Arrow that a file may contain.
_BINARY = (pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary_view())
#: Maximum rows of an ORC file to read at once: it does not tell how much they are compressed.
_ORC_ROWS = 512


class _Columnar(FileReader):
    """A file whose rows are in groups, which are the units of its parts."""

    #: The name of a group, for errors.
    group: ClassVar[str]

    def _read_schema(self) -> Any:
        with self._open() as file:
            return self._schema_of(file)

    def _schema_of(self, file: Any) -> Any:
        fields = list(self._fields(file))
        for field in fields:
            _check_names(field)
        return pyarrow.schema(
            [
                # Metadata of JSON texts are the names of their members.
                field if is_json(field.type) else pyarrow.field(field.name, plain_type(field.type))
                for field in fields
            ]
        )

    def parts(self, size: int) -> list[FilePart]:
        if self.size <= size:
            return [WHOLE]
        with self.errors(), self._open() as file:
            groups = self._groups(file)
        found, start, row, rows, total = [], 0, 0, 0, 0
        for end, (more, size_of_group) in enumerate(groups, 1):
            rows += more
            total += size_of_group
            if total >= size or end == len(groups):
                found.append(FilePart(start, end, row))
                start, row, rows, total = end, row + rows, 0, 0
        return found or [WHOLE]

    def _read(self, schema: Any, part: FilePart) -> Iterator[Read]:
        row = part.first_row
        with self._open() as file:
            names = self._names(file, schema)
            reader = self._select(file, names)
            count = self._count(reader)
            for group in range(part.start, count if part.stop is None else part.stop):
                with self._damage(file, [group], names):
                    for batch, share in self._rows(reader, group, names, row):
                        row += batch.num_rows
                        yield Read(batch, int(self.size * (group + share) / count))

    def _names(self, file: Any, schema: Any) -> list[str]:
        """Return the columns to read. SourceError if the file is not what it was when opened."""
        self._check_unchanged(self._schema_of(file))
        there = set(self.schema.names)
        return [name for name in schema.names if name in there]

    @contextlib.contextmanager
    def _damage(self, file: Any, groups: Sequence[int], names: Sequence[str]) -> Iterator[None]:
        """Name the group, which is one of these, and the column in errors."""
        try:
            yield
        except (OSError, pyarrow.ArrowException) as error:
            self._raise_failures()
            if isinstance(error, OSError) and error.errno is not None:
                raise
            each = ((group, name) for group in groups for name in names)
            found = next((both for both in each if not self._is_readable(file, *both)), None)
            where = f"{found[0]}, column {found[1]}" if found else f"{groups[0]}"
            reason = str(error).strip()
            text = f"{self.path}: {self.group} {where}: {reason}; write the file again"
            raise SourceError(text) from error

    def _is_readable(self, file: Any, group: int, name: str) -> bool:
        try:
            for _ in self._rows(self._select(file, [name]), group, [name], 0):
                pass
        except (OSError, pyarrow.ArrowException, SourceError):
            return False
        return True

    def _check_rows(self, found: int, expected: int) -> None:
        """Raise SourceError if there are more or fewer rows than the file says."""
        if found != expected:
            text = f"there are {found} rows, but {expected} according to the metadata"
            raise SourceError(f"{self.path}: {text}; write the file again")

    def _file(self) -> Any:
        return _file(self.path, self._failures)

    @abc.abstractmethod
    def _open(self) -> Any:
        """Open the file, as a context manager."""

    @abc.abstractmethod
    def _fields(self, file: Any) -> Any:
        """Return the fields with the types that the file has."""

    def _select(self, file: Any, names: Sequence[str]) -> Any:
        """Return the file as a reader of these columns."""
        return file

    @abc.abstractmethod
    def _count(self, reader: Any) -> int:
        """Return the number of groups."""

    @abc.abstractmethod
    def _groups(self, file: Any) -> list[tuple[int, int]]:
        """Return the number of rows and the approximate size (bytes) of each group."""

    @abc.abstractmethod
    def _rows(
        self, reader: Any, group: int, names: Sequence[str], row: int
    ) -> Iterator[tuple[Any, float]]:
        """Yield batches of a group, whose first row is *row*, and the share read so far."""


def _file(path: str, failures: list[SourceError]) -> Any:
    """Return the file for pyarrow, which opens those of this machine itself."""
    if not is_stored(path):
        return path
    return io.BufferedReader(StoredFile(path, failures), _STORED_BUFFER)


def _check_names(field: Any) -> None:
    """Raise UnicodeError if its name, or one within it, is not UTF-8."""
    _ = field.name  # decoded only now
    for place in range(field.type.num_fields):
        _check_names(field.type.field(place))


def _rows_at_once(rows: int, size: int, columns: int) -> int:
    """Return how many rows a batch should have, of *rows* that have *size* bytes."""
    # Each column of a batch has its own cost.
    return max(1, min(_ROWS, rows * (_BYTES + 1024 * columns) // max(size, 1)))


def _slices(batch: Any) -> Iterator[tuple[Any, float]]:
    """Yield a batch in small ones, and the share so far."""
    rows = batch.num_rows
    at_once = _rows_at_once(rows, _size(batch), batch.num_columns)
    # In equal parts, and not a few rows by themselves.
    at_once = -(-rows // max(1, round(rows / at_once)))
    for first in range(0, rows, at_once or 1):
        part = batch.slice(first, at_once)
        yield part, (first + part.num_rows) / rows


def _size(batch: Any) -> int:
    """Return the size of a batch when its dictionaries are decoded (bytes)."""
    size = int(batch.nbytes)
    for place, kind in enumerate(batch.schema.types):
        if types.is_dictionary(kind) and not types.is_primitive(kind.value_type):
            array = batch.column(place)
            cells = compute.binary_length(array.dictionary).take(array.indices)
            size += int(compute.sum(cells).as_py() or 0) + 8 * len(array) - int(array.nbytes)
    return size


# Parquet -----------------------------------------------------------------------------------------


class ParquetReader(_Columnar):
    """A Parquet file.

    INT96 is read as Spark writes it, as instants in microseconds. pyarrow wraps values that the
    unit cannot represent and drops digits of nanoseconds, so they are looked for first.
    """

    advice = "is it a complete Parquet file? (for another format, use --format)"
    group = "row group"

    def _open(self, int96: str = "us", **options: Any) -> Any:
        return parquet.ParquetFile(
            self._file(),
            pre_buffer=False,
            coerce_int96_timestamp_unit=int96,
            page_checksum_verification=True,
            **options,
        )

    def _select(self, file: Any, names: Sequence[str], **options: Any) -> Any:
        # Column chunks are read in pieces, and repeated values once, whatever they are together.
        buffers = _STORED_BUFFERS if is_stored(self.path) else _BUFFERS
        size = max(buffers // max(len(file.schema), 1), 4096)
        return self._open(metadata=file.metadata, buffer_size=size, **options)

    def _fields(self, file: Any) -> Any:
        found = _annotated(file)
        self._int96 = {name for name, (_, has_int96) in found.items() if has_int96}
        return [
            field.with_type(found.get(field.name, [field.type])[0]) for field in file.schema_arrow
        ]

    def _names(self, file: Any, schema: Any) -> list[str]:
        names = super()._names(file, schema)
        if variants := _variants(file).intersection(names):
            raise SourceError(
                f"{self.path}: column {min(variants)} is a VARIANT, which load does not read; "
                f"select other columns, or write it as text, as by Spark's to_json()"
            )
        return names

    def _count(self, reader: Any) -> int:
        return int(reader.metadata.num_row_groups)

    def _groups(self, file: Any) -> list[tuple[int, int]]:
        groups = map(file.metadata.row_group, range(self._count(file)))
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def _rows(
        self, reader: Any, group: int, names: Sequence[str], row: int
    ) -> Iterator[tuple[Any, float]]:
        metadata = reader.metadata.row_group(group)
        if not names:
            yield batch_of(metadata.num_rows, [], []), 1
            return
        self._check_int96(reader, group, names, row)
        flat = _flat_bytes(reader, names).items()
        repeated = [name for name, place in flat if _is_repeated(reader, group, place)]
        if repeated:
            reader = self._select(reader, names, read_dictionary=repeated)
        done = 0
        for batch in _batches(reader, group, names):
            done += batch.num_rows
            yield batch, done / max(metadata.num_rows, done)
        self._check_rows(done, metadata.num_rows)

    def _check_int96(self, reader: Any, group: int, names: Sequence[str], row: int) -> None:
        """Raise SourceError if microseconds do not represent a timestamp of INT96 exactly."""
        columns = [name for name in names if name in self._int96]
        if not columns:
            return
        with self._open("s") as coarse, self._open("ns") as fine:
            batches = [each.iter_batches(_ROWS, [group], columns) for each in (coarse, fine)]
            for pair in zip(*batches, strict=True):
                for name in columns:
                    leaves = [_timestamps(batch.column(name)) for batch in pair]
                    for seconds, nanoseconds in zip(*leaves, strict=True):
                        problem = _int96_problem(seconds, nanoseconds)
                        if problem is not None:
                            place, reason = problem
                            is_flat = types.is_timestamp(pair[0].column(name).type)
                            where = f"row {row + place}" if is_flat else f"rows from {row}"
                            raise SourceError(f"{self.path}: {where}, column {name}: {reason}")
                row += pair[0].num_rows


def _batches(reader: Any, group: int, names: Sequence[str]) -> Iterator[Any]:
    metadata = reader.metadata.row_group(group)
    size = metadata.total_byte_size
    if size > len(names) * _COLUMN:
        at_once = _rows_at_once(metadata.num_rows, size, len(names))
        for batch in reader.iter_batches(at_once, [group], names):
            yield from (part for part, _ in _slices(batch))
        return
    # Reading columns together needs more memory than the group has in it.
    columns: dict[str, Any] = {}
    some = max(1, len(names) * _STEP // max(size, 1))
    for start in range(0, len(names), some):
        wanted = names[start : start + some]
        table = reader.read_row_group(group, wanted, use_threads=False)
        # With a column a.b comes the field b of a column a.
        columns |= {name: table[name] for name in wanted}
    batches = pyarrow.table(columns).to_batches()
    *slices, last = [part for batch in batches for part, _ in _slices(batch)] or [None]
    yield from slices
    if last is not None:
        # A copy, as the slice is still in use, and would keep the group, while the next is read.
        yield pyarrow.concat_batches([last, last.slice(0, 0)])


def _flat_bytes(file: Any, names: Sequence[str]) -> dict[str, int]:
    """Return the indices of columns of text or bytes, not of nested ones, by name."""
    wanted = set(names)
    columns = enumerate(map(file.schema.column, range(len(file.schema))))
    return {
        column.name: place
        for place, column in columns
        if column.physical_type == "BYTE_ARRAY" and column.name == column.path in wanted
    }


def _is_repeated(file: Any, group: int, place: int) -> bool:
    """Return whether all values are in the dictionary, so that they are longer than they seem."""
    # column() ends the process if the metadata of the column chunk is encrypted or damaged. A
    # reader raises an error. The public iter_batches() cannot read 0 rows, which reads no page.
    next(file.reader.iter_batches(0, [group], [place], False), None)
    chunk = file.metadata.row_group(group).column(place)
    if not chunk.has_dictionary_page:
        return False
    rest = chunk.total_compressed_size - (chunk.data_page_offset - chunk.dictionary_page_offset)
    return bool(rest <= 4 * chunk.num_values)


def _annotated(file: Any) -> dict[str, tuple[Any, bool]]:
    """Return the types of columns that contain INT96, as instants, or ENUM, as text.

    The flag tells whether it is INT96.
    """
    columns = map(file.schema.column, range(len(file.schema)))
    kinds = iter([_kind(column) for column in columns])
    found = {}
    for field in file.schema_arrow:
        inside = list(itertools.islice(kinds, _leaves(field.type)))
        if any(kind is not None for kind in inside):
            has_int96 = any(map(types.is_timestamp, filter(None, inside)))
            found[field.name] = _with_leaves(field.type, iter(inside)), has_int96
    return found


def _variants(file: Any) -> set[str]:
    """Return the columns that contain VARIANT, a group whose annotation pyarrow only prints.

    Spark 4.0 does not annotate it, but names the type in its own metadata.
    """
    found = {field.name for field in file.schema_arrow if _is_like_a_variant(field.type)}
    spark = (file.metadata.metadata or {}).get(b"org.apache.spark.sql.parquet.row.metadata", b"")
    if found and (" (Variant" in str(file.schema) or _VARIANT.search(spark)):
        return found
    return set()


def _is_like_a_variant(kind: Any) -> bool:
    kind = _storage(kind)
    inside = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
    has_value = not inside.keys().isdisjoint(("value", "typed_value"))
    if has_value and inside.get("metadata") in _BINARY:
        return True
    return any(map(_is_like_a_variant, inside.values()))


def _kind(column: Any) -> Any:
    """Return the type of a leaf that pyarrow reads as a less specific one, or None."""
    if column.physical_type == "INT96":
        return pyarrow.timestamp("us", "UTC")
    return pyarrow.string() if column.logical_type.type == "ENUM" else None


def _storage(kind: Any) -> Any:
    """Return the type that an extension type has in the file, if that is nested."""
    storage = getattr(kind, "storage_type", kind)
    return storage if types.is_nested(storage) else kind


def _leaves(kind: Any) -> int:
    kind = _storage(kind)
    nested = types.is_nested(kind)
    return sum(_leaves(kind.field(place).type) for place in range(kind.num_fields)) if nested else 1


def _with_leaves(kind: Any, leaves: Iterator[Any]) -> Any:
    """Return a type with these leaves; None: as it is."""
    kind = _storage(kind)
    if types.is_struct(kind):
        return pyarrow.struct([(field.name, _with_leaves(field.type, leaves)) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(
            _with_leaves(kind.key_type, leaves), _with_leaves(kind.item_type, leaves)
        )
    if is_list(kind):
        return pyarrow.large_list(_with_leaves(kind.value_type, leaves))
    leaf = next(leaves)
    return kind if leaf is None else leaf


def _timestamps(array: Any) -> Iterator[Any]:
    """Yield all values of each leaf of nested values that is a timestamp."""
    if types.is_timestamp(array.type):
        yield array
    elif types.is_struct(array.type):
        for child in array.flatten():
            yield from _timestamps(child)
    elif types.is_map(array.type):
        yield from _timestamps(array.keys)
        yield from _timestamps(array.items)
    elif is_list(array.type):
        yield from _timestamps(array.flatten())


#: The seconds that 64 bits of microseconds reach.
_SECONDS = (2**63 - 1) // 10**6


def _int96_problem(seconds: Any, nanoseconds: Any) -> tuple[int, str] | None:
    """Return where and why microseconds do not represent the same INT96 read in two units, or None.

    Nanoseconds wrap, but multiplying and subtracting wraps back.
    """
    if (seconds.type.unit, nanoseconds.type.unit) != ("s", "ns"):  # not INT96
        return None
    seconds, nanoseconds = (each.cast(pyarrow.int64()) for each in (seconds, nanoseconds))
    outside = compute.greater(compute.abs(seconds), _SECONDS - 1)
    rest = compute.subtract(nanoseconds, compute.multiply(seconds, 10**9))
    micros = compute.multiply(compute.divide(rest, 1000), 1000)
    for wrong, reason in (
        (outside, "an INT96 timestamp is outside the years of TIMESTAMP_MICROS; correct it"),
        (compute.not_equal(rest, micros), "INT96 with nanoseconds; write TIMESTAMP(NANOS) instead"),
    ):
        place = compute.index(wrong, True).as_py()
        if place >= 0:
            return place, reason
    return None


# ORC ---------------------------------------------------------------------------------------------


class OrcReader(_Columnar):
    """An ORC file."""

    advice = "is it a complete ORC file? (for another format, use --format)"
    group = "stripe"

    def _read(self, schema: Any, part: FilePart) -> Iterator[Read]:
        if part != WHOLE or not schema.names:
            yield from super()._read(schema, part)
            return
        with self._open() as file:
            names = self._names(file, schema)
            with self._damage(file, range(self._count(file)), names):
                rows, done = file.nrows, 0
                at_once = min(_ORC_ROWS, _rows_at_once(rows, self.size, len(names)))
                for batch in _batches_apart(_orc_batches, self._absolute(), names, at_once):
                    for rows_of_it, _ in _slices(batch):
                        done += rows_of_it.num_rows
                        yield Read(rows_of_it, self.size * done // max(rows, done))
                self._check_rows(done, rows)

    def _names(self, file: Any, schema: Any) -> list[str]:
        names = super()._names(file, schema)
        nested = tuple(f"{each.name}." for each in self.schema if types.is_nested(each.type))
        for name in names:
            if name.startswith(nested):
                text = f"column {name} may be taken for a field of another column; rename it"
                raise SourceError(f"{self.path}: {text}")
        return names

    def _open(self) -> Any:
        from pyarrow import orc  # some builds of pyarrow lack ORC

        return contextlib.nullcontext(orc.ORCFile(self._file()))

    def _fields(self, file: Any) -> Any:
        return file.schema

    def _count(self, reader: Any) -> int:
        return int(reader.nstripes)

    def _groups(self, file: Any) -> list[tuple[int, int]]:
        # ORC tells the rows of a stripe only by reading a column.
        names = sorted(self.schema, key=lambda field: not types.is_primitive(field.type))
        first = [field.name for field in names[:1]]
        count = self._count(file)
        size = self.size // max(count, 1)
        path = self._absolute()
        rows = [sum(apart.each(_orc_rows, path, stripe, first)) for stripe in range(count)]
        self._check_rows(sum(rows), file.nrows)
        return [(each, size) for each in rows]

    def _absolute(self) -> str:
        # The other process may be in another directory.
        return self.path if is_stored(self.path) else os.path.abspath(self.path)

    def _rows(
        self, reader: Any, group: int, names: Sequence[str], row: int
    ) -> Iterator[tuple[Any, float]]:
        names = names or self.schema.names[:1]
        for batch in _batches_apart(_orc_stripe, self._absolute(), group, names):
            yield from _slices(batch)


@contextlib.contextmanager
def _orc_file(path: str) -> Iterator[Any]:
    """Return the file, for the process that reads ORC: see :mod:`pykaproducer._load.apart`."""
    failures: list[SourceError] = []
    try:
        yield _file(path, failures)
    except (OSError, pyarrow.ArrowException):
        if failures:
            raise failures[0] from None
        raise


def _batches_apart(function: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
    """Yield the batches that *function* yields in another process."""
    found = apart.each(_serialized, function, *arguments)
    for schema in found:
        for content in found:
            yield ipc.read_record_batch(pyarrow.py_buffer(content), schema)


def _serialized(function: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
    """Yield the schema of the batches, and their bytes: a pickled batch takes twice the time."""
    for number, batch in enumerate(function(*arguments)):
        if not number:
            yield batch.schema
        yield batch.serialize().to_pybytes()


def _orc_batches(path: str, names: Sequence[str], at_once: int) -> Iterator[Any]:
    """Yield the batches of a file, reading less than a stripe at a time."""
    from pyarrow import dataset  # takes 46 MB

    with _orc_file(path) as file:
        fragment = dataset.OrcFileFormat().make_fragment(file, fs.LocalFileSystem())
        yield from fragment.to_batches(
            columns=names, batch_size=at_once, batch_readahead=1, use_threads=False
        )


def _orc_stripe(path: str, stripe: int, names: Sequence[str]) -> Iterator[Any]:
    """Yield the batch of a stripe. An ORCFile keeps the memory of all that it has read."""
    from pyarrow import orc

    with _orc_file(path) as file:
        yield orc.ORCFile(file).read_stripe(stripe, names)


def _orc_rows(path: str, stripe: int, names: Sequence[str]) -> Iterator[int]:
    """Yield the number of rows of a stripe, by reading these columns."""
    yield sum(batch.num_rows for batch in _orc_stripe(path, stripe, names))


# Arrow -------------------------------------------------------------------------------------------

_MAGIC = b"ARROW1\0\0"
_FEATHER_1 = b"FEA1"
#: The mark at the end of a stream; before Arrow 0.15 without its first half.
_END = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowReader(_Columnar):
    """An Arrow IPC file (which Feather version 2 is), or an Arrow IPC stream, a single group.

    The length and the offsets of columns are checked, because invalid ones crash the process.
    """

    advice = "is it a complete Arrow file or stream? (for another format, use --format)"
    group = "record batch"

    def _open(self) -> Any:
        file = self._file()
        return pyarrow.OSFile(file) if isinstance(file, str) else file

    def _select(self, file: Any, names: Sequence[str]) -> Any:
        file.seek(0)
        start = file.read(len(_MAGIC))
        if start.startswith(_FEATHER_1):
            raise SourceError(f"{self.path}: Feather version 1; write it as version 2")
        places = {name: place for place, name in enumerate(self.schema.names)} if names else {}
        options = ipc.IpcReadOptions(included_fields=[places[name] for name in names])
        if start == _MAGIC:
            return file, ipc.open_file(file, options=options)
        file.seek(0)
        return file, ipc.open_stream(file, options=options)

    def _fields(self, file: Any) -> Any:
        return self._select(file, [])[1].schema

    def _count(self, reader: Any) -> int:
        return getattr(reader[1], "num_record_batches", 1)

    def _groups(self, file: Any) -> list[tuple[int, int]]:
        reader = self._select(file, self.schema.names[:1])
        count = self._count(reader)
        if count == 1:
            return [(0, self.size)]
        size = self.size // max(count, 1)
        return [(reader[1].get_batch(group).num_rows, size) for group in range(count)]

    def _rows(
        self, reader: Any, group: int, names: Sequence[str], row: int
    ) -> Iterator[tuple[Any, float]]:
        file, batches = reader
        if hasattr(batches, "get_batch"):
            yield from _slices(self._checked(batches.get_batch(group), group))
            return
        for number, batch in enumerate(batches):
            for part, _ in _slices(self._checked(batch, number)):
                yield part, file.tell() / self.size
        self._check_end(file)

    def _checked(self, batch: Any, group: int) -> Any:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except pyarrow.ArrowInvalid as error:
                where = f"{self.path}: {self.group} {group}, column {name}"
                raise SourceError(f"{where}: {error}; write the file again") from None
        return batch

    def _check_end(self, file: Any) -> None:
        """Raise SourceError if the stream was cut between two batches, or another follows."""
        end = file.tell()
        file.seek(0)
        mark = _END if file.read(4) == _END[:4] else _END[4:]
        file.seek(max(end - len(mark), 0))
        if end != self.size or file.read() != mark:
            raise SourceError(
                f"{self.path}: byte {end}: the stream has no end mark, or something follows it; "
                f"write the file again, as one stream"
            )

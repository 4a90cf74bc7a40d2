"""Files compared cell by cell with another implementation: ``python -m tests.load.truth PATH...``.

The messages that ``pykaproducer load`` makes of a file, ``json(*)`` of each row, are compared with
the rows that another reader finds: DuckDB for Parquet, fastavro for Avro, and for ORC those that
stand beside it in ``expected/NAME.jsn.gz``, as in ``examples`` of ``apache/orc``. A file that is
refused counts as refused, with the error's text; a cell that differs, and an exception that is not
one of ``load``'s own, as a defect. Directories are searched for files of these formats.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import decimal
import gzip
import json
import math
import pathlib
import re
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow
from pyarrow import orc, types

from pykaproducer._load.select import Selection, SelectionError
from pykaproducer._load.sources import LoadSource, Options, SourceError, open_source

#: The errors of a source that is refused.
REFUSALS = (SourceError, SelectionError)
#: Differing cells that are described.
_SHOWN = 3


class RowRefusedError(Exception):
    """A row was read, but cannot be encoded."""


@dataclass
class Compared:
    """The comparison of one file."""

    #: Cells that are equal.
    cells: int = 0
    #: Why the file is refused, if it is.
    refused: str = ""
    #: Why the other reader refuses it, if it does.
    refused_there: str = ""
    #: Cells that are not equal.
    different: list[str] = field(default_factory=list)


def values(*names: str, select: str = "value=json(*)", **options: Any) -> list[bytes]:
    """Return the value of each message that ``load`` makes of files.

    Raises:
        SourceError, SelectionError: they are refused.
        RowRefusedError: a row is.
    """
    return list(_values(open_source(names, Options(**options)), select))


def _values(source: LoadSource, select: str) -> Iterator[bytes]:
    mapping = Selection.parse(select).bind(source.schema)
    for part in source.batches(mapping.columns):
        found, _, refused = mapping(part.batch)
        if refused:
            raise RowRefusedError(str(refused[0][1])) from refused[0][1]
        yield from found.column("value").to_pylist()


def parsed(value: bytes) -> Any:
    """Return a message's value; floats as decimal numbers, with all their digits."""
    return json.loads(value, parse_float=decimal.Decimal)


# The cells of Arrow data, which DuckDB makes ------------------------------------------------------


def same(cell: Any, found: Any) -> bool:
    """Return whether JSON *found* represents *cell*, a ``pyarrow.Scalar``."""
    kind = cell.type
    if isinstance(cell, pyarrow.ExtensionScalar):
        if str(getattr(kind, "extension_name", "")) == "arrow.uuid" and cell.is_valid:
            return bool(found == str(uuid.UUID(bytes=cell.value.as_py())))
        if str(getattr(kind, "extension_name", "")) == "arrow.json" and cell.is_valid:
            return bool(found == parsed(cell.value.as_py().encode()))
        return same(cell.value, found)
    if not cell.is_valid:
        return found is None
    if types.is_struct(kind):
        names = [each.name for each in kind]
        return list(found) == names and all(
            same(cell[place], found[name]) for place, name in enumerate(names)
        )
    if types.is_map(kind):
        keys, items = cell.values.field(0), cell.values.field(1)
        return list(found) == [_key(key) for key in keys] and all(
            same(item, each) for item, each in zip(items, found.values(), strict=True)
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return len(found) == len(cell.values) and all(
            same(item, each) for item, each in zip(cell.values, found, strict=True)
        )
    if types.is_dictionary(kind):
        return bool(found == cell.as_py())
    return _same_leaf(cell, kind, found)


def _same_leaf(cell: Any, kind: Any, found: Any) -> bool:
    if types.is_floating(kind):
        value = cell.as_py()
        if not math.isfinite(value):
            return found is None
        code = {16: "e", 32: "f", 64: "d"}[kind.bit_width]
        return struct.pack(code, float(found)) == struct.pack(code, value)
    if types.is_timestamp(kind):
        return instant(found) == cell.value * _NANOSECONDS[kind.unit]
    if types.is_time(kind):
        return instant(f"1970-01-01T{found}") == cell.value * _NANOSECONDS[kind.unit]
    if types.is_date(kind):
        return instant(f"{found}T00:00:00") == cell.value * (86_400 * 10**9)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return bool(found == base64.b64encode(cell.as_py()).decode())
    if types.is_interval(kind):
        months, days, nanoseconds = cell.as_py()
        seconds = f"{decimal.Decimal(nanoseconds).scaleb(-9):.9f}"
        return bool(found == f"P{months}M{days}DT{seconds}S")
    value = cell.as_py()
    # A boolean is no number, and text is none either.
    return type(found) in _ALIKE.get(type(value), (type(value),)) and bool(found == value)


_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_ALIKE = {decimal.Decimal: (decimal.Decimal, int), int: (int, decimal.Decimal)}
_TIME = re.compile(r"(-?\d+)-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?Z?")


def instant(text: str) -> int:
    """Return the nanoseconds from 1970 to a time in ISO 8601."""
    found = _TIME.fullmatch(text)
    assert found is not None, text
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    days = datetime.date(year, month, day).toordinal() - datetime.date(1970, 1, 1).toordinal()
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    return seconds * 10**9 + int((found[7] or "").ljust(9, "0"))


def _key(cell: Any) -> str:
    value = cell.as_py()
    return value if isinstance(value, str) else str(value)


# The comparison ----------------------------------------------------------------------------------


def _of_load(path: pathlib.Path, kind: str) -> tuple[Compared, list[Any]]:
    """Return the messages that ``load`` makes of a file of this format, or why it is refused."""
    result = Compared()
    try:
        return result, [parsed(value) for value in values(str(path), format=kind)]
    except (*REFUSALS, RowRefusedError) as error:
        result.refused = str(error)
        return result, []


def with_duckdb(path: pathlib.Path) -> Compared:
    """Compare a Parquet file with what DuckDB reads."""
    import duckdb  # only to test

    result, ours = _of_load(path, "parquet")
    try:
        with duckdb.connect() as connection:
            query = "select * from read_parquet(?, hive_partitioning=false)"
            table = connection.sql(query, params=[str(path)]).to_arrow_table()
    except duckdb.Error as error:
        result.refused_there = str(error)
        return result
    if result.refused:
        return result
    return _compare(result, table.column_names, table.columns, ours, table.num_rows)


def _compare(
    result: Compared, names: list[str], columns: list[Any], ours: list[Any], rows: int
) -> Compared:
    if rows != len(ours):
        result.different.append(f"{rows} rows, but {len(ours)} messages")
        return result
    for name, column in zip(names, columns, strict=True):
        for row, (cell, found) in enumerate(zip(column, ours, strict=True)):
            if name in found and same(cell, found[name]):
                result.cells += 1
            else:
                text = f"row {row}, column {name}: {cell!r}, but {found.get(name)!r}"
                result.different.append(text)
    extra = set(ours[0]) - set(names) if ours else set()
    result.different += [f"column {name} is in the messages alone" for name in extra]
    return result


def with_fastavro(path: pathlib.Path) -> Compared:
    """Compare an Avro file with what fastavro reads."""
    result, ours = _of_load(path, "avro")
    if result.refused:
        return result
    with path.open("rb") as file:
        rows = list(fastavro.reader(file))
    if len(rows) != len(ours):
        result.different.append(f"{len(rows)} rows, but {len(ours)} messages")
        return result
    for number, (row, found) in enumerate(zip(rows, ours, strict=True)):
        for name, value in row.items():
            if same_value(value, found.get(name)):
                result.cells += 1
            else:
                text = f"row {number}, column {name}: {value!r}, but {found.get(name)!r}"
                result.different.append(text)
    return result


def same_value(value: Any, found: Any) -> bool:
    """Return whether JSON *found* represents a value that fastavro made."""
    if isinstance(found, dict) and "member0" in found:  # a union of several types
        there = [each for each in found.values() if each is not None]
        return len(there) <= 1 and same_value(value, there[0] if there else None)
    if isinstance(value, dict):
        return list(value) == list(found) and all(
            same_value(each, found[name]) for name, each in value.items()
        )
    if isinstance(value, list):
        return len(value) == len(found) and all(map(same_value, value, found))
    if isinstance(value, bytes):
        return bool(found == base64.b64encode(value).decode())
    if isinstance(value, datetime.datetime):
        return instant(found) == instant(value.replace(tzinfo=None).isoformat())
    if isinstance(value, datetime.date | uuid.UUID):
        return bool(found == str(value))
    if isinstance(value, float):
        return math.isclose(float(found), value, rel_tol=1e-7)  # of 32 bits, or of 64
    return type(found) in _ALIKE.get(type(value), (type(value),)) and bool(found == value)


def with_expected(path: pathlib.Path) -> Compared:
    """Compare an ORC file with the rows that its project publishes."""
    result, ours = _of_load(path, "orc")
    if result.refused:
        return result
    published = path.parent / "expected" / f"{path.stem}.jsn.gz"
    if not published.exists():
        result.refused_there = "no rows are published for it"
        return result
    with gzip.open(published) as file:
        rows = [parsed(line) for line in file]
    schema = orc.ORCFile(path).schema
    if len(rows) != len(ours):
        result.different.append(f"{len(rows)} rows, but {len(ours)} messages")
        return result
    for number, (row, found) in enumerate(zip(rows, ours, strict=True)):
        if not isinstance(row, dict):  # a file with a single column
            row = dict.fromkeys(schema.names, row)
        for field_ in schema:
            if same_orc(field_.type, row[field_.name], found[field_.name]):
                result.cells += 1
            else:
                text = f"{row[field_.name]!r}, but {found[field_.name]!r}"
                result.different.append(f"row {number}, column {field_.name}: {text}")
    return result


def same_orc(kind: Any, value: Any, found: Any) -> bool:
    """Return whether JSON *found* represents a value as ORC's tools print it."""
    if value is None or found is None:
        return value is found
    if types.is_struct(kind):
        names = [each.name for each in kind]
        return list(value) == list(found) == names and all(
            same_orc(each.type, value[each.name], found[each.name]) for each in kind
        )
    if types.is_map(kind):
        return {str(each["key"]) for each in value} == set(found) and all(
            same_orc(kind.item_type, each["value"], found[str(each["key"])]) for each in value
        )
    if types.is_list(kind):
        return len(value) == len(found) and all(
            same_orc(kind.value_type, *pair) for pair in zip(value, found, strict=True)
        )
    if types.is_binary(kind):
        return bool(found == base64.b64encode(bytes(map(int, value))).decode())
    if types.is_timestamp(kind):
        return instant(found) == instant(value.replace(" ", "T"))
    if types.is_floating(kind):  # printed with 8 or 15 digits
        return math.isclose(found, value, rel_tol=1e-6 if kind.bit_width == 32 else 1e-13)
    return bool(found == value)


def _with(path: pathlib.Path) -> Compared:
    if path.suffix == ".avro":
        return with_fastavro(path)
    return with_expected(path) if path.suffix == ".orc" else with_duckdb(path)


def main() -> int:
    """Compare the files, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.load.truth", description=__doc__)
    parser.add_argument("paths", nargs="+", type=pathlib.Path, metavar="PATH")
    files = [
        file
        for path in parser.parse_args().paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.is_file() and (".parq" in file.name or file.suffix in (".avro", ".orc"))
    ]
    cells = refused = defects = 0
    for file in files:
        try:
            found = _with(file)
        except Exception as error:
            found = Compared(different=[f"{type(error).__name__}: {error}"])
        cells += found.cells
        refused += bool(found.refused)
        defects += bool(found.different)
        there = " by both" if found.refused_there else ""
        if found.refused:
            print(f"{file}: refused{there}: {found.refused}")
        elif found.refused_there:
            print(f"{file}: read, and not compared: {found.refused_there}")
        for text in found.different[:_SHOWN]:
            print(f"{file}: DIFFERENT: {text}")
    print(f"{len(files)} files, {cells:,} cells equal, {refused} refused, {defects} with defects")
    return 1 if defects else 0


if __name__ == "__main__":
    raise SystemExit(main())

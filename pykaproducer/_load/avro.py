"""Encoding of Arrow rows as Avro: one bare record each, without a schema registry header.

The encoder (fastavro) silently accepts some values that do not fit: it truncates 3.7 to the long 3,
writes a null boolean as false and an int with more than 32 bits, and assumes the local time zone
for a time without one. Each column is therefore first cast to the type that the schema implies,
which either loses nothing or fails. Times without a time zone are taken as UTC.
"""

from __future__ import annotations

import functools
import io
import json
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow
from pyarrow import types

from pykaproducer._load import compute
from pykaproducer._load.avro_values import avro_value
from pykaproducer._load.encoders import (
    ROW_ERRORS,
    Array,
    Encoded,
    EncodingError,
    MissingPackageError,
    decimal_type,
    is_bytes,
    is_list,
    is_text,
    plain,
    plain_type,
    spelt,
)
from pykaproducer._load.json_text import is_json, parsed

_WRITE_ERRORS = (*ROW_ERRORS, AttributeError, struct.error)

#: Steps from a column to a nested value: the index of a struct's field, or None for the elements
#: of a list or the values of a map.
_Way = tuple[int | None, ...]


class Check(NamedTuple):
    """A constraint on a field's values whose violation pyarrow and fastavro report unclearly."""

    way: _Way
    #: The field, as "place.x".
    name: str
    #: The schema's type.
    wanted: str
    #: The symbols of an enum; None: the values must not be null.
    symbols: tuple[str, ...] | None = None

    def __call__(self, column: Array) -> None:
        """Raise EncodingError if a value is not allowed."""
        values = _at(column, self.way)
        if self.symbols is None:
            if values.null_count:
                raise EncodingError(f"{self.name}: null where the schema has {self.wanted}")
            return
        values = values.drop_null()
        is_symbol = compute.is_in(values, pyarrow.array(self.symbols, values.type))
        for wrong in values.filter(compute.invert(is_symbol)).slice(0, 1).to_pylist():
            raise EncodingError(f"{self.name}: {wrong!r} is not a symbol of {self.wanted}")


class Plan(NamedTuple):
    """How to convert columns to records of a schema."""

    #: The type to which each column is cast.
    kinds: tuple[Any, ...]
    #: The checks of each column.
    checks: tuple[tuple[Check, ...], ...]


@dataclass(frozen=True)
class AvroSchema:
    """The schema of a record as JSON text, which can be pickled."""

    text: str

    @staticmethod
    def load(given: str) -> AvroSchema:
        """Load the schema from *given*, which is JSON (``{...}``) or the name of a file.

        Raises:
            EncodingError: the schema cannot be read or is invalid.
        """
        text, where = given, "the Avro schema"
        if not given.lstrip().startswith("{"):
            where = os.fspath(given)
            try:
                with open(given, encoding="utf-8-sig") as file:
                    text = file.read()
            except (OSError, UnicodeError) as error:
                reason = getattr(error, "strerror", None) or error
                raise EncodingError(f"{given}: the Avro schema cannot be read: {reason}") from None
        schema = AvroSchema(text)
        schema.fields(where)
        return schema

    def fields(self, where: str = "the Avro schema") -> dict[str, bool]:
        """Return the names of the record's fields, and whether each is required."""
        avro = fastavro_module()
        try:
            parsed = _parsed(self.text)[0]
        except (
            *(ValueError, TypeError, LookupError, AttributeError),
            avro.schema.SchemaParseException,
            avro.schema.UnknownType,
        ) as error:
            raise EncodingError(f"{where} is invalid: {_said(error)}") from None
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise EncodingError(f"{where} is not the schema of a record")
        return _required(parsed["fields"])

    def plan(self, names: Sequence[str], kinds: Sequence[Any]) -> Plan:
        """Plan the encoding of columns of these types; EncodingError if one does not fit."""
        parsed, known = _parsed(self.text)
        fields = {field["name"]: field["type"] for field in parsed["fields"]}
        checks: list[tuple[Check, ...]] = []
        found = []
        for name, kind in zip(names, kinds, strict=True):
            needed: list[Check] = []
            found.append(_Fitting(known, needed).fit(kind, fields[name], name, ()))
            checks.append(tuple(needed))
        return Plan(tuple(found), tuple(checks))

    def encode(
        self, names: Sequence[str], plan: Plan, arrays: Sequence[Array], prefix: bytes = b""
    ) -> Encoded:
        """Encode a record for each row, after *prefix*.

        For errors that do not name a row, use :func:`by_row`.
        """
        columns = list(zip(names, arrays, plan.kinds, plan.checks, strict=True))
        typed = [each for each in columns if not is_json(each[2])]
        cast = [_cast(*each[:3]) for each in typed]
        for column, each in zip(cast, typed, strict=True):
            for check in each[3]:
                check(column)
        if typed:
            batch = pyarrow.RecordBatch.from_arrays(cast, [each[0] for each in typed])
            rows = batch.to_pylist(maps_as_pydicts="strict")
        else:
            rows = [{} for _ in range(len(arrays[0]))]
        failures: dict[int, Exception] = {}
        for name, array, kind, _ in columns:
            if is_json(kind):
                self._add_json(rows, name, array, failures)
        records = _written(_parsed(self.text)[0], rows, prefix, failures)
        return Encoded(pyarrow.array(records, pyarrow.large_binary()), failures)

    def _add_json(
        self, rows: list[dict[str, Any]], name: str, array: Array, failures: dict[int, Exception]
    ) -> None:
        """Add the values of a column of JSON texts."""
        schema, known = _parsed(self.text)
        kind = next(field["type"] for field in schema["fields"] if field["name"] == name)
        for row, cell in enumerate(array.storage.to_pylist()):
            try:
                rows[row][name] = avro_value(parsed(cell), kind, known, name)
            except ValueError as error:
                failures.setdefault(row, error)


def wire_prefix(schema_id: int | None) -> bytes:
    """Return what precedes a record in the wire format of schema registries; nothing for None."""
    return b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")


def _cast(name: str, array: Array, kind: Any) -> Array:
    try:
        return plain(array).cast(kind)
    except pyarrow.ArrowInvalid as error:
        raise EncodingError(f"{name}: {error}") from error


def _written(
    schema: Any, rows: Sequence[dict[str, Any]], prefix: bytes, failures: dict[int, Exception]
) -> list[bytes | None]:
    """Return the records, with None for the rows of *failures*, to which others are added."""
    write: Callable[..., None] = fastavro_module().schemaless_writer
    records: list[bytes | None] = []
    buffer = io.BytesIO(prefix)
    for number, row in enumerate(rows):
        if number in failures:
            records.append(None)
            continue
        buffer.seek(len(prefix))
        buffer.truncate()
        try:
            # Only JSON has tuples, which choose the branch of a union.
            write(buffer, schema, row, strict_allow_default=True)
        except _WRITE_ERRORS as error:
            failures[number] = error
            records.append(None)
        else:
            records.append(buffer.getvalue())
    return records


def fastavro_module() -> Any:
    try:
        import fastavro
        import fastavro.schema
    except ImportError:
        text = 'Avro needs the package fastavro: pip install "pykaproducer[load]"'
        raise MissingPackageError(text) from None
    return fastavro


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> tuple[Any, dict[str, Any]]:
    """Parse a schema with fastavro. Return it and its named types."""
    known: dict[str, Any] = {}
    return fastavro_module().parse_schema(json.loads(text), known), known


def _said(error: Exception) -> str:
    """Format an error of fastavro, some of which consist of a bare name."""
    text = str(error) if not isinstance(error, KeyError) else f"{error} is missing"
    return f"{type(error).__name__}: {text}"


# Type compatibility ------------------------------------------------------------------------------


#: By logical type: a check of the column type, and the type to cast to.
_LOGICAL: dict[str, tuple[Callable[[Any], bool], Callable[[dict[str, Any]], Any]]] = {
    "date": (types.is_date, lambda _: pyarrow.date32()),
    "time-millis": (types.is_time, lambda _: pyarrow.time32("ms")),
    "time-micros": (types.is_time, lambda _: pyarrow.time64("us")),
    "timestamp-millis": (types.is_timestamp, lambda _: pyarrow.timestamp("ms", "UTC")),
    "timestamp-micros": (types.is_timestamp, lambda _: pyarrow.timestamp("us", "UTC")),
    "local-timestamp-millis": (types.is_timestamp, lambda _: pyarrow.timestamp("ms", "UTC")),
    "local-timestamp-micros": (types.is_timestamp, lambda _: pyarrow.timestamp("us", "UTC")),
    "decimal": (types.is_decimal, lambda it: decimal_type(it["precision"], it.get("scale", 0))),
}


def _is_float(kind: Any) -> bool:
    return bool(types.is_floating(kind) or types.is_integer(kind))


#: The same by primitive type.
_PRIMITIVE: dict[str, tuple[Callable[[Any], bool], Callable[[dict[str, Any]], Any]]] = {
    "null": (types.is_null, lambda _: pyarrow.null()),
    "boolean": (types.is_boolean, lambda _: pyarrow.bool_()),
    "int": (types.is_integer, lambda _: pyarrow.int32()),
    "long": (types.is_integer, lambda _: pyarrow.int64()),
    "float": (_is_float, lambda _: pyarrow.float32()),
    "double": (_is_float, lambda _: pyarrow.float64()),
    "string": (is_text, lambda _: pyarrow.large_string()),
    "enum": (is_text, lambda _: pyarrow.large_string()),
    "bytes": (is_bytes, lambda _: pyarrow.large_binary()),
    "fixed": (is_bytes, lambda schema: pyarrow.binary(schema["size"])),
}


class _Fitting:
    """Finds the types to which the columns of one record are cast."""

    def __init__(self, known: dict[str, Any], checks: list[Check]) -> None:
        self._known = known
        self._checks = checks

    def fit(self, kind: Any, schema: Any, name: str, way: _Way) -> Any:
        """Return the type to cast a column of *kind* to; EncodingError if it does not fit."""
        if is_json(kind):
            return kind  # each cell is converted as it needs
        kind = plain_type(kind)
        if isinstance(kind, pyarrow.BaseExtensionType):
            kind = kind.storage_type  # JSON is text
        if isinstance(schema, list):
            return self._fit_union(kind, schema, name, way)
        if isinstance(schema, str):
            schema = self._known.get(schema, {"type": schema})
        word = schema["type"]
        if isinstance(word, dict | list):
            return self.fit(kind, word, name, way)
        if word != "null":
            self._checks.append(Check(way, name, word))
        if types.is_null(kind):
            return kind
        logical = schema.get("logicalType")
        rule = _LOGICAL.get(logical) or _PRIMITIVE.get(word)
        if rule is not None:
            if not rule[0](kind):
                wanted = logical if logical in _LOGICAL else word
                raise EncodingError(f"{name}: the schema has {wanted}, the column is {spelt(kind)}")
            if word == "enum":
                symbols = tuple(schema["symbols"])
                self._checks.append(Check(way, name, f"enum {schema['name']}", symbols))
            return rule[1](schema)
        return self._fit_nested(kind, schema, name, way)

    def _fit_union(self, kind: Any, branches: list[Any], name: str, way: _Way) -> Any:
        """Return the type of the branch that equals the column's, else of the first that fits."""
        found: list[tuple[Any, list[Check]]] = []
        errors = []
        for branch in branches:
            inside: list[Check] = []
            try:
                if branch != "null":
                    fitting = _Fitting(self._known, inside).fit(kind, branch, name, way)
                    found.append((fitting, inside))
            except EncodingError as error:
                errors.append(error)
        if not found:
            if types.is_null(kind) or not errors:
                return kind
            raise errors[0]
        chosen, inside = next((each for each in found if each[0] == kind), found[0])
        # For the field itself, fastavro checks whether a branch accepts null, or another text.
        self._checks += [
            each
            for each in inside
            if each.way != way or (each.symbols is not None and len(found) == 1)
        ]
        return chosen

    def _fit_nested(self, kind: Any, schema: dict[str, Any], name: str, way: _Way) -> Any:
        word = schema["type"]
        if word == "array" and is_list(kind):
            inner = self.fit(kind.value_type, schema["items"], f"{name}[]", (*way, None))
            return pyarrow.large_list(inner)
        if word == "map" and types.is_map(kind) and is_text(plain_type(kind.key_type)):
            inner = self.fit(kind.item_type, schema["values"], f"{name}{{}}", (*way, None))
            return pyarrow.map_(pyarrow.string(), inner)
        if word != "record" or not types.is_struct(kind):
            raise EncodingError(f"{name}: the schema has {word}, the column is {spelt(kind)}")
        fields = {field["name"]: field for field in schema["fields"]}
        check_names(_required(fields.values()), [field.name for field in kind], f"{name}: ")
        inner = []
        for place, each in enumerate(kind):
            within = f"{name}.{each.name}"
            wanted = fields[each.name]["type"]
            inner.append((each.name, self.fit(each.type, wanted, within, (*way, place))))
        return pyarrow.struct(inner)


def _required(fields: Iterable[dict[str, Any]]) -> dict[str, bool]:
    """Return the names of a record's fields, and whether each is required."""
    return {field["name"]: "default" not in field for field in fields}


def check_names(fields: dict[str, bool], names: Sequence[str], where: str = "") -> None:
    """Raise EncodingError if columns are unknown to the schema or required fields are missing."""
    more = [name for name in names if name not in fields]
    if more:
        raise EncodingError(f"{where}the schema has no field {', '.join(more)}")
    given = set(names)
    less = [name for name, must in fields.items() if must and name not in given]
    if less:
        raise EncodingError(
            f"{where}the schema requires {', '.join(less)}, which has no default; add it"
        )


def _at(array: Array, way: _Way) -> Array:
    """Return the nested values at the end of a path, without those inside a null."""
    for step in way:
        array = array.drop_null()
        if step is not None:
            array = array.flatten()[step]
        elif types.is_map(array.type):
            entry = pyarrow.struct([("key", array.type.key_type), ("value", array.type.item_type)])
            array = array.cast(pyarrow.large_list(entry)).flatten().flatten()[1]
        else:
            array = array.flatten()
    return array

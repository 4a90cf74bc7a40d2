"""Rows of Arrow into Avro: one bare record each, as a schema says, without a header before it.

The encoder (fastavro) takes some of what does not fit without a word: it cuts 3.7 to the long 3,
writes a null boolean as false, an int with more than 32 bits, and a time without a zone as one of
this machine's zone. So each column is first cast to the type that the schema means, which loses
nothing or fails; times without a zone are taken as UTC.
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

from pykaproducer._load.encoders import (
    ROW_ERRORS,
    Array,
    Encoded,
    EncodingError,
    MissingPackageError,
    is_bytes,
    is_list,
    is_text,
    plain,
    plain_type,
)

_WRITE_ERRORS = (*ROW_ERRORS, AttributeError, struct.error)

#: Steps from a column down to something in it: the place of a struct's field, or None: into the
#: elements of a list, the values of a map.
_Way = tuple[int | None, ...]


class Plan(NamedTuple):
    """How columns become records of a schema."""

    #: What each column is cast to.
    kinds: tuple[Any, ...]
    #: Booleans that must not be null: the number of a column, and the way in it.
    booleans: tuple[tuple[int, _Way], ...]


@dataclass(frozen=True)
class AvroSchema:
    """The schema of a record, as JSON text: so it travels to other processes."""

    text: str

    @staticmethod
    def load(given: str) -> AvroSchema:
        """The schema that *given* is (``{...}``), or that is in the file of this name.

        Raises EncodingError.
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
        """Names of the record's fields, and whether a record must have them."""
        avro = _fastavro()
        try:
            parsed = _parsed(self.text)[0]
        except (
            *(ValueError, TypeError, LookupError, AttributeError),
            avro.schema.SchemaParseException,
            avro.schema.UnknownType,
        ) as error:
            raise EncodingError(f"{where} is not right: {_said(error)}") from None
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise EncodingError(f"{where} is not the schema of a record")
        return _required(parsed["fields"])

    def plan(self, names: Sequence[str], kinds: Sequence[Any]) -> Plan:
        """How columns of these types are encoded; EncodingError if one cannot be."""
        parsed, known = _parsed(self.text)
        fields = {field["name"]: field["type"] for field in parsed["fields"]}
        booleans: list[tuple[int, _Way]] = []
        found = []
        for place, (name, kind) in enumerate(zip(names, kinds, strict=True)):
            strict: list[_Way] = []
            found.append(_Fitting(known, strict).fit(kind, fields[name], name, ()))
            booleans += [(place, way) for way in strict]
        return Plan(tuple(found), tuple(booleans))

    def encode(self, names: Sequence[str], plan: Plan, arrays: Sequence[Array]) -> Encoded:
        """A record for each row. Raises what only :func:`by_row` can tell whose it is."""
        cast = [plain(array).cast(kind) for array, kind in zip(arrays, plan.kinds, strict=True)]
        for place, way in plan.booleans:
            if _at(cast[place], way).null_count:
                raise EncodingError(f"{names[place]}: null where the schema has a boolean")
        batch = pyarrow.RecordBatch.from_arrays(cast, names)
        rows = batch.to_pylist(maps_as_pydicts="strict")
        records, failures = _written(_parsed(self.text)[0], rows)
        return Encoded(pyarrow.array(records, pyarrow.large_binary()), failures)


def _written(
    parsed: Any, rows: Sequence[dict[str, Any]]
) -> tuple[list[bytes | None], dict[int, Exception]]:
    write: Callable[..., None] = _fastavro().schemaless_writer
    records: list[bytes | None] = []
    failures: dict[int, Exception] = {}
    buffer = io.BytesIO()
    for number, row in enumerate(rows):
        buffer.seek(0)
        buffer.truncate()
        try:
            write(buffer, parsed, row, strict_allow_default=True, disable_tuple_notation=True)
        except _WRITE_ERRORS as error:
            failures[number] = error
            records.append(None)
        else:
            records.append(buffer.getvalue())
    return records, failures


def _fastavro() -> Any:
    try:
        import fastavro
        import fastavro.schema
    except ImportError:
        text = 'avro() needs the package fastavro: pip install "pykaproducer[load]"'
        raise MissingPackageError(text) from None
    return fastavro


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> tuple[Any, dict[str, Any]]:
    """A schema as fastavro wants it, and the named types in it."""
    known: dict[str, Any] = {}
    return _fastavro().parse_schema(json.loads(text), known), known


def _said(error: Exception) -> str:
    """fastavro says some of its errors with a bare name."""
    text = str(error) if not isinstance(error, KeyError) else f"{error} is missing"
    return f"{type(error).__name__}: {text}"


# Which types fit ---------------------------------------------------------------------------------


def _decimal(schema: dict[str, Any]) -> Any:
    precision, scale = schema["precision"], schema.get("scale", 0)
    return (pyarrow.decimal128 if precision <= 38 else pyarrow.decimal256)(precision, scale)


#: By logical type: what fits, and what it is cast to.
_LOGICAL: dict[str, tuple[Callable[[Any], bool], Callable[[dict[str, Any]], Any]]] = {
    "date": (types.is_date, lambda _: pyarrow.date32()),
    "time-millis": (types.is_time, lambda _: pyarrow.time32("ms")),
    "time-micros": (types.is_time, lambda _: pyarrow.time64("us")),
    "timestamp-millis": (types.is_timestamp, lambda _: pyarrow.timestamp("ms", "UTC")),
    "timestamp-micros": (types.is_timestamp, lambda _: pyarrow.timestamp("us", "UTC")),
    "local-timestamp-millis": (types.is_timestamp, lambda _: pyarrow.timestamp("ms", "UTC")),
    "local-timestamp-micros": (types.is_timestamp, lambda _: pyarrow.timestamp("us", "UTC")),
    "decimal": (types.is_decimal, _decimal),
}


def _is_float(kind: Any) -> bool:
    return bool(types.is_floating(kind) or types.is_integer(kind))


#: By primitive type, the same.
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
    "fixed": (is_bytes, lambda _: pyarrow.large_binary()),
}


class _Fitting:
    """Finds what the columns of one record are cast to."""

    def __init__(self, known: dict[str, Any], booleans: list[_Way]) -> None:
        self._known = known
        self._booleans = booleans

    def fit(self, kind: Any, schema: Any, name: str, way: _Way) -> Any:
        """The type that a column of *kind* is cast to for *schema*; EncodingError if it cannot."""
        kind = plain_type(kind)
        if isinstance(schema, list):
            return self._fit_union(kind, schema, name, way)
        if isinstance(schema, str):
            schema = self._known.get(schema, {"type": schema})
        word = schema["type"]
        if isinstance(word, dict | list):
            return self.fit(kind, word, name, way)
        if types.is_null(kind):  # nothing is known of its rows; each is refused that must not be
            return kind
        logical = schema.get("logicalType")
        rule = _LOGICAL.get(logical) or _PRIMITIVE.get(word)
        if rule is not None:
            if not rule[0](kind):
                wanted = logical if logical in _LOGICAL else word
                raise EncodingError(f"{name}: the schema has {wanted}, the column is {kind}")
            if word == "boolean":
                self._booleans.append(way)
            return rule[1](schema)
        return self._fit_nested(kind, schema, name, way)

    def _fit_union(self, kind: Any, branches: list[Any], name: str, way: _Way) -> Any:
        """The type of the branch that means the column's own, or else of the first that fits."""
        found: list[tuple[Any, list[_Way]]] = []
        errors = []
        for branch in branches:
            inside: list[_Way] = []
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
        # Of the column itself fastavro asks whether a branch takes the null.
        self._booleans += [each for each in inside if each != way]
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
            raise EncodingError(f"{name}: the schema has {word}, the column is {kind}")
        fields = {field["name"]: field for field in schema["fields"]}
        check_names(_required(fields.values()), [field.name for field in kind], f"{name}: ")
        inner = []
        for place, each in enumerate(kind):
            within = f"{name}.{each.name}"
            wanted = fields[each.name]["type"]
            inner.append((each.name, self.fit(each.type, wanted, within, (*way, place))))
        return pyarrow.struct(inner)


def _required(fields: Iterable[dict[str, Any]]) -> dict[str, bool]:
    """Names of a record's fields, and whether each must be given."""
    return {field["name"]: "default" not in field for field in fields}


def check_names(fields: dict[str, bool], names: Sequence[str], where: str = "") -> None:
    """Raise EncodingError if columns are not those that a record's fields ask for."""
    more = [name for name in names if name not in fields]
    if more:
        raise EncodingError(f"{where}the schema has no field {', '.join(more)}")
    less = [name for name, must in fields.items() if must and name not in names]
    if less:
        raise EncodingError(
            f"{where}the schema asks for {', '.join(less)}, which has no default and is not given"
        )


def _at(array: Array, way: _Way) -> Array:
    """What lies at the end of a way, without what lies in a null."""
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

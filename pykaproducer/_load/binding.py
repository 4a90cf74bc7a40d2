"""Binding of a selection to the columns of a source: errors that affect all rows are found here."""

from __future__ import annotations

import collections
import difflib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
from pyarrow import types

from pykaproducer._load.avro import AvroSchema, check_names, wire_prefix
from pykaproducer._load.encoders import (
    TEXT,
    EncodingError,
    MissingPackageError,
    check_json,
    checked_text,
    has_text,
    is_bytes,
    is_text,
    plain,
    plain_type,
    spelt,
    text_of,
)
from pykaproducer._load.grammar import (
    ERROR_COLUMN,
    Avro,
    Column,
    Expression,
    Item,
    Json,
    Literal,
    SelectEntry,
    SelectionError,
    mistake,
)
from pykaproducer._load.json_text import (
    HEADERS,
    JSON,
    headers,
    is_json,
    nested_names,
    text,
)
from pykaproducer._load.mapping import (
    AsItIs,
    AvroRecord,
    Bound,
    Constant,
    Converted,
    Headers,
    JsonObject,
    Mapping,
    Path,
    midnight,
    milliseconds,
    whole,
)

#: Maximum number of a source's columns that an error lists.
_SHOWN = 20


def bind(text: str, entries: Sequence[SelectEntry], schema: Any) -> Mapping:
    """Return the mapping for sources with this schema (a ``pyarrow.Schema``).

    Raises:
        SelectionError: a column is missing or has an unsuitable type, or an Avro schema is missing
            or does not fit.
    """
    return _Binder(text, schema).mapping(entries)


class _Binder:
    """Resolves the columns of one selection in one schema."""

    def __init__(self, text: str, schema: Any) -> None:
        self._text = text
        self._schema = schema
        self._kinds = dict(zip(schema.names, schema.types, strict=True))
        self._counts = collections.Counter(schema.names)
        self._columns: dict[str, None] = {}  # in the order of first use

    def mapping(self, entries: Sequence[SelectEntry]) -> Mapping:
        made: list[tuple[str, Bound, str]] = []
        headers: list[tuple[str, Bound, str]] = []
        for entry in entries:
            if entry.header is not None:
                headers.append((entry.header, self._content(entry.expression), _short(entry)))
            else:
                made.append((entry.field, self._field(entry), _short(entry)))
        if headers:
            names, values, texts = zip(*headers, strict=True)
            made.append(("headers", Headers(names, values), ", ".join(texts)))
        return Mapping(tuple(self._columns), tuple(made))

    def _field(self, entry: SelectEntry) -> Bound:
        how = {
            "timestamp": self._timestamp,
            "partition": self._partition,
            "topic": self._topic,
            "headers": self._headers,
        }.get(entry.field)
        if how is None:
            return self._content(entry.expression)
        found = entry.expression
        if isinstance(found, Literal):
            kind = pyarrow.string() if entry.field == "topic" else pyarrow.int64()
            return Constant(found.value, kind)
        assert isinstance(found, Column), "the grammar allows nothing else"
        return how(found, *self._path(found))

    def _content(self, found: Expression) -> Bound:
        """Bind a key, a value or the value of a header."""
        if isinstance(found, Literal):
            text = None if found.value is None else str(found.value).encode()
            return Constant(text, pyarrow.binary())
        if isinstance(found, Json):
            return self._json(found)
        if isinstance(found, Avro):
            return self._avro(found)
        path, kind = self._path(found)
        within = plain_type(kind)
        if is_json(kind):
            return Converted(path, text_of, TEXT)
        if is_bytes(within):
            return AsItIs(path) if _is_plain(kind) else Converted(path, plain, within)
        if is_text(within):
            return _text(path, kind)
        if has_text(within):
            return Converted(path, text_of, TEXT)
        raise self._wrong(found, f"is {spelt(kind)}, which has no text form; use json({found})")

    def _timestamp(self, column: Column, path: Path, kind: Any) -> Bound:
        within = plain_type(kind)
        if types.is_timestamp(kind) or types.is_integer(kind):
            return AsItIs(path)
        if is_text(within) or is_json(within):
            return Converted(path, milliseconds, pyarrow.int64())
        if types.is_date(within):
            return Converted(path, midnight, pyarrow.timestamp("ms"))
        if types.is_timestamp(within):
            return Converted(path, plain, within)
        if types.is_integer(within) or types.is_null(within):
            return Converted(path, whole, pyarrow.int64())
        advice = "a timestamp must be a timestamp, a date, milliseconds since 1970, or one as text"
        raise self._wrong(column, f"is {kind}; {advice}")

    def _partition(self, column: Column, path: Path, kind: Any) -> Bound:
        within = plain_type(kind)
        if types.is_integer(kind):
            return AsItIs(path)
        if any(fits(within) for fits in (types.is_integer, types.is_null, is_text, is_json)):
            return Converted(path, whole, pyarrow.int64())
        raise self._wrong(column, f"is {kind}; a partition must be an integer")

    def _topic(self, column: Column, path: Path, kind: Any) -> Bound:
        if is_json(kind):
            return Converted(path, functools.partial(text, only_strings=True), TEXT)
        if is_text(plain_type(kind)):
            return _text(path, kind)
        raise self._wrong(column, f"is {kind}; a topic must be text")

    def _headers(self, column: Column, path: Path, kind: Any) -> Bound:
        pair: list[Any] = []
        if is_json(kind):
            return Converted(path, headers, HEADERS)
        if types.is_map(kind):
            pair = [kind.key_type, kind.item_type]
        elif types.is_list(kind) or types.is_large_list(kind):
            inner = list(kind.value_type) if types.is_struct(kind.value_type) else []
            # send_arrow() identifies these fields by position, not by name.
            if [field.name for field in inner] == ["key", "value"]:
                pair = [field.type for field in inner]
        if pair and all(is_text(plain_type(each)) or is_bytes(plain_type(each)) for each in pair):
            return AsItIs(path)
        advice = "headers must be a list of structs of key and value, or a map, of text or bytes"
        raise self._wrong(column, f"is {kind}; {advice}")

    def _json(self, found: Json) -> Bound:
        names, paths, kinds = [], [], []
        for name, path, kind in self._items(found.items, found.at):
            try:
                check_json(kind)
            except EncodingError as error:
                raise self._mistake(found.at, f"json(): column {name}: {error}") from None
            names.append(name)
            paths.append(path)
            kinds.append(kind)
        return JsonObject(tuple(names), tuple(paths))

    def _avro(self, found: Avro) -> Bound:
        try:
            schema = AvroSchema.load(found.schema)
            fields = schema.fields()
        except (EncodingError, MissingPackageError) as error:
            raise self._mistake(found.schema_at, f"avro(): {error}") from None
        items = list(self._items(found.items, found.at, fields))
        names, paths, kinds = zip(*items, strict=True)
        try:
            check_names(fields, names)
            plan = schema.plan(names, kinds)
        except EncodingError as error:
            raise self._mistake(found.at, f"avro(): {error}") from None
        return AvroRecord(names, paths, schema, plan, wire_prefix(found.id))

    def _items(
        self, items: Sequence[Item], at: int, wanted: dict[str, bool] | None = None
    ) -> Iterator[tuple[str, Path, Any]]:
        """Yield name, path and type of each member; ``*`` yields only those that are *wanted*."""
        seen = set()
        for item in items:
            if not item.spread:
                name = item.column.path[-1] if item.name is None else item.name
                members = [(name, *self._path(item.column))]
            else:
                members = list(self._spread(item.column, wanted))
            for name, path, kind in members:
                if name in seen:
                    message = f"two members are named {name}; rename one with 'as'"
                    raise self._mistake(item.column.at, message)
                seen.add(name)
                self._columns.setdefault(path.column)
                yield name, path, kind
        if not seen:
            raise self._mistake(at, "there are no matching columns")

    def _spread(
        self, column: Column, wanted: dict[str, bool] | None
    ) -> Iterator[tuple[str, Path, Any]]:
        """Yield all columns, or all fields of a struct, limited to *wanted* unless it is None."""
        if not column.path:
            for name in self._kinds:
                if name != ERROR_COLUMN and (wanted is None or name in wanted):
                    yield name, Path(name), self._type_of(name, column.at)
            return
        path, kind = self._path(column)
        if is_json(kind):
            yield from self._spread_json(column, path, wanted)
            return
        kind = plain_type(kind)
        if not types.is_struct(kind):
            raise self._wrong(column, f"is {kind}; .* requires a struct")
        for place, field in enumerate(kind):
            if wanted is None or field.name in wanted:
                yield field.name, Path(path.column, (*path.fields, place)), field.type

    def _spread_json(
        self, column: Column, path: Path, wanted: dict[str, bool] | None
    ) -> Iterator[tuple[str, Path, Any]]:
        names = nested_names(self._schema.field(path.column), column.path[1:])
        if not names:
            raise self._wrong(
                column, f"has no objects, or too many different members; use json({column})"
            )
        for name in names:
            if wanted is None or name in wanted:
                yield name, Path(path.column, (*path.fields, name)), JSON

    def _path(self, column: Column) -> tuple[Path, Any]:
        """Return the path and the type of a column or field."""
        first, *rest = column.path
        kind = self._type_of(first, column.at, column)
        fields: list[int | str] = []
        for depth, name in enumerate(rest, 1):
            if is_json(kind):
                known = nested_names(self._schema.field(first), column.path[1:depth])
                if known is not None and name not in known:
                    above = str(Column(column.path[:depth]))
                    hint = _nearest(name, list(known))
                    raise self._mistake(column.at, f"{above} has no member {name}{hint}")
                fields.append(name)
                continue
            kind = plain_type(kind)
            above = str(Column(column.path[:depth]))
            if not types.is_struct(kind):
                raise self._mistake(column.at, f"{above} is {kind}; .{name} requires a struct")
            place = kind.get_field_index(name)
            if place < 0:
                names = [field.name for field in kind]
                raise self._mistake(
                    column.at, f"{above} has no field {name}{_nearest(name, names)}"
                )
            fields.append(place)
            kind = kind.field(place).type
        self._columns.setdefault(first)
        return Path(first, tuple(fields)), kind

    def _type_of(self, name: str, at: int, column: Column | None = None) -> Any:
        if self._counts[name] > 1:
            raise self._mistake(at, f"the source has {self._counts[name]} columns named {name}")
        if name not in self._kinds:
            whole = ".".join(column.path) if column is not None else name
            hint = f"; use `{whole}`" if whole in self._kinds else ""
            raise self._mistake(
                at, f"the source has no column {name}{hint or _nearest(name, [*self._kinds])}"
            )
        return self._kinds[name]

    def _wrong(self, column: Column, message: str) -> SelectionError:
        return self._mistake(column.at, f"column {column} {message}")

    def _mistake(self, at: int, message: str) -> SelectionError:
        return mistake(self._text, at, f"selection: {message}")


def _short(entry: SelectEntry) -> str:
    """Format an entry for the error of a row, with a long schema truncated."""
    text = str(entry)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _text(path: Path, kind: Any) -> Bound:
    """Bind a column of text: unchanged, if ``send_arrow()`` knows its type."""
    if _is_plain(kind):
        return Converted(path, checked_text, kind)
    return Converted(path, text_of, TEXT)


def _is_plain(kind: Any) -> bool:
    """Return whether ``send_arrow()`` takes cells of text or bytes of this type."""
    return not (isinstance(kind, pyarrow.BaseExtensionType) or types.is_run_end_encoded(kind))


def _nearest(name: str, names: Sequence[str]) -> str:
    """Return the end of an error message: a suggestion and the names available."""
    near = difflib.get_close_matches(name, names, 1)
    near = near or [each for each in names if each.lower() == name.lower()]
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    there = f"; available: {', '.join(names[:_SHOWN]) or 'none'}{more}"
    return (f"; did you mean {near[0]}?" if near else "") + there

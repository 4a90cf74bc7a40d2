"""Columns of JSON texts, in which nothing is converted: numbers have the digits of their file.

:class:`JsonText` is the type of the members of JSON Lines, and of the numbers in CSV. A cell is a
JSON text that was checked when it was read, so that ``json()`` embeds it as it stands. As text, a
string is its characters, and a number, true or false is what is written in the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow

from pykaproducer._load._scan import JsonScan, ScanError

#: Key of the names of nested members in the metadata of a column: a JSON object of objects.
_NESTED = b"pykaproducer.members"


class JsonTextScalar(pyarrow.ExtensionScalar):  # type: ignore[misc]
    """A cell."""

    def as_py(self, **_: Any) -> Any:
        """Return the parsed value; numbers are exact (int or decimal.Decimal)."""
        return parsed(None if self.value is None else self.value.as_py())


class JsonText(pyarrow.ExtensionType):  # type: ignore[misc]
    """The type of a column of JSON texts. A JSON null is a null."""

    def __init__(self) -> None:
        super().__init__(pyarrow.large_string(), "pykaproducer.json")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> JsonText:
        return cls()

    def __hash__(self) -> int:  # Arrow's types with parameters have none
        return hash(JsonText)

    def __arrow_ext_scalar_class__(self) -> type[JsonTextScalar]:
        return JsonTextScalar


JSON = JsonText()
# Without this, Arrow reads the columns of a file of rejected rows as plain text.
pyarrow.register_extension_type(JSON)


def is_json(kind: Any) -> bool:
    """Return whether the type is :class:`JsonText`."""
    return isinstance(kind, JsonText)


def parsed(text: str | None) -> Any:
    """Return the value of a JSON text, with exact numbers."""
    return None if text is None else json.loads(text, parse_float=Decimal)


def large_string(rows: int, column: tuple[int, Any, Any, Any]) -> Any:
    """Return a column of the scan as an array of text."""
    nulls, *parts = column
    buffers = [pyarrow.py_buffer(part) for part in parts]
    if not nulls:
        buffers[0] = None
    return pyarrow.Array.from_buffers(pyarrow.large_string(), rows, buffers, nulls)


def of_text(array: Any) -> Any:
    """Return an array of JSON texts as a column."""
    return pyarrow.ExtensionArray.from_storage(JSON, array)


def _cells(array: Any) -> tuple[Any, Any, Any, int, int]:
    """Return what the scan needs of a column."""
    storage = array.storage
    valid, offsets, data = storage.buffers()
    return valid, offsets, data or b"", storage.offset, len(storage)


def text(array: Any, *, only_strings: bool = False) -> Any:
    """Return the cells of a column as text; ValueError if one has no text form."""
    if not len(array):
        return array.storage
    found, row = JsonScan().texts(*_cells(array), only_strings)
    if found is None:
        cell = array.storage[row].as_py()
        kind = {"{": "an object", "[": "an array", '"': "text"}.get(cell[0], cell[:40])
        remedy = "it must be text" if only_strings else "it has no text form; use json()"
        raise ValueError(f"the value is {kind}; {remedy}")
    return large_string(len(array), found)


def check(cells: Sequence[str]) -> None:
    """Raise ValueError if one of *cells* is not JSON."""
    # Each becomes the only member of a line. Line ends are white space in JSON, and wrong in text.
    texts = (cell.replace("\n", "\r") for cell in cells)
    lines = "".join(f'{{"":{each}}}\n' for each in texts).encode()
    try:
        JsonScan(known=[""], strict=True).lines(lines, 0, len(lines))
    except ScanError as error:
        raise ValueError(f"the value is not JSON: {error}") from None


def member(array: Any, name: str) -> Any:
    """Return a member of the objects in a column; ValueError if a cell is not an object."""
    if not len(array):
        return array
    try:
        (found,), others = JsonScan([name]).members(*_cells(array))
    except ScanError as error:
        raise ValueError(f"the value is not JSON: {error}") from None
    if others:
        raise ValueError(f"the value is not an object, and has no member {name!r}")
    return of_text(large_string(len(array), found))


# The names of nested members ---------------------------------------------------------------------


def fields_of(tree: dict[str, Any], *, nested_known: bool = True) -> list[Any]:
    """Return the columns for the names that a scan has learnt."""
    return [
        pyarrow.field(name, JSON, metadata={_NESTED: json.dumps(nested)} if nested_known else None)
        for name, nested in tree.items()
    ]


def nested_names(field: Any, path: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the names of members of a column's objects, or of objects in it; None if unknown."""
    tree: dict[str, Any] | None = json.loads((field.metadata or {}).get(_NESTED, b"null"))
    for name in path:
        tree = None if tree is None else tree.get(name, {})
    return tree


def unified(schemas: Sequence[Any]) -> list[Any]:
    """Make columns that are JSON in one of the schemas JSON in all, with all nested names."""
    trees: dict[str, dict[str, Any]] = {}
    known = True
    for field in (field for schema in schemas for field in schema if is_json(field.type)):
        names = nested_names(field)
        known = known and names is not None
        merge(trees.setdefault(field.name, {}), names or {})
    fields = {field.name: field for field in fields_of(trees, nested_known=known)}
    return [pyarrow.schema([fields.get(each.name, each) for each in schema]) for schema in schemas]


def merge(tree: dict[str, Any], other: dict[str, Any]) -> None:
    """Add the names in *other* that *tree* does not have."""
    for name, nested in other.items():
        merge(tree.setdefault(name, {}), nested)


# Headers -----------------------------------------------------------------------------------------

#: The type of :func:`headers`.
HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.string())]))


def headers(array: Any) -> Any:
    """Return cells as headers: an object of text, or an array of objects of key and value."""
    return pyarrow.array([_pairs(parsed(cell)) for cell in array.storage.to_pylist()], HEADERS)


def _pairs(value: Any) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if isinstance(value, dict):
        pairs = [{"key": name, "value": each} for name, each in value.items()]
    else:
        pairs = value if isinstance(value, list) else [value]
    for pair in pairs:
        good = isinstance(pair, dict) and pair.keys() <= {"key", "value"}
        if not (good and isinstance(pair.get("key"), str)):
            raise ValueError('headers must be an object, or an array of {"key":..., "value":...}')
        if not isinstance(pair.get("value"), str | None):
            raise ValueError(f"the value of header {pair['key']!r} must be text")
    return pairs

"""Encoding of Arrow columns as text and as JSON. (Avro: :mod:`pykaproducer._load.avro`.)

Rows are not converted to Python objects. For JSON, Arrow converts each column to text or bytes, and
C writes the objects of all rows from these (``write_rows()``).

Values as text (in a key, a value or a header) and in JSON:

===================  ==============================  ==============================================
type                 as text                         in JSON
===================  ==============================  ==============================================
string               unchanged                       string
binary               unchanged                       string: base64 (RFC 4648, padded)
JSON (arrow.json)    unchanged                       the value itself, unchanged
UUID                 123e4567-e89b-12d3-             string, as the text
                     a456-426614174000
integer              1500                            number, exact at any size
float                0.1, 1.0, 1e+20, nan, inf       number; null for NaN and the infinities, which
                                                     JSON does not support
decimal              12.30                           number with all its digits, exact
boolean              true, false                     true, false
date                 2024-02-29                      string, as the text
time                 13:05:00.000123                 string, as the text
timestamp            2024-02-29T13:05:00.000123,     string, as the text
                     with a time zone: in UTC, with
                     the suffix Z
duration             PT93784.005S (ISO 8601)         string, as the text
interval             P14M3DT93784.005000000S         string, as the text
list, struct, map    (not supported)                 array, object, object
null                 null                            null
JSON (of JSON Lines  a string: its characters; a     as it stands
and of CSV)          number: as it stands
===================  ==============================  ==============================================

A timestamp, a time and a duration have as many digits as their unit. The members of an object have
the names and the order of the columns; keys of a map are converted to text and must be different.
Text that is not UTF-8, and times outside of the calendar, are errors of their rows. Unions have no
representation.

Files may store the same values in several ways (dictionaries, run-end encoding, views, lists of a
fixed size, extension types, time zones). :func:`plain_type` names the one that is processed here,
and :func:`conform` converts to it, nested values too.
"""

from __future__ import annotations

import collections
import contextlib
import decimal
import functools
import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow
from pyarrow import types

from pykaproducer._load import compute, json_text
from pykaproducer._load._scan import BASE64, FLOAT, QUOTED, STRING, VERBATIM, Texts, write_rows
from pykaproducer._load.json_text import is_json, large_string

#: A ``pyarrow.Array``; pyarrow has no types.
Array = Any

#: Types of text and bytes; the total size of the cells may exceed 2 GiB.
TEXT = pyarrow.large_string()
BYTES = pyarrow.large_binary()

#: Errors for rows that cannot be encoded (UnicodeError and most of Arrow's are ValueErrors).
ROW_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, pyarrow.ArrowException)

#: Cells of several columns to convert to JSON at once.
_CELLS = 8192


class EncodingError(ValueError):
    """A row cannot be encoded as the selection requires."""


class MissingPackageError(ImportError):
    """An optional package is not installed; the text says how to install it."""


class Encoded(NamedTuple):
    """A column for all rows, with null for those that failed."""

    array: Array
    #: Errors by row number.
    failures: dict[int, Exception]


def by_row(
    convert: Callable[[Sequence[Array]], Encoded], arrays: Sequence[Array], kind: Any
) -> Encoded:
    """Convert columns so that a row that cannot be converted does not fail the others.

    Columns are converted as a whole, and errors do not identify the row. After an error the rows
    are halved recursively until the row is isolated. *kind* is the type that *convert* returns.
    """
    count = len(arrays[0])
    with contextlib.suppress(*ROW_ERRORS):
        return convert(arrays)
    if count <= 1:
        try:
            return convert([_part(array, 0, count) for array in arrays])
        except ROW_ERRORS as error:
            return Encoded(pyarrow.nulls(count, kind), {0: error} if count else {})
    half = count // 2
    left = by_row(convert, [_part(array, 0, half) for array in arrays], kind)
    right = by_row(convert, [_part(array, half, count) for array in arrays], kind)
    failures = {row + half: error for row, error in right.failures.items()}
    return Encoded(pyarrow.concat_arrays([left.array, right.array]), left.failures | failures)


def _part(array: Array, start: int, end: int) -> Array:
    """Copy a part. (A slice of lists keeps all their elements, and a cast processes them all.)"""
    return pyarrow.concat_arrays([array.slice(start, end - start), array.slice(0, 0)])


# Types -------------------------------------------------------------------------------------------


def is_text(kind: Any) -> bool:
    """Return whether cells of this type are strings."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: Any) -> bool:
    """Return whether cells of this type are bytes."""
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def is_temporal(kind: Any) -> bool:
    """Return whether the type is a date, a time or a timestamp."""
    return bool(types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind))


def is_list(kind: Any) -> bool:
    """Return whether cells of this type are lists of any kind."""
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _is_large_list(kind: Any) -> bool:
    return bool(types.is_large_list(kind) or types.is_large_list_view(kind))


def has_text(kind: Any) -> bool:
    """Return whether a cell of this type can be written as text."""
    form = _form(plain_type(kind))
    return form is not None and form.text is not None


@functools.lru_cache(maxsize=4096)
def plain_type(kind: Any) -> Any:
    """Return the type in which the cells of *kind* are processed; see :func:`conform`."""
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _EXTENSIONS.get(kind.extension_name) or plain_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if types.is_string_view(kind):
        return TEXT
    if types.is_binary_view(kind):
        return BYTES
    if types.is_timestamp(kind) and kind.tz is not None:
        return pyarrow.timestamp(kind.unit, "UTC")
    if types.is_struct(kind):
        inner = [plain_type(each.type) for each in kind]
        if any(made != each.type for made, each in zip(inner, kind, strict=True)):
            return pyarrow.struct(
                [pyarrow.field(each.name, made) for made, each in zip(inner, kind, strict=True)]
            )
    elif types.is_map(kind):
        key, item = plain_type(kind.key_type), plain_type(kind.item_type)
        if key != kind.key_type or item != kind.item_type:
            return pyarrow.map_(key, item)
    elif is_list(kind):
        value = plain_type(kind.value_type)
        is_plain = types.is_list(kind) or types.is_large_list(kind)
        if value != kind.value_type or not is_plain:
            return _list(value, large=_is_large_list(kind))
    return kind


def _list(kind: Any, *, large: bool) -> Any:
    return (pyarrow.large_list if large else pyarrow.list_)(pyarrow.field("element", kind))


_JSON = pyarrow.json_(TEXT)

#: The types of extensions whose cells are not processed as their storage is.
_EXTENSIONS = {
    "arrow.uuid": TEXT,
    "arrow.bool8": pyarrow.bool_(),
    "arrow.json": _JSON,
    json_text.JSON.extension_name: json_text.JSON,
}


def plain(array: Array) -> Array:
    """Convert to the type that :func:`plain_type` returns."""
    return conform(array, plain_type(array.type))


def conform(array: Array, kind: Any) -> Array:
    """Convert to *kind*, which is a plain type, or one that :func:`common_type` returned.

    Raises ArrowInvalid if a value would change.
    """
    if array.type == kind:
        return array
    array = _unwrapped(array)
    if array.type == kind:
        return array
    if is_json(kind):
        return json_text.of_text(_where(array.is_valid(), _json(plain(array))))
    if types.is_struct(kind):
        found = dict(zip([each.name for each in array.type], array.flatten(), strict=True))
        columns = [
            conform(found[each.name], each.type)
            if each.name in found
            else pyarrow.nulls(len(array), each.type)
            for each in kind
        ]
        if not columns:
            return array
        return pyarrow.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())
    if types.is_map(kind):
        offsets, entries = _lists(array)
        both = zip(entries.flatten(), (kind.key_type, kind.item_type), strict=True)
        valid = pyarrow.concat_arrays([array.is_valid(), pyarrow.array([True])])
        offsets = compute.if_else(valid, offsets, None).cast(pyarrow.int32())
        return pyarrow.MapArray.from_arrays(offsets, *(conform(*each) for each in both))
    if is_list(kind):
        offsets, elements = _lists(array)
        made, size = pyarrow.ListArray, pyarrow.int32()
        if types.is_large_list(kind):
            made, size = pyarrow.LargeListArray, pyarrow.int64()
        elements = conform(elements, kind.value_type)
        return made.from_arrays(offsets.cast(size), elements, type=kind, mask=array.is_null())
    return array.cast(kind)


def _unwrapped(array: Array) -> Array:
    """Decode dictionaries and run-end encoding, and replace extension types; nested ones stay."""
    while True:
        if is_json(array.type):
            return array
        if isinstance(array, pyarrow.ExtensionArray):
            name, storage = array.type.extension_name, array.storage
            if name == "arrow.json":
                return pyarrow.ExtensionArray.from_storage(_JSON, conform(storage, TEXT))
            if name not in _EXTENSIONS:
                array = storage
            elif name == "arrow.uuid":
                return _uuid_text(storage)
            else:
                return compute.not_equal(storage, 0)
        elif types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif types.is_run_end_encoded(array.type):
            array = compute.run_end_decode(array)
        else:
            return array


def _lists(array: Array) -> tuple[Array, Array]:
    """Return offsets and elements of lists or maps, of which nulls have no elements.

    Elements of a slice are a slice of all elements, and a null list may have elements. Offsets are
    therefore computed from what flatten() returns. (Casts of slices of views are broken.)
    """
    kind = array.type
    if types.is_map(kind):
        entry = pyarrow.struct([("key", kind.key_type), ("value", kind.item_type)])
        array = array.cast(pyarrow.large_list(entry))
    sizes = compute.list_value_length(array).fill_null(0).cast(pyarrow.int64())
    start = pyarrow.array([0], pyarrow.int64())
    return pyarrow.concat_arrays([start, compute.cumulative_sum(sizes)]), array.flatten()


# Types that files have in common -----------------------------------------------------------------


def common_type(one: Any, other: Any) -> Any:
    """Return a plain type to which all values of two plain types can be converted unchanged.

    (But large integers of a column that has floats elsewhere: :func:`conform` raises for them.)

    Raises:
        EncodingError: there is none.
    """
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if is_json(one) or is_json(other):
        return json_text.JSON
    for applies, combine in _COMMON:
        if applies(one) and applies(other):
            return combine(one, other)
    raise EncodingError(f"{spelt(one)} and {spelt(other)}")


def _common_number(one: Any, other: Any) -> Any:
    kinds = (one, other)
    if types.is_floating(one) or types.is_floating(other):
        if any(types.is_decimal(kind) for kind in kinds):
            raise EncodingError(f"{one} and {other}")
        floats = {kind.bit_width for kind in kinds if types.is_floating(kind)}
        wide = not all(types.is_floating(kind) for kind in kinds) or max(floats) == 64
        return pyarrow.float64() if wide else pyarrow.float32()
    if all(types.is_integer(kind) for kind in kinds):
        signed = [kind for kind in kinds if types.is_signed_integer(kind)]
        if len(signed) != 1:
            return max(kinds, key=lambda kind: kind.bit_width)
        unsigned = max(kind.bit_width for kind in kinds if kind not in signed)
        if unsigned < 64:
            bits = max(signed[0].bit_width, 2 * unsigned)
            return {16: pyarrow.int16(), 32: pyarrow.int32(), 64: pyarrow.int64()}[bits]
    scales = [kind.scale if types.is_decimal(kind) else 0 for kind in kinds]
    digits = [kind.precision - kind.scale if types.is_decimal(kind) else 20 for kind in kinds]
    precision = max(digits) + max(scales)
    if precision > 76:
        raise EncodingError(f"{one} and {other}, which need more than 76 digits")
    return decimal_type(precision, max(scales))


def decimal_type(precision: int, scale: int) -> Any:
    """Return the smallest type of decimals with so many digits."""
    return (pyarrow.decimal128 if precision <= 38 else pyarrow.decimal256)(precision, scale)


def _finer(one: Any, other: Any) -> Any:
    """Return the type with the smaller unit."""
    units = ("s", "ms", "us", "ns")
    if types.is_timestamp(one) and one.tz != other.tz:
        raise EncodingError(f"{one} and {other}")
    return max((one, other), key=lambda kind: units.index(kind.unit))


def _common_struct(one: Any, other: Any) -> Any:
    found: dict[str, Any] = {}
    add_fields(found, one)
    add_fields(found, other)
    return pyarrow.struct([pyarrow.field(*each) for each in found.items()])


def add_fields(found: dict[str, Any], fields: Iterable[Any]) -> None:
    """Add *fields* to the types by name in *found*, in order, or find their common types.

    Raises:
        EncodingError: a field has incompatible types; the text names it.
    """
    for field in fields:
        try:
            found[field.name] = common_type(found.get(field.name, field.type), field.type)
        except EncodingError as error:
            raise EncodingError(f"{field.name}: {error}") from None


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_decimal(kind) or types.is_floating(kind))


#: What two types can be, and their common type.
_COMMON: list[tuple[Callable[[Any], bool], Callable[[Any, Any], Any]]] = [
    (_is_number, _common_number),
    (is_text, lambda *_: TEXT),
    (is_bytes, lambda *_: BYTES),
    (types.is_timestamp, _finer),
    (types.is_time, _finer),
    (types.is_duration, _finer),
    (types.is_date, lambda *_: pyarrow.date32()),
    (types.is_struct, _common_struct),
    (
        types.is_map,
        lambda one, other: pyarrow.map_(
            common_type(one.key_type, other.key_type), common_type(one.item_type, other.item_type)
        ),
    ),
    (
        is_list,
        lambda one, other: _list(
            common_type(one.value_type, other.value_type),
            large=_is_large_list(one) or _is_large_list(other),
        ),
    ),
]


def spelt(kind: Any) -> str:
    """Return the name of a type for errors."""
    return str(kind).replace("large_", "")


# Text --------------------------------------------------------------------------------------------


def text_of(array: Array) -> Array:
    """Convert cells to text according to the table above."""
    array = plain(array)
    form = _form(array.type)
    assert form is not None
    assert form.text is not None, "checked when the selection was bound"
    return form.text(array)


def checked_text(array: Array) -> Array:
    """Return text as it is. Raises EncodingError if a cell is not UTF-8, as in files it may be."""
    _utf8(plain(array))
    return array


def _utf8(array: Array) -> Array:
    try:
        return array.cast(BYTES).cast(TEXT)
    except pyarrow.ArrowInvalid:
        raise EncodingError("the text is not UTF-8; repair it where it was written") from None


def _cast(array: Array) -> Array:
    # Of few rows, Array.cast() takes longer for its options than for the cells.
    return compute.call_function("cast", [array], _to(TEXT))


@functools.cache
def _to(kind: Any) -> Any:
    return compute.CastOptions.safe(kind)


def _float_text(array: Array) -> Array:
    text = array.cast(TEXT)
    whole = compute.match_substring_regex(text, r"^-?\d+$")
    return compute.if_else(whole, _joined(text, ".0"), text)


def _decimal_text(array: Array) -> Array:
    text = array.cast(TEXT)
    if array.type.scale > 6 or array.type.scale < 0:  # else there is no exponent
        special = compute.match_substring(text, "E")
        cells = text.filter(special).to_pylist()
        found = [None if cell is None else f"{decimal.Decimal(cell):f}" for cell in cells]
        text = compute.replace_with_mask(text, special, pyarrow.array(found, TEXT))
    return text


def _temporal_text(array: Array) -> Array:
    kind = array.type
    zoned = types.is_timestamp(kind) and kind.tz is not None
    text = (array.cast(pyarrow.timestamp(kind.unit)) if zoned else array).cast(TEXT)
    if compute.any(compute.starts_with(text, "<")).as_py():
        # Arrow writes "<value out of range: N>" for values outside its calendar.
        raise EncodingError(f"a {kind} is outside the calendar")
    text = compute.replace_substring(text, " ", "T", max_replacements=1)
    return _joined(text, "Z") if zoned else text


_SCALES = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def _duration_text(array: Array) -> Array:
    """Return ISO 8601 with seconds only, as those of a day may differ."""
    scale = _SCALES[array.type.unit]
    whole = array.cast(pyarrow.int64()).cast(pyarrow.decimal128(19, 0))
    seconds = pyarrow.Array.from_buffers(
        pyarrow.decimal128(19, scale), len(whole), whole.buffers(), offset=whole.offset
    )
    return _joined("PT", _decimal_text(seconds), "S")


def _interval_text(array: Array) -> Array:
    return pyarrow.array(
        [
            None if cell is None else interval(cell.months, cell.days, cell.nanoseconds)
            for cell in array.to_pylist()
        ],
        TEXT,
    )


def interval(months: int, days: int, nanoseconds: int) -> str:
    """Return months, days and a time, which are independent of each other, as ISO 8601."""
    seconds = decimal.Decimal(nanoseconds).scaleb(-9)
    return f"P{months}M{days}DT{seconds:f}S"


def _uuid_text(storage: Array) -> Array:
    cells = [None if cell is None else str(uuid.UUID(bytes=cell)) for cell in storage.to_pylist()]
    return pyarrow.array(cells, TEXT)


# JSON --------------------------------------------------------------------------------------------


def json_objects(names: Sequence[str], arrays: Sequence[Array]) -> Encoded:
    """Encode a JSON object for each row, with a member for each column, in UTF-8 without spaces.

    Raises if a row cannot be encoded (text that is not UTF-8, a date outside the calendar). Call it
    through :func:`by_row`.
    """
    columns = [plain(array) for array in arrays]
    try:
        cells = _cells(columns)
        return Encoded(_objects(names, cells, len(columns[0])).cast(BYTES), {})
    except ROW_ERRORS:
        # One after the other: an error names its column, and each has room for its text.
        cells = []
        for name, column in zip(names, columns, strict=True):
            try:
                text = _json(column)
            except ROW_ERRORS as error:
                raise EncodingError(f"column {name}: {error}") from error
            cells.append((VERBATIM, Texts(*text.buffers()), 0))
    return Encoded(_objects(names, cells, len(columns[0])).cast(BYTES), {})


#: A column as ``write_rows()`` takes it: the kind of its cells, buffers, index of the first cell.
Cells = tuple[int, Texts, int]


def _objects(names: Sequence[str], cells: Sequence[Cells], rows: int) -> Array:
    """Return an object for each row, whose members are cells of these columns."""
    if not cells:
        return pyarrow.array(["{}"] * rows, TEXT)
    starts = _starts(tuple(names))
    members = [(start, *each) for start, each in zip(starts, cells, strict=True)]
    return large_string(rows, write_rows(members, b"}", rows))


@functools.lru_cache(maxsize=64)
def _starts(names: tuple[str, ...]) -> list[bytes]:
    """Return what precedes each value of an object."""
    return [f"{',' if place else '{'}{_quote(name)}:".encode() for place, name in enumerate(names)]


_quote = json.JSONEncoder(ensure_ascii=False).encode


def _cells(columns: Sequence[Array]) -> list[Cells]:
    """Return the cells of plain columns with the same rows.

    Short columns of a type are converted together, as each call costs as much as many cells.
    """
    rows = len(columns[0]) if columns else 0
    at_once = max(1, _CELLS // max(rows, 1))
    found: list[Any] = [None] * len(columns)
    alike = collections.defaultdict(list)
    for place, column in enumerate(columns):
        alike[column.type].append(place)
    for places in alike.values():
        for start in range(0, len(places), at_once):
            some = places[start : start + at_once]
            parts = [columns[place] for place in some]
            form, cells = _form_of(parts[0] if len(parts) == 1 else pyarrow.concat_arrays(parts))
            texts = Texts(*cells.buffers())
            for first, place in enumerate(some):
                found[place] = form, texts, cells.offset + first * rows
    return found


def check_json(kind: Any) -> None:
    """Raise EncodingError if a type, or a type nested in it, has no JSON representation."""
    kind = plain_type(kind)
    if types.is_map(kind):
        form = _form(kind.key_type)
        if form is None:
            raise EncodingError(
                f"keys of a map must be text or numbers for JSON, not {spelt(kind.key_type)}"
            )
        check_json(kind.item_type)
    elif types.is_struct(kind):
        names = [field.name for field in kind]
        twice = twice_named(names)
        if twice is not None:
            raise EncodingError(f"two fields are named {twice!r}; rename one")
        for field in kind:
            check_json(field.type)
    elif is_list(kind):
        check_json(kind.value_type)
    elif _form(kind) is None:
        raise EncodingError(f"type {spelt(kind)} has no JSON representation; cast it first")


def twice_named(names: Sequence[str]) -> str | None:
    """Return a name that occurs twice, or None."""
    counts = collections.Counter(names)
    return next((name for name, count in counts.items() if count > 1), None)


def _joined(*parts: Array | str) -> Array:
    """Concatenate columns and constants of text; null where a column is null."""
    cells = [pyarrow.scalar(part, TEXT) if isinstance(part, str) else part for part in parts]
    return compute.binary_join_element_wise(*cells, pyarrow.scalar("", TEXT))


def _json(array: Array) -> Array:
    """Return the JSON text of each cell of a plain array; a null becomes the text "null"."""
    rows = len(array)
    return large_string(rows, write_rows([(b"", *_cells([array])[0])], b"", rows))


def _form_of(array: Array) -> tuple[int, Array]:
    """Return the cells of a plain array as text or bytes, and what they are in JSON."""
    kind = array.type
    if types.is_struct(kind):
        names = [field.name for field in kind]
        return VERBATIM, _where(
            array.is_valid(), _objects(names, _cells(array.flatten()), len(array))
        )
    if types.is_map(kind):
        return VERBATIM, _gathered(array, "{", _pairs, "}")
    if is_list(kind):
        return VERBATIM, _gathered(array, "[", lambda _, elements: _json(elements), "]")
    form = _form(kind)
    assert form is not None, "checked when the selection was bound"
    return form.json, form.cells(array)


def _where(wanted: Array, text: Array) -> Array:
    return compute.if_else(wanted, text, pyarrow.scalar(None, TEXT))


def _gathered(
    lists: Array, opening: str, encode: Callable[[Array, Array], Array], end: str
) -> Array:
    """Join the encoded elements of each list, or entries of each map, with commas."""
    offsets, elements = _lists(lists)
    parts = pyarrow.LargeListArray.from_arrays(offsets, encode(offsets, elements))
    inner = compute.binary_join(parts, pyarrow.scalar(",", TEXT))
    return _where(lists.is_valid(), _joined(opening, inner, end))


def _pairs(offsets: Array, entries: Array) -> Array:
    keys, values = entries.flatten()
    if keys.null_count:
        raise EncodingError("a key of a map is null")
    keys = _bytes(keys) if is_bytes(keys.type) else text_of(keys)
    maps = compute.list_parent_indices(pyarrow.LargeListArray.from_arrays(offsets, keys))
    table = pyarrow.table({"map": maps, "key": keys})
    if table.group_by(["map", "key"]).aggregate([]).num_rows < table.num_rows:
        raise EncodingError("a map has a key twice")
    members = [(b"", *_cells([keys])[0]), (b":", *_cells([values])[0])]
    return large_string(len(keys), write_rows(members, b"", len(keys)))


def _bytes(array: Array) -> Array:
    return compute.call_function("cast", [array], _to(BYTES))


def _checked(array: Array) -> Array:
    """Return JSON that a file contains, as it stands. Raises if it is invalid."""
    text = _utf8(array.storage)
    json_text.check(text.drop_null().unique().to_pylist())
    return text


class CellForm(NamedTuple):
    """How cells of some types are written. The functions keep nulls."""

    applies: Callable[[Any], bool]
    #: The kind of text that the cells are in JSON.
    json: int
    #: None: there is no text; cells of bytes are used unchanged.
    text: Callable[[Array], Array] | None
    #: Converts to text or bytes for JSON.
    cells: Callable[[Array], Array]


_FORMS = (
    CellForm(is_text, STRING, _utf8, _bytes),
    CellForm(is_bytes, BASE64, None, _bytes),
    CellForm(types.is_integer, VERBATIM, _cast, _cast),
    CellForm(types.is_boolean, VERBATIM, _cast, _cast),
    CellForm(types.is_null, VERBATIM, _cast, _cast),
    CellForm(types.is_floating, FLOAT, _float_text, _cast),
    CellForm(types.is_decimal, VERBATIM, _decimal_text, _decimal_text),
    CellForm(is_temporal, QUOTED, _temporal_text, _temporal_text),
    CellForm(types.is_duration, QUOTED, _duration_text, _duration_text),
    CellForm(types.is_interval, QUOTED, _interval_text, _interval_text),
    CellForm(is_json, VERBATIM, json_text.text, lambda array: array.storage),
    CellForm(
        lambda kind: getattr(kind, "extension_name", "") == "arrow.json",
        VERBATIM,
        lambda array: _utf8(array.storage),
        _checked,
    ),
)


@functools.lru_cache(maxsize=4096)
def _form(kind: Any) -> CellForm | None:
    """Return how cells of a plain type are written; None if they are not, or nested."""
    return next((form for form in _FORMS if form.applies(kind)), None)

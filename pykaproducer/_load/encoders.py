"""Encoding of Arrow columns as text and as JSON. (Avro: :mod:`pykaproducer._load.avro`.)

Rows are not converted to Python objects: JSON is assembled from columns of text, one part of the
object after the other. Only bytes, and text that requires escaping, are processed cell by cell.

Values as text (in a key, a value or a header) and in JSON:

===================  ==============================  ==============================================
type                 as text                         in JSON
===================  ==============================  ==============================================
string               unchanged                       string
binary               unchanged                       string: base64 (RFC 4648, padded)
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
list, struct, map    (not supported)                 array, object, object
null                 null                            null
JSON (of JSON Lines  a string: its characters; a     as it stands
and of CSV)          number: as it stands
===================  ==============================  ==============================================

A timestamp has as many digits as its unit. The members of an object have the names and the order
of the columns; keys of a map are converted to text.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow
from pyarrow import types

from pykaproducer._load import compute, json_text
from pykaproducer._load.json_text import is_json

#: A ``pyarrow.Array``; pyarrow has no types.
Array = Any

#: Types of text and bytes; the total size of the cells may exceed 2 GiB.
TEXT = pyarrow.large_string()
BYTES = pyarrow.large_binary()

#: Errors for rows that cannot be encoded (UnicodeError and most of Arrow's are ValueErrors).
ROW_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, pyarrow.ArrowException)


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
    try:
        return convert(arrays)
    except ROW_ERRORS as error:
        if count <= 1:
            return Encoded(pyarrow.nulls(count, kind), {0: error} if count else {})
    half = count // 2
    left = by_row(convert, [_part(array, 0, half) for array in arrays], kind)
    right = by_row(convert, [_part(array, half, count) for array in arrays], kind)
    failures = {row + half: error for row, error in right.failures.items()}
    return Encoded(pyarrow.concat_arrays([left.array, right.array]), left.failures | failures)


def _part(array: Array, start: int, end: int) -> Array:
    """Copy a part. (A slice of lists keeps all their elements, and a cast processes them all.)"""
    return pyarrow.concat_arrays([array.slice(start, end - start), array.slice(0, 0)])


def cast(array: Array, kind: Any) -> Array:
    """Cast a column; any is cast to JSON texts."""
    if array.type == kind:
        return array
    if is_json(kind):
        return json_text.of_text(_where(array.is_valid(), _json(array)).cast(TEXT))
    return array.cast(kind)


# Text --------------------------------------------------------------------------------------------


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


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_decimal(kind))


def is_temporal(kind: Any) -> bool:
    """Return whether the type is a date, a time or a timestamp."""
    return bool(types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind))


def has_text(kind: Any) -> bool:
    """Return whether a cell of this type can be written as text."""
    return (
        is_text(kind)
        or _is_number(kind)
        or is_temporal(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_null(kind)
    )


def plain(array: Array) -> Array:
    """Decode dictionaries and run-end encoding, and unwrap extension types."""
    while True:
        if isinstance(array, pyarrow.ExtensionArray):
            array = array.storage
        elif types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif types.is_run_end_encoded(array.type):
            array = compute.run_end_decode(array)
        else:
            return array


def plain_type(kind: Any) -> Any:
    """Return the type of the array that :func:`plain` returns."""
    while True:
        if isinstance(kind, pyarrow.BaseExtensionType):
            kind = kind.storage_type
        elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def text_of(array: Array) -> Array:
    """Convert cells to text according to the table above."""
    if is_json(array.type):
        return json_text.text(array)
    array = plain(array)
    kind = array.type
    if types.is_floating(kind):
        text = array.cast(TEXT)
        whole = compute.match_substring_regex(text, r"^-?\d+$")
        return compute.if_else(whole, _joined(text, ".0"), text)
    if not is_temporal(kind):
        return array.cast(TEXT)
    zoned = types.is_timestamp(kind) and kind.tz is not None
    text = (array.cast(pyarrow.timestamp(kind.unit)) if zoned else array).cast(TEXT)
    if compute.any(compute.starts_with(text, "<")).as_py():
        # Arrow writes "<value out of range: N>" for values outside its calendar.
        raise EncodingError(f"a {kind} is outside the calendar")
    text = compute.replace_substring(text, " ", "T", max_replacements=1)
    return _joined(text, "Z") if zoned else text


# JSON --------------------------------------------------------------------------------------------


def json_objects(names: Sequence[str], arrays: Sequence[Array]) -> Encoded:
    """Encode a JSON object for each row, with a member for each column, in UTF-8 without spaces.

    Raises if a row cannot be encoded (text that is not UTF-8, a date outside the calendar). Call it
    through :func:`by_row`.
    """
    text = _object(names, [_json(array) for array in arrays])
    return Encoded(text.cast(BYTES), {})


def check_json(kind: Any) -> None:
    """Raise EncodingError if a type, or a type nested in it, has no JSON representation."""
    if is_json(kind):
        return
    kind = plain_type(kind)
    if types.is_map(kind):
        key = plain_type(kind.key_type)
        if not (has_text(key) or is_bytes(key)):
            raise EncodingError(f"keys of a map must be text or numbers for JSON, not {key}")
        check_json(kind.item_type)
    elif types.is_struct(kind):
        for field in kind:
            check_json(field.type)
    elif is_list(kind):
        check_json(kind.value_type)
    elif not (has_text(kind) or is_bytes(kind)):
        raise EncodingError(f"type {kind} has no JSON representation; cast it first")


def is_list(kind: Any) -> bool:
    """Return whether cells of this type are lists of any kind."""
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _joined(*parts: Array | str) -> Array:
    """Concatenate columns and constants of text; null where a column is null."""
    cells = [pyarrow.scalar(part, TEXT) if isinstance(part, str) else part for part in parts]
    return compute.binary_join_element_wise(*cells, pyarrow.scalar("", TEXT))


def _json(array: Array) -> Array:
    """Return the JSON text of each cell; a null becomes the text "null"."""
    if is_json(array.type):
        return array.storage.fill_null("null")
    array = plain(array)
    kind = array.type
    if types.is_struct(kind):
        members = [_json(child) for child in array.flatten()]
        text = _where(array.is_valid(), _object([field.name for field in kind], members, array))
    elif types.is_map(kind):
        entry = pyarrow.struct([("key", kind.key_type), ("value", kind.item_type)])
        text = _gathered(array.cast(pyarrow.large_list(entry)), "{", _pairs, "}")
    elif is_list(kind):
        text = _gathered(array.cast(pyarrow.large_list(kind.value_type)), "[", _json, "]")
    elif is_text(kind):
        text = _joined('"', _escaped(array), '"')
    elif is_bytes(kind):
        text = _joined('"', _base64(array), '"')
    elif types.is_floating(kind):
        text = _where(compute.is_finite(array), text_of(array))
    elif is_temporal(kind):
        text = _joined('"', text_of(array), '"')
    else:
        text = array.cast(TEXT)  # integers, decimals, booleans, nulls
    return text.fill_null("null")


def _where(wanted: Array, text: Array) -> Array:
    return compute.if_else(wanted, text, pyarrow.scalar(None, TEXT))


def _object(names: Sequence[str], members: Sequence[Array], rows: Array = ()) -> Array:
    """Combine JSON members to objects; without members, return one ``{}`` for each of *rows*."""
    if not members:
        return pyarrow.array(["{}"] * len(rows), TEXT)
    starts = [f"{',' if place else '{'}{_quote(name)}:" for place, name in enumerate(names)]
    return _joined(*itertools.chain(*zip(starts, members, strict=True)), "}")


def _gathered(lists: Array, opening: str, encode: Callable[[Array], Array], end: str) -> Array:
    """Join the encoded elements of each list with commas."""
    # Elements of a slice are a slice of all elements, and a null list may have elements. Offsets
    # are therefore computed from what flatten() returns.
    sizes = compute.list_value_length(lists).fill_null(0)
    ends = compute.cumulative_sum(sizes).cast(pyarrow.int64())
    offsets = pyarrow.concat_arrays([pyarrow.array([0], pyarrow.int64()), ends])
    elements = pyarrow.LargeListArray.from_arrays(offsets, encode(lists.flatten()))
    inner = compute.binary_join(elements, pyarrow.scalar(",", TEXT))
    return _where(lists.is_valid(), _joined(opening, inner, end))


def _pairs(entries: Array) -> Array:
    keys, values = entries.flatten()
    keys = plain(keys)
    if not (is_text(keys.type) or is_bytes(keys.type)):
        keys = text_of(keys)
    return _joined(_json(keys), ":", _json(values))


_quote = json.JSONEncoder(ensure_ascii=False).encode

#: Characters that JSON escapes. Their bytes never occur inside a multi-byte UTF-8 character.
_ESCAPED = r'[\x00-\x1f"\\]'


def _escaped(array: Array) -> Array:
    """Return the text between the quotation marks."""
    data = array.cast(BYTES)
    text = data.cast(TEXT)  # raises for invalid UTF-8, which text columns of files may contain
    special = compute.match_substring_regex(data, _ESCAPED)
    if not compute.any(special).as_py():
        return text
    found = [_quote(cell)[1:-1] for cell in text.filter(special).to_pylist()]
    return compute.replace_with_mask(text, special, pyarrow.array(found, TEXT))


def _base64(array: Array) -> Array:
    cells = [None if cell is None else base64.b64encode(cell) for cell in array.to_pylist()]
    return pyarrow.array(cells, BYTES).cast(TEXT)

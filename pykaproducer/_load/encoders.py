"""Columns of Arrow into bytes: text, and JSON objects. (Avro: :mod:`pykaproducer._load.avro`.)

No row becomes a Python object: JSON is put together from columns of text, one part of the object
after the other. Only text with characters that JSON escapes, and bytes, are looked at one by one.

What becomes of a value, as text (of a key, a value, a header) and in JSON:

===================  ==============================  ==============================================
type                 as text                         in JSON
===================  ==============================  ==============================================
string               itself                          string
binary               itself                          string: base64 (RFC 4648, padded)
integer              1500                            number, exact at any size
float                0.1, 1.0, 1e+20, nan, inf       number; NaN and the infinities, which JSON does
                                                     not have: null
decimal              12.30                           number with all its digits, exact
boolean              true, false                     true, false
date                 2024-02-29                      string, as the text
time                 13:05:00.000123                 string, as the text
timestamp            2024-02-29T13:05:00.000123,     string, as the text
                     with a time zone: in UTC and
                     with Z behind it
list, struct, map    (not as text)                   array, object, object
null                 null                            null
===================  ==============================  ==============================================

A timestamp has as many digits as its unit. Names and order of an object's members are those of
the columns; keys of a map are text.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow
from pyarrow import compute, types

#: A ``pyarrow.Array``; pyarrow has no types.
Array = Any

#: What text and bytes become: types whose cells may be more than 2 GiB in sum.
TEXT = pyarrow.large_string()
BYTES = pyarrow.large_binary()

#: What a row that cannot be encoded raises (UnicodeError and most of Arrow's are ValueErrors).
ROW_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, pyarrow.ArrowException)


class EncodingError(ValueError):
    """A row cannot be encoded as its selection says; its text says why."""


class MissingPackageError(ImportError):
    """A package that only this needs is not installed; the text says what to install."""


class Encoded(NamedTuple):
    """A column of all rows; those that failed are null in it."""

    array: Array
    #: By the row's number.
    failures: dict[int, Exception]


def by_row(
    convert: Callable[[Sequence[Array]], Encoded], arrays: Sequence[Array], kind: Any
) -> Encoded:
    """Convert columns of rows; a row that makes the conversion fail does not fail the others.

    Columns are converted as a whole, and an error then says nothing of the row. So what fails is
    halved until the row is alone. *kind* is the type that *convert* makes.
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
    """A copy of a part. (A slice of lists has all their elements, and a cast looks at all.)"""
    return pyarrow.concat_arrays([array.slice(start, end - start), array.slice(0, 0)])


# Text --------------------------------------------------------------------------------------------


def is_text(kind: Any) -> bool:
    """Whether cells of this type are strings."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_bytes(kind: Any) -> bool:
    """Whether cells of this type are bytes."""
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_decimal(kind))


def is_temporal(kind: Any) -> bool:
    """Whether it is a date, a time or both."""
    return bool(types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind))


def has_text(kind: Any) -> bool:
    """Whether a cell of this type can be written as text."""
    return (
        is_text(kind)
        or _is_number(kind)
        or is_temporal(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_null(kind)
    )


def plain(array: Array) -> Array:
    """The same without what only saves space, and without a name for its type."""
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
    """The type that :func:`plain` gives."""
    while True:
        if isinstance(kind, pyarrow.BaseExtensionType):
            kind = kind.storage_type
        elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def text_of(array: Array) -> Array:
    """Cells as text, as the table above says."""
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
        # Arrow writes "<value out of range: N>" for what its calendar does not reach.
        raise EncodingError(f"a {kind} is outside of the calendar")
    text = compute.replace_substring(text, " ", "T", max_replacements=1)
    return _joined(text, "Z") if zoned else text


# JSON --------------------------------------------------------------------------------------------


def json_objects(names: Sequence[str], arrays: Sequence[Array]) -> Encoded:
    """A JSON object for each row, with a member for each column; UTF-8, no spaces.

    Raises if a row cannot be encoded (text that is not UTF-8, a date outside of the calendar):
    give it to :func:`by_row`.
    """
    text = _object(names, [_json(array) for array in arrays])
    return Encoded(text.cast(BYTES), {})


def check_json(kind: Any) -> None:
    """Raise EncodingError if no JSON is defined for a type, or for one in it."""
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
        raise EncodingError(f"there is no JSON for the type {kind}; cast it before")


def is_list(kind: Any) -> bool:
    """Whether cells of this type are lists, of any kind."""
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _joined(*parts: Array | str) -> Array:
    """Columns and constants of text, side by side; null where a column is."""
    cells = [pyarrow.scalar(part, TEXT) if isinstance(part, str) else part for part in parts]
    return compute.binary_join_element_wise(*cells, pyarrow.scalar("", TEXT))


def _json(array: Array) -> Array:
    """The JSON text of each cell; none is null, but "null"."""
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
    """Objects of members that are JSON; without any: as many as there are *rows*."""
    if not members:
        return pyarrow.array(["{}"] * len(rows), TEXT)
    starts = [f"{',' if place else '{'}{_quote(name)}:" for place, name in enumerate(names)]
    return _joined(*itertools.chain(*zip(starts, members, strict=True)), "}")


def _gathered(lists: Array, opening: str, encode: Callable[[Array], Array], end: str) -> Array:
    """The encoded elements of each list, with commas between them."""
    # Elements of a slice are a slice of all elements, and a null list may have some: offsets that
    # count what flatten() gives are made anew.
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

#: What JSON escapes in a string. Bytes of it are no part of a longer character in UTF-8.
_ESCAPED = r'[\x00-\x1f"\\]'


def _escaped(array: Array) -> Array:
    """What stands between the quotation marks."""
    data = array.cast(BYTES)
    text = data.cast(TEXT)  # checks that it is UTF-8: what a file says is text may be anything
    special = compute.match_substring_regex(data, _ESCAPED)
    if not compute.any(special).as_py():
        return text
    found = [_quote(cell)[1:-1] for cell in text.filter(special).to_pylist()]
    return compute.replace_with_mask(text, special, pyarrow.array(found, TEXT))


def _base64(array: Array) -> Array:
    cells = [None if cell is None else base64.b64encode(cell) for cell in array.to_pylist()]
    return pyarrow.array(cells, BYTES).cast(TEXT)

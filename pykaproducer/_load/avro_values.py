"""JSON values as values of an Avro schema, exactly.

JSON does not have Avro's types: a value is converted as the schema requires, or refused. A number
is refused if the type does not have it: a fraction or too many digits for an int or long, and for
a float or double all digits that are not those of the nearest one (0.1 is right, 9007199254740993
is not). Dates and times are ISO 8601, in UTC if there is no time zone, or the integers that Avro
writes.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from pykaproducer._load.encoders import EncodingError

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_BITS = {"int": 31, "long": 63}
_NAMED = ("record", "enum", "fixed")


def avro_value(value: Any, schema: Any, known: dict[str, Any], name: str) -> Any:
    """Return *value*, parsed with exact numbers, for fastavro (with a union's branches as tuples).

    Args:
        value: the parsed JSON.
        schema: a part of a parsed schema.
        known: the schema's named types.
        name (str): the field, for errors.

    Raises:
        EncodingError: the schema does not allow it.
    """
    if isinstance(schema, list):
        return _of_union(value, schema, known, name)
    if isinstance(schema, str):
        schema = known.get(schema, {"type": schema})
    word = schema["type"]
    if isinstance(word, dict | list):
        return avro_value(value, word, known, name)
    if word == "record" and isinstance(value, dict):
        return _of_record(value, schema, known, name)
    if word == "array" and isinstance(value, list):
        return [avro_value(each, schema["items"], known, f"{name}[]") for each in value]
    if word == "map" and isinstance(value, dict):
        return {
            key: avro_value(each, schema["values"], known, f"{name}.{key}")
            for key, each in value.items()
        }
    logical = schema.get("logicalType")
    found = _of_scalar(value, schema, word, logical)
    if found is None and not (word == "null" and value is None):
        shown = "null" if value is None else str(value)[:40]
        wanted = logical if logical in (*_TIMES, "decimal") else word
        raise EncodingError(f"{name}: {shown} where the schema has {wanted}")
    return found


def _of_union(value: Any, branches: list[Any], known: dict[str, Any], name: str) -> Any:
    errors = []
    for branch in branches:
        try:
            found = avro_value(value, branch, known, name)
        except EncodingError as error:
            errors.append(error)
        else:
            return None if found is None else (_branch_name(branch), found)
    raise errors[-1] if errors else EncodingError(f"{name}: the union has no types")


def _branch_name(branch: Any) -> Any:
    if isinstance(branch, str):
        return branch
    return branch["name"] if branch["type"] in _NAMED else branch["type"]


def _of_record(value: Any, schema: Any, known: dict[str, Any], name: str) -> dict[str, Any]:
    fields = {field["name"]: field for field in schema["fields"]}
    for member in value:
        if member not in fields:
            raise EncodingError(f"{name}: the schema has no field {member}")
    for each, field in fields.items():
        if each not in value and "default" not in field:
            raise EncodingError(f"{name}: the schema requires {each}, which has no default")
    return {
        member: avro_value(each, fields[member]["type"], known, f"{name}.{member}")
        for member, each in value.items()
    }


def _of_scalar(value: Any, schema: Any, word: str, logical: str | None) -> Any:
    """Return the value, or None if the schema does not have it."""
    if isinstance(value, bool) or word == "boolean":
        return value if isinstance(value, bool) and word == "boolean" else None
    if logical == "decimal" and word in ("bytes", "fixed"):
        return _decimal(value, schema)
    if isinstance(value, str) and logical in _TIMES and word in _BITS:
        try:
            value = _TIMES[logical](value)
        except (ValueError, OverflowError):
            return None
    if word in _BITS:
        return (
            value
            if isinstance(value, int) and -1 << _BITS[word] <= value < 1 << _BITS[word]
            else None
        )
    if word in ("float", "double"):
        return _float(value, word)
    if word == "string" or (word == "enum" and value in schema["symbols"]):
        return value if isinstance(value, str) else None
    return None


def _decimal(value: Any, schema: Any) -> Decimal | None:
    if not isinstance(value, int | Decimal):
        return None
    exact = decimal.Context(schema["precision"], traps=[decimal.Inexact, decimal.InvalidOperation])
    try:
        return Decimal(value).quantize(Decimal(1).scaleb(-schema.get("scale", 0)), context=exact)
    except decimal.DecimalException:
        return None


def _float(value: Any, word: str) -> float | None:
    if not isinstance(value, int | Decimal):
        return None
    try:
        found = float(value)
        if word == "float":
            stored = struct.pack("f", found)
            (found,) = struct.unpack("f", stored)
            # The shortest decimal number that is nearest to this float.
            texts = (f"{found:.{digits}g}" for digits in range(6, 10))
            shortest = next(each for each in texts if struct.pack("f", float(each)) == stored)
        else:
            shortest = repr(found)
    except (OverflowError, StopIteration):
        return None
    return found if math.isfinite(found) and Decimal(shortest) == value else None


def _units(time: datetime.timedelta, unit: datetime.timedelta) -> int:
    count, rest = divmod(time, unit)
    if rest:
        raise ValueError("more digits than the type has")
    return count


def _since_epoch(unit: datetime.timedelta) -> Callable[[str], int]:
    def convert(text: str) -> int:
        when = datetime.datetime.fromisoformat(text)
        if when.tzinfo is None:
            when = when.replace(tzinfo=datetime.UTC)
        return _units(when - _EPOCH, unit)

    return convert


def _since_midnight(unit: datetime.timedelta) -> Callable[[str], int]:
    def convert(text: str) -> int:
        time = datetime.time.fromisoformat(text)
        if time.tzinfo is not None:
            raise ValueError("a time of day has no time zone")
        day = datetime.datetime.combine(_EPOCH.date(), time)
        return _units(day - datetime.datetime(1970, 1, 1), unit)

    return convert


_MILLI = datetime.timedelta(milliseconds=1)
_MICRO = datetime.timedelta(microseconds=1)
_TIMES: dict[str | None, Callable[[str], int]] = {
    "date": lambda text: (datetime.date.fromisoformat(text) - _EPOCH.date()).days,
    "time-millis": _since_midnight(_MILLI),
    "time-micros": _since_midnight(_MICRO),
    "timestamp-millis": _since_epoch(_MILLI),
    "timestamp-micros": _since_epoch(_MICRO),
    "local-timestamp-millis": _since_epoch(_MILLI),
    "local-timestamp-micros": _since_epoch(_MICRO),
}

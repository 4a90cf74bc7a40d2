"""Which columns make a message: the selection of the command ``load``, embedded and on Spark.

A selection is a list of fields of a message and of what they are taken from::

    key=user_id, value=json(*), headers.source='import', timestamp=created_at

Its grammar::

    selection  = entry { "," entry }
    entry      = field "=" expression
    field      = "key" | "value" | "timestamp" | "partition" | "topic"
               | "headers" "." word      one header; may be there several times
               | "headers"               all of them: a column as send_arrow() takes it
    expression = column | literal
               | "json" "(" items ")"    an object with these members
               | "avro" "(" items "," text ")"   a record; text: the path of a schema, or {...}
    items      = item { "," item }
    item       = column [ "as" name ] | [ column "." ] "*"   all columns; all fields of a struct
    column     = name { "." name }       further names: fields of a struct column
    name       = letters, digits and _, not a digit first | "`" anything, `` for a ` "`"
    word       = name | text
    literal    = text | whole number | "null"
    text       = "'" anything, '' for a ' "'"

A field ``value`` must be there (``value=null``: messages without one). A header whose expression is
null is there without a value. ``null`` and ``as`` as names of columns are written in back quotes.

What fits: key, value and headers take anything; bytes and strings go as they are, other columns as
their text (:mod:`pykaproducer._load.encoders` has the table), nested ones only through json() or
avro(). ``timestamp`` takes times, dates (midnight in UTC), milliseconds since 1970, or text of
these (digits are milliseconds, else ISO 8601, in UTC if it names no zone); ``partition`` takes
whole numbers, also as text; ``topic`` takes text.
A null in a column of timestamps or partitions means "now" and "as the key says".

``avro(*, ...)`` takes those columns that the schema has fields for. Columns that are named must be
fields of it; a field that is not given must have a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pykaproducer._load.grammar import (
    ERROR_COLUMN,
    FIELDS,
    Column,
    Entry,
    Item,
    Json,
    SelectionError,
    parse_entries,
)

if TYPE_CHECKING:
    from pykaproducer._load.mapping import Mapping

__all__ = ["Selection", "SelectionError"]

_COLUMNS = (*FIELDS, "headers")


@dataclass(frozen=True)
class Selection:
    """A selection that has been read. Can be pickled; ``str()`` gives its text."""

    entries: tuple[Entry, ...]
    #: As it was written, for errors.
    text: str = field(default="", compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Read a selection.

        Raises:
            SelectionError: it is wrong; the text shows where and says what was expected there.
        """
        return cls(parse_entries(text), text)

    @classmethod
    def default(cls, schema: Any) -> Selection:
        """What is selected if nothing is said: of a source with this ``pyarrow.Schema``.

        Its columns as they are if they are those of a message (``value`` and any of key, timestamp,
        partition, topic and headers); without a column ``value``, all of them as JSON.

        Raises:
            SelectionError: there is a column ``value``, and others that no message has: they would
                be lost without a word.
        """
        names = [name for name in schema.names if name != ERROR_COLUMN]
        if "value" not in names:
            return cls.parse(
                str(cls((Entry("value", None, Json((Item(Column(()), spread=True),))),)))
            )
        more = [name for name in names if name not in _COLUMNS]
        if more:
            raise SelectionError(
                f"selection: the source has a column value and others that are no part of a "
                f"message ({', '.join(more[:20])}); say what to send, as value=value or "
                f"value=json(*)"
            )
        found = [name for name in _COLUMNS if name in names]
        return cls.parse(", ".join(f"{name}={name}" for name in found))

    def bind(self, schema: Any) -> Mapping:
        """What makes messages of the batches of a source with this ``pyarrow.Schema``.

        Raises:
            SelectionError: a column is not there or cannot be used so; an Avro schema cannot be
                read or does not fit; a package is missing.
        """
        from pykaproducer._load.binding import bind

        return bind(self.text or str(self), self.entries, schema)

    def __str__(self) -> str:
        return ", ".join(map(str, self.entries))

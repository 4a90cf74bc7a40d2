"""Selections of the command ``load``, embedded and on Spark: which columns make a message.

A selection lists fields of a message, and the expressions that provide their values::

    key=user_id, value=json(*), headers.source='import', timestamp=created_at

Its grammar::

    selection  = entry { "," entry }
    entry      = field "=" expression
    field      = "key" | "value" | "timestamp" | "partition" | "topic"
               | "headers" "." word      one header; may be repeated
               | "headers"               all headers: a column as for send_arrow()
    expression = column | literal
               | "json" "(" items ")"    an object with these members
               | "avro" "(" items "," text ["," "id" "=" integer] ")"
                                                 a record; text: the path of a schema, or {...};
                                                 id: of the schema, in a registry's wire format
    items      = item { "," item }
    item       = column [ "as" name ] | [ column "." ] "*"   all columns; all fields of a struct
    column     = name { "." name }       further names: fields of a struct column
    name       = letters, digits and _, not a digit first | "`" anything, `` for a ` "`"
    word       = name | text
    literal    = text | integer | "null"
    text       = "'" anything, '' for a ' "'"

A field ``value`` is required (``value=null``: messages without a value). A header whose expression
is null has no value. Columns named ``null`` or ``as`` must be quoted with back quotes.

Types: key, value and headers accept any column. Bytes and strings are used unchanged, other columns
as text (see the table in :mod:`pykaproducer._load.encoders`), nested ones only within json() or
avro(). ``timestamp`` accepts timestamps, dates (midnight in UTC), milliseconds since 1970, or text
of these (digits are milliseconds; otherwise ISO 8601, in UTC if there is no time zone).
``partition`` accepts integers, also as text. ``topic`` accepts text. A null timestamp means the
current time; a null partition means that the key determines the partition.

``avro(*, ...)`` selects the columns for which the schema has a field. Columns that are named must
be fields of the schema. A field that is not selected must have a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pykaproducer._load.grammar import (
    ERROR_COLUMN,
    FIELDS,
    SelectEntry,
    SelectionError,
    parse_entries,
)

if TYPE_CHECKING:
    from pykaproducer._load.mapping import Mapping

__all__ = ["Selection", "SelectionError"]

_COLUMNS = (*FIELDS, "headers")


@dataclass(frozen=True)
class Selection:
    """A parsed selection. Can be pickled; ``str()`` returns its text."""

    entries: tuple[SelectEntry, ...]
    #: The original text, for errors.
    text: str = field(default="", compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Parse a selection.

        Raises:
            SelectionError: it is invalid; the text shows where, and what was expected there.
        """
        return cls(parse_entries(text), text)

    @classmethod
    def default(cls, schema: Any) -> Selection:
        """Return the default selection for a source with this ``pyarrow.Schema``.

        If there is a column ``value``, it consists of the message's fields, unchanged (key, value,
        timestamp, partition, topic and headers). Otherwise the value is JSON of all columns.

        Raises:
            SelectionError: besides ``value`` there are columns that are not fields of a message and
                would be lost silently.
        """
        names = [name for name in schema.names if name != ERROR_COLUMN]
        if "value" not in names:
            return cls.parse("value=json(*)")
        more = [name for name in names if name not in _COLUMNS]
        if more:
            raise SelectionError(
                f"selection: the source has a column value, and columns that are not part of a "
                f"message ({', '.join(more[:20])}); use --select with value=value or "
                f"value=json(*)"
            )
        found = [name for name in _COLUMNS if name in names]
        return cls.parse(", ".join(f"{name}={name}" for name in found))

    def bind(self, schema: Any) -> Mapping:
        """Bind the selection to sources with this ``pyarrow.Schema``.

        Raises:
            SelectionError: a column is missing or unsuitable, an Avro schema cannot be read or does
                not fit, or a package is missing.
        """
        from pykaproducer._load.binding import bind

        return bind(self.text or str(self), self.entries, schema)

    def __str__(self) -> str:
        return ", ".join(map(str, self.entries))

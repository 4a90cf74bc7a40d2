"""The grammar of a selection, and errors that show the position of a mistake.

The syntax is described in :mod:`pykaproducer._load.select`. ``str()`` of the parsed objects returns
equivalent text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

#: The fields of a message except headers, in the order of error messages.
FIELDS = ("key", "value", "timestamp", "partition", "topic")
#: The column of the reason in a file of rejected rows. Not part of a message.
ERROR_COLUMN = "pykaproducer_error"

#: The largest id of a schema in a registry.
MOST_SCHEMA_ID = 2**31 - 1
_MOST_PARTITION = 2**31 - 1
_MOST_TIMESTAMP = 2**62


class SelectionError(ValueError):
    """A selection is invalid, or names a column that does not exist.

    The text shows the position. ``position`` is the index in the selection, from 0.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


def mistake(text: str, position: int, message: str) -> SelectionError:
    """Return the error for *position* in the selection *text*, with a caret below it."""
    start = text.rfind("\n", 0, position) + 1
    line = text[start:].partition("\n")[0].replace("\t", " ")
    caret = " " * (position - start) + "^"
    return SelectionError(f"{message}\n  {line}\n  {caret}", position)


# Parsed objects ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column, or a field of a struct column."""

    path: tuple[str, ...]
    at: int = field(default=0, compare=False, repr=False)

    def __str__(self) -> str:
        return ".".join(_name_text(part) for part in self.path)


@dataclass(frozen=True)
class Literal:
    """A constant for every row."""

    value: str | int | None
    at: int = field(default=0, compare=False, repr=False)

    def __str__(self) -> str:
        if isinstance(self.value, str):
            return _quoted(self.value)
        return "null" if self.value is None else str(self.value)


@dataclass(frozen=True)
class Item:
    """A member of json() or avro(): a column with its name, or all columns (``*``)."""

    column: Column
    name: str | None = None
    spread: bool = False

    def __str__(self) -> str:
        if self.spread:
            return f"{self.column}.*" if self.column.path else "*"
        return str(self.column) + (f" as {_name_text(self.name)}" if self.name is not None else "")


@dataclass(frozen=True)
class Json:
    """``json(items)``."""

    items: tuple[Item, ...]
    at: int = field(default=0, compare=False, repr=False)

    def __str__(self) -> str:
        return f"json({', '.join(map(str, self.items))})"


@dataclass(frozen=True)
class Avro:
    """``avro(items, 'schema')``, or ``avro(items, 'schema', id=7)``."""

    items: tuple[Item, ...]
    schema: str
    #: The schema's id, for the wire format of schema registries.
    id: int | None = None
    at: int = field(default=0, compare=False, repr=False)
    schema_at: int = field(default=0, compare=False, repr=False)

    def __str__(self) -> str:
        number = "" if self.id is None else f", id={self.id}"
        return f"avro({', '.join(map(str, self.items))}, {_quoted(self.schema)}{number})"


Expression = Column | Literal | Json | Avro


@dataclass(frozen=True)
class SelectEntry:
    """``field=expression``. With *header*, ``headers`` is a single header; without, all of them."""

    field: str
    header: str | None
    expression: Expression

    def __str__(self) -> str:
        name = "" if self.header is None else f".{_name_text(self.header)}"
        return f"{self.field}{name}={self.expression}"


def _quoted(text: str, mark: str = "'") -> str:
    return mark + text.replace(mark, mark * 2) + mark


def _name_text(name: str) -> str:
    return name if _BARE.fullmatch(name) and name not in _WORDS else _quoted(name, "`")


# The parser --------------------------------------------------------------------------------------

_BARE = re.compile(r"[^\W\d]\w*")
#: Keywords, which must be quoted if used as names.
_WORDS = ("as", "null")

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<name>[^\W\d]\w*) | (?P<number>-?\d+(?!\w)) |
        '(?P<text>(?:[^']|'')*)' | `(?P<quoted>(?:[^`]|``)*)` |
        (?P<mark>[=,.()*]) | (?P<end>\Z)
    )""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse_entries(text: str) -> tuple[SelectEntry, ...]:
    """Parse the entries of a selection.

    Raises:
        SelectionError: with the position, what was expected there, and what was found.
    """
    return _Parser(text).entries()


class _Parser:
    """A recursive descent parser with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next = 0
        self._advance()

    def entries(self) -> tuple[SelectEntry, ...]:
        """Parse the whole selection."""
        found = [self._entry([])]
        while self._took(","):
            found.append(self._entry(found))
        if self._token.kind != "end":
            self._expected("a comma or the end")
        if not any(entry.field == "value" for entry in found):
            raise mistake(
                self._text,
                len(self._text),
                "selection: no value given; add value=json(*) for the whole row, or value=null "
                "for messages without one",
            )
        return tuple(found)

    def _entry(self, before: list[SelectEntry]) -> SelectEntry:
        at, name = self._token.at, self._word("a field: " + ", ".join([*FIELDS, "headers.NAME"]))
        if name not in (*FIELDS, "headers"):
            choice = ", ".join([*FIELDS, "headers.NAME"])
            raise mistake(self._text, at, f"selection: no field {name!r}; fields are {choice}")
        header = self._header_name() if name == "headers" and self._took(".") else None
        for other in before:
            # A header may be repeated, but single headers exclude a column of all headers.
            if other.field == name and (header is None or other.header is None):
                raise mistake(self._text, at, f"selection: {name} is given twice")
        if not self._took("="):
            self._expected(f"= after {name}")
        entry = SelectEntry(name, header, self._expression())
        problem = _unfit(entry)
        if problem:
            raise mistake(self._text, entry.expression.at, f"selection: {problem}")
        return entry

    def _header_name(self) -> str:
        if self._token.kind not in ("name", "text", "quoted"):
            self._expected("the name of a header, with letters, digits and _ or in quotes")
        return self._pop()

    def _expression(self) -> Expression:
        kind, text, at = self._token
        if kind in ("text", "number"):
            self._advance()
            return Literal(int(text) if kind == "number" else text, at)
        if kind == "name" and text == "null":
            self._advance()
            return Literal(None, at)
        if kind not in ("name", "quoted"):
            self._expected("a column, 'text', an integer, null, json(...) or avro(...)")
        column = self._column()
        if kind != "name" or not self._took("("):
            return column
        if text == "json" and len(column.path) == 1:
            return self._json(at)
        if text == "avro" and len(column.path) == 1:
            return self._avro(at)
        raise mistake(self._text, at, f"selection: no function {column}(); use json or avro")

    def _json(self, at: int) -> Json:
        items = [self._item()]
        while self._took(","):
            items.append(self._item())
        if not self._took(")"):
            self._expected("a comma, 'as' and a name, or )")
        return Json(tuple(items), at)

    def _avro(self, at: int) -> Avro:
        items = [self._item()]
        while self._took(",") and self._token.kind != "text":
            items.append(self._item())
        if self._token.kind != "text":
            self._expected("a comma and the schema: 'a path' or '{...}'")
        schema_at, schema = self._token.at, self._pop()
        number = self._schema_id() if self._took(",") else None
        if not self._took(")"):
            self._expected(") after the schema" if number is None else ")")
        return Avro(tuple(items), schema, number, at, schema_at)

    def _schema_id(self) -> int:
        if self._token[:2] != ("name", "id"):
            self._expected("id=NUMBER after the schema")
        self._advance()
        if not self._took("="):
            self._expected("= after id")
        kind, text, at = self._token
        if kind != "number" or not 0 <= int(text) <= MOST_SCHEMA_ID:
            raise mistake(
                self._text, at, f"selection: an id is an integer from 0 to {MOST_SCHEMA_ID}"
            )
        self._advance()
        return int(text)

    def _item(self) -> Item:
        at = self._token.at
        if self._took("*"):
            return Item(Column((), at), spread=True)
        if self._token.kind not in ("name", "quoted"):
            self._expected("a column or *")
        column = self._column()
        if self._took("*"):  # _column() has consumed the dot before it
            return Item(column, spread=True)
        if self._token[:2] == ("name", "as"):
            self._advance()
            return Item(column, self._word("a name"))
        return Item(column)

    def _column(self) -> Column:
        at, path = self._token.at, [self._word("a column")]
        while self._took("."):
            if self._token[:2] == ("mark", "*"):
                break
            path.append(self._word("a field of the struct"))
        return Column(tuple(path), at)

    def _word(self, expected: str) -> str:
        if self._token.kind not in ("name", "quoted"):
            self._expected(expected)
        return self._pop()

    def _pop(self) -> str:
        text = self._token.text
        self._advance()
        return text

    def _took(self, mark: str) -> bool:
        """Consume the next token if it is *mark*, and return whether it was."""
        found = self._token[:2] == ("mark", mark)
        if found:
            self._advance()
        return found

    def _advance(self) -> None:
        found = _TOKEN.match(self._text, self._next)
        if found is None:
            self._unknown()
        kind = found.lastgroup or ""
        text = found[kind]
        if kind in ("text", "quoted"):
            mark = "'" if kind == "text" else "`"
            text = text.replace(mark * 2, mark)
        start = found.start(kind) - (kind in ("text", "quoted"))
        self._token = _Token(kind, text, start)
        self._next = found.end()

    def _unknown(self) -> NoReturn:
        """Raise for a character that no token begins with."""
        at = len(self._text) - len(self._text[self._next :].lstrip())
        character = self._text[at]
        if character in "'`":
            message = f"the {character} that opens here is never closed"
        elif character.isdigit():
            message = "neither a number nor a name; quote such names with back quotes"
        else:
            message = f"unexpected {character!r}; names other than letters, digits and _ go in "
            message += "back quotes, text in single quotes"
        raise mistake(self._text, at, f"selection: {message}")

    def _expected(self, what: str) -> NoReturn:
        kind, text, at = self._token
        found = "the end" if kind == "end" else repr(text)
        hint = "; names with other characters go in back quotes" if text.startswith("-") else ""
        raise mistake(self._text, at, f"selection: expected {what}; found {found}{hint}")


def _unfit(entry: SelectEntry) -> str | None:
    """Return why the expression cannot be used for its field, or None."""
    found, name = entry.expression, entry.field
    if name in ("key", "value") or entry.header is not None:
        return None
    if name == "headers":
        if isinstance(found, Column):
            return None
        return "headers requires a column of all headers; for a single one use headers.NAME=..."
    if isinstance(found, Json | Avro):
        return f"{name} requires a column or a literal, not json() or avro()"
    if isinstance(found, Column) or (found.value is None and name != "topic"):
        return None
    if name == "topic":
        ok = isinstance(found.value, str) and found.value != ""
        return None if ok else "topic requires a column or 'text'"
    most = _MOST_PARTITION if name == "partition" else _MOST_TIMESTAMP
    if isinstance(found.value, int) and 0 <= found.value <= most:
        return None
    unit = "" if name == "partition" else " of milliseconds since 1970"
    return f"{name} requires a column or an integer{unit}, not {found}"

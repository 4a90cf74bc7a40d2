"""Types of the compiled scan of text, with its documentation for editors.

The implementation is in ``_scan.pyx`` and, by format, in ``_scan_parts/*.pxi``. A *block* is a part
of a buffer, from ``start`` to ``end``. It must end with a line end, and begin where a line begins.
"""

from collections.abc import Sequence
from typing import Any, final

from typing_extensions import Buffer

#: Maximum depth of nested objects and arrays.
MOST_DEPTH: int

#: A column of text: the number of nulls, and its buffers as Arrow's ``large_string`` has them
#: (validity, offsets, data).
Column = tuple[int, Any, Any, Any]

class ScanError(ValueError):
    #: Index of the line among all lines that the scan has seen, from 0.
    line: int
    #: Index of the byte in that line, from 0.
    byte: int
    #: The name that the error is about, or None.
    member: str | None
    def __init__(self, reason: str, line: int, byte: int, member: str | None = ...) -> None: ...

@final
class JsonScan:
    """A scan of JSON Lines: an object in each line, strictly RFC 8259. Blank lines are skipped.

    Refused are text that is not UTF-8, lone surrogates, two members of the same name in an object,
    and nesting deeper than :data:`MOST_DEPTH`.

    Args:
        columns: the members to return as columns.
        known: other members; they matter for *strict* only.
        refused: members that no line may have.
        required: the member that each line must have.
        strict: refuse members that are neither columns nor known.
    """

    #: Number of lines seen.
    line: int
    #: Whether :meth:`tree` has the names in nested objects.
    nested: bool
    def __init__(
        self,
        columns: Sequence[str] = ...,
        *,
        known: Sequence[str] = ...,
        refused: Sequence[str] = ...,
        required: str | None = ...,
        strict: bool = ...,
    ) -> None: ...
    def lines(self, block: Buffer, start: int, end: int, suffix: bytes = ...) -> tuple[int, Column]:
        """Return the number of rows, and a column of the lines without their ends.

        With *suffix* (members), each line is its object with these members appended.
        """

    def learn(self, block: Buffer, start: int, end: int) -> int:
        """Add the names of members to :meth:`tree`; return the number of rows."""

    def tree(self) -> dict[str, Any]:
        """Return the names of members, in the order of first appearance.

        The values are the same for members of nested objects (not of those in arrays). After some
        ten thousand different names, only those of the lines' objects are kept.
        """

    def columns(
        self, block: Buffer, start: int, end: int, most_rows: int
    ) -> tuple[int, int, list[Column]]:
        """Return where the scan ended, the number of rows, and the JSON text of each member.

        A member that is missing in a line, or null, is null in its row.
        """

    def members(
        self, valid: Buffer | None, offsets: Buffer, data: Buffer, first: int, rows: int
    ) -> tuple[list[Column], list[int]]:
        """Return the members of objects in a column, and the rows that are not objects."""

    def texts(
        self,
        valid: Buffer | None,
        offsets: Buffer,
        data: Buffer,
        first: int,
        rows: int,
        only_strings: bool = ...,
    ) -> tuple[Column | None, int]:
        """Return the cells of a column as text: strings without marks and escapes.

        Objects and arrays have no text, nor do numbers if *only_strings*: the second value is the
        first row without one, or -1.
        """

@final
class CsvScan:
    """A scan of CSV.

    Args:
        delimiter: a single ASCII character.
        count: the number of cells that each row must have; 0: any number, none of which is wanted.
        wanted: the indices of the cells to return as columns.
    """

    #: Number of lines seen.
    line: int
    #: Number of cells in the row seen last.
    found: int
    def __init__(self, delimiter: str, count: int = ..., wanted: Sequence[int] = ...) -> None: ...
    def columns(
        self, block: Buffer, start: int, end: int, most_rows: int, last: bool
    ) -> tuple[int, int, list[Column]]:
        """Return where the scan ended, the number of rows, and the cells.

        An empty cell without quotation marks is null. Unless it is the *last* block, the scan ends
        before a row whose quoted cell goes on behind the block.
        """

#: Kinds of cells, as they are in JSON: JSON as it stands; text without characters that JSON
#: escapes; any text, which must be UTF-8; bytes; floating-point numbers as Arrow writes them (1 for
#: 1.0, nan).
VERBATIM: int
QUOTED: int
STRING: int
BASE64: int
FLOAT: int

@final
class Texts:
    """The buffers of an Arrow column of ``large_string`` or ``large_binary``."""

    def __init__(self, valid: Buffer | None, offsets: Buffer, data: Buffer | None) -> None: ...

def write_rows(members: list[tuple[bytes, int, Texts, int]], end: bytes, rows: int) -> Column:
    """Return a text for each row: all *members* of the row, and *end*.

    A member is a text that precedes it, what its cells are, the column, and the place of its first
    cell there. Null is the text "null". ValueError if a cell is not UTF-8.
    """

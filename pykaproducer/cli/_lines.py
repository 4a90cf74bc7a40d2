"""Split input into lines, reading in pieces and buffering no more than the longest message.

Only the terminator, one ``\\n``, is removed. A line that ends in CRLF keeps its ``\\r``, an empty
line is an empty line, and a last line without terminator is a line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pykaproducer.cli._signals import Signals

#: Size of each read (bytes).
_PIECE = 1 << 20


class Lines(NamedTuple):
    """Lines without their terminators."""

    lines: list[bytes]
    #: False if this is a last line without terminator.
    terminated: bool


class Fragment(NamedTuple):
    """A part of a line that is too long to be a message, with its terminator if included."""

    data: bytes
    #: Whether this is the beginning of the line.
    first: bool


def pieces(fd: int, signals: Signals) -> Iterator[bytes]:
    """Yield data from *fd* as it arrives, until its end or a signal."""
    while signals.readable(fd) and (piece := os.read(fd, _PIECE)):
        yield piece


def split(source: Iterable[bytes], longest: int) -> Iterator[Lines | Fragment]:
    """Split *source* into lines; a line that exceeds *longest* bytes is yielded in fragments.

    A line whose end was read before its length was checked is yielded as a line.
    """
    rest: list[bytes] = []
    size = 0
    inside = False  # inside a line that is too long
    for whole in source:
        piece = whole
        if inside:
            end, newline, piece = piece.partition(b"\n")
            yield Fragment(end + newline, first=False)
            inside = not newline
        head, newline, tail = piece.rpartition(b"\n")
        if newline:
            yield Lines(b"".join((*rest, head)).split(b"\n"), terminated=True)
            rest, size = [], 0
        if tail:
            rest.append(tail)
            size += len(tail)
        if size > longest:
            yield Fragment(b"".join(rest), first=True)
            rest, size, inside = [], 0, True
    if rest:
        yield Lines([b"".join(rest)], terminated=False)

"""Input as lines: read by the piece, split, with no more in memory than the longest message.

The terminator, one ``\\n``, is taken off and nothing else: a line that ends in CRLF keeps its
``\\r``, an empty line is an empty line, a last line without terminator is a line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pykaproducer.cli._signals import Signals

#: Input is read in pieces of this size (bytes).
_PIECE = 1 << 20


class Lines(NamedTuple):
    """Lines without their terminators."""

    lines: list[bytes]
    #: False for one last line that had none.
    terminated: bool


class Fragment(NamedTuple):
    """A part of a line that is too long to be a message, as it stands in the input."""

    data: bytes
    #: Whether the line begins with it.
    first: bool


def pieces(fd: int, signals: Signals) -> Iterator[bytes]:
    """What *fd* has, as it comes, until its end or a signal."""
    while signals.readable(fd) and (piece := os.read(fd, _PIECE)):
        yield piece


def split(source: Iterable[bytes], longest: int) -> Iterator[Lines | Fragment]:
    """The lines of *source*; one that grows beyond *longest* bytes comes as fragments.

    A line that was complete before it was found too long comes as a line.
    """
    rest: list[bytes] = []
    size = 0
    inside = False  # of a line that is too long
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

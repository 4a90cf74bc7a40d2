"""What is known about the end of a transaction."""

from __future__ import annotations

import enum


class CommitOutcome(enum.Enum):
    """What is known about a transaction."""

    __module__ = "pykaproducer.errors"  # where users find it

    NOT_COMMITTED = enum.auto()
    #: A commit was requested, and it is unknown whether it was carried out.
    POSSIBLY_COMMITTED = enum.auto()
    COMMITTED = enum.auto()

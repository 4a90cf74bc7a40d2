"""The outcome of a transaction."""

from __future__ import annotations

import enum


class CommitOutcome(enum.Enum):
    """The outcome of a transaction, as far as this client knows."""

    __module__ = "pykaproducer.errors"  # where users find it

    #: Readers see none of it. In a ``TransactionTimeoutError``: so far.
    NOT_COMMITTED = enum.auto()
    #: A commit was requested, and it is unknown whether it was carried out.
    POSSIBLY_COMMITTED = enum.auto()
    COMMITTED = enum.auto()

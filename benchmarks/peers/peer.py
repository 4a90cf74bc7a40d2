"""The interface of a client in the comparison."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Protocol

from benchmarks.runner import Measures


class Feature(enum.Enum):
    """Optional features; an error names the missing one by its value."""

    KEYS = "keys"
    LEVELS = "compression levels"
    TOPICS = "several topics in turn"
    OFFSETS = "offsets in transactions"


class Unavailable(Exception):
    """A requirement of the client is missing; the text says what to do."""


class Peer(Protocol):
    """A client in the comparison: how it is run, and the features that it lacks."""

    lacks: frozenset[Feature]

    def prepare(self) -> None:
        """Prepare everything before a clock starts; raise :class:`Unavailable` if that fails."""

    def version(self) -> str:
        """Return the version for the report; call it after prepare()."""

    def send(self, job: Mapping[str, Any], limit: float) -> Measures:
        """Run a send loop once in a fresh process, as defined by ``benchmarks.send.measure``.

        Raise ``RunFailed``, and end the process, after *limit* seconds.
        """

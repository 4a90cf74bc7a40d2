"""What one who takes part can be asked for."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Protocol

from benchmarks.runner import Measures


class Feature(enum.Enum):
    """What not everyone has; an error says it with the value."""

    KEYS = "keys"
    LEVELS = "compression levels"
    TOPICS = "several topics in turns"


class Unavailable(Exception):
    """Something that is needed to run it is not here; the text says what to do."""


class Peer(Protocol):
    """One who takes part: how it is run, and what it does not have."""

    lacks: frozenset[Feature]

    def prepare(self) -> None:
        """Have everything ready before a clock starts; raises :class:`Unavailable`."""

    def version(self) -> str:
        """What is measured, for the report; call it when it is prepared."""

    def send(self, job: Mapping[str, Any], limit: float) -> Measures:
        """One run of a send loop in a fresh process: ``benchmarks.send.measure`` says what.

        Raises ``RunFailed``, and ends the process after *limit* seconds.
        """

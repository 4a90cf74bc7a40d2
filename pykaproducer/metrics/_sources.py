"""The observed producers: uniquely named, not kept alive, and with their errors contained."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from pykaproducer.metrics._instruments import Snapshot

log = logging.getLogger("pykaproducer.metrics")


class Source(Protocol):
    """The parts of a producer that are used here."""

    def stats(self) -> dict[str, Any]:
        """Return its statistics."""


class _Entry:
    """A producer and its state here."""

    def __init__(self, producer: Source) -> None:
        self.producer = weakref.ref(producer)
        #: Its ``client_id``, with a number if another one already has that name.
        self.name: str | None = None
        #: Whether its last ``stats()`` failed, which has been logged.
        self.failing = False


class Sources:
    """Producers of this process.

    Used by several threads at once and in forked children, without a lock, because a child might
    find it locked forever. The list is replaced and never modified, and threads that name an entry
    at the same time choose the same name.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def add(self, producer: Source) -> None:
        """Add *producer*."""
        known = [entry for entry in self._entries if entry.producer() is not None]
        if all(entry.producer() is not producer for entry in known):
            known.append(_Entry(producer))
        self._entries = known

    def remove(self, producer: Source) -> None:
        """Remove *producer*."""
        gone = (None, producer)
        self._entries = [entry for entry in self._entries if entry.producer() not in gone]

    def snapshots(self) -> Iterator[tuple[str, Snapshot]]:
        """Yield the name and ``stats()`` of each producer whose ``stats()`` succeeds."""
        entries = self._entries
        for entry in entries:
            producer = entry.producer()
            if producer is None:
                continue
            # An error that propagated from here would cost all other metrics of the process.
            try:
                snapshot = producer.stats()
            except Exception as error:
                if not entry.failing:
                    entry.failing = True
                    log.warning("%r: stats() failed; no metrics for it", producer, exc_info=error)
                continue
            entry.failing = False
            if entry.name is None:
                entry.name = _free(snapshot["client_id"], {each.name for each in entries})
            yield entry.name, snapshot


def _free(client_id: str, taken: set[str | None]) -> str:
    names = itertools.chain([client_id], (f"{client_id}#{n}" for n in itertools.count(2)))
    return next(name for name in names if name not in taken)

"""The producers that are asked: each by a name of its own, none kept alive, no error passed on."""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from pykaproducer.metrics._instruments import Snapshot

log = logging.getLogger("pykaproducer.metrics")


class Source(Protocol):
    """What is asked of a producer."""

    def stats(self) -> dict[str, Any]:
        """What it does."""


class _Entry:
    """A producer, and what we know of it."""

    def __init__(self, producer: Source) -> None:
        self.producer = weakref.ref(producer)
        #: Its ``client_id``, with a number where another one has that already.
        self.name: str | None = None
        #: It failed when it was asked, and the log knows.
        self.failing = False


class Sources:
    """Producers of this process.

    Asked by several threads at once, and in children of a fork, without a lock, which a child
    might find taken for ever: the list is replaced and never changed, and who names an entry
    that another thread names at the same moment comes to the same name.
    """

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def add(self, producer: Source) -> None:
        """Ask *producer*, too."""
        known = [entry for entry in self._entries if entry.producer() is not None]
        if all(entry.producer() is not producer for entry in known):
            known.append(_Entry(producer))
        self._entries = known

    def remove(self, producer: Source) -> None:
        """Do not ask it any more."""
        gone = (None, producer)
        self._entries = [entry for entry in self._entries if entry.producer() not in gone]

    def snapshots(self) -> Iterator[tuple[str, Snapshot]]:
        """The name and the ``stats()`` of each that answers."""
        entries = self._entries
        for entry in entries:
            producer = entry.producer()
            if producer is None:
                continue
            # An error that went on from here would cost everything that the process measures.
            try:
                snapshot = producer.stats()
            except Exception as error:
                if not entry.failing:
                    entry.failing = True
                    log.warning("%r: stats() failed, no metrics of it", producer, exc_info=error)
                continue
            entry.failing = False
            if entry.name is None:
                entry.name = _free(snapshot["client_id"], {each.name for each in entries})
            yield entry.name, snapshot


def _free(client_id: str, taken: set[str | None]) -> str:
    names = itertools.chain([client_id], (f"{client_id}#{n}" for n in itertools.count(2)))
    return next(name for name in names if name not in taken)

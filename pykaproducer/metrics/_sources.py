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
    find it locked forever. Each operation on one of the tables is atomic.
    """

    def __init__(self) -> None:
        # By the identity of the producer.
        self._entries: dict[int, _Entry] = {}
        # The key of the producer that has a name.
        self._owners: dict[str, int] = {}

    def add(self, producer: Source) -> None:
        """Add *producer*."""
        for key, entry in list(self._entries.items()):
            if entry.producer() is None:
                self._drop(key)
        self._entries.setdefault(id(producer), _Entry(producer))

    def remove(self, producer: Source) -> None:
        """Remove *producer*."""
        self._drop(id(producer))

    def _drop(self, key: int) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None and entry.name is not None:
            self._owners.pop(entry.name, None)

    def snapshots(self) -> Iterator[tuple[str, Snapshot]]:
        """Yield the name and ``stats()`` of each producer whose ``stats()`` succeeds."""
        for key, entry in list(self._entries.items()):
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
                entry.name = self._name(snapshot["client_id"], key)
            yield entry.name, snapshot

    def _name(self, client_id: str, key: int) -> str:
        """Return the name of the producer *key*: threads that ask at once get the same one."""
        names = itertools.chain([client_id], (f"{client_id}#{n}" for n in itertools.count(2)))
        return next(name for name in names if self._owners.setdefault(name, key) == key)

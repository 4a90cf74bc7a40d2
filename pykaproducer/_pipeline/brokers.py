"""The table of BrokerWorkers: which are in use, and by how many PartitionWorkers each."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pykaproducer._pipeline.broker import BrokerWorker


class Brokers:
    """The BrokerWorkers in use, by broker id, with their references.

    Guarantees: a worker is told to stop once, behind everything that was put into it by those
    that held it. The next ``acquire`` of the same broker makes a new worker: workers are known by
    object, and two of one broker may be there while the old one drains.
    """

    def __init__(self, make: Callable[[int], BrokerWorker]) -> None:
        self._make = make
        # Guards both tables.
        self._lock = threading.RLock()
        self._workers: dict[int, BrokerWorker] = {}
        self._references: dict[BrokerWorker, int] = {}
        self._draining: list[BrokerWorker] = []

    def acquire(self, broker_id: int) -> BrokerWorker:
        """The broker's worker, for one PartitionWorker more."""
        with self._lock:
            worker = self._workers.get(broker_id)
            if worker is None:
                worker = self._workers[broker_id] = self._make(broker_id)
                self._references[worker] = 0
            self._references[worker] += 1
            return worker

    def release(self, worker: BrokerWorker) -> None:
        """One PartitionWorker less; the last one ends it."""
        with self._lock:
            self._references[worker] -= 1
            if self._references[worker]:
                return
            del self._references[worker]
            if self._workers.get(worker.broker_id) is worker:
                del self._workers[worker.broker_id]
            self._draining.append(worker)
        worker.stop()

    def all(self) -> list[BrokerWorker]:
        """Every worker whose thread may still run."""
        with self._lock:
            self._draining = [w for w in self._draining if w.is_alive() or w.bridge.is_alive()]
            return [*self._references, *self._draining]

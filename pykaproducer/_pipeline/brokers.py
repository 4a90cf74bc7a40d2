"""The table of BrokerWorkers: which are in use, and by how many PartitionWorkers each."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pykaproducer._pipeline.broker import BrokerWorker, Unused


class Brokers:
    """The BrokerWorkers in use, by broker id, with their references.

    Guarantees: a worker without references stays, with its threads, its connection, the backoff
    of its reconnects and a broker's throttle, until it has been unused for some time and asks for
    its end (:meth:`end_unused`). Each failed attempt lets a worker go, and the next attempt mostly
    needs the same one. A worker is stopped once, after everything that its holders have put into
    it. The next ``acquire`` of the same broker makes a new worker: workers are
    known by object, and two of one broker may be there while the old one drains.

    No worker ends that is needed:

    1. The last PartitionWorker releases a worker, which has nothing to do for a long time.
    2. It asks for its end. A PartitionWorker acquires it.
    3. Both take the lock. If the PartitionWorker is first, there is a reference, and the worker
       goes on. If the worker is first, it is out of the table, and the PartitionWorker gets a new
       one.
    """

    def __init__(self, make: Callable[[int], BrokerWorker]) -> None:
        self._make = make
        # Guards the tables against the stages. A user's thread reads without it: see `all`.
        self._lock = threading.Lock()
        self._workers: dict[int, BrokerWorker] = {}
        self._references: dict[BrokerWorker, int] = {}
        # Every worker whose thread may still run, and some that have ended. Replaced whole.
        self._running: tuple[BrokerWorker, ...] = ()
        #: Set when the pipeline ends: no thread starts from then on.
        self.ended = False

    def acquire(self, broker_id: int) -> BrokerWorker:
        """The broker's worker, for one PartitionWorker more."""
        with self._lock:
            worker = self._workers.get(broker_id)
            if worker is None:
                worker = self._workers[broker_id] = self._make(broker_id)
                self._references[worker] = 0
                # Whoever ends the pipeline (1) sets `ended`, (2) asks for all workers; we (1) enter
                # this one, (2) look: one of us sees the other.
                self._running = (*self.all(), worker)
                if self.ended:
                    worker.stopping = worker.bridge.stopping = True
            self._references[worker] += 1
            return worker

    def release(self, worker: BrokerWorker) -> None:
        """Drop one reference, after all that the PartitionWorker has put into *worker*."""
        with self._lock:
            self._references[worker] -= 1
            if self._references[worker]:
                return
        worker.put(Unused())

    def end_unused(self, worker: BrokerWorker) -> None:
        """End *worker*, which has long been unused, unless it has been acquired since."""
        with self._lock:
            if self._references.get(worker) != 0:
                return
            del self._references[worker]
            if self._workers.get(worker.broker_id) is worker:
                del self._workers[worker.broker_id]
        worker.stop()

    def all(self) -> tuple[BrokerWorker, ...]:
        """Every worker whose thread may still run. From any thread, without a lock."""
        return tuple(worker for worker in self._running if not self._has_ended(worker))

    def references(self, worker: BrokerWorker) -> int:
        """How many PartitionWorkers hold *worker*. From any thread, without a lock."""
        return self._references.get(worker, 0)

    def _has_ended(self, worker: BrokerWorker) -> bool:
        # One that was let go and has no thread yet gets one, which ends its bridge.
        was_there = worker not in self._references and worker.thread is not None
        return was_there and not worker.is_alive() and not worker.bridge.is_alive()

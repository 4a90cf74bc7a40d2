"""The table of BrokerWorkers, with the number of PartitionWorkers that use each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pykaproducer._pipeline.broker import BrokerWorker
from pykaproducer._pipeline.broker_events import Unused


class Brokers:
    """The BrokerWorkers in use, by broker id, with their reference counts.

    Guarantees: a worker without references is kept, with its threads, its connection, its reconnect
    backoff and its throttling state, until it has been unused for some time and calls
    :meth:`end_unused`. (Each failed attempt releases a worker, and the next attempt usually needs
    the same one.) A worker is stopped once, after everything that its holders have put into it. The
    next ``acquire`` of the same broker creates a new worker. Two workers of one broker may exist
    while the old one drains, so workers are identified by object.

    A worker that is needed is not stopped:

    1. The last PartitionWorker releases a worker, which is then idle for a long time.
    2. The worker calls end_unused() while a PartitionWorker calls acquire().
    3. Both take the lock. If the PartitionWorker is first, there is a reference, and the worker
       continues. If the worker is first, it is removed from the table, and the PartitionWorker gets
       a new one.
    """

    def __init__(self, make: Callable[[int], BrokerWorker]) -> None:
        self._make = make
        # Guards the tables among stages. A user thread reads without it: see `all`.
        self._lock = threading.Lock()
        self._workers: dict[int, BrokerWorker] = {}
        self._references: dict[BrokerWorker, int] = {}
        # All workers whose threads may still run, and some that have ended. Replaced as a whole.
        self._running: tuple[BrokerWorker, ...] = ()
        #: Set when the pipeline ends: no more threads are started.
        self.ended = False

    def acquire(self, broker_id: int) -> BrokerWorker:
        """Return the worker of a broker, and add a reference for the calling PartitionWorker."""
        with self._lock:
            worker = self._workers.get(broker_id)
            if worker is None:
                worker = self._workers[broker_id] = self._make(broker_id)
                self._references[worker] = 0
                # No worker is missed by Pipeline.stop(): that (1) sets `ended`, (2) calls all();
                # this method (1) adds the worker, (2) reads `ended`.
                self._running = (*self.all(), worker)
                if self.ended:
                    worker.stopping = worker.bridge.stopping = True
            self._references[worker] += 1
            return worker

    def release(self, worker: BrokerWorker) -> None:
        """Drop the reference of a PartitionWorker, after it has put its last item into *worker*."""
        with self._lock:
            self._references[worker] -= 1
            if self._references[worker]:
                return
        worker.put(Unused())

    def end_unused(self, worker: BrokerWorker) -> None:
        """Stop *worker*, which has long been unused, unless it has been acquired since."""
        with self._lock:
            if self._references.get(worker) != 0:
                return
            del self._references[worker]
            if self._workers.get(worker.broker_id) is worker:
                del self._workers[worker.broker_id]
        worker.stop()

    def find(self, broker_id: int) -> BrokerWorker | None:
        """Return the worker of a broker if there is one. For any thread; takes no lock."""
        return self._workers.get(broker_id)

    def all(self) -> tuple[BrokerWorker, ...]:
        """Return all workers whose threads may still run. For any thread; takes no lock."""
        return tuple(worker for worker in self._running if not self._has_ended(worker))

    def references(self, worker: BrokerWorker) -> int:
        """Return how many PartitionWorkers use *worker*. For any thread; takes no lock."""
        return self._references.get(worker, 0)

    def _has_ended(self, worker: BrokerWorker) -> bool:
        # A released worker without a thread gets one later, which stops its bridge.
        was_started = worker not in self._references and worker.thread is not None
        return was_started and not worker.is_alive() and not worker.bridge.is_alive()

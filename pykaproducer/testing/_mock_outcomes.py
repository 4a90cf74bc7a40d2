"""The pending messages of a :class:`~pykaproducer.testing.MockProducer`, and their outcomes."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import crc32c

import pykaproducer._kernel as _kernel
from pykaproducer import delivery
from pykaproducer._kernel import Chunk, Slice
from pykaproducer._pipeline.metrics import ProducerMetrics
from pykaproducer._pipeline.unreported import UnreportedFailures
from pykaproducer._util.clock import Clock
from pykaproducer.errors import DeliveryTimeoutError, Status
from pykaproducer.testing._scripted_log import read_batch

#: No limit on the bytes and the rows of a batch.
_UNLIMITED = 2**31

#: Makes the error of a failed message from its topic, its partition and its status.
MakeError = Callable[[str, int | None, Status], BaseException]


@dataclass(frozen=True, slots=True)
class SentRecord:
    """A message that a :class:`MockProducer` has accepted, as it would be written to the log."""

    topic: str
    #: The partition that was asked for, or that the partitioner chose.
    partition: int
    #: As serialized.
    key: bytes | None
    #: As serialized.
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    #: Milliseconds since the epoch.
    timestamp: int


@dataclass(frozen=True, slots=True)
class _Pending:
    """A message without an outcome."""

    chunk: Chunk
    row: int
    partition: int


class InformedCoordinator(Protocol):
    """The parts of a coordinator of transactions that the outcomes use."""

    def written(self) -> None:
        """Report a message."""

    def row_failed(self, error: BaseException) -> None:
        """Report a failure of a message."""

    def run(self) -> None:
        """Perform the effects of the failures."""


def records_of(chunk: Chunk, parts: Iterable[Slice]) -> Iterator[tuple[int, SentRecord]]:
    """Yield ``(row, record)`` for each row of *parts*, which are slices of *chunk*.

    The rows are encoded as for a broker, and decoded by kafka-python's reader.
    """
    for part in parts:
        rows = part.row_numbers()
        claimed = chunk.pick(rows, part.partition).claim(_UNLIMITED, _UNLIMITED, True)
        if claimed is None:
            continue  # all of them have their outcome already
        rows = claimed.row_numbers()
        encoded, _ = _kernel.encode_batch([claimed], crc32c.crc32c)
        claimed.unclaim()
        _, records = read_batch(bytes(encoded))
        for row, record in zip(rows, records, strict=True):
            headers = tuple(record.headers)
            yield (
                row,
                SentRecord(
                    chunk.topic,
                    part.partition,
                    record.key,
                    record.value,
                    headers,
                    record.timestamp,
                ),
            )


class MockOutcomes:
    """The history, the pending messages, and the callbacks to run.

    Guarantees: a message is settled once. Callbacks run one at a time and without any lock, in the
    thread that settles the message, or in the thread that is running callbacks at that moment.

    1. Thread A runs the callback of a message.
    2. Thread B settles another message, whose callback may use the same data of the program.
    3. B leaves it to A, which runs it next. In particular, B may be A: the callback settles
       messages, whose callbacks then run after it, not inside of it.
    """

    def __init__(self, metrics: ProducerMetrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self.unreported = UnreportedFailures(clock)
        #: Guards all of the following; notified when no callback is left to run. Re-entrant,
        #: because a signal handler, or a user's partitioner, may send.
        self.lock = threading.Condition(threading.RLock())
        self.history: list[SentRecord] = []
        self._pending: deque[_Pending] = deque()
        self._offsets: dict[tuple[str, int], int] = {}
        self._settled: deque[Slice] = deque()
        #: The thread that is running callbacks.
        self.reporter: int | None = None
        # Transactions. The messages of the open one, which are in the history when it is committed.
        self._uncommitted: list[SentRecord] = []
        self._coordinator: InformedCoordinator | None = None
        self._deliver_all: Callable[[], int] = int

    def __len__(self) -> int:
        """Return the number of pending messages."""
        return len(self._pending)

    def add(self, chunk: Chunk, parts: Iterable[Slice]) -> None:
        """Add the messages of *chunk*, which *parts* divide by partition, in their order."""
        log = self.history if self._coordinator is None else self._uncommitted
        for row, record in sorted(records_of(chunk, parts), key=lambda pair: pair[0]):
            log.append(record)
            if self._coordinator is not None:
                self._coordinator.written()
            self._pending.append(_Pending(chunk, row, record.partition))

    def deliver_next(self, *, unconfirmed: bool) -> bool:
        """Settle the oldest pending message as delivered; return False if there is none."""
        with self.lock:
            if (pending := self._next()) is None:
                return False
            where = pending.chunk.topic, pending.partition
            offset = -1 if unconfirmed else self._offsets.get(where, 0)
            part = pending.chunk.pick([pending.row], pending.partition)
            nbytes, now = part.nbytes, self._clock.monotonic()
            if unconfirmed:
                part.mark_ambiguous()
            settled = part.deliver(offset, latency=self._metrics.delivery, now=now)
            if settled is not None:
                self._offsets[where] = offset + 1
                self._metrics.batch_delivered(*where, now, 1, nbytes)
                self._settled.append(settled)
            return True

    def fail_next(self, make_error: MakeError) -> bool:
        """Settle the oldest pending message as failed; return False if there is none."""
        with self.lock:
            if (pending := self._next()) is None:
                return False
            self.fail(
                pending.chunk.pick([pending.row], pending.partition),
                functools.partial(make_error, pending.chunk.topic, pending.partition),
            )
            return True

    def fail(self, part: Slice, make_error: Callable[[Status], BaseException]) -> None:
        """Settle *part* as failed; *make_error* is called for either status."""
        with self.lock:
            errors = make_error(Status.NOT_PERSISTED), make_error(Status.POSSIBLY_PERSISTED)
            if self._coordinator is not None and not part.is_settled:
                self._coordinator.row_failed(errors[0])
            settled = part.fail(*errors)
            if settled is not None:
                now = self._clock.monotonic()
                self._metrics.slice_failed(part.topic, now, settled.count, settled.nbytes)
                self._settled.append(settled)

    def expire(self) -> None:
        """Fail the pending messages whose deadline has passed."""
        now = self._clock.monotonic()
        with self.lock:
            for chunk in {id(pending.chunk): pending.chunk for pending in self._pending}.values():
                for part in chunk.expired(now):
                    self.fail(part, _expiry_of(part, now - chunk.opened))
            self._pending = deque(one for one in self._pending if not _is_settled(one))

    def next_deadline(self) -> float | None:
        """Return when the first pending message expires (monotonic seconds); None without any."""
        with self.lock:
            return min((pending.chunk.next_deadline for pending in self._pending), default=None)

    def run_callbacks(self) -> None:
        """Run the callbacks of the settled messages, unless a thread is running callbacks now."""
        if self._coordinator is not None:
            self._coordinator.run()  # a message that failed ends the transaction of the others
        with self.lock:
            if self.reporter is not None:
                return
            self.reporter = threading.get_ident()
        try:
            while (part := self._next_settled()) is not None:
                if part.wants_report:
                    part.report(delivery.log_callback_error)
                else:
                    part.finish()
                self.unreported.remember(part, part.chunk)
        finally:
            with self.lock:
                if self.reporter == threading.get_ident():  # an exception ended the loop
                    self._end_reporting()

    def _next_settled(self) -> Slice | None:
        with self.lock:
            if self._settled:
                return self._settled.popleft()
            # In the same step in which nothing is found, so that no thread leaves a message to
            # this one after it has looked for the last time.
            self._end_reporting()
            return None

    def _end_reporting(self) -> None:
        self.reporter = None
        self.lock.notify_all()

    def wait_for_callbacks(self, timeout: float | None) -> bool:
        """Wait until no thread runs callbacks; return False if one does after *timeout* seconds."""
        end = None if timeout is None else self._clock.monotonic() + timeout
        with self.lock:
            return self.lock.wait_for(
                lambda: self.reporter is None,
                None if end is None else max(0.0, end - self._clock.monotonic()),
            )

    # Transactions --------------------------------------------------------------------------------

    def join_transactions(
        self, coordinator: InformedCoordinator, deliver_all: Callable[[], int]
    ) -> None:
        """Let messages belong to transactions from now on. *deliver_all*: the pending messages."""
        self._coordinator = coordinator
        self._deliver_all = deliver_all

    def uncommitted_records(self) -> list[SentRecord]:
        """Return the messages of the open transaction."""
        with self.lock:
            return list(self._uncommitted)

    def commit(self) -> None:
        """Put the messages of the open transaction into the history."""
        with self.lock:
            self.history += self._uncommitted
            self._uncommitted.clear()

    def drop_uncommitted(self) -> None:
        """Forget the messages of the open transaction."""
        with self.lock:
            self._uncommitted.clear()

    def settle_all(self) -> None:
        """Deliver all pending messages, and wait until their callbacks have run."""
        self._deliver_all()
        self.run_callbacks()
        self.wait_for_callbacks(None)

    def fail_all(self, make_error: MakeError) -> None:
        """Fail all pending messages, and run their callbacks."""
        while self.fail_next(make_error):
            pass
        self.run_callbacks()

    def forget(self) -> None:
        """Forget the history, the offsets and the unreported failures."""
        with self.lock:
            self.history.clear()
            self._uncommitted.clear()
            self._offsets.clear()
        self.unreported.take()

    def _next(self) -> _Pending | None:
        return self._pending.popleft() if self._pending else None


def _expiry_of(part: Slice, waited: float) -> Callable[[Status], BaseException]:
    def make_error(status: Status) -> BaseException:
        return DeliveryTimeoutError(
            topic=part.topic,
            partition=part.partition,
            waited=waited,
            status=status,
            reason="the test did not complete it",
        )

    return make_error


def _is_settled(pending: _Pending) -> bool:
    part = pending.chunk.pick([pending.row], pending.partition)
    return not part.count or part.is_settled

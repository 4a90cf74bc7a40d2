"""Reports: runs delivery callbacks in a separate thread, so that they never stall I/O.

There is one per producer. It owns nothing except its inbox of settled slices. Each stage settles
rows through :class:`Settler` as soon as their outcome is known, which wakes the threads that wait
in ``result()``. Only rows with a callback are put into this stage's inbox. So a callback that
blocks delays other callbacks, but no outcome.

Guarantees: callbacks run one at a time, in this thread only. Those of one partition run in the
order of its outcomes. A chunk counts as complete only when its callbacks have run. This stage also
logs failures that neither a callback nor a read outcome has reported (see ``unreported.py``).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pykaproducer._kernel as _kernel
from pykaproducer import delivery
from pykaproducer._kernel import Chunk, ReportsInbox, Slice
from pykaproducer._machines.batch import Batch
from pykaproducer._pipeline.current_thread import wake
from pykaproducer._pipeline.incomplete import IncompleteChunks
from pykaproducer._pipeline.metrics import ProducerMetrics
from pykaproducer._pipeline.shortage import Shortage
from pykaproducer._pipeline.unreported import Failures, Holder, Part, UnreportedFailures
from pykaproducer._pipeline.worker import ITEMS_PER_ROUND, StageContext, Worker
from pykaproducer._util.clock import Clock
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer.errors import DeliveryError, DeliveryTimeoutError, Status, reasons

log = GuardedLogger("pykaproducer.producer")

#: The methods of Reports that call callbacks.
_CALLING = ("handle", "wait_for_items")
#: Maximum number of topics named in a log line.
_NAMED = 3

#: Makes the error of a failed message for a status, which may differ from row to row.
MakeError = Callable[[Status], DeliveryError]
_STATUSES = (Status.NOT_PERSISTED, Status.POSSIBLY_PERSISTED)


class ReportsCollaborators(NamedTuple):
    """The other objects that the stage uses."""

    incomplete: IncompleteChunks
    unreported: UnreportedFailures


class Reports(Worker[Slice]):
    """The stage that runs callbacks."""

    def __init__(self, context: StageContext, collaborators: ReportsCollaborators) -> None:
        super().__init__("reports", context)
        self._incomplete = collaborators.incomplete
        self._unreported = collaborators.unreported
        #: Its inbox, for compiled steps.
        self.compiled_inbox = ReportsInbox(
            self._items, self._wake_event, self._incomplete, self.metrics
        )

    def wait_for_items(self, deadline: float | None) -> bool:
        while super().wait_for_items(deadline):
            self._running.acquire()
            try:
                log_error = delivery.log_callback_error
                if not self.compiled_inbox.run_callbacks(log_error, ITEMS_PER_ROUND):
                    return True
            finally:
                self._running.release()  # `with` would need memory for it
            # Another stage may have set the deadline, and its wake-up has ended this wait.
            due = self.deadline()
            if due is not None and (deadline is None or due < deadline):
                return True
            if deadline is not None and self.clock.monotonic() >= deadline:
                return True
        return False

    def handle(self, item: Slice) -> None:
        is_reported = is_remembered = last = False
        while True:  # each step may be repeated, or is not
            try:
                if not is_reported:
                    last = item.report(delivery.log_callback_error)
                    is_reported = True
                    if (trace := self.metrics.trace) is not None:
                        trace.note("reported", self, item, detail="callbacks have run")
                if not is_remembered:
                    self._unreported.remember(item, item.chunk)
                    is_remembered = True
                if last:
                    self._incomplete.leave(item.chunk)
                return
            except NO_MEMORY:
                self.shortage.wait()

    def callback_name(self) -> str:
        """Return the name of the function in Python that it is calling, or "". From any thread."""
        frame = sys._current_frames().get(getattr(self.thread, "ident", None) or 0)
        name = ""
        while frame is not None and frame.f_code.co_filename != __file__:
            name = frame.f_code.co_qualname
            frame = frame.f_back
        return "" if frame is None or frame.f_code.co_name not in _CALLING else name

    def deadline(self) -> float | None:
        return self._unreported.due

    def on_time(self, now: float) -> None:
        try:
            failures = self._unreported.line(now)
            if failures.number:
                log.error("%s", unreported(failures))
        except NO_MEMORY:
            self.shortage.wait()  # a line that was begun is lost; what is still due comes later


def unreported(failures: Failures) -> str:
    """Return the log line for *failures*."""
    count, topics = failures.number, failures.topics
    text = "1 message" if count == 1 else f"{count} messages"
    text += " failed, and no callback or read outcome has reported it"
    if topics:
        named = ", ".join(map(repr, topics[:_NAMED]))
        text += f"; topic{'s' if len(topics) > 1 else ''} {named}"
        text += " and others" if len(topics) > _NAMED else ""
    return text + reasons(failures.errors, most=1)


class Failure(NamedTuple):
    """Rows that have failed for one reason."""

    parts: Sequence[Slice]
    #: Called for either status.
    make_error: MakeError
    #: Called first, in transactions only.
    before: Callable[[], object] | None = None


def _fail(rows: list[tuple[Slice, tuple[DeliveryError, ...]]], failed: list[Slice | None]) -> None:
    """Settle *rows*. Put what had no outcome at the beginning of *failed*, as its row in *rows*."""
    count = 0
    for row in rows:
        settled = failed[count] = row[0].fail(*row[1], wake=False)
        if settled is not None:
            rows[count] = row
            count += 1


class Settler:
    """Gives rows their outcome, each row once. May be called by any stage."""

    def __init__(
        self,
        reports: Reports,
        incomplete: IncompleteChunks,
        unreported: UnreportedFailures,
        clock: Clock,
        metrics: ProducerMetrics,
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._reports = reports
        self._incomplete = incomplete
        self._unreported = unreported
        #: Returns what is called with the error of a failure, before the rows count as settled.
        self.on_failure: Callable[[], Callable[[DeliveryError], None]] | None = None
        #: Held from that call until the rows have their outcome. The dispatcher takes it once
        #: before it fails all rows of a transaction, or this could happen:
        #:
        #: 1. A BrokerWorker reports that a batch was rejected. Its rows have no outcome yet.
        #: 2. The coordinator has the dispatcher fail all rows, these too: "another message failed".
        #: 3. The BrokerWorker finds that its rows have an outcome.
        self.failing = threading.Lock()
        self.shortage = Shortage("settling", clock)
        # The stage Reports has crashed: callbacks are no longer called.
        self._no_reports = False

    def reports_have_ended(self) -> None:
        """Settle without callbacks from now on, because the stage Reports has crashed."""
        self._no_reports = True
        self._reports.compiled_inbox.is_open = False

    def deliver(self, batch: Batch, base_offset: int, timestamp: int, now: float) -> None:
        """Settle the rows of *batch* as delivered, at offsets from *base_offset* on."""
        metrics = self._metrics
        settled: list[Slice | None] = [None] * len(batch.parts)
        reports, report = iter(settled), self.report_settled
        try:
            rows, nbytes = _kernel.deliver_parts(
                batch.parts, base_offset, timestamp, metrics.delivery, now, settled
            )
            if rows:
                metrics.batch_delivered(batch.topic, batch.partition, now, rows, nbytes)
            if (trace := metrics.trace) is not None:
                for part in settled:
                    if part is not None:
                        trace.note("settled", None, part, detail="delivered")
        finally:  # even if there was no memory for the rest
            _kernel.call_in_any_case(report, reports, ())

    def fail(self, parts: Sequence[Slice], make_error: MakeError) -> None:
        """Settle *parts* as failed for one reason."""
        self.fail_each([Failure(parts, make_error)])

    def fail_each(self, failures: Sequence[Failure]) -> None:
        """Settle the rows of *failures*, each with its own error and none because of another."""
        rows = [
            (part, errors)
            for each in failures
            for errors in [tuple(map(each.make_error, _STATUSES))]
            for part in each.parts
        ]
        failed: list[Slice | None] = [None] * len(rows)
        reports, report = iter(failed), self.report_settled
        try:
            if self.on_failure is None:
                _fail(rows, failed)
            else:
                # Before the look at the rows, which may get their outcome elsewhere after that.
                note = self.on_failure()
                self.failing.acquire()
                try:
                    for each in failures:
                        if each.before is not None:
                            each.before()
                    for part, errors in rows:
                        if not part.is_settled:
                            # Of rows that expired with a partition, the kernel knows the status.
                            timeout = isinstance(errors[1], DeliveryTimeoutError)
                            note(errors[timeout and part.partition >= 0])
                            break
                    _fail(rows, failed)
                finally:
                    self.failing.release()  # `with` would need memory for it
            for settled, (_, errors) in zip(failed, rows, strict=True):
                if settled is None:
                    break
                now = self._clock.monotonic()
                self._metrics.slice_failed(settled.topic, now, settled.count, settled.nbytes)
                if (trace := self._metrics.trace) is not None:
                    trace.note("settled", None, settled, detail=str(errors[0]))
        finally:  # even if there was no memory for the rest
            _kernel.call_in_any_case(report, reports, ())

    def report_settled(
        self, reports: Iterator[Slice | None], finished: Sequence[Chunk | None]
    ) -> None:
        """Report settled slices: wake their waiters, and have callbacks run.

        *finished*: chunks that are complete and have nothing to report. Both end with the first
        None, if there is one: the step makes room for the largest possible number.

        Nothing else would report these rows. So the step calls it until there is memory for it, and
        it goes on with what is left of *reports*.
        """
        for chunk in finished:
            if chunk is None:
                break
            self._incomplete.leave(chunk)
        with_callbacks = False
        for part in reports:
            if part is None:
                break
            ended = remembered = last = sooner = False
            while True:  # each step may be repeated, or is not
                try:
                    if part.chunk.has_waiters:
                        wake(part.wake_waiters)
                    if self._incomplete.watches_outcomes and part.chunk.is_settled:
                        self._incomplete.settled(part.chunk)
                    if not ended and part.wants_report and not self._no_reports:
                        self._reports.append(part)
                        with_callbacks = True
                        break
                    # It has no callbacks to run, or they are not run any more.
                    if not ended:
                        if (trace := self._metrics.trace) is not None:
                            trace.note("reported", None, part, detail="no callback")
                        last = part.finish()
                        ended = True
                    # Before leave(), after which a waiting flush may return.
                    if not remembered:
                        sooner = self._unreported.remember(part, part.chunk)
                        remembered = True
                    if sooner and not self._no_reports:
                        self._reports.wake()
                    if last:
                        self._incomplete.leave(part.chunk)
                    break
                except NO_MEMORY:
                    try:
                        self.shortage.wait()
                    except NO_MEMORY:
                        pass
        if with_callbacks:
            inbox = self._reports.compiled_inbox
            inbox.is_open = self._reports.is_alive()
            if self._no_reports:  # since it was looked at above
                inbox.is_open = False

    def refuse(self, part: Part, holder: Holder) -> None:
        """Remember the failure of *part*, which was rejected without an exception being raised.

        For user threads.
        """
        if self._unreported.enter(part, holder) and not self._no_reports:
            self._reports.wake()

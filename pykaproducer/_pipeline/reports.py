"""Reports: one per producer. Runs the users' callbacks, so that slow user code never stalls I/O.

Owns: nothing but its inbox of settled slices. Rows are settled where their outcome becomes known
(:class:`Settler`, called by the stages), at once and for whoever waits in ``result()``; only
those with a callback come here. So a callback that blocks delays other callbacks, but no outcome.

Guarantees: callbacks run one at a time, in this thread only; those of one partition in the order
of its outcomes. A chunk counts as done only when its callbacks have run. Failures that neither a
callback nor a read outcome has reported are logged (``untold.py`` says when), here because logging
handlers are user code, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pykaproducer import delivery
from pykaproducer._clock import Clock
from pykaproducer._kernel import Slice
from pykaproducer._pipeline.inflight import InFlight
from pykaproducer._pipeline.meter import Meter
from pykaproducer._pipeline.untold import Failures, Holder, Part, Untold
from pykaproducer._pipeline.worker import Worker, wake
from pykaproducer.errors import DeliveryError, Status, reasons

log = logging.getLogger("pykaproducer.producer")

#: How many topics a log line names at most.
_NAMED = 3

#: Makes the error of a failed message for either status: it is per row.
MakeError = Callable[[Status], DeliveryError]


class Reports(Worker):
    """The thread that runs callbacks."""

    # Set by wiring, before the first item.
    inflight: InFlight
    untold: Untold

    def step(self, item: Slice) -> None:
        last = item.report(delivery.log_callback_error)
        if (trace := self.meter.trace) is not None:
            trace.note("reported", self, item, detail="callbacks have run")
        self.untold.remember(item, item.chunk)
        if last:
            self.inflight.leave(item.chunk)

    def deadline(self) -> float | None:
        return self.untold.due

    def on_time(self, now: float) -> None:
        failures = self.untold.line(now)
        if failures.count:
            log.error("%s", unreported(failures))


def unreported(failures: Failures) -> str:
    """Return the log line for *failures*."""
    count, topics = failures.count, failures.topics
    text = "1 message" if count == 1 else f"{count} messages"
    text += " failed, and no callback or read outcome has reported it"
    if topics:
        named = ", ".join(map(repr, topics[:_NAMED]))
        text += f"; topic{'s' if len(topics) > 1 else ''} {named}"
        text += " and others" if len(topics) > _NAMED else ""
    return text + reasons(failures.errors, most=1)


class Settler:
    """The one way in which rows get their outcome. Called by any stage; settles each row once."""

    def __init__(
        self, reports: Reports, inflight: InFlight, untold: Untold, clock: Clock, meter: Meter
    ) -> None:
        self._clock = clock
        self._meter = meter
        self._reports = reports
        self._inflight = inflight
        self._untold = untold
        #: Reports has died: callbacks are not called any more.
        self.no_reports = False

    def deliver(self, part: Slice, base_offset: int, timestamp: int, now: float) -> None:
        """The broker has *part*, from *base_offset* on."""
        meter = self._meter
        settled = part.deliver(base_offset, timestamp, wake=False, latency=meter.delivery, now=now)
        if settled is not None:
            meter.slice_delivered(part.topic, part.partition, now, settled.count, settled.nbytes)
            if (trace := meter.trace) is not None:
                trace.note("settled", None, settled, detail="delivered")
        self._report(part, settled)

    def fail(self, part: Slice, make_error: MakeError) -> None:
        """*part* has failed; rows that may be in the log get the error that says so."""
        errors = make_error(Status.NOT_PERSISTED), make_error(Status.POSSIBLY_PERSISTED)
        settled = part.fail(*errors, wake=False)
        if settled is not None:
            now = self._clock.monotonic()
            self._meter.slice_failed(part.topic, now, settled.count, settled.nbytes)
            if (trace := self._meter.trace) is not None:
                trace.note("settled", None, settled, detail=str(errors[0]))
        self._report(part, settled)

    def _report(self, part: Slice, settled: Slice | None) -> None:
        if settled is None:
            return
        if part.chunk.has_waiters:
            wake(settled.wake_waiters)
        if settled.wants_report and not self.no_reports:
            self._reports.put(settled)
            return
        if (trace := self._meter.trace) is not None:
            trace.note("reported", None, settled, detail="no callback")
        last = settled.finish()
        # Before a flush that waits for it can end.
        if self._untold.remember(settled, settled.chunk) and not self.no_reports:
            self._reports.wake()
        if last:
            self._inflight.leave(settled.chunk)

    def refuse(self, part: Part, holder: Holder) -> None:
        """Remember *part*, which was not accepted although its call did not raise.

        For user threads.
        """
        if self._untold.enter(part, holder) and not self.no_reports:
            self._reports.wake()

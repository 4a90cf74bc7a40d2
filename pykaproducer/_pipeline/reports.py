"""Reports: one per producer. Runs the users' callbacks, so that slow user code never stalls I/O.

Owns: nothing but its inbox of settled slices. Rows are settled where their outcome becomes known
(:class:`Settler`, called by the stages), at once and for whoever waits in ``result()``; only
those with a callback come here. So a callback that blocks delays other callbacks, but no outcome.

Guarantees: callbacks run one at a time, in this thread only; those of one partition in the order
of its outcomes. A chunk counts as done only when its callbacks have run.
"""

from __future__ import annotations

from collections.abc import Callable

from pykaproducer import delivery
from pykaproducer._clock import Clock
from pykaproducer._kernel import Slice
from pykaproducer._pipeline.inflight import InFlight
from pykaproducer._pipeline.meter import Meter
from pykaproducer._pipeline.untold import Untold
from pykaproducer._pipeline.worker import Worker, wake
from pykaproducer.errors import DeliveryError, Status

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
        self.untold.remember(item)
        if last:
            self.inflight.leave(item.chunk)


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
        self._untold.remember(settled)
        if last:
            self._inflight.leave(settled.chunk)

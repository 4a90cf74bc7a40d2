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
from pykaproducer._kernel import Slice
from pykaproducer._pipeline.inflight import InFlight
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
        self.untold.remember(item)
        if last:
            self.inflight.leave(item.chunk)


class Settler:
    """The one way in which rows get their outcome. Called by any stage; settles each row once."""

    def __init__(self, reports: Reports, inflight: InFlight, untold: Untold) -> None:
        self._reports = reports
        self._inflight = inflight
        self._untold = untold
        #: Reports has died: callbacks are not called any more.
        self.no_reports = False

    def deliver(self, part: Slice, base_offset: int, timestamp: int = -1) -> None:
        """The broker has *part*, from *base_offset* on."""
        self._report(part, part.deliver(base_offset, timestamp, wake=False))

    def fail(self, part: Slice, make_error: MakeError) -> None:
        """*part* has failed; rows that may be in the log get the error that says so."""
        errors = make_error(Status.NOT_PERSISTED), make_error(Status.POSSIBLY_PERSISTED)
        self._report(part, part.fail(*errors, wake=False))

    def _report(self, part: Slice, settled: Slice | None) -> None:
        if part.chunk.has_waiters:
            wake(part.chunk.wake_waiters)
        if settled is None:
            return
        if settled.wants_report and not self.no_reports:
            self._reports.put(settled)
            return
        last = settled.finish()
        # Before a flush that waits for it can end.
        self._untold.remember(settled)
        if last:
            self._inflight.leave(settled.chunk)

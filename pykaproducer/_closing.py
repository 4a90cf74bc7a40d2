"""How a producer ends: what ``Producer.close()`` waits for, and what becomes of the rest.

**A callback may still send**, to retry what has failed, while ``close()`` waits:

1. ``close()`` begins to close: each ``send()`` asks ``Producer._start()``, which refuses all
   threads but the one that runs callbacks;
2. it flushes: all that was accepted before has its outcome then, and its callbacks have run, so
   what they have sent has been accepted, and counted in ``accepted``;
3. if ``accepted`` has grown since the flush began, it flushes once more;
4. if it has not, no callback is left that could send. Admission ends for good, and the threads.

A callback that sends each time it is called would make step 3 a loop without end. So after
``ROUNDS`` flushes, or at the deadline, admission ends first, and the last flush follows.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Protocol

from pykaproducer._clock import Clock
from pykaproducer._pipeline.untold import Failures, Taken
from pykaproducer._pipeline.wiring import Pipeline
from pykaproducer.config import Config
from pykaproducer.errors import DeliveryFailures

log = logging.getLogger("pykaproducer.producer")

#: Why messages have failed after ``abort()``.
GIVEN_UP = "abort() was called, or close(0)"

#: How many times in a row messages sent by callbacks are flushed.
ROUNDS = 100

#: close() logs what it waits for after this time (seconds).
_PATIENCE = 2.0


class Handover:
    """Failures on their way from the thread that ends a pipeline to the ``with`` block that waits.

    Exactly one of the two reports them:

    1. the ending thread (a) puts them here, (b) looks whether they are still waited for, and takes
       them back if they are not;
    2. the other (a) declares that it no longer waits, (b) takes them if they are here.

    If 1b comes before 2a, 2b finds them. Else both try to take them, and one succeeds.
    """

    def __init__(self) -> None:
        self._given: deque[Taken] = deque(maxlen=1)
        self._waiting = True

    def give(self, taken: Taken) -> bool:
        """Hand *taken* over; return false if nothing waits for it any more."""
        if not self._waiting:
            return False
        self._given.append(taken)
        return self._waiting or self._pop() is None

    def take(self) -> Taken | None:
        """End the wait; return what was handed over, None if nothing was."""
        self._waiting = False
        return self._pop()

    def _pop(self) -> Taken | None:
        try:
            return self._given.pop()
        except IndexError:
            return None


class Closable(Protocol):
    """The parts of a producer that this module uses."""

    config: Config
    _clock: Clock

    @property
    def accepted(self) -> int: ...

    def _shut(self) -> None: ...

    def _announce_strays(self) -> None: ...


def finish(producer: Closable, pipeline: Pipeline, timeout: float | None) -> str | None:
    """Wait until all that was accepted has its outcome, and end admission.

    Returns why the rest is to fail; None: there is no rest.
    """
    producer._announce_strays()
    began = producer._clock.monotonic()
    deadline = producer._clock.after(timeout)
    # Without a timeout each message has its own deadline. This bounds what callbacks go on to send.
    last = began + producer.config.delivery_timeout_ms / 1000 if deadline is None else deadline
    before = producer.accepted
    pending = _flush_and_log(producer, pipeline, deadline)
    rounds = 1
    while not pending and producer.accepted != before and rounds < ROUNDS:
        before, rounds = producer.accepted, rounds + 1
        pending = pipeline.flush(last)
    producer._shut()
    # A send() of another thread, which close() has overtaken, may come between the two as well.
    if not pending and producer.accepted != before:
        producer._announce_strays()
        pending = pipeline.flush(last)
    if not pending:
        return None
    if timeout == 0:
        return GIVEN_UP
    if timeout is not None:
        return f"close() ended after its timeout of {timeout:.3g} s"
    return (
        f"close() ended after delivery_timeout_ms ({producer.config.delivery_timeout_ms:.0f} ms), "
        f"in which callbacks went on to send"
    )


def _flush_and_log(producer: Closable, pipeline: Pipeline, deadline: float | None) -> int:
    """Flush as :meth:`Pipeline.flush` does; log what a long close() waits for."""
    soon = producer._clock.monotonic() + _PATIENCE
    if deadline is not None and deadline <= soon:
        return pipeline.flush(deadline)
    pending = pipeline.flush(soon)
    if not pending:
        return 0
    log.warning(
        "close(): waiting for %d messages that have no outcome yet (abort() would fail them)",
        pending,
    )
    return pipeline.flush(deadline)


def report(taken: Taken, what: str) -> None:
    """Log what no line has counted yet; *what* ended, or flushed."""
    failures = taken.unlogged
    if failures.count:
        log.error("%s: %s", what, DeliveryFailures(failures.count, failures.errors))


def raise_failures(failures: Failures) -> None:
    """Raise DeliveryFailures if there are any."""
    if failures.count:
        raise DeliveryFailures(failures.count, failures.errors)

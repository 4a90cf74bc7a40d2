"""Closing a producer: what ``Producer.close()`` waits for, and how it ends the rest.

**A callback may still send**, to retry failed messages, while ``close()`` waits:

1. ``close()`` begins to close: each ``send()`` calls ``Producer._start()``, which raises on all
   threads except the one that runs callbacks.
2. It flushes. After that, all messages accepted before have their outcome and their callbacks have
   run, so that all messages which those have sent are accepted and counted in ``accepted``.
3. If ``accepted`` has grown since the flush began, it flushes again.
4. If it has not, no callback is left that could send. Admission ends, and the threads stop.

A callback that sends each time it is called would make step 3 an endless loop. After ``ROUNDS``
flushes, or at the deadline, admission therefore ends first, and the last flush follows.

**A transactional producer** accepts nothing from the beginning of ``close()`` on. An open
transaction is aborted, as the program has not committed it; one that is being ended is waited for.
The flush follows, for the callbacks. ``close(0)`` sends nothing: the coordinator ends the
transaction when ``transaction_timeout_ms`` has passed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from pykaproducer._errors.formatting import counted
from pykaproducer._machines.transaction_states import (
    ENDING,
    FailureKind,
    TransactionCall,
    TransactionState,
)
from pykaproducer._pipeline.transaction_errors import error_of
from pykaproducer._pipeline.unreported import Failures, Taken, UnreportedFailures
from pykaproducer._util.clock import Clock
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer.config import Config
from pykaproducer.errors import CommitOutcome, DeliveryFailures, FlushTimeoutError

if TYPE_CHECKING:
    from pykaproducer._machines.transaction_effects import AnswerCaller
    from pykaproducer._pipeline.coordinator_items import Control
    from pykaproducer._pipeline.wiring import Pipeline

log = GuardedLogger("pykaproducer.producer")

#: The reason of failures after ``abort()``.
GIVEN_UP = "abort() was called, or close(0)"

#: The maximum number of consecutive flushes of messages sent by callbacks.
ROUNDS = 100

#: A transaction that is not being ended.
_OPEN = frozenset({TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE})
#: Its end is not known.
_UNFINISHED = frozenset({FailureKind.TIMEOUT, FailureKind.CLOSED})
#: After this time, close() logs what it waits for (seconds).
_PATIENCE = 2.0


class Handover:
    """A transfer of failures from the thread that stops a pipeline to the waiting ``with`` block.

    Exactly one of the two reports them:

    1. The stopping thread (a) puts them here, (b) checks whether the block still waits for them,
       and takes them back if it does not.
    2. The block (a) declares that it no longer waits, (b) takes them if they are here.

    If 1b happens before 2a, 2b finds them. Otherwise both try to take them, and one succeeds.
    """

    def __init__(self) -> None:
        self._given: deque[Taken] = deque(maxlen=1)
        self._waiting = True

    def give(self, taken: Taken) -> bool:
        """Hand *taken* over; return False if the block no longer waits for it."""
        if not self._waiting:
            return False
        self._given.append(taken)
        return self._waiting or self._pop() is None

    def take(self) -> Taken | None:
        """End the wait; return what was handed over, or None."""
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
    _handover: Handover | None

    @property
    def accepted(self) -> int: ...

    def _shut(self) -> None: ...

    def _announce_missed_slots(self) -> None: ...


class HasUnreported(Protocol):
    """A pipeline, or what a mock has instead."""

    unreported: UnreportedFailures


class TransactionEnder(Protocol):
    """The stage Coordinator, or what a mock has instead."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def state(self) -> TransactionState: ...

    def call(self, control: Control, until: float | None = None) -> AnswerCaller | None: ...


def finish(producer: Closable, pipeline: Pipeline, timeout: float | None) -> str | None:
    """Wait until all accepted messages have their outcome, and end admission.

    Return the reason with which the remaining messages are to fail, or None if there are none.
    """
    producer._announce_missed_slots()
    began = producer._clock.monotonic()
    deadline = producer._clock.after(timeout)
    # Without a timeout, each message has its own deadline. This one limits what callbacks send.
    last = began + producer.config.delivery_timeout_ms / 1000 if deadline is None else deadline
    if pipeline.coordinator is not None:
        end_transaction(producer, pipeline, pipeline.coordinator, timeout)
    before = producer.accepted
    pending = _flush_and_log(producer, pipeline, deadline, last)
    rounds = 1
    while not pending and producer.accepted != before and rounds < ROUNDS:
        before, rounds = producer.accepted, rounds + 1
        pending = pipeline.flush(last)
    producer._shut()
    # A concurrent send() of another thread may also have been accepted in between.
    if not pending and producer.accepted != before:
        producer._announce_missed_slots()
        pending = pipeline.flush(last)
    if not pending:
        return None
    if timeout == 0:
        return GIVEN_UP
    if timeout is not None:
        return f"close() ended after its timeout of {timeout:.3g} s"
    if stuck := pipeline.stuck_callback(pending):
        return f"close() ended although {stuck}"
    return (
        f"close() ended after delivery_timeout_ms ({producer.config.delivery_timeout_ms:.0f} ms), "
        f"while callbacks continued to send"
    )


def end_transaction(
    producer: Closable,
    failures: HasUnreported,
    coordinator: TransactionEnder,
    timeout: float | None,
) -> None:
    """Abort an open transaction, or wait for the end of one that is being ended."""
    from pykaproducer._pipeline.coordinator_items import Control, ControlCaller

    config, clock = producer.config, producer._clock
    state = coordinator.state
    if state not in _OPEN | ENDING:
        return
    if timeout == 0:
        log.warning(
            "%s: transactional id %r: %s",
            GIVEN_UP,
            coordinator.transactional_id,
            _left_open(config),
        )
        return
    deadline = clock.after(timeout)
    if deadline is None:
        seconds = config.max_block_ms / 1000
        if state is TransactionState.FLUSHING:
            seconds += config.delivery_timeout_ms / 1000
        deadline = clock.monotonic() + seconds
    # The stage keeps the deadline, unless a resolver blocks it.
    ended = coordinator.call(Control(TransactionCall.CLOSE, ControlCaller(), deadline), deadline)
    if ended is None or (ended.failure is not None and ended.failure.kind in _UNFINISHED):
        unsure = ended is not None and ended.outcome is CommitOutcome.POSSIBLY_COMMITTED
        text = "its commit was not confirmed" if unsure else _left_open(config)
        log.warning("close(): transactional id %r: %s", coordinator.transactional_id, text)
    elif state in ENDING and coordinator.state is TransactionState.PREPARED:
        text = f"prepare_transaction() did not return its transaction; {_left_open(config)}"
        log.warning("close(): transactional id %r: %s", coordinator.transactional_id, text)
    elif ended.failure is not None:
        log.warning("close(): %s", error_of(ended.failure, coordinator.transactional_id))
    elif state in _OPEN and ended.outcome is not CommitOutcome.COMMITTED:
        failed = 0
        if producer._handover is None:  # otherwise the `with` block raises them
            failed = failures.unreported.take().failures.number
        log.warning(
            "close(): transactional id %r: the open transaction was aborted%s; call "
            "commit_transaction() before close()",
            coordinator.transactional_id,
            f", and {counted(failed, 'message')} of it failed" if failed else "",
        )
    elif ended.outcome is not None:
        log.info(
            "close(): transactional id %r: the outcome of the last transaction is %s",
            coordinator.transactional_id,
            ended.outcome.name,
        )


def _left_open(config: Config) -> str:
    return (
        f"a transaction is left open; its coordinator aborts it after transaction_timeout_ms "
        f"({config.transaction_timeout_ms:.0f} ms)"
    )


def _flush_and_log(
    producer: Closable, pipeline: Pipeline, deadline: float | None, last: float
) -> int:
    """Flush like :meth:`Pipeline.flush`, and log what a long close() waits for.

    Without a deadline it ends when all messages have their outcome, and no callback has returned
    for ``delivery_timeout_ms`` (at first until *last*): it may never do so.
    """
    soon = producer._clock.monotonic() + _PATIENCE
    if deadline is not None and deadline <= soon:
        return pipeline.flush(deadline)
    pending = pipeline.flush(soon)
    if not pending:
        return 0
    if stuck := pipeline.stuck_callback(pending):
        log.warning("close(): waiting because %s", stuck)
    else:
        why = pipeline.why_pending()
        log.warning(
            "close(): waiting for %s without an outcome (abort() would fail what is left)%s",
            counted(pending, "message"),
            f"; {why}" if why else "",
        )
    if deadline is not None:
        return pipeline.flush(deadline)
    while True:
        before = pending
        pending = pipeline.flush(last)
        if not pending or (pending >= before and pipeline.stuck_callback(pending)):
            return pending
        last = producer._clock.monotonic() + producer.config.delivery_timeout_ms / 1000


def flush_timeout(pending: int, timeout: float, why: str, stuck: str) -> FlushTimeoutError:
    """Return the error of a flush after which *pending* messages have no outcome.

    *why*: the reason of one of them, or "". *stuck*: see :meth:`Pipeline.stuck_callback`.
    """
    if stuck:
        return FlushTimeoutError(f"after {max(0.0, timeout):.3g} s, {stuck}", pending=pending)
    they_are, them = ("it is", "it") if pending == 1 else ("they are", "them")
    return FlushTimeoutError(
        f"{counted(pending, 'message')} had no outcome after {max(0.0, timeout):.3g} s"
        + (f" ({why})" if why else "")
        + f"; {they_are} still being sent, until "
        f"delivery_timeout_ms ends {them}",
        pending=pending,
    )


def report(taken: Taken, what: str) -> None:
    """Log the failures that are not yet logged; *what* is the call that ended or flushed."""
    failures = taken.unlogged
    if failures.number:
        log.error("%s: %s", what, DeliveryFailures(failures.number, failures.errors))


def raise_failures(failures: Failures) -> None:
    """Raise DeliveryFailures if there are any."""
    if failures.number:
        raise DeliveryFailures(failures.number, failures.errors)

"""The threads that wait for the results of control calls, at the moment when their time is over."""

from __future__ import annotations

from typing import Any

from pykaproducer._machines.transaction_effects import AnswerCaller
from pykaproducer._machines.transaction_states import (
    FailureKind,
    TransactionCall,
    TransactionFailure,
    TransactionState,
)
from pykaproducer._pipeline.coordinator_items import CallerLeft, Control, ControlCaller
from pykaproducer._pipeline.waiting_callers import WaitingCallers
from pykaproducer.testing import FakeClock


def test_a_result_that_comes_as_the_time_is_over_is_read_once() -> None:
    """Either by this call, or by the next equal one, which its stage then waits for.

    1. The stage is late, and the caller's time is over.
    2. The caller finds no result, and records that it has left.
    3. The stage tells it the result.
    4. The caller must not return that: the next transaction would be refused until it is read.
    """
    clock, caller = FakeClock(), ControlCaller()
    left = []

    def put(item: Any) -> None:
        if isinstance(item, CallerLeft):
            left.append(item.caller)
            item.caller.tell(AnswerCaller(caller))

    def failure_of(call: TransactionCall) -> TransactionFailure:
        return TransactionFailure(FailureKind.CLOSED, TransactionState.READY, call)

    waiting = WaitingCallers(clock, put, failure_of)
    result = waiting.call(Control(TransactionCall.COMMIT, caller), clock.monotonic() - 1.0, 1.0)
    assert left == [caller]
    assert caller.left
    assert result is None

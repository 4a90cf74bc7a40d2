"""The threads that wait for the result of a control call. Part of Coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pykaproducer._machines.transaction_effects import AnswerCaller
from pykaproducer._machines.transaction_states import TransactionCall, TransactionFailure
from pykaproducer._pipeline.coordinator_items import (
    CallerLeft,
    CallerWaits,
    Control,
    ControlCaller,
)
from pykaproducer._util import threads
from pykaproducer._util.clock import Clock

#: How long after its deadline a call stops waiting for the stage (seconds).
_SLACK: Final = 0.5


class WaitingCallers:
    """Hands control calls to the stage, and ends all of them when nothing else would.

    *put*: puts an item into its inbox. *failure_of*: describes the failure of a call that is ended.
    """

    def __init__(
        self,
        clock: Clock,
        put: Callable[[Control | CallerLeft | CallerWaits], None],
        failure_of: Callable[[TransactionCall], TransactionFailure],
    ) -> None:
        self._clock = clock
        self._put = put
        self._failure_of = failure_of
        self._callers: dict[ControlCaller, TransactionCall] = {}
        self._gave_up = False

    def call(self, control: Control, until: float | None, patience: float) -> AnswerCaller | None:
        """Hand over a control call, and return its result; None if it is late. By its caller.

        *until*: when the stage should have ended the call. None: the stage decides when. None is
        returned if it is blocked then: it has to react every *patience* seconds.

        No call waits forever: this method (1) adds the caller, (2) reads ``_gave_up``;
        :meth:`give_up` (1) sets that, (2) ends the wait of all callers.
        """
        caller = control.caller
        try:
            self._callers[caller] = control.call
            self._put(control)
            if self._gave_up:
                self.give_up()
            if until is None:
                self._wait_for_stage(caller, patience)
            else:
                threads.acquire(self._clock, caller.done, until + _SLACK)
        except BaseException:  # KeyboardInterrupt
            self.leave(caller)
            raise
        finally:
            self._callers.pop(caller, None)
        result = caller.result
        if result is None:
            # One that comes from here on is not read: the next equal call gets it.
            self.leave(caller)
        return result

    def _wait_for_stage(self, caller: ControlCaller, patience: float) -> None:
        clock = self._clock
        while not threads.acquire(clock, caller.done, clock.monotonic() + max(patience, _SLACK)):
            caller.seen = False
            self._put(CallerWaits(caller))
            if threads.acquire(clock, caller.done, clock.monotonic() + _SLACK) or not caller.seen:
                return

    def leave(self, caller: ControlCaller) -> None:
        """Record that *caller* does not read its result, as its call was interrupted.

        The next equal call gets the result, even if another interrupt prevents the second step: the
        stage looks at ``left`` before the next call. No interrupt comes before the first step.
        """
        caller.left = True
        self._put(CallerLeft(caller))

    def give_up(self) -> None:
        """End all calls, as the stage has ended, or any stage has crashed. From any thread."""
        self._gave_up = True
        for caller, call in list(self._callers.items()):
            failure = self._failure_of(call)
            caller.tell(AnswerCaller(caller, failure, failure.outcome))

"""The rows of a transaction: watching and failing them. For the stage Coordinator."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, MutableMapping

from pykaproducer._machines.transaction_states import TransactionFailure
from pykaproducer._pipeline.dispatcher_items import FailAll, FlushMark
from pykaproducer._pipeline.incomplete import FlushBarrier
from pykaproducer._pipeline.retry import GiveUpWaiting
from pykaproducer._pipeline.transaction_errors import aborted_error
from pykaproducer._pipeline.worker import Worker


class TransactionRows:
    """Watches and fails all rows that were accepted so far.

    *barriers*: in which the crash policy finds the barriers; it does not keep them alive.
    *end_lingering*: makes all batches due. *retry*: returns the RetryHandler.
    """

    def __init__(
        self,
        dispatcher: Worker[FlushMark | FailAll],
        retry: Callable[[], Worker[GiveUpWaiting]],
        barriers: MutableMapping[int, FlushBarrier],
        end_lingering: Callable[[], None],
    ) -> None:
        self._dispatcher, self._retry = dispatcher, retry
        self._barriers, self._end_lingering = barriers, end_lingering
        # Number -> barrier that is not met. Messages do not linger while there is one.
        self._waiting: dict[int, FlushBarrier] = {}
        self._numbers = itertools.count()

    def watch(self, done: Callable[[], None]) -> None:
        """Call *done* when all rows have their outcome."""
        self._watch(done, settled_only=True)
        self._end_lingering()

    def watch_reports(self, done: Callable[[], None]) -> None:
        """Call *done* when their callbacks have run, too."""
        self._watch(done, settled_only=False)

    def _watch(self, done: Callable[[], None], *, settled_only: bool) -> None:
        number = next(self._numbers)

        def met() -> None:
            self._forget(number)  # by number: it is not kept alive by this function
            done()

        barrier = self._waiting[number] = FlushBarrier(met, settled_only=settled_only)
        self._barriers[id(barrier)] = barrier
        self._dispatcher.put_now(FlushMark(barrier))

    def _forget(self, number: int) -> None:
        """Let messages linger again, although a stage may still have the barrier in its hands."""
        barrier = self._waiting.pop(number, None)
        if barrier is not None:
            self._barriers.pop(id(barrier), None)

    def fail(self, failure: TransactionFailure, done: Callable[[], None]) -> None:
        """Fail the rows without outcome because of *failure*, and then call *done*."""
        for number in list(self._waiting):
            self._forget(number)

        def failed() -> None:
            self._retry().put(GiveUpWaiting())
            done()

        self._dispatcher.put(FailAll(functools.partial(aborted_error, failure), failed))

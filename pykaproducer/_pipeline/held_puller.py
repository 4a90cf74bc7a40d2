"""Decides when a BrokerWorker takes the messages in the open chunks. Part of BrokerWorker.

The dispatcher holds messages that could not be sent yet (``Dispatcher._hold``), because taking a
chunk costs a slice for each of its partitions. The BrokerWorker has them taken when it can use
them:

* its window is open, so the next request may be sealed;
* and the partitions with pending messages do not fill that request anyway, if one is due. They take
  turns, so messages that are taken later than these could not be in it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

from pykaproducer._kernel import Batcher
from pykaproducer._machines.window import Window
from pykaproducer._pipeline.bridge import SMALL
from pykaproducer._pipeline.held_slots import HeldSlots
from pykaproducer._pipeline.worker import AnyWorker


class HeldPuller:
    """Has the messages of the dispatcher's *held* slots taken for one BrokerWorker, *worker*.

    *take*: has the dispatcher take them. *opens_at*: returns when the next request may be sealed,
    as :meth:`Window.opens_at`; its argument is whether the request is full.
    """

    def __init__(
        self,
        worker: AnyWorker,
        held: HeldSlots,
        take: Callable[[], None],
        batcher: Batcher,
        window: Window,
        opens_at: Callable[[bool], float | None],
    ) -> None:
        self._worker = worker
        self._held = held
        self._take = take
        self._batcher = batcher
        self._window = window
        self._opens_at = opens_at
        # Whether the next request was full at the last look().
        self._is_full = False
        # Whether pull() has left messages in the open chunks because of that.
        self._skipped = False
        # Whether pull() has left them because the window opens later.
        self._was_early = False

    def opens_in(self, now: float) -> float:
        """Return after how long (seconds) a small request may be sealed. For any thread.

        May be out of date. Infinity: after a response, or when the next request is no longer full.
        """
        opens = None if self._is_full else self._opens_at(False)
        return math.inf if opens is None else max(0.0, opens - now)

    def opens_later(self, now: float) -> float | None:
        """Return when held messages can be taken if that only depends on time, else None.

        The result may be in the past:

        1. pull() finds that the window opens later.
        2. The window opens.
        3. The stage asks when it must be awake: at once, to call pull() again.
        """
        opens = self._opens_at(False) if self._held else None
        # An open window needs no deadline: TakeHeld is under way, or the next request is full.
        return opens if opens is not None and (self._was_early or opens > now) else None

    def look(self) -> bool:
        """Find out whether the next request is full. Return whether to call :meth:`pull` again.

        The dispatcher may have seen that it was full. Then a request has been sealed since, and the
        response has the messages taken. (If the pending ones have expired instead, the dispatcher
        takes what it holds after 0.1 s.)
        """
        self._is_full = self._full_request_is_due()
        skipped, self._skipped = self._skipped, False
        return skipped and not self._is_full

    def _full_request_is_due(self) -> bool:
        if not self._batcher.many_fill(self._window.most):
            return False
        due = self._batcher.next_due()
        return due is not None and due <= self._worker.clock.monotonic()

    def pull(self) -> None:
        """Have the messages taken if they can be used.

        Many of them are taken in the worker's own thread, as large batches are encoded there.
        """
        self._was_early = False
        if not self._held:
            return
        if self._full_request_is_due():
            self._skipped = True
            return
        full = self._held.fill_batches(self._batcher.batch_size, self._batcher.batch_messages)
        opens = self._opens_at(full)
        if opens is None or opens > self._worker.clock.monotonic():
            self._was_early = opens is not None
            return
        if self._worker.thread is threading.current_thread() or self._held.nbytes() <= SMALL:
            self._worker.pull(self._take)
        else:
            self._worker.wake()

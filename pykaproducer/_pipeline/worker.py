"""A stage's thread and its inbox. The only place that starts a thread.

Guarantees: items of one inbox are handled one at a time, in the order of ``put``; ``put`` never
blocks and never runs the stage's code; an item put before ``stop`` is handled before the thread
ends. An exception that leaves a step is a bug of this library: it goes to the crash policy, which
settles what the producer holds and marks it broken (DESIGN P9), and the thread ends.

Relies on: ``queue.Queue`` being unbounded. Memory is bounded at admission (DESIGN P2), so
responses, retries and stop items can always be put and no cycle of full queues can arise.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Final

from pykaproducer._clock import Clock


class _Stop:
    """The last item of an inbox."""


STOP: Final = _Stop()

#: A turn comes at least this often, also while the inbox never empties.
_STEPS_A_TURN: Final = 64

CrashPolicy = Callable[["Worker", BaseException], None]


class Worker:
    """One stage: a named thread that waits on its inbox and on its own next deadline.

    The thread starts with the first item. A subclass writes :meth:`step`; one that keeps time
    writes :meth:`deadline` and :meth:`on_time` too.
    """

    def __init__(self, name: str, clock: Clock, on_crash: CrashPolicy) -> None:
        self.name = name
        self.clock = clock
        self._on_crash = on_crash
        self.inbox: queue.Queue[Any] = queue.Queue()
        # Guards the one start of the thread.
        self._starting = threading.Lock()
        self.thread: threading.Thread | None = None
        self.stopping = False

    # What a stage is -----------------------------------------------------------------------

    def step(self, item: Any) -> None:
        """Handle one item. Must not block, but on what the stage exists to wait for."""
        raise AssertionError(f"{type(self).__name__} has no step")

    def deadline(self) -> float | None:
        """When :meth:`on_time` wants to be called (monotonic seconds), None: never."""
        return None

    def on_time(self, now: float) -> None:
        """The deadline has come."""

    def turn(self) -> None:
        """The inbox is empty for the moment (or many items have come): act on what has come."""

    def may_end(self) -> bool:
        """Asked once the stop item has come, until true: whether nothing is left to be done."""
        return True

    def at_end(self) -> None:
        """The last thing that the thread does."""

    # The thread ------------------------------------------------------------------------------

    def put(self, item: Any) -> None:
        """Hand *item* to the stage. From any thread; never blocks."""
        self.inbox.put(item)
        if self.thread is None:
            self._start()

    def stop(self) -> None:
        """Let the thread end, behind what is in the inbox. Does not wait for it."""
        self.stopping = True
        if self.thread is not None:
            self.inbox.put(STOP)

    def join(self, deadline: float) -> bool:
        """Wait for the thread to end; false if it has not by *deadline*."""
        thread = self.thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, deadline - self.clock.monotonic()))
        return not thread.is_alive()

    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self.thread is not None and self.thread.is_alive()

    def _start(self) -> None:
        with self._starting:
            if self.thread is None:
                # A daemon: an interpreter that ends without close() is not held up by it. The
                # exit hook of `producer` flushes within its bound first.
                self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                self.thread.start()

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # the crash policy: settle everything, mark it broken
            self._on_crash(self, error)

    def _loop(self) -> None:
        clock, inbox = self.clock, self.inbox
        stop_has_come = False
        steps = 0
        while not (stop_has_come and self.may_end()):
            deadline = self.deadline()
            # Time first: a stream of items must not keep the deadline waiting.
            if deadline is not None and deadline <= (now := clock.monotonic()):
                self.on_time(now)
                deadline = self.deadline()
            try:
                item = clock.get(inbox, deadline)
            except queue.Empty:
                pass
            else:
                if item is STOP:
                    stop_has_come = True
                else:
                    self.step(item)
                    steps += 1
            if inbox.empty() or steps % _STEPS_A_TURN == 0:
                self.turn()
        self.at_end()

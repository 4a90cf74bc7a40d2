"""A stage: its inbox, its thread, and when another stage's thread may run it in place.

The only place that starts a thread.

Guarantees: items of one inbox are handled one at a time, in the order of ``put``; ``put`` never
blocks; an item put before ``stop`` is handled before the thread ends. An exception that leaves a
step is a bug of this library: it goes to the crash policy, which settles what the producer holds
and marks it broken (P9).

Relies on: inboxes being unbounded. Memory is bounded at admission (P2), so responses, retries and
stop items can always be put and no cycle of full queues can arise.

**Wake-ups.** Items stand in a deque; a bell beside it wakes the thread. Both are re-entrant: (1)
the main thread is in ``put``; (2) a signal arrives, and its handler sends or closes: with
``queue.Queue`` it would wait for the mutex that its own thread holds. No item is overlooked:

1. a putter appends its item and finds the bell rung: it does not ring it;
2. the thread hears the bell, which ends its ringing, and only then empties the deque;
3. so whoever found it rung appended before the deque is emptied.

A user's thread always rings, and once more if it is interrupted before it has.

**In place.** A hop to a sleeping thread costs 15 to 20 us, and more while user code holds the GIL.
A stage that is idle is therefore run by the thread that brings the item, if that is a stage's
thread too (never a user's: KeyboardInterrupt may strike there between any two bytecodes) and the
stage says that the item is small. Whoever runs a stage holds its ``_running`` lock, the stage's
own thread as well; others only ever try to take it, so nothing can wait in a circle. Order stands:

1. thread A runs the stage in place; thread B finds the lock taken and appends its item;
2. thread C finds the lock free, but the deque not empty: it appends behind B's item;
3. the stage's own thread takes the lock and handles B's item, then C's.

**Without a thread.** If the system refuses to start the thread, ``put`` does not raise: the items
stay in the inbox, and the thread is started later (``_threads.py``).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from pykaproducer import _kernel
from pykaproducer import _threads as threads
from pykaproducer._clock import Bell, Clock, earlier
from pykaproducer._pipeline.meter import Meter
from pykaproducer._pipeline.shortage import Shortage


class _Stop:
    """The last item of an inbox."""


STOP: Final = _Stop()

#: A turn comes at least this often, also while the inbox never empties.
_STEPS_A_TURN: Final = 64

CrashPolicy = Callable[["Worker", BaseException], None]


class _Here(threading.local):
    """What this thread is."""

    is_stage = False
    #: Wake-ups that are put off; None: none is.
    later: list[Callable[[], None]] | None = None
    #: The policy of the stage whose thread it is.
    on_crash: CrashPolicy | None = None


_here = _Here()


def forget_stages() -> None:
    """In the child of a fork that was made in a callback: its only thread is a user's now."""
    _here.is_stage = False
    _here.on_crash = None
    threads.forget_all()


class WakingLater:
    """``with WakingLater():`` wake users' threads at its end, by a stage that will wait soon.

    Waked at once such a thread would only wait for the GIL, and be waked once more when the stage
    waits. Nothing in it may take long, or call what is the user's: a callback, a partitioner, a
    logging handler. What it waits for might be held by the very thread that is to be waked.
    """

    def __enter__(self) -> None:
        _here.later = []

    def __exit__(self, *_: object) -> None:
        wake_others()


def wake(function: Callable[[], None]) -> None:
    """Call *function*, which wakes a user's thread: now, or if that is put off, later."""
    if _here.later is None:
        function()
    else:
        _here.later.append(function)


def wake_others() -> None:
    """Do what was put off."""
    later, _here.later = _here.later, None
    for function in later or ():
        function()


def in_a_stage() -> bool:
    """Whether the calling thread is a stage's (of any producer), and not a user's."""
    return _here.is_stage


def in_a_stage_with(on_crash: CrashPolicy) -> bool:
    """Whether the calling thread is a stage's of the producer whose crash policy this is."""
    return _here.on_crash == on_crash


def wake_all(locks: list[Any]) -> None:
    """Release every lock that is held: whoever waits for one takes it out of the list.

    Not taken out here: a KeyboardInterrupt in between would leave somebody waiting of whom nobody
    knows any more.
    """
    for lock in list(locks):
        with contextlib.suppress(RuntimeError):  # somebody else has released it
            lock.release()


def spawn(name: str, target: Callable[[], None], *, daemon: bool = True) -> threading.Thread:
    """Start a thread.

    A daemon mostly: an interpreter that ends without close() is not held up by it. The exit hook of
    ``producer`` flushes within its bound first.

    Raises:
        RuntimeError, MemoryError: the system refuses a thread. See :func:`spawn_later`.
    """
    thread = threading.Thread(target=target, name=name, daemon=daemon)
    thread.start()
    return thread


class Errand:
    """A function to be run once in its own thread, as soon as the system allows the thread."""

    def __init__(self, name: str, target: Callable[[], None]) -> None:
        self.name = name
        self._target = target
        # Taken by the first thread that runs it: two may be started, as for a Worker.
        self._claim = threading.Lock()
        self._thread: threading.Thread | None = None

    def start_thread(self) -> None:
        """Start the thread, unless it has been started. Raises as :func:`spawn`."""
        if self._thread is None:
            self._thread = spawn(self.name, self._run)

    def _run(self) -> None:
        if self._claim.acquire(blocking=False):
            self._target()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, if it has been started."""
        if self._thread is not None:
            self._thread.join(timeout)


def spawn_later(name: str, target: Callable[[], None]) -> Errand:
    """Run *target* in its own thread: now, or as soon as the system allows the thread."""
    errand = Errand(name, target)
    threads.start(errand)
    return errand


class Worker:
    """One stage: a named thread that waits on its inbox and on its own next deadline.

    The thread starts with the first item that is not handled in place. A subclass writes
    :meth:`step`; one that keeps time writes :meth:`deadline` and :meth:`on_time` too.
    """

    def __init__(self, name: str, clock: Clock, on_crash: CrashPolicy) -> None:
        self.name = name
        self.clock = clock
        self._on_crash = on_crash
        # The inbox.
        self._items: deque[Any] = deque()
        self._bell = Bell()
        # Held by whoever runs the stage.
        self._running = threading.Lock()
        # Under _running: until when the stage's own thread sleeps if nobody wakes it.
        self._sleeps_until: float | None = None
        # Taken, for good, by the first thread that comes to run the stage.
        self._claim = threading.Lock()
        self.thread: threading.Thread | None = None
        self.stopping = False
        self.shortage = Shortage(name, clock)
        # The first item waits for memory.
        self._held_up = False
        # Of its own thread: when it may next try to start other stages' threads.
        self._start_threads_at = 0.0

    #: Whether the end of the stage does something, so that it needs a thread for it.
    ends_itself = False
    #: Whether its thread starts the threads that the system refused to other stages: it must not
    #: block.
    keeps_threads = False
    #: Where it counts: set by wiring, before the first item.
    meter: Meter

    # What a stage is -----------------------------------------------------------------------

    def step(self, item: Any) -> None:
        """Handle one item. Must not block, but on what the stage exists to wait for."""
        raise AssertionError(f"{type(self).__name__} has no step")

    def deadline(self) -> float | None:
        """When :meth:`on_time` wants to be called (monotonic seconds), None: never."""
        return None

    def wakes_by(self) -> float | None:
        """When the stage's own thread must be awake, None: when an item comes."""
        return self.deadline()

    def on_time(self, now: float) -> None:
        """The deadline has come."""

    def turn(self) -> None:
        """The inbox is empty for the moment (or many items have come): act on what has come."""

    def in_place(self, item: Any) -> bool:
        """Whether *item* makes so little work that the thread that brings it may do it.

        Asked while nobody else runs the stage."""
        return False

    def may_end(self) -> bool:
        """Asked once the stop item has come, until true: whether nothing is left to be done."""
        return True

    def at_end(self) -> None:
        """The last thing that the thread does."""

    def held(self) -> Iterable[object]:
        """What it holds beside its inbox. For a glance from any thread: a moment old perhaps, and
        RuntimeError if what it is kept in was changed meanwhile."""
        return ()

    # The inbox -------------------------------------------------------------------------------

    def inbox(self) -> list[Any]:
        """What waits in it, for a glance from any thread."""
        while True:
            try:
                return list(self._items)
            except RuntimeError:  # it was changed in the middle
                continue

    def put(self, item: Any) -> None:
        """Hand *item* to the stage. From any thread; never blocks."""
        if _here.is_stage and not self._items and self._try_here(item):
            return
        try:
            self._items.append(item)
            self.wake()
        except BaseException:  # KeyboardInterrupt, in a user's thread: see above
            self.wake()
            raise

    def stop(self) -> None:
        """Let the thread end, behind what is in the inbox. Does not wait for it.

        A stage without a thread gets one only if its end does something (``ends_itself``), or if
        items wait in its inbox because the system refused it a thread. One that starts in the
        meantime ends by itself: it (1) becomes the stage's thread, (2) looks at ``stopping``; we
        (1) set that, (2) look for a thread.
        """
        self.stopping = True
        if self.thread is None and not self.ends_itself and not self._items:
            threads.give_up(self)
            return
        self._items.append(STOP)
        self.wake(at_end=True)

    def wake(self, *, at_end: bool = False) -> None:
        """Have the stage's own thread look at its inbox; *at_end*: after ``stop`` too."""
        if not _here.is_stage or not self._bell.is_rung:
            self._bell.ring()
            _kernel.stage_wanted()
        self._need_thread(at_end)

    def _try_here(self, item: Any) -> bool:
        """Run the stage in place, if nobody runs it and nothing stands before *item*."""
        if not self._running.acquire(blocking=False):
            return False
        try:
            if self._items or not self.in_place(item):
                return False
            try:
                self.step(item)
                self.turn()
            except BaseException as error:  # the crash policy, as in the stage's own thread
                wake_others()  # it logs
                self._on_crash(self, error)
                return True
            deadline = self.wakes_by()
            earlier = deadline is not None and (
                self._sleeps_until is None or deadline < self._sleeps_until
            )
        finally:
            self._running.release()
        # Somebody may have found us running and appended: that one has woken the thread.
        if earlier or self.shortage.until is not None:
            self.wake()
        return True

    def retry_later(self, item: Any, what: str) -> None:
        """Retry *item* later, before all others: there is no memory for *what*.

        Called by a step that has undone what it began. What is put in the meantime stays behind
        *item*: see "In place".
        """
        self._items.appendleft(item)
        self._held_up = True
        self.shortage.begin(what)

    # The thread ------------------------------------------------------------------------------

    def join(self, deadline: float) -> bool:
        """Wait for the thread to end; false if it has not by *deadline*.

        After :meth:`stop`. If the system still refuses the thread, the stage runs to its end here.
        """
        if self.thread is None and threads.is_missing(self):
            self._run_here()
        thread = self.thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, deadline - self.clock.monotonic()))
        return not thread.is_alive()

    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self.thread is not None and self.thread.is_alive()

    def _need_thread(self, at_end: bool) -> None:
        if self.thread is not None or (self.stopping and not at_end):
            return
        # A keeper runs if a stage does, and tries again. A user thread tries at once.
        if not (_here.is_stage and threads.is_missing(self)):
            threads.start(self)

    def start_thread(self) -> None:
        """Start the thread, unless it is running or no longer needed. Raises as :func:`spawn`."""
        if self.thread is None and (self._items or not self.stopping):
            spawn(self.name, self._run)

    def _run_here(self) -> None:
        """Run the stage to its end in the calling thread, which may be a user thread."""
        was_stage, on_crash = _here.is_stage, _here.on_crash
        try:
            self._run()
        finally:
            _here.is_stage, _here.on_crash = was_stage, on_crash
            threads.give_up(self)

    def _run(self) -> None:
        # No lock is held while a thread starts: a user's thread may be interrupted there, and its
        # signal handler wait for this stage. So two may start it; the first to come here is it.
        if not self._claim.acquire(blocking=False):
            return
        self.thread = threading.current_thread()
        if self.stopping:
            self._items.append(STOP)
        _here.is_stage = True
        _here.on_crash = self._on_crash
        if self.keeps_threads:
            threads.keep(self, self.wake)
        try:
            self._loop()
        except BaseException as error:  # the crash policy: settle everything, mark it broken
            self._on_crash(self, error)
        finally:
            threads.stop_keeping(self)

    def _wakes_at(self, deadline: float | None) -> float | None:
        """Start missing threads; return when to wake up, at *deadline* at the latest."""
        if self.shortage.until is not None:
            deadline = earlier(deadline, self.shortage.until)
        if not self.keeps_threads or not threads.any_missing():
            return deadline
        now = self.clock.monotonic()
        if now >= self._start_threads_at:
            self._start_threads_at = now + threads.RETRY_INTERVAL
            if not threads.start_missing(self.clock):
                return deadline
        return earlier(deadline, self._start_threads_at)

    def _loop(self) -> None:
        stop_has_come = False
        while True:
            with self._running:
                self._sleeps_until = None
                stop_has_come = self._work() or stop_has_come
                if stop_has_come and self.may_end():
                    break
                deadline = self._sleeps_until = self._wakes_at(self.deadline())
            if self.clock.hear(self._bell, deadline):
                _kernel.stage_runs()
        self.at_end()

    def _work(self) -> bool:
        """One round: what is due, what has come, the turn. True if the stop item has come."""
        # Time first: a stream of items must not keep the deadline waiting.
        self._keep_time()
        items = self._items
        stop_has_come = False
        self._held_up = self._held_up and self.shortage.holds()
        for steps in range(1, len(items) + 1):
            if self._held_up:
                break
            item = items.popleft()
            if item is STOP:
                stop_has_come = True
            else:
                self.step(item)
            if steps % _STEPS_A_TURN == 0:
                self.turn()
                self._keep_time()  # nor must a single round of many items
        self.turn()
        return stop_has_come

    def _keep_time(self) -> None:
        deadline = self.deadline()
        if deadline is not None and deadline <= (now := self.clock.monotonic()):
            self.on_time(now)

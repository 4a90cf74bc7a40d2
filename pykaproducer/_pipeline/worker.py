"""Base class of the stages: an inbox, a thread, and items handled inline by other stages' threads.

No other module of the pipeline starts a thread.

Guarantees: items of one inbox are handled one at a time, in the order of ``put``. ``put`` never
blocks. An item put before ``stop`` is handled before the thread ends. An exception that leaves
``handle`` is a bug in this library. It is passed to the crash policy, which settles all messages
that the producer holds and marks the producer as broken (P9).

Relies on: inboxes being unbounded. Memory is bounded at admission (P2), so responses, retries and
stop items can always be put and no cycle of full queues can arise.

**Wake-ups.** Items are in a deque; a wake-up event wakes the thread. Both are re-entrant, which
``queue.Queue`` is not: (1) the main thread is in ``put``; (2) a signal arrives, and its handler
sends or closes; (3) the handler would wait for the mutex that its own thread holds. No item is
overlooked:

1. a thread appends its item, finds the event already set, and does not set it;
2. the stage's thread clears the event, and only then empties the deque;
3. so the item that was appended in 1 is in the deque when it is emptied.

A user thread always sets the event, and sets it again if it is interrupted before that.

**Inline.** Handing an item to a sleeping thread costs 15 to 20 us, and more while user code holds
the GIL. Therefore the calling thread runs an idle stage itself if it is the thread of another stage
and ``can_run_inline`` returns true. A user thread never does, because a KeyboardInterrupt may be
raised there between any two bytecodes. (What a caller that sends does for the stages is compiled:
``_kernel_parts/caller.pxi``.) Every thread that runs a stage holds its ``_running`` lock,
including the stage's own thread. Other threads only try to take it, so no deadlock can arise. The
order is preserved:

1. thread A runs the stage inline; thread B finds the lock taken and appends its item;
2. thread C finds the lock free, but the deque not empty: it appends its item after B's;
3. the stage's own thread takes the lock and handles B's item, then C's.

A TopicWorker with an item for each of a thousand PartitionWorkers *borrows* them
(``_kernel_parts/route.pxi``): it takes their locks, does in one step what they would do with the
items, and gives the stages back. So each of these items comes before any that was put in the
meantime.

**Without a thread.** If the system refuses to start the thread, ``put`` does not raise: the items
stay in the inbox, and the thread is started later (``_util/threads.py``).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, Never, TypeVar

import pykaproducer._kernel as _kernel
from pykaproducer._pipeline.current_thread import this_thread
from pykaproducer._pipeline.metrics import ProducerMetrics
from pykaproducer._pipeline.shortage import Shortage
from pykaproducer._util import guarded_log, threads
from pykaproducer._util.clock import Clock, WakeEvent, earlier, held_lock
from pykaproducer._util.deques import copied_items
from pykaproducer._util.memory import NO_MEMORY


class _Stop:
    """The last item of an inbox."""


STOP: Final = _Stop()

#: on_inbox_drained() is called after this many items, even if the inbox never empties.
ITEMS_PER_ROUND: Final = 64

#: The type of the items of an inbox. Contravariant, so that a stage passes for one into which only
#: some of its items are put.
Item = TypeVar("Item", contravariant=True)

CrashPolicy = Callable[["AnyWorker", BaseException], None]


def spawn(name: str, target: Callable[[], None], *, daemon: bool = True) -> threading.Thread:
    """Start a thread; return it.

    By default it is a daemon, which does not delay the exit of an interpreter without close(). The
    exit hook of ``producer`` flushes before that, within its time limit.

    If a signal handler forks in the meantime, this returns in the child, too, where the thread does
    not exist.

    Raises:
        RuntimeError, MemoryError: the system refuses a thread. See :func:`spawn_later`.
    """
    thread, process = _Thread(name, target, daemon), os.getpid()
    try:
        threads.until_fork.add(thread.decided)
        thread.start()
    finally:
        threads.until_fork.discard(thread.decided)
    if not thread.has_begun and os.getpid() == process:
        raise MemoryError("the new thread had no memory to begin")
    return thread


class _Thread(threading.Thread):
    """A thread whose start() returns even if there is no memory for its first steps.

    Without that memory it may end before its target is called. So start() waits for
    :attr:`decided`, which is released when it is known whether the target is called: ``has_begun``.
    """

    has_begun = False

    def __init__(self, name: str, target: Callable[[], None], daemon: bool) -> None:
        super().__init__(name=name, daemon=daemon)
        self._task: Callable[[], None] | None = target
        self.decided = held_lock()

    def start(self) -> None:
        """Start the thread, and wait until it is decided.

        Event.wait() would never return in the child of a signal handler that forks.
        """
        started: Any = self._started  # type: ignore[attr-defined]
        started.wait = self.decided.acquire
        try:
            super().start()
        finally:
            del started.wait

    def _bootstrap(self) -> None:
        try:
            super()._bootstrap()  # type: ignore[misc]
        finally:
            if not self.has_begun:
                self.decided.release()

    def run(self) -> None:
        """Run the target."""
        _call_with_room(self._run_target)

    def _run_target(self) -> None:
        task, self._task = self._task, None
        assert task is not None, "a thread is started once"
        self.has_begun = True
        self.decided.release()
        task()


def _call_with_room(function: Callable[[], None]) -> None:
    """Call *function* with memory for the frames of its calls, as deep as stages call.

    CPython takes memory for frames from the system in pieces of 16 KiB, and gives a piece back when
    its first frame ends. If one is refused, any call may raise MemoryError; CPython 3.11 raises
    SystemError, or crashes. But the piece for a large frame is much larger than the frame, and what
    is left of it is for the frames of the calls.
    """
    function()


#: Words of that frame: its piece has 64 KiB, of which 38 KiB are left.
_ROOM: Final = 3_200

_call_with_room.__code__ = _call_with_room.__code__.replace(co_stacksize=_ROOM)


class StageContext(NamedTuple):
    """The objects that all stages of one producer share."""

    #: Prefix of the names of the stages and their threads.
    producer_name: str
    clock: Clock
    metrics: ProducerMetrics
    on_crash: CrashPolicy
    #: Takes the log lines of the stage; None: it writes them itself.
    pass_on_line: Callable[[guarded_log.LogLine], None] | None = None


class Worker(Generic[Item]):
    """A stage: a named thread that waits for its inbox and for its next deadline.

    The thread starts with the first item that is not handled inline. A subclass states the type of
    its items, as in ``Worker[A | B]``, and implements :meth:`handle`, and :meth:`deadline` and
    :meth:`on_time` if it has deadlines.

    The constructor of a subclass takes the :class:`StageContext` and the other objects that the
    stage uses.
    """

    def __init__(self, name: str, context: StageContext) -> None:
        self.name = name = f"{context.producer_name}-{name}"
        self.clock = clock = context.clock
        self.metrics = context.metrics
        self._on_crash = context.on_crash
        self._pass_on_line = context.pass_on_line
        # The inbox: items, and STOP.
        self._items: deque[Any] = deque()
        self._wake_event = WakeEvent()
        # Held by the thread that runs the stage.
        self._running = threading.Lock()
        # The thread that runs the stage, while it is in pull().
        self._puller: int | None = None
        # Guarded by _running: until when the stage's own thread sleeps if it is not woken.
        self._sleeps_until: float | None = None
        # Taken, and never released, by the first thread started for the stage.
        self._claim = threading.Lock()
        self.thread: threading.Thread | None = None
        # All that were started for the stage: it may be another one that runs it. Not a deque,
        # which cannot be copied while another thread appends to it without the GIL.
        self._threads: list[threading.Thread] = []
        self.stopping = False
        #: In the child of a fork: see :meth:`abandon`.
        self.is_abandoned = False
        self.shortage = Shortage(name, clock)
        # The first item waits for memory.
        self._held_up = False
        # The stop item has come.
        self._stop_has_come = False
        # In a step that cannot be repeated after a MemoryError.
        self._in_step = False
        # For its own thread: when it may next try to start other stages' threads.
        self._start_threads_at = 0.0

    #: Whether on_stop() has an effect, so that a thread is needed to stop the stage.
    needs_thread_to_stop = False
    #: Whether its thread starts the threads that the system refused to other stages. If so, it must
    #: not block.
    keeps_threads = False
    #: Whether its thread acts as a user thread: no other stage needs it, so it may wait for them.
    is_user_thread = False

    # To be overridden ----------------------------------------------------------------------------

    def handle(self, item: Item) -> None:
        """Handle one item. Must not block, except on what the stage exists to wait for."""
        raise AssertionError(f"{type(self).__name__} does not implement handle()")

    def deadline(self) -> float | None:
        """Return when to call :meth:`on_time` (monotonic seconds), None for never."""
        return None

    def next_wakeup(self) -> float | None:
        """Return when the stage's own thread must be awake, None for when an item arrives."""
        return self.deadline()

    def on_time(self, now: float) -> None:
        """React to the deadline, which has been reached."""

    def on_pause(self) -> None:
        """Do what must not wait for memory. May raise MemoryError, if it can then be repeated."""

    def on_inbox_drained(self) -> None:
        """Act on the items handled so far: the inbox is empty for now, or many were handled."""

    def can_run_inline(self, item: Item) -> bool:
        """Return whether *item* is cheap enough to handle on the calling thread.

        Called while no other thread runs the stage.
        """
        return False

    def can_stop(self) -> bool:
        """Return whether nothing is left to be done; called after the stop item, until true."""
        return True

    def on_stop(self) -> None:
        """Clean up, as the last action of the thread."""

    def held_items(self) -> Iterable[object]:
        """Return the items that it holds outside its inbox.

        May be called from any thread. The result may be slightly out of date, and RuntimeError is
        raised if a container is changed in the meantime.
        """
        return ()

    # The inbox -----------------------------------------------------------------------------------

    def inbox(self) -> list[object]:
        """Return a copy of the inbox. May be called from any thread; see :func:`copied_items`."""
        return copied_items(self._items)

    def put(self, item: Item) -> None:
        """Hand *item* to the stage. From any thread; never blocks."""
        if self.is_abandoned:
            return
        if this_thread.is_stage:
            if self._puller is not None and self._puller == threading.get_ident():
                self._items.append(item)
                return
            if not self._items and self._try_inline(item):
                return
        try:
            self._items.append(item)
            self.wake()
        except BaseException:  # KeyboardInterrupt in a user thread: see "Wake-ups"
            self.wake()
            raise

    def put_now(self, item: Item) -> None:
        """Hand *item* to the stage, for a stage that has nothing to do before it is handled.

        Items that are before it in the inbox are handled inline, too, unless the stage is running.
        """
        if not (this_thread.is_stage and self._try_inline(item, catch_up=True)):
            self.put(item)

    def append(self, item: Item) -> None:
        """Put *item*, from another stage, without handling it inline.

        It has not been put if this raises MemoryError. Nothing else would start the stage's thread
        for it, so this waits for memory to do that.
        """
        self._items.append(item)
        while True:
            try:
                self.wake()
                return
            except NO_MEMORY:
                _kernel.pause_for_memory()

    def stop(self) -> None:
        """Stop the thread after the items in the inbox, without waiting for it.

        A stage without a thread gets one only if ``needs_thread_to_stop`` is true, or if items wait
        in its inbox because the system refused it a thread. A thread that starts at the same time
        stops by itself: it (1) becomes the stage's thread, (2) reads ``stopping``, while this
        method (1) sets ``stopping``, (2) looks for a thread.
        """
        self.stopping = True
        if self.thread is None and not self.needs_thread_to_stop and not self._items:
            threads.give_up(self)
            return
        self._items.append(STOP)
        self.wake(on_stop=True)

    def wake(self, *, on_stop: bool = False) -> None:
        """Wake the stage's own thread, and start it if needed; *on_stop*: after ``stop`` too."""
        if not this_thread.is_stage or not self._wake_event.is_set:
            self._wake_event.set()
            _kernel.stage_wanted()
        self._need_thread(on_stop)

    def abandon(self) -> None:
        """Handle nothing more, in the child of a fork, whose messages are the parent's.

        For the thread that has forked, if user code of the stage does not end the child.
        """
        self.is_abandoned = True
        self._items.clear()
        self._wake_event.set()

    def _try_inline(self, item: Item, *, catch_up: bool = False) -> bool:
        """Handle *item* inline if no thread runs the stage and no item is before it.

        *catch_up*: handle those before it first. Return whether it was handled.
        """
        if not self._running.acquire(blocking=False):
            return False
        is_handled = False
        try:
            try:
                if catch_up:
                    self._catch_up()
                if self._items or not self.can_run_inline(item):
                    return False
                is_handled = True
                self.handle(item)
                self.on_inbox_drained()
            except BaseException as error:  # the crash policy, as in the stage's own thread
                if isinstance(error, NO_MEMORY) and not (is_handled or catch_up):
                    return False
                self._crash(error)
                return True
            try:
                deadline = self.next_wakeup()
                earlier = deadline is not None and (
                    self._sleeps_until is None or deadline < self._sleeps_until
                )
            except NO_MEMORY:
                earlier = True  # perhaps
        finally:
            self._running.release()
        # A thread that appended an item while this one ran the stage has woken the stage's thread.
        if earlier or self.shortage.until is not None:
            self.wake()
        return True

    def pull(self, ask: Callable[[], None]) -> None:
        """Call *ask*, which has other stages put items into this one, and handle these items.

        For :meth:`on_inbox_drained`. Does nothing if the inbox has items: it is called again after
        them. What *ask* puts on this thread wakes no other one.
        """
        if self._items:
            return
        self._puller = threading.get_ident()
        try:
            ask()
        finally:
            self._puller = None
        self._catch_up()

    def _catch_up(self) -> None:
        """Handle what is in the inbox now. Other threads may put items all the time."""
        for _ in range(len(self._items)):
            if self._held_up or self._items[0] is STOP:
                break
            self.handle(self._items.popleft())

    def retry_later(self, item: Item, what: str) -> None:
        """Handle *item* again later, before all others, as there is no memory for *what*.

        Called by a ``handle`` that has undone its partial work. Items that are put in the meantime
        stay after *item*: see "Inline".
        """
        self._items.appendleft(item)
        self._held_up = True
        self.shortage.begin(what)

    # The thread ----------------------------------------------------------------------------------

    def join(self, deadline: float) -> bool:
        """Wait for the thread to end; return False if it has not ended by *deadline*.

        Called after :meth:`stop`. If the system still refuses the thread, the stage runs to its end
        in the calling thread.
        """
        if self.thread is None and threads.is_missing(self):
            self._run_here()
        ended, started = True, self._threads.copy()
        if self.thread is not None and self.thread.name == self.name:
            started.append(self.thread)  # a Ctrl-C in spawn() may have kept it out of the others
        for thread in started:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - self.clock.monotonic()))
                ended = ended and not thread.is_alive()
        return ended

    def is_alive(self) -> bool:
        """Return whether its thread is running."""
        return self.thread is not None and self.thread.is_alive()

    def _need_thread(self, on_stop: bool) -> None:
        if self.thread is not None or (self.stopping and not on_stop):
            return
        # If a stage runs, so does one that starts missing threads. A user thread tries at once.
        if not (this_thread.is_stage and threads.is_missing(self)):
            threads.start(self)

    def start_thread(self) -> None:
        """Start the thread, unless it is running or no longer needed. Raises as :func:`spawn`."""
        if self.thread is None and (self._items or not self.stopping):
            self._threads.append(spawn(self.name, self._run))

    def _run_here(self) -> None:
        """Run the stage to its end in the calling thread, which may be a user thread."""
        was_stage, on_crash = this_thread.is_stage, this_thread.on_crash
        lines = guarded_log.pass_lines_to(None)
        try:
            self._run()
        finally:
            this_thread.is_stage, this_thread.on_crash = was_stage, on_crash
            _kernel.this_thread_runs_stages(was_stage)
            guarded_log.pass_lines_to(lines)
            threads.give_up(self)

    def _run(self) -> None:
        # No lock is held while a thread is started: a user thread may be interrupted there, and its
        # signal handler may wait for this stage. So two threads may be started; the first one to
        # get here runs the stage.
        while True:
            try:
                if not self._claim.acquire(blocking=False):
                    return
                break
            except NO_MEMORY:
                self.shortage.wait()
        try:
            self.shortage.repeat(self._begin)
            self._loop()
        except BaseException as error:  # the policy settles everything, and marks the producer
            self._crash(error)
        finally:
            threads.stop_keeping(self)

    def _begin(self) -> None:
        """Make the calling thread the stage's own. Without memory, it may be repeated."""
        self.thread = threading.current_thread()
        if not self.is_user_thread:
            this_thread.is_stage = True
            this_thread.on_crash = self._on_crash
            _kernel.this_thread_runs_stages(True)
        guarded_log.pass_lines_to(self._pass_on_line)
        if self.keeps_threads:
            threads.keep(self, self.wake)
        if self.stopping:
            self._items.append(STOP)

    def _crash(self, error: BaseException) -> None:
        """Apply the crash policy, for whose call alone there may be no memory."""
        while True:
            try:
                self._on_crash(self, error)
                return
            except NO_MEMORY:
                pass
            try:
                self.shortage.wait()
            except NO_MEMORY:
                pass

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
        while not self.is_abandoned:
            try:
                if self._work_and_wait():
                    self._in_step = True
                    self.on_stop()
                    return
            except NO_MEMORY:
                if self._in_step:
                    raise
                # Nothing has changed. There may be memory for what pauses() tries, not for this.
                self.shortage.wait()
        # In the child of a fork: the sockets are the parent's.

    def _work_and_wait(self) -> bool:
        """Do what is to be done now, and wait for more; return whether the stage ends."""
        self._running.acquire()
        try:
            self._sleeps_until = None
            self._work()
            if self._stop_has_come and self.can_stop():
                return True
            deadline = self._sleeps_until = self._wakes_at(self.deadline())
        finally:
            self._running.release()  # `with` would need memory for it
        self.wait_for_items(deadline)
        return False

    def pauses(self) -> bool:
        """Begin a pause, or continue it, if there is no memory for a step; return whether so.

        Called when nothing of the step has been done. A MemoryError in the middle of a step that
        cannot be repeated breaks the producer. (See also :func:`_call_with_room`.)
        """
        try:
            if not _kernel.lacks_memory():
                if self.shortage.until is not None:
                    self.shortage.holds()
                return False
            self.shortage.begin("its next step")
            self.on_pause()
        except NO_MEMORY:
            pass
        return True

    def wait_for_items(self, deadline: float | None) -> bool:
        """Wait to be woken, until *deadline*; return whether the stage was woken.

        A subclass may handle items here, if that leaves the rest of :meth:`_work` as it is.
        """
        woken = self.clock.wait(self._wake_event, deadline)
        if woken:
            _kernel.stage_runs()
        return woken

    def _work(self) -> None:
        """Handle the deadline if it is due, then the inbox.

        The deadline is first: a stream of items must not delay it.
        """
        if self.pauses():
            return
        self._keep_time()
        items = self._items
        self._held_up = self._held_up and self.shortage.holds()
        for steps in range(1, len(items) + 1):
            if self._held_up or self.is_abandoned:
                break
            item = items.popleft()
            if item is STOP:
                self._stop_has_come = True
            else:
                self._in_step = True
                self.handle(item)
                self._in_step = False
            if steps % ITEMS_PER_ROUND == 0:
                self._inbox_drained()
                self._keep_time()  # nor must many items in one round delay it
        self._inbox_drained()

    def _inbox_drained(self) -> None:
        self._in_step = True
        self.on_inbox_drained()
        self._in_step = False

    def _keep_time(self) -> None:
        deadline = self.deadline()
        if deadline is not None and deadline <= (now := self.clock.monotonic()):
            self._in_step = True
            self.on_time(now)
            self._in_step = False


#: A stage with items of whatever type: nothing can be put into its inbox.
AnyWorker = Worker[Never]

"""A stage: its inbox and its deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer._kernel import BorrowedPaths, PartitionPath, Slice
from pykaproducer._machines.ordering import Ordering
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import Sequencer
from pykaproducer._net.transport import ConnectionFailed, Endpoint, Network
from pykaproducer._pipeline import worker
from pykaproducer._pipeline.shortage import PAUSE
from pykaproducer._pipeline.socket_worker import SocketWorker
from pykaproducer._pipeline.worker import Worker, spawn
from pykaproducer._util import threads
from pykaproducer._util.clock import Clock
from pykaproducer.config import Config
from pykaproducer.testing import FakeClock
from pykaproducer.testing._processes import tick
from tests._support.no_memory import call_without_memory, needs_hook
from tests.kernel.helper import TOPIC, Door, split

from .helper import SOON, stage_context


class _Busy(Worker):
    """A worker whose first item waits for many others; one of them brings a deadline."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__("busy", stage_context(clock))
        self.all_are_there, self.on_time_came = threading.Event(), threading.Event()
        self.steps = 0
        self.due: float | None = None
        self.on_time_after: int | None = None

    def handle(self, item: Any) -> None:
        self.all_are_there.wait(SOON)
        self.steps += 1
        if self.steps == 10:
            self.due = self.clock.monotonic()

    def deadline(self) -> float | None:
        return self.due

    def on_time(self, now: float) -> None:
        self.on_time_after, self.due = self.steps, None
        self.on_time_came.set()


def test_a_deadline_does_not_wait_for_all_that_is_in_the_inbox() -> None:
    """A partition with a deep backlog must not make the messages of the others expire late."""
    stage = _Busy(FakeClock())
    for number in range(10_000):
        stage.put(number)
    stage.all_are_there.set()
    assert stage.on_time_came.wait(SOON)
    stage.stop()
    assert stage.join(stage.clock.monotonic() + SOON)
    assert stage.on_time_after is not None
    assert stage.on_time_after <= 10 + 2 * 64
    assert stage.steps == 10_000


class _Caller(Worker):
    """A stage that calls its items."""

    def handle(self, item: Callable[[], None]) -> None:
        item()


class _Recorder(Worker):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__("recorder", stage_context(clock))
        self.items: list[Any] = []
        self.handled = threading.Semaphore(0)

    def handle(self, item: Any) -> None:
        self.items.append(item)
        self.handled.release()

    def can_run_inline(self, item: Any) -> bool:
        return True


def test_items_put_while_a_stage_is_borrowed_are_handled_afterwards() -> None:
    clock = FakeClock()
    recorder = _Recorder(clock)
    borrower, other = (_Caller(name, stage_context(clock)) for name in ("borrower", "other"))
    path = PartitionPath(recorder._items, recorder._running, Ordering())
    path.broker, path.buffer = "broker", PartitionBuffer(TOPIC, 0, Sequencer())
    door = Door()
    door.send(TOPIC, b"new", partition=0)
    slices = list(split(door.chunk(), 1).values())
    borrowed, was_put = threading.Event(), threading.Event()
    others: list[list[Slice]] = []

    def borrow() -> None:
        paths = BorrowedPaths({0: path}, slices)
        others.append(paths.others)
        borrowed.set()
        assert was_put.wait(SOON)
        recorder.items.append("handled by the borrower")
        paths.give_back()

    def put() -> None:
        others.append(BorrowedPaths({0: path}, slices).others)
        recorder.put("put while it was borrowed")
        was_put.set()

    borrower.put(borrow)
    assert borrowed.wait(SOON)
    other.put(put)
    assert recorder.handled.acquire(timeout=SOON)
    assert recorder.items == ["handled by the borrower", "put while it was borrowed"]
    assert others == [[], slices]
    for stage in (recorder, borrower, other):
        stage.stop()
        assert stage.join(clock.monotonic() + SOON)


def test_put_now_handles_what_is_before_the_item_in_the_inbox() -> None:
    clock = FakeClock()
    recorder = _Recorder(clock)
    handled: list[list[str]] = []

    def put() -> None:
        recorder._items.append("before")  # from a thread that has not woken the stage yet
        recorder.put_now("item")
        handled.append([*recorder.items])

    caller = _Caller("caller", stage_context(clock))
    caller.put(put)
    caller.stop()
    assert caller.join(clock.monotonic() + SOON)
    assert handled == [["before", "item"]]
    assert recorder.thread is None


class _BesideABusyStage(deque[int]):
    """An inbox that a stage changes during each copy, as is possible without the GIL."""

    def __iter__(self) -> Iterator[int]:
        for item in super().__iter__():
            yield item
            self.popleft()
            self.append(item)


def test_the_inbox_of_a_busy_stage_is_copied_while_it_changes() -> None:
    """A repeated copy would not end as long as the inbox changes."""
    stage = _Caller("busy", stage_context(FakeClock()))
    stage._items = _BesideABusyStage(range(1000))
    assert len(stage.inbox()) == 1000


def test_an_inbox_that_becomes_shorter_during_a_copy() -> None:
    class Emptied(_BesideABusyStage):
        def __getitem__(self, index: Any) -> Any:
            self.clear()
            return super().__getitem__(index)

    stage = _Caller("emptied", stage_context(FakeClock()))
    stage._items = Emptied(range(1000))
    assert stage.inbox() == []


# A stage with a socket, whose own thread puts items into its inbox during a turn ------------------


def test_a_thread_is_joined_even_if_its_start_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(Worker[str]):
        begun, may_end = threading.Event(), threading.Event()

        def handle(self, item: str) -> None:
            self.begun.set()
            self.may_end.wait(SOON)

    def interrupted(name: str, target: Callable[[], None]) -> threading.Thread:
        spawn(name, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "spawn", interrupted)
    stage = Slow("slow", stage_context(FakeClock()))
    with pytest.raises(KeyboardInterrupt):
        stage.put("item")
    assert stage.begun.wait(SOON)
    stage.stop()
    assert not stage.join(stage.clock.monotonic())
    stage.may_end.set()
    assert stage.join(stage.clock.monotonic() + SOON)


@needs_hook
@pytest.mark.parametrize("number", range(4))
def test_a_stage_whose_thread_is_refused_is_noted_even_without_memory(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Otherwise nothing would start the thread that is to handle the item."""

    def refused(name: str, target: Callable[[], None]) -> threading.Thread:
        raise MemoryError

    monkeypatch.setattr(worker, "spawn", refused)
    monkeypatch.setattr(threads, "_missing", {})
    woken: list[str] = []
    monkeypatch.setattr(threads, "_keepers", {None: lambda: woken.append("keeper")})
    stage: Worker[str] = Worker("stage", stage_context(FakeClock()))
    call_without_memory(number, stage.append, "item", count=20)
    assert stage.inbox() == ["item"]
    assert threads.is_missing(stage)
    assert woken


def test_a_stage_that_cannot_tell_its_deadline_pauses() -> None:
    """There is memory for small things all the time."""
    clock = FakeClock()

    class Short(Worker[str]):
        attempts = 0
        is_short, begun, handled = True, threading.Event(), threading.Event()

        def handle(self, item: str) -> None:
            self.handled.set()

        def deadline(self) -> float | None:
            if self.is_short:
                self.attempts += 1
                self.begun.set()
                raise MemoryError
            return None

    stage = Short("short", stage_context(clock))
    stage.put("item")
    assert stage.begun.wait(SOON)
    for _ in range(10):  # enough for many attempts
        stage.put("another")
        tick()
    assert stage.attempts == 1
    stage.is_short = False
    clock.jump(PAUSE)
    assert stage.handled.wait(SOON)
    stage.stop()
    assert stage.join(clock.monotonic() + SOON)


class _Asks(Network):
    """User code that the connection calls: for example a token provider."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(Config())
        self.listener = listener
        self.asked = 0

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        self.asked += 1
        # the thread that put the first item may still be about to wake the stage
        if self.asked == 1:
            raise ConnectionFailed("not yet")
        self.stage.put("sent")
        return [Endpoint(socket.AF_INET, self.listener.getsockname())]

    stage: _Stage


class _Stage(SocketWorker):
    def __init__(self, network: Network) -> None:
        super().__init__("stage", stage_context(Clock()), Config(), network)
        self.came: list[str] = []
        self.both = threading.Event()

    def wants_connection(self) -> bool:
        return not self.stopping

    def next_address(self) -> tuple[str, int] | str:
        return "somewhere", 1

    def handle(self, item: str) -> None:
        self.came.append(item)
        if len(self.came) == 2:
            self.both.set()


@pytest.mark.scripted
def test_what_its_own_thread_puts_while_it_connects_does_not_wait_for_the_broker() -> None:
    """An item from the stage's own thread does not wait for a silent broker.

    1. The stage has emptied its inbox.
    2. It connects, and code called there sends a message, which arrives in this very inbox.
    3. It waits for a broker that does not answer.
    """
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        network = _Asks(listener)
        stage = network.stage = _Stage(network)
        stage.put("first")
        came = stage.both.wait(SOON / 4)
        stage.stop()
        assert stage.join(stage.clock.monotonic() + SOON)
        assert came
        assert stage.came == ["first", "sent"]

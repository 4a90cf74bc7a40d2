"""Threads that wait for bytes of ``buffer_memory``: first come, first served, none forgotten."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import pytest

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import ROW_COST, Turn
from pykaproducer.testing import FakeClock
from tests._support.no_memory import call_without_memory, needs_hook
from tests._support.threads import Call

from .helper import TOPIC, ClosedError, Door, NoSpaceError, deliver, some

#: Far more than any operation here takes (seconds).
SOON = 30


class Queue(Door):
    """A door whose senders wait in threads, and which notifies the test of each."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.entered: queue.Queue[Turn] = queue.Queue()
        self.gives_up: set[int] = set()  # amounts

    def _wait_for_space(self, turn: Turn) -> None:
        self.entered.put(turn)
        assert turn.lock.acquire(timeout=SOON)
        if turn.amount in self.gives_up:
            raise NoSpaceError


class Sender(Call):
    """A thread that sends one message of this many bytes of ``buffer_memory``, and waits for it."""

    def __init__(self, door: Queue, cost: int, send: Callable[[], Any] | None = None) -> None:
        super().__init__(send or (lambda: door.send(f"of-{cost}", bytes(cost - ROW_COST))))
        self.turn = door.entered.get(timeout=SOON)
        assert self.turn.amount == cost

    def accepted(self) -> bool:
        return not isinstance(self.outcome(), Exception)


def full(door: Queue, *costs: int) -> list[Callable[[], object]]:
    """Send messages of these sizes, each in its chunk; return functions to deliver them."""
    chunks = []
    for cost in costs:
        door.send(TOPIC, bytes(cost - ROW_COST))
        chunks.append(door.chunk())
    return [lambda chunk=chunk: deliver(chunk.whole()) for chunk in chunks]  # type: ignore[misc]


def test_a_small_message_does_not_pass_a_large_one_that_waits() -> None:
    door = Queue(limit=1000)
    first, second, third = full(door, 300, 300, 300)
    large = Sender(door, 700)
    small = Sender(door, 100)  # for which there is space
    first()
    assert (large.turn.granted, small.turn.granted, door.budget.waiting) == (False, False, 2)
    assert door.budget.used == 600
    second()
    assert (large.turn.granted, small.turn.granted, door.budget.waiting) == (True, False, 1)
    assert large.accepted()
    third()
    assert small.accepted()
    assert (door.budget.used, door.budget.waiting) == (800, 0)


def test_all_are_served_for_whom_there_is_room() -> None:
    """Otherwise threads that send in a loop would always find another one in the queue."""
    door = Queue(limit=1000)
    (leave,) = full(door, 1000)
    senders = [Sender(door, cost) for cost in (200, 300, 400)]
    leave()
    assert (door.budget.used, door.budget.waiting) == (900, 0)
    assert all(sender.accepted() for sender in senders)


@needs_hook
@pytest.mark.parametrize("allocation", range(4))
def test_many_are_served_without_memory(allocation: int) -> None:
    """The rows are reported, and that cannot be repeated, when the bytes go to those who wait."""
    door = Queue(limit=2000)
    door.send(TOPIC, bytes(1900 - ROW_COST))
    reported = some(door.chunk().whole().deliver(0))
    senders = [Sender(door, 800) for _ in range(9)]
    call_without_memory(allocation, reported.finish)
    for sender in senders:
        assert sender.accepted()
        for chunk in door.chunks():
            deliver(chunk.whole())
    assert door.budget.used == 0


def test_one_that_gives_up_lets_the_next_pass() -> None:
    door = Queue(limit=1000)
    full(door, 500)
    large, small = Sender(door, 900), Sender(door, 100)
    door.gives_up.add(900)
    large.turn.lock.release()  # as when its waiting time ends
    assert not large.accepted()
    assert small.accepted()
    assert (door.budget.used, door.budget.waiting) == (600, 0)


def test_one_in_the_middle_that_gives_up_is_forgotten() -> None:
    door = Queue(limit=1000)
    (leave,) = full(door, 800)
    senders = [Sender(door, cost) for cost in (400, 500, 600)]
    door.gives_up.add(500)
    senders[1].turn.lock.release()
    assert not senders[1].accepted()
    leave()
    assert senders[0].accepted()
    assert senders[2].accepted()
    assert (door.budget.used, door.budget.waiting) == (1000, 0)


@pytest.mark.parametrize("granted", [False, True])
def test_an_interrupted_wait_leaves_nothing_reserved(granted: bool) -> None:
    class Interrupted(Queue):
        def _wait_for_space(self, turn: Turn) -> None:
            if granted:
                leave()
            assert turn.granted == granted
            raise KeyboardInterrupt

    door = Interrupted(limit=1000)
    (leave,) = full(door, 600)
    with pytest.raises(KeyboardInterrupt):
        door.send(TOPIC, bytes(500))
    assert (door.budget.used, door.budget.waiting) == (0 if granted else 600, 0)
    assert (door.accepted, door.chunks()) == (1, [])


def test_a_grant_that_an_interrupt_leaves_behind_goes_to_the_next() -> None:
    door = Queue(limit=1000)
    (leave,) = full(door, 1000)
    first, second = Sender(door, 600), Sender(door, 600)
    door.gives_up.add(600)
    leave()
    assert not first.accepted()
    assert second.turn.granted
    door.gives_up.clear()
    # It gave up or not, depending on the timing: nothing is left reserved either way.
    assert (door.budget.used, door.budget.waiting) == (600 if second.accepted() else 0, 0)


def test_a_signal_handler_that_sends_does_not_wait_behind_its_own_thread() -> None:
    class Nested(Queue):
        def _wait_for_space(self, turn: Turn) -> None:
            self.send("small", bytes(100 - ROW_COST))  # must not wait here a second time
            leave()
            assert turn.granted

    door = Nested(limit=1000)
    (leave,) = full(door, 800)
    door.send("large", bytes(900 - ROW_COST))
    assert (door.budget.used, door.budget.waiting) == (1000, 0)


def test_one_that_must_not_wait_takes_what_there_is() -> None:
    """In a callback: the thread that it would wait for is its own."""

    class Callback(Queue):
        in_callback = False

        def _may_wait(self, amount: int) -> Any:
            return None if self.in_callback else super()._may_wait(amount)

        def _buffer_is_full(self, amount: int, account: Any) -> None:
            raise NoSpaceError

    door = Callback(limit=1000)
    (leave,) = full(door, 600)
    large = Sender(door, 700)
    door.in_callback = True
    door.send(TOPIC, bytes(300 - ROW_COST))
    with pytest.raises(NoSpaceError):
        door.send(TOPIC, bytes(200 - ROW_COST))
    assert not large.turn.granted
    leave()
    assert large.accepted()


#: A topic stalls at once, and the progress of another one counts for as long as a test runs.
STALLS = {"patience": 0, "recent": SOON * 10**9}


def of_topic(door: Queue, topic: str, cost: int) -> Callable[[], object]:
    """Send a message of this size; return a function to deliver it."""
    door.send(topic, bytes(cost - ROW_COST))
    chunk = door.chunk()
    return lambda: deliver(chunk.whole())


@pytest.mark.parametrize("block", [False, True], ids=["message", "block"])
def test_a_stalled_topic_waits_at_half_of_the_buffer_for_its_own_progress(block: bool) -> None:
    door = Queue(limit=1000, patience=STALLS)
    leave = of_topic(door, "dead", 400)
    of_topic(door, "fine", 100)()
    value = bytes(200 - ROW_COST)

    def send() -> object:
        if not block:
            return door.send("dead", value)
        columns = [_kernel.columns_of([value])]
        return door._send_block(_kernel.SentBlock(), "dead", columns, None, None, ())

    dead = Sender(door, 200, send)
    of_topic(door, "fine", 400)  # passes it
    assert (dead.turn.granted, door.budget.used, door.budget.waiting) == (False, 800, 1)
    leave()
    assert dead.accepted()


def test_stalled_topics_hold_half_of_the_buffer_together() -> None:
    door = Queue(limit=1000, patience=STALLS)
    for topic in ("dead", "also-dead"):
        of_topic(door, topic, 220)
    of_topic(door, "fine", 100)()
    value = bytes(100 - ROW_COST)
    dead = Sender(door, 100, lambda: door.send("dead", value))
    assert (dead.turn.granted, door.budget.used) == (False, 440)
    door.gives_up.add(100)
    dead.turn.lock.release()  # as when its waiting time ends
    assert not dead.accepted()


def test_the_pieces_of_a_block_to_a_new_topic_wait_at_half_of_the_buffer() -> None:
    door = Queue(limit=8000, patience=STALLS)
    of_topic(door, "fine", 100)()
    columns = [_kernel.columns_of([bytes(100 - ROW_COST)] * 100)]
    block = _kernel.SentBlock()
    sending = Call(lambda: door._send_block(block, "new", columns, None, None, (NoSpaceError,)))
    turn = door.entered.get(timeout=SOON)
    assert not turn.granted
    assert 3000 < door.budget.used <= 4000
    door.gives_up.add(turn.amount)
    turn.lock.release()  # as when its waiting time ends
    assert sending.outcome() is None
    assert block.accepted * 100 == door.budget.used


def test_a_topic_may_fill_the_buffer_if_no_other_one_progresses() -> None:
    """The cluster cannot be reached, for example. Its own progress does not count."""
    door = Queue(limit=1000, patience=STALLS)
    of_topic(door, "one", 100)()
    for topic in ("one", "other", "one"):
        of_topic(door, topic, 300)
    assert (door.budget.used, door.budget.waiting) == (900, 0)


def test_one_that_closes_while_others_wait() -> None:
    door = Queue(limit=1000)
    full(door, 1000)
    senders = [Sender(door, 200), Sender(door, 300)]
    door._shut()
    door.closed = True
    door.budget.wake_all()
    for sender in senders:
        assert isinstance(sender.outcome(), ClosedError)
    assert (door.budget.used, door.budget.waiting) == (1000, 0)


def test_a_fork_while_it_waits() -> None:
    """The child stops waiting: its buffer is empty, and its message is not the parent's."""

    class Forks(Queue):
        def _wait_for_space(self, turn: Turn) -> None:
            self.open()  # as in the child

    door = Forks(limit=1000)
    full(door, 900)
    before = door.budget
    handle = door.send("other", bytes(500 - ROW_COST))
    assert (before.used, before.waiting) == (900, 0)
    assert (door.budget.used, door.accepted) == (500, 1)
    assert (len(handle.chunk), handle.row) == (1, 0)
    assert [chunk.topic for chunk in door.chunks()] == ["other"]


class NoMemory(FakeClock):
    """A clock that raises when the kernel reads the time of a new chunk, once armed."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[], object] | None = None

    def time(self) -> float:
        then, self.then = self.then, None
        if then is not None:
            then()
            raise MemoryError
        return super().time()


@pytest.mark.parametrize("how", ["message", "block"])
def test_bytes_of_what_failed_behind_its_reservation_go_to_those_who_wait(how: str) -> None:
    clock = NoMemory()
    door = Queue(limit=1000, clock=clock)
    waiting: list[Sender] = []
    clock.then = lambda: waiting.append(Sender(door, 600))
    if how == "message":
        with pytest.raises(MemoryError):
            door.send("failing", bytes(800))
    else:
        columns = [_kernel.columns_of([bytes(800)])]
        with pytest.raises(MemoryError):
            door._send_block(_kernel.SentBlock(), "failing", columns, None, None, ())
    assert waiting[0].accepted()
    assert door.budget.used == 600

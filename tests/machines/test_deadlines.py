"""One timer for every row, wherever it is: each row expires once, never early and barely late."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given, settings
from hypothesis import strategies as st

from pykaproducer._kernel import Chunk, Delivery
from pykaproducer._machines.deadlines import GRAIN, Deadlines
from tests.kernel.helper import TOPIC, Door, deliver, fail

#: The clock of a Door starts here.
START = 1000.0
#: Deadlines are stored in nanoseconds and returned in seconds.
ROUNDING = 1e-6


class Timer:
    """A timer, driven as the dispatcher drives it."""

    def __init__(self) -> None:
        self.door = Door()
        self.deadlines = Deadlines()

    def send(self, *timeouts_ms: int) -> list[Delivery]:
        """Send a chunk of messages with these timeouts."""
        handles = [
            self.door.send(TOPIC, b"v", partition=ms % 3, delivery_timeout_ms=ms)
            for ms in timeouts_ms
        ]
        self.deadlines.watch(self.door.chunk())
        return handles

    def reschedule(self, now: float) -> int:
        """Expire the rows that are due and return the number of chunks."""
        chunks = 0
        for chunk in self.deadlines.expired(now):
            chunks += 1
            for part in chunk.expired(now):
                fail(part)
        return chunks


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 5000), min_size=1, max_size=6), min_size=1, max_size=12))
def test_each_row_expires_not_early_and_at_most_a_grain_late(chunks: list[list[int]]) -> None:
    timer = Timer()
    left = {
        handle: START + ms / 1000
        for timeouts in chunks
        for handle, ms in zip(timer.send(*timeouts), timeouts, strict=True)
    }
    rounds = 0
    while (now := timer.deadlines.next()) is not None:
        timer.reschedule(now)
        rounds += 1
        for handle in [handle for handle in left if handle.done()]:
            assert left[handle] - ROUNDING <= now <= left.pop(handle) + GRAIN + ROUNDING
        assert all(now < deadline + ROUNDING for deadline in left.values())
    assert not left
    assert rounds <= sum(map(len, chunks))


def test_rows_that_expire_close_together_expire_together() -> None:
    timer = Timer()
    for ms in range(1000, 1010):
        timer.send(ms)
    now = timer.deadlines.next()
    assert now is not None
    assert timer.reschedule(now) == 10
    assert timer.deadlines.next() is None


def test_nothing_expires_before_its_time() -> None:
    timer = Timer()
    (handle,) = timer.send(1000)
    for early in (START, START + 0.5, START + 0.999_999):
        assert list(timer.deadlines.expired(early)) == []
    assert timer.reschedule(START + 1 + ROUNDING) == 1
    assert handle.failed()


def test_a_chunk_for_which_there_was_no_memory_is_given_out_again() -> None:
    timer = Timer()
    handles = timer.send(1000, 9000)
    for _ in timer.deadlines.expired(START + 5):
        break
    assert timer.reschedule(START + 5) == 1
    assert [handle.done() for handle in handles] == [True, False]
    assert not list(timer.deadlines.expired(START + 5))


def test_a_chunk_with_rows_left_expires_again_with_the_next_of_them() -> None:
    timer = Timer()
    handles = timer.send(3000, 1000, 2000)
    found = []
    while (now := timer.deadlines.next()) is not None:
        timer.reschedule(now)
        found.append([handle.done() for handle in handles])
    assert found == [[False, True, False], [False, True, True], [True, True, True]]


def test_the_earliest_goes_first_whatever_was_watched_first() -> None:
    timer = Timer()
    timer.send(9000)
    (second,) = timer.send(1000)
    timer.send(5000)
    now = timer.deadlines.next()
    assert now is not None
    assert timer.reschedule(now) == 1
    assert second.done()


def test_where_nothing_is_watched_nothing_is_due() -> None:
    deadlines = Deadlines()
    assert deadlines.next() is None
    assert not list(deadlines.expired(1e9))


def test_what_has_its_outcome_is_not_waited_for() -> None:
    timer = Timer()
    timer.door.send(TOPIC, b"v", delivery_timeout_ms=1000)
    delivered = timer.door.chunk()
    timer.deadlines.watch(delivered)
    timer.send(2000)
    deliver(delivered.whole())
    next_ = timer.deadlines.next()
    assert next_ is not None
    assert next_ > START + 2
    assert timer.reschedule(START + 1.5) == 0


def test_what_has_its_outcome_does_not_expire() -> None:
    timer = Timer()
    timer.door.send(TOPIC, b"v", delivery_timeout_ms=1000)
    delivered = timer.door.chunk()
    timer.deadlines.watch(delivered)
    deliver(delivered.whole())
    assert not list(timer.deadlines.expired(START + 5))


def test_one_long_deadline_does_not_keep_what_is_finished_behind_it() -> None:
    """A topic without a leader must not make the memory of delivered messages grow."""
    deadlines = Deadlines()
    homes: weakref.WeakSet[object] = weakref.WeakSet()

    def watched(timeout_ms: int) -> Chunk:
        # A chunk keeps its producer reference alive, so the reference shows whether the chunk is
        # freed.
        door = Door()
        door.send(TOPIC, b"v", delivery_timeout_ms=timeout_ms)
        homes.add(door.home)
        chunk = door.chunk()
        deadlines.watch(chunk)
        return chunk

    first = watched(1)
    for number in range(2000):
        deliver(watched(100_000 + number).whole())
    gc.collect()
    assert len(homes) <= 256
    (due,) = deadlines.expired(START + 1)
    assert due is first

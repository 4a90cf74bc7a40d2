"""``send()``: what it accepts, what it rejects, and that a rejection has no side effects."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import CHUNK_BYTES, CHUNK_ROWS, ROW_COST
from tests._support.threads import run_together

from .helper import TOPIC, ClosedError, Door, NoSpaceError, claim, encode, read, split


def values(door: Door) -> list[bytes | None]:
    """Return the values of everything accepted so far, in the order of the chunks."""
    return [chunk.value(row) for chunk in door.chunks() for row in range(len(chunk))]


# Accepted messages ------------------------------------------------------------------------------


def test_the_first_message_starts_the_pipeline_and_opens_a_chunk() -> None:
    door = Door()
    assert (door.starts, list(door.told)) == (0, [])
    door.send(TOPIC, b"a")
    door.send(TOPIC, b"b")
    assert door.starts == 1
    assert [slot.topic for slot in door.told] == [TOPIC]
    assert values(door) == [b"a", b"b"]


def test_a_chunk_that_has_been_taken_is_followed_by_another() -> None:
    door = Door()
    door.send(TOPIC, b"a")
    first = door.chunk()
    door.send(TOPIC, b"b")
    second = door.chunk()
    assert second.serial > first.serial
    assert (len(first), len(second), door.accepted) == (1, 1, 2)


def test_topics_have_chunks_of_their_own() -> None:
    door = Door()
    for topic in ("x", "y", "x"):
        door.send(topic, topic.encode())
    assert [(chunk.topic, len(chunk)) for chunk in door.chunks()] == [("x", 2), ("y", 1)]


def test_a_chunk_is_closed_when_it_has_its_rows() -> None:
    door = Door()
    for number in range(CHUNK_ROWS + 1):
        door.send(TOPIC, b"%d" % number)
    chunks = door.chunks()
    assert [len(chunk) for chunk in chunks] == [CHUNK_ROWS, 1]
    assert chunks[0].serial < chunks[1].serial
    assert chunks[1].value(0) == b"%d" % CHUNK_ROWS


def test_a_chunk_is_closed_when_it_has_its_bytes() -> None:
    door = Door()
    for _ in range(5):
        door.send(TOPIC, bytes(1_000_000))
    assert [len(chunk) for chunk in door.chunks()] == [CHUNK_BYTES // 1_000_000, 1]


def test_a_message_may_be_larger_than_a_chunk() -> None:
    door = Door(max_request_size=CHUNK_BYTES * 4)
    door.send(TOPIC, b"before")
    door.send(TOPIC, bytes(CHUNK_BYTES * 2))
    door.send(TOPIC, b"after")
    assert [chunk.nbytes for chunk in door.chunks()] == [6, CHUNK_BYTES * 2, 5]


@pytest.mark.parametrize(
    "given_value",
    [
        b"abc",
        bytearray(b"abc"),
        memoryview(b"abc"),
        memoryview(b"xabcx")[1:4],
        memoryview(array.array("B", b"abc")),
        type("Bytes", (bytes,), {})(b"abc"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_bytes_like_payload(given_value: Any) -> None:
    door = Door()
    door.send(TOPIC, given_value, given_value, [("h", given_value)], 0)
    (record,) = read(encode(claim(split(door.chunk(), 1)[0])))
    assert (record.key, record.value, record.headers) == (b"abc", b"abc", [("h", b"abc")])


def test_a_bytearray_may_change_once_it_is_sent() -> None:
    door = Door()
    value = bytearray(b"as sent")
    door.send(TOPIC, value)
    value[:] = b"changed after"
    assert values(door) == [b"as sent"]


@pytest.mark.parametrize("headers", [None, [], (), [("a", b"b")], (("a", b"b"),)])
def test_headers_may_be_any_sequence(headers: Any) -> None:
    door = Door()
    door.send(TOPIC, b"v", headers=headers, partition=0)
    (record,) = read(encode(claim(split(door.chunk(), 1)[0])))
    assert record.headers == list(headers or ())


def test_the_timestamp_is_now_or_as_given() -> None:
    door = Door()
    assert door.send(TOPIC, b"v").timestamp == 1_700_000_000_000
    door.clock.jump(1.25)
    assert door.send(TOPIC, b"v").timestamp == 1_700_000_001_250
    assert door.send(TOPIC, b"v", timestamp_ms=0).timestamp == 0
    assert door.send(TOPIC, b"v", timestamp_ms=12).timestamp == 12


def test_deadlines() -> None:
    door = Door(delivery_timeout=30)
    door.send(TOPIC, b"v")
    door.send(TOPIC, b"v", delivery_timeout_ms=1500)
    assert door.chunk().next_deadline == 1_001.5
    door.send(TOPIC, b"v")
    assert door.chunk().next_deadline == 1_030.0


def test_a_very_long_deadline_does_not_wrap_around() -> None:
    door = Door()
    door.send(TOPIC, b"v", delivery_timeout_ms=(1 << 31) - 1)
    chunk = door.chunk()
    assert chunk.next_deadline == pytest.approx(1000 + (2**31 - 1) / 1000)
    assert chunk.expired(door.clock.monotonic() + 1_000_000) == []


def test_serializers_get_what_was_sent() -> None:
    door = Door(serializers=(lambda key: key.encode(), lambda value: b"%d" % value))
    handle = door.send(TOPIC, 7, "seven")
    assert (handle.key, handle.value) == (b"seven", b"7")


# Rejected messages ------------------------------------------------------------------------------


class Liar(list[Any]):
    """A list that reports more items than it has."""

    def __len__(self) -> int:
        return 5


def test_a_value_that_is_refused_does_not_keep_a_buffer() -> None:
    door = Door()
    key = bytearray(b"key")
    with pytest.raises(TypeError):
        door.send(TOPIC, 5, key)
    key.append(0)  # BufferError if it were still exported
    with pytest.raises(ValueError, match="max_request_size"):
        door.send(TOPIC, bytes(1 << 21), key)
    key.append(0)


@pytest.mark.parametrize("which", [0, 1])
def test_a_serializer_that_fails(which: int) -> None:
    def fails(data: object) -> bytes:
        raise ArithmeticError("not today")

    def fine(data: object) -> bytes:
        return b""

    door = Door(serializers=(fails, fine) if which == 0 else (fine, fails))
    with pytest.raises(ArithmeticError, match="not today"):
        door.send(TOPIC, 1, 2)
    assert (door.budget.used, door.accepted, door.chunks()) == (0, 0, [])


def test_a_serializer_must_give_bytes() -> None:
    door = Door(serializers=(str, str))
    with pytest.raises(TypeError, match="key must be bytes"):
        door.send(TOPIC, 1, 2)
    assert door.budget.used == 0


def test_headers_that_change_while_they_are_encoded_break_nothing() -> None:
    door = Door()
    door.send(TOPIC, b"v", headers=Liar([("a", b"b")]), partition=0)
    (record,) = read(encode(claim(split(door.chunk(), 1)[0])))
    assert record.headers == [("a", b"b")]


# Space ------------------------------------------------------------------------------------------


def test_a_message_costs_its_payload_and_its_row() -> None:
    door = Door()
    door.send(TOPIC, b"12345", b"123")
    assert door.budget.used == 8 + ROW_COST
    door.send(TOPIC)
    assert door.budget.used == 8 + 2 * ROW_COST
    door.send(TOPIC, headers=[("ab", b"cde")])
    assert door.budget.used == 8 + 3 * ROW_COST + 1 + 1 + 2 + 1 + 3


def test_without_space_nothing_is_accepted() -> None:
    door = Door(limit=2 * (ROW_COST + 10))
    door.send(TOPIC, bytes(10))
    with pytest.raises(NoSpaceError):
        door.send(TOPIC, bytes(11))
    assert (door.budget.used, door.accepted) == (ROW_COST + 10, 1)
    door.send(TOPIC, bytes(10))
    assert door.budget.used == door.budget.limit
    with pytest.raises(NoSpaceError):
        door.send(TOPIC)


def test_one_that_closes_while_a_serializer_runs() -> None:
    """Messages accepted after the close would never be taken."""

    def closes(value: object) -> bytes:
        door._shut()
        door.closed = True
        return b"v"

    door = Door(serializers=(closes, closes))
    with pytest.raises(ClosedError):
        door.send(TOPIC, 1)
    assert (door.budget.used, door.accepted, door.chunks()) == (0, 0, [])


def test_a_refused_announcement_is_made_up_for() -> None:
    class Interrupted(Door):
        def _announce(self, slots: _kernel.TopicSlot | list[_kernel.TopicSlot]) -> None:
            raise KeyboardInterrupt

    door = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        door.send(TOPIC, b"v")
    # It was accepted: flush() finds it.
    assert door.accepted == 1
    (slot,) = door._unannounced()
    (chunk,) = door._take(slot)
    assert chunk.value(0) == b"v"
    assert door._unannounced() == []


def test_a_topic_that_nobody_was_told_of_is_told_of_by_the_next_message() -> None:
    class Refuses(Door):
        refusals = 2  # the announcement, and the second attempt

        def _announce(self, slots: _kernel.TopicSlot | list[_kernel.TopicSlot]) -> None:
            if self.refusals:
                self.refusals -= 1
                raise RuntimeError("can't start new thread")
            super()._announce(slots)

    door = Refuses()
    with pytest.raises(RuntimeError):
        door.send(TOPIC, b"first")
    assert not door.told
    door.send(TOPIC, b"second")
    door.send(TOPIC, b"third")
    assert len(door.told) == 1
    assert values(door) == [b"first", b"second", b"third"]


def test_take_all_takes_every_topic() -> None:
    door = Door()
    for topic in ("x", "y", "z"):
        door.send(topic, b"v")
    assert sorted(chunk.topic for chunk in door._take_all()) == ["x", "y", "z"]
    assert door._take_all() == []


def test_opened_anew_it_is_empty() -> None:
    """As in the child of a fork."""
    door = Door()
    door.send(TOPIC, b"the parent's")
    budget = _kernel.Budget(1000)
    door._open(
        budget,
        door._announce,
        door.home,
        delivery_timeout=1,
        max_request_size=1000,
        serializing=False,
        unconfirmed=False,
        fake_clock=door.clock,
    )
    assert (door.accepted, door._take_all(), budget.used) == (0, [], 0)
    door.send(TOPIC, b"the child's")
    assert [chunk.value(0) for chunk in door._take_all()] == [b"the child's"]


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=40))
def test_order_is_kept_within_a_topic(script: list[tuple[str, bool]]) -> None:
    door = Door()
    sent: dict[str, list[bytes]] = {}
    found: dict[str, list[bytes | None]] = {}

    def take() -> None:
        for chunk in door.chunks():
            found.setdefault(chunk.topic, []).extend(map(chunk.value, range(len(chunk))))

    for number, (topic, take_now) in enumerate(script):
        value = b"%d" % number
        sent.setdefault(topic, []).append(value)
        door.send(topic, value)
        if take_now:
            take()
    take()
    assert found == sent


# Threads ----------------------------------------------------------------------------------------


def test_threads_lose_nothing_and_keep_their_order() -> None:
    door = Door()
    senders, each = 4, 5_000
    finished: list[int] = []
    found: dict[tuple[str, int], list[int]] = {}

    def sender(number: int) -> Callable[[], None]:
        def send() -> None:
            for i in range(each):
                door.send("x" if i % 3 else "y", b"%d %d" % (number, i))
            finished.append(number)

        return send

    def take() -> None:
        for chunk in door.chunks():
            for row in range(len(chunk)):
                number, i = map(int, (chunk.value(row) or b"").split())
                found.setdefault((chunk.topic, number), []).append(i)

    def taker() -> None:
        while len(finished) < senders:
            take()

    run_together(taker, *map(sender, range(senders)))
    take()
    assert door.accepted == senders * each
    for number in range(senders):
        assert found["x", number] == [i for i in range(each) if i % 3]
        assert found["y", number] == list(range(0, each, 3))

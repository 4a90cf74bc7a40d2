"""A row's life after its chunk is taken: claimed, encoded, delivered or failed, reported."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import CHUNK_ROWS, ROW_COST, Delivery, Slice

from .helper import (
    TOPIC,
    Door,
    NoSpaceError,
    claim,
    deliver,
    encode,
    fail,
    read,
    report,
    seal,
    some,
    split,
)


def sent(door: Door, *values: bytes, **how: Any) -> tuple[Slice, list[Delivery]]:
    """Send messages for partition 0, and return their slice and their handles."""
    handles = [door.send(TOPIC, value, partition=0, **how) for value in values]
    return split(door.chunk(), 1)[0], handles


def in_batch(part: Slice) -> list[bytes]:
    return [record.value for record in read(encode(part))]


# Claiming ---------------------------------------------------------------------------------------


def test_a_claim_takes_from_the_front_what_has_room() -> None:
    part, _ = sent(Door(), *[b"%02d" % i * 50 for i in range(10)])
    first = claim(part, room=3 * (100 + 16))
    assert (first.count, part.count) == (3, 7)
    assert (first.nbytes, part.nbytes) == (300, 700)
    second = claim(part, most=2)
    assert in_batch(first) == [b"%02d" % i * 50 for i in (0, 1, 2)]
    assert in_batch(second) == [b"%02d" % i * 50 for i in (3, 4)]
    assert in_batch(claim(part)) == [b"%02d" % i * 50 for i in range(5, 10)]
    assert (part.count, part.nbytes) == (0, 0)
    assert part.claim(1000, 1000) is None


def test_what_does_not_fit_stays_unless_it_must_have_a_batch_of_its_own() -> None:
    part, _ = sent(Door(), bytes(1000), b"next")
    assert part.claim(500, 10) is None
    assert (part.count, part.nbytes) == (2, 1004)
    alone = some(part.claim(500, 10, True))
    assert (alone.count, part.count) == (1, 1)


def test_a_claim_leaves_out_what_has_expired() -> None:
    door = Door()
    door.send(TOPIC, b"a", partition=0)
    door.send(TOPIC, b"late", partition=0, delivery_timeout_ms=10)
    door.send(TOPIC, b"b", partition=0)
    chunk = door.chunk()
    part = split(chunk, 1)[0]
    door.clock.jump(1)
    for late in chunk.expired(door.clock.monotonic()):
        fail(late)
    assert part.waiting() == 2
    assert in_batch(claim(part)) == [b"a", b"b"]
    assert (part.count, part.nbytes) == (0, 0)


def test_claimed_rows_may_be_in_the_log() -> None:
    part, (a, b) = sent(Door(), b"a", b"b")
    claimed = claim(part, most=1)
    assert (a.possibly_persisted(), b.possibly_persisted()) == (True, False)
    claimed.unclaim()
    assert not a.possibly_persisted()


def test_level_and_retries_go_along() -> None:
    part, _ = sent(Door(), b"a", b"b")
    part.level, part.retries_used = 3, 2
    claimed = claim(part, most=1)
    assert (claimed.level, claimed.retries_used, claimed.partition) == (3, 2, 0)
    assert (claimed.topic, claimed.chunk) == (TOPIC, part.chunk)


def test_an_unsealed_slice_can_be_claimed_again_in_pieces() -> None:
    part, _ = sent(Door(), b"a", b"b", b"c")
    claimed = seal(part)
    claimed.unclaim()
    assert in_batch(claim(claimed, most=2)) == [b"a", b"b"]
    assert in_batch(claim(claimed)) == [b"c"]


# Outcomes ---------------------------------------------------------------------------------------


def test_a_row_fails_with_its_own_error_however_many_there_are() -> None:
    door = Door()
    handles = [door.send(TOPIC, b"%d" % i) for i in range(CHUNK_ROWS)]
    chunk = door.chunk()
    # Failing a row that is already settled leaves no error object.
    first = chunk.pick([0])
    for _ in range(3):
        for row in range(CHUNK_ROWS):
            report(chunk.pick([row]).fail(LookupError(row), TimeoutError()))
            first.fail(OSError(), OSError())
    assert [handle.error.args for handle in handles if handle.error] == [
        (row,) for row in range(CHUNK_ROWS)
    ]
    assert door.budget.used == 0


# Expiry -----------------------------------------------------------------------------------------


def test_expired_rows_come_by_partition() -> None:
    door = Door()
    for partition, timeout in ((1, 100), (0, 100), (1, 200), (1, 100)):
        door.send(TOPIC, b"v", partition=partition, delivery_timeout_ms=timeout)
    door.send(TOPIC, b"v", delivery_timeout_ms=100)
    chunk = door.chunk()
    now = door.clock.monotonic()
    assert chunk.next_deadline == pytest.approx(now + 0.1)
    assert chunk.expired(now + 0.09) == []
    found = {part.partition: part.row_numbers() for part in chunk.expired(now + 0.15)}
    assert found == {1: [0, 3], 0: [1], -1: [4]}
    assert chunk.next_deadline == pytest.approx(now + 0.2)


def test_the_oldest_deadline_of_what_has_no_outcome() -> None:
    door = Door()
    for timeout in (300, 100, 200):
        door.send(TOPIC, b"v", partition=0, delivery_timeout_ms=timeout)
    part = split(door.chunk(), 1)[0]
    now = door.clock.monotonic()
    assert part.oldest_deadline() == pytest.approx(now + 0.1)
    fail(part.chunk.pick([1]))
    assert part.oldest_deadline() == pytest.approx(now + 0.2)
    fail(part)
    assert part.oldest_deadline() is None


# Callbacks --------------------------------------------------------------------------------------


def test_a_callback_that_raises_harms_only_its_own() -> None:
    told: list[bytes | None] = []
    errors: list[Any] = []
    door = Door()

    def raises(error: object, handle: Delivery) -> None:
        raise ArithmeticError(handle.value)

    def exits(error: object, handle: Delivery) -> None:
        raise SystemExit

    def fine(error: object, handle: Delivery) -> None:
        told.append(handle.value)

    for value, callback in ((b"a", fine), (b"b", raises), (b"c", exits), (b"d", fine)):
        door.send(TOPIC, value, partition=0, on_delivery=callback)
    settled = some(seal(split(door.chunk(), 1)[0]).deliver(0))
    assert settled.report(lambda callback, error: errors.append((callback, type(error))))
    assert told == [b"a", b"d"]
    assert errors == [(raises, ArithmeticError), (exits, SystemExit)]
    assert door.budget.used == 0


def test_functions_added_later() -> None:
    told: list[str] = []
    part, (handle, other) = sent(
        Door(), b"a", b"b", on_delivery=lambda error, handle: told.append("on_delivery")
    )
    assert handle.when_settled(lambda settled: told.append(f"first {settled.offset}"))
    assert handle.when_settled(lambda settled: told.append("second"))
    deliver(seal(part))
    assert told == ["on_delivery", "first 0", "second", "on_delivery"]
    assert not handle.when_settled(lambda settled: told.append("too late"))
    assert not other.when_settled(lambda settled: told.append("too late"))


def test_without_functions_nothing_needs_a_report() -> None:
    part, _ = sent(Door(), b"a")
    settled = some(seal(part).deliver(0))
    assert not settled.wants_report
    assert settled.finish()


def test_callbacks_are_let_go_when_they_have_run() -> None:
    class Callback:
        def __call__(self, error: object, handle: object) -> None:
            pass

    callback = Callback()
    gone = weakref.ref(callback)
    part, handles = sent(Door(), b"a", b"b", on_delivery=callback)
    del callback
    assert gone() is not None
    report(claim(part, most=1).deliver(0))
    assert gone() is not None
    deliver(part)
    assert gone() is None
    assert len(handles) == 2


def test_a_chunk_that_is_given_up_lets_its_callbacks_go() -> None:
    callback: Any = type("Callback", (), {"__call__": lambda self, error, handle: None})()
    gone = weakref.ref(callback)
    part, handles = sent(Door(), b"a", b"b", on_delivery=callback)
    del callback, part, handles
    assert gone() is None


# Reported failures ------------------------------------------------------------------------------


def test_failures_that_nobody_was_told_of() -> None:
    door = Door()
    part, (a, b) = sent(door, b"a", b"b")
    settled = some(part.fail(LookupError("this one"), TimeoutError()))
    settled.finish()
    assert settled.unreported_failures() == 2
    assert str(settled.first_error()) == "this one"
    assert str(a.failure()) == "this one"
    assert settled.unreported_failures() == 1
    assert str(b.exception()) == "this one"
    assert settled.unreported_failures() == 0


def test_a_callback_counts_as_told_and_a_pending_look_does_not() -> None:
    door = Door()
    (a, b) = (door.send(TOPIC, on_delivery=lambda error, handle: None), door.send(TOPIC))
    assert (a.failure(), b.failure()) == (None, None)
    settled = some(door.chunk().whole().fail(LookupError(), TimeoutError()))
    report(settled)
    assert settled.unreported_failures() == 1


def test_delivered_rows_have_no_errors_also_when_nothing_is_left_of_them() -> None:
    part, handles = sent(Door(), b"a", b"b")
    settled = some(seal(part).deliver(0))
    handles.clear()
    assert settled.finish()
    assert settled.first_error() is None
    assert settled.unreported_failures() == 0
    assert settled.waiting() == 0


# Memory -----------------------------------------------------------------------------------------


def test_space_comes_back_as_rows_are_reported() -> None:
    door = Door()
    part, _ = sent(door, *[bytes(100_000) for _ in range(10)])
    assert door.budget.used == 10 * (100_000 + ROW_COST)
    deliver(seal(part.chunk.pick(range(5), 0)))
    assert door.budget.used == 5 * 100_000 + 10 * ROW_COST
    assert deliver(seal(part))
    assert door.budget.used == 0


def test_what_waits_takes_its_payload_along() -> None:
    """One dead partition does not pin the memory of the others."""
    door = Door()
    headers = [("name", b"header")]
    for number in range(100):
        door.send(
            TOPIC, b"%03d" % number * 100, b"key", headers, partition=number % 4, timestamp_ms=1
        )
    slices = split(door.chunk(), 4)
    rows = 100 * ROW_COST
    each = (door.budget.used - rows) // 4
    waiting, dead = slices[2], slices[3]
    waiting.detach_payload()
    assert door.budget.used == rows + 4 * each
    for partition in (0, 1):
        deliver(seal(slices[partition]))
    # Memory is freed block by block, and nearly every block holds rows of the dead partition too.
    assert door.budget.used > rows + 3 * each
    dead.detach_payload()
    assert door.budget.used == rows + 2 * each
    dead.detach_payload()  # it is alone there: nothing moves
    assert door.budget.used == rows + 2 * each
    assert [
        (record.key, record.value, record.headers) for record in read(encode(claim(waiting)))
    ] == [(b"key", b"%03d" % number * 100, headers) for number in range(2, 100, 4)]
    deliver(waiting.chunk.pick(waiting.chunk.whole().row_numbers()[2::4], 2))
    assert door.budget.used == rows + each
    fail(dead)
    assert door.budget.used == 0


def test_empty_messages_do_not_pin_a_block_either() -> None:
    door = Door()
    for number in range(10):
        door.send(TOPIC, None if number % 2 else bytes(100), partition=number % 2)
    slices = split(door.chunk(), 2)
    slices[1].detach_payload()
    deliver(seal(slices[0]))
    assert door.budget.used == 10 * ROW_COST


class Waits(Door):
    """A door that runs *meanwhile* while a ``send()`` waits, which then may get its space."""

    meanwhile: Callable[[], object]

    def _wait_for_space(self, turn: _kernel.Turn) -> None:
        assert not turn.granted
        self.meanwhile()
        if not turn.granted:
            raise NoSpaceError


def test_one_that_waits_gets_its_space_once_there_is_enough() -> None:
    door = Waits(limit=2 * (ROW_COST + 1))
    part, _ = sent(door, b"a", b"b")
    first, rest = claim(part, most=1), part
    encode(first)
    door.meanwhile = lambda: deliver(first)
    with pytest.raises(NoSpaceError):
        door.send(TOPIC, b"cd")  # the cost of rows is released with the last row of their chunk
    assert door.budget.waiting == 0
    door.meanwhile = lambda: deliver(rest)
    assert door.send(TOPIC, b"cd").topic == TOPIC
    assert door.budget.used == ROW_COST + 2


def test_space_that_an_encoder_held_is_announced_too() -> None:
    """A row that expires while its batch is encoded: its bytes are released after the encoder."""
    door = Waits(limit=2 * ROW_COST + 2000)
    part, _ = sent(door, bytes(1000))
    claimed = claim(part)
    fail(claimed)
    assert door.budget.used == 1000  # the encoder may be reading it
    batches: list[list[bytes]] = []
    door.meanwhile = lambda: batches.append(in_batch(claimed))
    door.send(TOPIC, bytes(2000))
    assert batches == [[bytes(1000)]]
    assert door.budget.used == ROW_COST + 2000


@pytest.mark.parametrize("copies", [1, 2, 254, 255, 256, 300])
def test_any_number_of_handles_of_one_row(copies: int) -> None:
    """A callback, and each function added later, is given a separate handle."""
    kept: list[Delivery] = []
    door = Door()
    part, handles = sent(door, b"value", on_delivery=lambda error, handle: kept.append(handle))
    for _ in range(copies - 1):
        handles[0].when_settled(kept.append)
    fail(part)
    assert len(kept) == copies
    while kept:
        assert kept.pop().value == b"value"
    assert handles[0].value == b"value"
    assert handles[0].failed()


def test_handles_that_are_kept_report_their_values() -> None:
    door = Door()
    handles = [
        door.send(TOPIC, b"v" * i, None if i % 2 else b"k" * i, partition=i % 3, timestamp_ms=i)
        for i in range(1000)
    ]
    parts = split(door.chunk(), 3)
    deliver(seal(parts[0]), 100)
    fail(parts[1])
    deliver(seal(parts[2]), 300)
    assert door.budget.used == 0
    for i, handle in enumerate(handles):
        assert handle.done()
        assert (handle.topic, handle.partition, handle.timestamp) == (TOPIC, i % 3, i)
        assert handle.serialized_key_size == (-1 if i % 2 else i)
        assert handle.serialized_value_size == i
        assert handle.offset == {0: 100 + i // 3, 1: None, 2: 300 + i // 3}[i % 3]
        assert (handle.error is None) == (i % 3 != 1)


# Visibility for the garbage collector ------------------------------------------------------------


def test_messages_are_nothing_to_the_garbage_collector() -> None:
    door = Door()

    def callback(error: object, handle: object) -> None:
        pass

    def send(count: int) -> list[Delivery]:
        return [
            door.send(TOPIC, b"v", b"k", [("h", b"v")], 0, on_delivery=callback)
            for _ in range(count)
        ]

    handles = send(10)
    gc.collect()
    before = len(gc.get_objects())
    handles = send(10_000)
    assert len(gc.get_objects()) - before < 50
    assert not any(map(gc.is_tracked, handles))
    parts = [split(chunk, 1)[0] for chunk in door.chunks()]
    for part in parts:
        deliver(seal(part))
    assert len(gc.get_objects()) - before < 50
    assert not any(map(gc.is_tracked, handles))


def test_a_handle_is_small() -> None:
    header = sys.getsizeof(object())  # 16 bytes; 32 in a free-threaded build
    assert sys.getsizeof(Door().send(TOPIC)) <= header + 16

"""Late access: the rows expire while a stage holds them, and their memory is freed.

A row may be settled and reported by the timer at any moment, wherever it waits. A stage that
accesses it later finds it settled. This holds even if that was the last row of its chunk, whose row
table has been compressed (if handles are kept) or freed (if not).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import MURMUR2, STICKY, Chunk, Delivery, Partitioner, Slice

from .helper import TOPIC, Door, claim, deliver, encode, fail, pack, report, split

COUNT = 1000


def ended(kept: bool, how: Callable[[Slice], bool]) -> tuple[Chunk, list[Slice], list[Delivery]]:
    """Return a chunk whose rows are all reported, slices still held by stages, and handles."""
    door = Door()
    handles = [door.send(TOPIC, b"v" * i, b"k", partition=i % 2) for i in range(COUNT)]
    chunk = door.chunk()
    if not kept:
        handles.clear()
    held = [*split(chunk, 2).values(), chunk.whole(), chunk.pick(range(5))]
    assert how(chunk.whole())
    assert door.budget.used == 0
    return chunk, held, handles


@pytest.fixture(params=["handles kept", "no handles"])
def kept(request: pytest.FixtureRequest) -> bool:
    return request.param == "handles kept"


@pytest.fixture(params=[deliver, fail])
def over(request: pytest.FixtureRequest, kept: bool) -> tuple[Chunk, list[Slice], list[Delivery]]:
    return ended(kept, request.param)


Over = tuple[Chunk, list[Slice], list[Delivery]]


def test_slices_that_are_still_held_are_empty_handed(over: Over) -> None:
    _chunk, held, handles = over
    for part in held:
        assert part.waiting() == 0
        assert part.oldest_deadline() is None
        part.unclaim()
        assert part.deliver(7) is None
        assert part.fail(OSError(), OSError()) is None
        assert part.claim(1 << 30, 1 << 30) is None
        assert (part.count, part.nbytes) == (0, 0)
    assert all(handle.done() for handle in handles)


def test_the_chunk_has_no_rows_to_give_out(over: Over) -> None:
    chunk, _, _ = over
    assert chunk.split(Partitioner(MURMUR2, STICKY), 2, pack([0, 1])) == ([], None)
    assert chunk.split(None, 1, b"") == ([], None)
    assert chunk.expired(1e9) == []
    assert chunk.pick([0, 1, COUNT - 1]).count == 0
    assert chunk.whole().count == 0
    assert chunk.unassigned() == []
    assert chunk.unsettled == 0


def test_the_chunk_has_no_payload_left(over: Over) -> None:
    chunk, _, _ = over
    assert (chunk.key(0), chunk.value(COUNT - 1)) == (None, None)
    assert chunk.partition_of(0) in (0, -1)
    chunk.assign(COUNT - 1, 1)


def test_handles_are_not_harmed_by_late_stages(over: Over) -> None:
    chunk, held, handles = over
    before = [(h.partition, h.offset, repr(h.error), h.timestamp) for h in handles]
    chunk.split(Partitioner(MURMUR2, STICKY), 1, b"")
    for row in range(COUNT):
        chunk.assign(row, 1)
    for part in held:
        part.deliver(50, 60)
    assert [(h.partition, h.offset, repr(h.error), h.timestamp) for h in handles] == before


def test_rows_that_expire_while_a_users_partitioner_thinks() -> None:
    door = Door()
    for i in range(100):
        door.send(TOPIC, bytes(5000), b"key %d" % i, delivery_timeout_ms=10 if i % 2 else 1000)
    chunk = door.chunk()
    todo = chunk.unassigned()
    door.clock.jump(0.5)
    (late,) = chunk.expired(door.clock.monotonic())
    fail(late)
    # Live rows can be read; others may be freed.
    assert {chunk.key(row) for row in todo[0::2]} == {b"key %d" % i for i in range(0, 100, 2)}
    assert {chunk.key(row) for row in todo[1::2]} <= {None, *(b"key %d" % i for i in range(100))}
    assert chunk.unassigned() == todo[0::2]


def test_rows_that_expire_while_their_batch_is_encoded(kept: bool) -> None:
    door = Door()
    handles = [door.send(TOPIC, bytes(300), partition=0) for _ in range(COUNT)]
    chunk = door.chunk()
    if not kept:
        handles.clear()
    batch = claim(split(chunk, 1)[0])
    assert fail(chunk.whole())
    assert chunk.unsettled == 0
    assert len(encode(batch)) > COUNT * 300  # every byte is still there
    assert door.budget.used == 0
    assert batch.deliver(0) is None
    assert all(handle.failed() for handle in handles)


@pytest.mark.parametrize("refused", [0, 2], ids=["with memory", "without memory"])
def test_the_offsets_after_a_row_that_has_expired(refused: int) -> None:
    """The row counts, although it keeps its outcome. Without memory its slice is emptied."""
    door = Door()
    handles, parts = [], []
    for _ in range(2):
        handles += [door.send(TOPIC, b"v", partition=0) for _ in range(3)]
        door.send(TOPIC, b"v", partition=1)
        parts.append(claim(split(door.chunk(), 2)[0]))
    encode(*parts)
    fail(parts[0].chunk.pick([1]))
    _kernel.refuse_memory(0, refused)
    latency = _kernel.SampledStat(1.0, 1)
    settled: list[Any] = [None] * len(parts)
    rows, nbytes = _kernel.deliver_parts(parts, 100, -1, latency, 0.0, settled)
    _kernel.refuse_memory(0, 0)
    assert [handle.offset for handle in handles] == [100, None, 102, 103, 104, 105]
    assert (rows, nbytes, latency.count) == (5, 5, 5)
    assert [len(part) for part in settled] == [2, 3]
    nothing: list[Any] = [None] * len(parts)
    assert _kernel.deliver_parts(parts, 7, -1, latency, 0.0, nothing) == (0, 0)
    assert not any(nothing)


def test_without_memory_no_row_of_a_batch_is_settled_or_all_are() -> None:
    """Rows that were settled and never reported would keep their memory."""
    door = Door()
    handles = [door.send(TOPIC, b"v", partition=0) for _ in range(3)]
    first = door.chunk().whole()
    handles += [door.send(TOPIC, b"v", partition=0) for _ in range(3)]
    second = door.chunk().whole()
    settled: list[Any] = [None, None]
    fail(second.chunk.pick([1]))
    latency = _kernel.SampledStat(1.0, 1)
    _kernel.refuse_memory(0, 2)
    with pytest.raises(MemoryError):
        _kernel.deliver_parts([first, second], 100, -1, latency, 0.0, settled)
    _kernel.refuse_memory(0, 0)
    assert [handle.done() for handle in handles] == [False, False, False, False, True, False]
    rows, _ = _kernel.deliver_parts([first, second], 100, -1, latency, 0.0, settled)
    assert [handle.offset for handle in handles] == [100, 101, 102, 103, None, 105]
    assert rows == 5
    for part in settled:
        report(part)
    assert door.budget.used == 0

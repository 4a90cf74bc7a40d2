"""Blocks refer to the caller's bytes objects until their rows are settled."""

from __future__ import annotations

import sys
from typing import Any

import numpy
import pytest

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import ROW_COST, Slice

from .helper import TOPIC, Door, claim, deliver, encode, fail, read, seal, some

ROWS = 100
SIZE = 300


def cells() -> list[bytes]:
    """Return new objects, each of SIZE bytes."""
    return [b"%03d" % number * (SIZE // 3) for number in range(ROWS)]


def put(door: Door, columns: _kernel.Columns, partitions: int = 4) -> list[Slice]:
    """Accept *columns* and return their slices."""
    door._send_block(_kernel.SentBlock(), TOPIC, [columns], None, None, ())
    (chunk,) = door.chunks()
    slices, unknown = chunk.split(
        _kernel.Partitioner(_kernel.NO_HASH, _kernel.ROUND_ROBIN), partitions, b""
    )
    assert unknown is None
    return slices


def values(part: Slice) -> list[bytes]:
    return [record.value for record in read(encode(claim(part)))]


def is_kept(things: list[bytes]) -> bool:
    """Return whether anything else than this list refers to its objects."""
    return sys.getrefcount(things[7]) > 2  # the list, and the argument


def test_objects_are_kept_until_the_last_row_is_settled() -> None:
    door = Door()
    sent = cells()
    slices = put(door, _kernel.columns_of(sent))
    assert door.budget.used == ROWS * (SIZE + ROW_COST)
    for number, part in enumerate(slices):
        assert is_kept(sent)
        batch = claim(part)
        assert [record.value for record in read(encode(batch))] == sent[number::4]
        deliver(batch) if number % 2 else fail(batch)
    assert not is_kept(sent)
    assert door.budget.used == 0


def test_keys_and_headers_are_kept_too() -> None:
    door = Door()
    sent, keys = cells(), cells()
    headers = [[("name", cell * 2)] for cell in sent]
    (part,) = put(door, _kernel.columns_of(sent, keys, headers), 1)
    assert is_kept(keys)
    batch = claim(part)
    records = list(read(encode(batch)))
    assert [(record.key, record.value) for record in records] == list(zip(keys, sent, strict=True))
    assert [record.headers for record in records] == headers
    deliver(batch)
    assert not is_kept(keys)
    assert door.budget.used == 0


def test_a_reader_of_a_payload_keeps_them() -> None:
    """Rows may expire while their batch is being written."""
    door = Door()
    sent = cells()
    (part,) = put(door, _kernel.columns_of(sent), 1)
    batch = claim(part)
    fail(part.chunk.whole())
    assert is_kept(sent)
    assert [record.value for record in read(encode(batch))] == sent
    assert not is_kept(sent)
    assert door.budget.used == 0


def test_rows_that_wait_long_let_go_of_them() -> None:
    """An unavailable partition keeps its own messages, and no object of the caller."""
    door = Door()
    sent = cells()
    slices = put(door, _kernel.columns_of(sent))
    for part in slices[1:]:
        part.detach_payload()
    assert is_kept(sent)
    assert door.budget.used == ROWS * (SIZE + ROW_COST)
    deliver(seal(slices[0]))
    assert not is_kept(sent)
    assert door.budget.used == ROWS * ROW_COST + ROWS * SIZE * 3 // 4
    slices[1].detach_payload()  # it has its own memory: nothing moves
    for number, part in enumerate(slices[1:], 1):
        assert values(part) == sent[number::4]


def test_even_a_partition_that_is_alone_in_them_lets_go() -> None:
    sent = cells()
    (part,) = put(Door(), _kernel.columns_of(sent), 1)
    part.detach_payload()
    assert not is_kept(sent)
    assert values(part) == sent


def mixed(sent: list[bytes]) -> dict[str, Any]:
    """Return columns that are copied, by the reason."""
    return {
        "short": _kernel.columns_of([cell[:200] for cell in sent]),
        "short keys": _kernel.columns_of([cell[:300] for cell in sent], [b"key"] * ROWS),
        "numpy": _kernel.columns_of(numpy.array(sent)),
        "numpy keys": _kernel.columns_of(sent, numpy.array(sent)),
    }


@pytest.mark.parametrize("reason", list(mixed(cells())))
def test_other_columns_are_copied(reason: str) -> None:
    sent = cells()
    door = Door()
    (part,) = put(door, mixed(sent)[reason], 1)
    assert not is_kept(sent)
    assert values(part) == ([cell[:200] for cell in sent] if reason == "short" else sent)


def test_an_array_may_be_changed_after_the_call() -> None:
    array = numpy.array(cells())
    (part,) = put(Door(), _kernel.columns_of(array), 1)
    array[:] = b"changed"
    assert values(part) == cells()


def test_without_memory_nothing_is_accepted() -> None:
    door = Door()
    sent = cells()
    columns = _kernel.columns_of(sent)
    _kernel.refuse_memory(0, 1)
    with pytest.raises(MemoryError, match="out of memory for a block"):
        put(door, columns)
    del columns
    assert door.budget.used == 0
    assert door.chunks() == []
    assert not is_kept(sent)


def test_messages_of_a_failed_block_keep_their_payload_for_handles() -> None:
    door = Door()
    block = _kernel.SentBlock()
    door._send_block(block, TOPIC, [_kernel.columns_of(cells())], None, None, ())
    handle = some(block.pending())
    fail(door.chunk().whole())
    assert handle.value == cells()[0]

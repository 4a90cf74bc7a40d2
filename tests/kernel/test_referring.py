"""Blocks refer to the caller's Arrow arrays and bytes objects until their rows are settled."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import ROW_COST, Slice

from .helper import TOPIC, Door, claim, deliver, encode, fail, read, report, seal
from .odd import Odd
from .odd_arrow import Array, Arrow, Node

ROWS = 100
CELLS = [b"%03d" % number * 10 for number in range(ROWS)]


def offsets(cells: list[bytes]) -> bytes:
    ends = [0]
    for cell in cells:
        ends.append(ends[-1] + len(cell))
    return numpy.array(ends, dtype=numpy.int32).tobytes()


class Arrays:
    """A record batch of one column whose memory is freed with the last reference to it."""

    def __init__(self) -> None:
        column = Node("z", ROWS, [None, offsets(CELLS), b"".join(CELLS)])
        column.name = b"value"
        batch = Node("+s", ROWS, [None])
        batch.children.append(column)
        self._arrow = Arrow(batch, Odd(random.Random(1), lambda: None))

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self._arrow.__arrow_c_array__()

    def free(self) -> None:
        """Drop the caller's reference."""
        self._arrow.free()

    @property
    def offsets(self) -> int:
        """The address of the cells' offsets."""
        batch = Array.from_address(self._arrow.array)
        column = Array.from_address(ctypes.c_void_p.from_address(batch.children).value or 0)
        return ctypes.c_void_p.from_address(column.buffers + 8).value or 0

    @property
    def in_use(self) -> bool:
        """Whether the producer still refers to them, once the caller's reference is dropped."""
        return bool(self._arrow.memory.in_use)


@pytest.fixture
def arrays() -> Iterator[Arrays]:
    arrays = Arrays()
    yield arrays
    arrays.free()


def put(door: Door, columns: list[_kernel.Columns], partitions: int = 4) -> list[Slice]:
    """Accept *columns* and return their slices."""
    block = _kernel.SentBlock()
    door._send_block(block, TOPIC, columns, None, None, ())
    (chunk,) = door.chunks()
    slices, unknown = chunk.split(
        _kernel.Partitioner(_kernel.NO_HASH, _kernel.ROUND_ROBIN), partitions, b""
    )
    assert unknown is None
    return slices


def values(part: Slice) -> list[bytes]:
    return [record.value for record in read(encode(claim(part)))]


def test_arrays_are_kept_until_the_last_row_is_settled(arrays: Arrays) -> None:
    door = Door()
    slices = put(door, _kernel.columns_of_arrow(arrays))
    arrays.free()
    size = sum(map(len, CELLS))
    assert door.budget.used == size + ROWS * ROW_COST
    for number, part in enumerate(slices):
        assert arrays.in_use
        batch = claim(part)
        assert [record.value for record in read(encode(batch))] == CELLS[number::4]
        deliver(batch) if number % 2 else fail(batch)
    assert not arrays.in_use
    assert door.budget.used == 0


def test_a_reader_of_a_payload_keeps_them(arrays: Arrays) -> None:
    """Rows may expire while their batch is being written."""
    door = Door()
    (part,) = put(door, _kernel.columns_of_arrow(arrays), 1)
    arrays.free()
    batch = claim(part)
    fail(part.chunk.whole())
    assert arrays.in_use
    assert [record.value for record in read(encode(batch))] == CELLS
    assert not arrays.in_use
    assert door.budget.used == 0


def test_rows_that_wait_long_let_go_of_them(arrays: Arrays) -> None:
    """An unavailable partition keeps its own messages, not the caller's arrays."""
    door = Door()
    slices = put(door, _kernel.columns_of_arrow(arrays))
    arrays.free()
    size = sum(map(len, CELLS))
    for part in slices[1:]:
        part.detach_payload()
    assert arrays.in_use
    assert door.budget.used == size + ROWS * ROW_COST
    deliver(seal(slices[0]))
    assert not arrays.in_use
    assert door.budget.used == size * 3 // 4 + ROWS * ROW_COST
    slices[1].detach_payload()  # it has its own memory: nothing moves
    for number, part in enumerate(slices[1:], 1):
        assert values(part) == CELLS[number::4]


def test_even_a_partition_that_is_alone_in_them_lets_go(arrays: Arrays) -> None:
    (part,) = put(Door(), _kernel.columns_of_arrow(arrays), 1)
    arrays.free()
    part.detach_payload()
    assert not arrays.in_use
    assert values(part) == CELLS


def test_bytes_objects_are_kept_as_long() -> None:
    door = Door()
    cells = [cell * 3 for cell in CELLS]
    key, header = b"the key of all rows", b"the value of a header"
    before = sys.getrefcount(cells[7]), sys.getrefcount(key)
    columns = _kernel.columns_of(cells, [key] * ROWS, [[("name", header)]] * ROWS)
    (part,) = put(door, [columns], 1)
    del columns
    kept = sys.getrefcount(cells[7])
    assert kept == before[0] + 1
    batch = claim(part)
    records = read(encode(batch))
    assert [(record.key, record.value) for record in records] == [(key, cell) for cell in cells]
    assert all(record.headers == [("name", header)] for record in records)
    del records
    report(batch.deliver(0))
    after = sys.getrefcount(cells[7]), sys.getrefcount(key)
    assert after == before
    assert door.budget.used == 0


def test_short_bytes_objects_are_copied() -> None:
    """They take more memory than buffer_memory counts."""
    cells = [bytes(cell) + b"!" for cell in CELLS]
    before = sys.getrefcount(cells[7])
    (part,) = put(Door(), [_kernel.columns_of(cells)], 1)
    after = sys.getrefcount(cells[7])
    assert after == before
    assert values(part) == cells


def test_an_array_that_the_caller_may_change_is_copied() -> None:
    array = numpy.array(CELLS)
    (part,) = put(Door(), [_kernel.columns_of(array)], 1)
    array[:] = b"changed"
    assert values(part) == CELLS


def test_memory_that_changes_all_the_same_stays_within_its_bounds(arrays: Arrays) -> None:
    """The lengths of the cells are those that were measured."""
    (part,) = put(Door(), _kernel.columns_of_arrow(arrays), 1)
    data = part.chunk.value(0)
    assert data == CELLS[0]
    ctypes.memset(arrays.offsets, 0x7F, 4 * ROWS)
    assert values(part) == CELLS


def test_without_memory_for_a_reference_nothing_is_accepted(arrays: Arrays) -> None:
    door = Door()
    columns = _kernel.columns_of_arrow(arrays)
    _kernel.refuse_memory(0, 1)
    with pytest.raises(MemoryError):
        put(door, columns)
    assert door.budget.used == 0
    assert door.chunks() == []
    del columns
    arrays.free()
    assert not arrays.in_use


def test_messages_of_a_failed_block_keep_their_payload_for_handles(arrays: Arrays) -> None:
    door = Door()
    block = _kernel.SentBlock()
    door._send_block(block, TOPIC, _kernel.columns_of_arrow(arrays), None, None, ())
    arrays.free()
    handle = block.pending()
    assert handle is not None
    fail(door.chunk().whole())
    assert not arrays.in_use
    assert handle.value == CELLS[0]

"""bytes objects are kept, not copied: those of blocks, and large values of ``send()``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import crc32c
import numpy
import pytest

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import LARGE, ROW_COST, Slice

from .helper import TOPIC, Door, claim, deliver, encode, fail, read, seal, some, split

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


# Large values of send() ---------------------------------------------------------------------------

HEADERS = [("name", b"text")]


class Text(bytes):
    """A subclass of bytes."""


def large(count: int = 5) -> list[bytes]:
    """Return new objects, which are large enough not to be copied."""
    return [b"%d" % number * (LARGE + number) for number in range(count)]


def send(door: Door, sent: Sequence[Any], partitions: int = 1) -> list[Slice]:
    """Send large values, and a small one after each, and return the slices of their partitions."""
    for number, value in enumerate(sent):
        door.send(TOPIC, value, b"key", HEADERS, number % partitions)
        door.send(TOPIC, b"small", partition=number % partitions)
    return list(split(door.chunk(), partitions).values())


def is_referred(values: list[bytes], number: int = 0) -> bool:
    """Return whether anything else than this list refers to its object with this *number*."""
    return sys.getrefcount(values[number]) > 2  # the list, and the argument


@pytest.mark.parametrize("how", [{}, {"compress": bytes, "attributes": 0}], ids=["plain", "codec"])
def test_a_large_value_is_kept_until_it_is_settled(how: dict[str, Any]) -> None:
    door, sent = Door(), large()
    (part,) = send(door, sent)
    size = sum(map(len, sent)) + 5 * len(b"small" + b"key" + b"\2\x08name\x08text")
    assert door.budget.used == size + 10 * ROW_COST
    batch = claim(part)
    records = list(read(encode(batch, **how)))
    assert [record.value for record in records[::2]] == sent
    assert {record.key for record in records[::2]} == {b"key"}
    assert all(record.headers == HEADERS for record in records[::2])
    assert [(record.key, record.value) for record in records[1::2]] == [(None, b"small")] * 5
    assert is_referred(sent)
    deliver(batch)
    assert not is_referred(sent)
    assert door.budget.used == 0


def test_each_partition_lets_go_of_its_own_values() -> None:
    door, sent = Door(), large(2)
    one, other = send(door, sent, 2)
    deliver(seal(one))
    assert not is_referred(sent)
    assert is_referred(sent, 1)
    deliver(seal(other))
    assert not is_referred(sent, 1)


@pytest.mark.parametrize("wrap", [bytearray, memoryview, Text, numpy.frombuffer])
def test_what_may_change_is_copied(wrap: Any) -> None:
    door, expected = Door(), large()
    sent = [bytearray(each) for each in expected]
    if wrap is numpy.frombuffer:
        (part,) = send(door, [memoryview(wrap(each, dtype="uint8")) for each in sent])
    else:
        (part,) = send(door, [wrap(each) for each in sent])
    for each in sent:
        each[:] = b"x" * len(each)
    assert [record.value for record in read(encode(claim(part)))][::2] == expected


def test_a_batch_keeps_values_that_expire_while_it_is_written() -> None:
    door, sent = Door(), large()
    for value in sent:
        door.send(TOPIC, value, b"key", HEADERS, 0)
    (part,) = split(door.chunk(), 1).values()
    batch, _ = _kernel.encode_batch([claim(part)], crc32c.crc32c)
    fail(part.chunk.whole())
    assert door.budget.used == 0
    assert is_referred(sent)
    records = list(read(bytes(batch)))
    assert [record.value for record in records] == sent
    assert all(record.key == b"key" and record.headers == HEADERS for record in records)
    del batch
    assert not is_referred(sent)


def test_a_value_that_expires_while_it_is_encoded_is_whole() -> None:
    door, sent = Door(), large()
    (part,) = send(door, sent)
    batch = claim(part)
    fail(part.chunk.whole())
    assert [record.value for record in read(encode(batch))][::2] == sent
    assert not is_referred(sent)
    assert door.budget.used == 0


def test_the_same_object_many_times() -> None:
    door, (value,) = Door(), large(1)
    (part,) = send(door, [value] * 50)
    assert [record.value for record in read(encode(claim(part)))][::2] == [value] * 50
    part = part.chunk.pick(range(100), 0)
    deliver(part)
    assert sys.getrefcount(value) == 2  # the variable, and the argument


def test_large_values_that_wait_long_stay_where_they_are() -> None:
    door, sent = Door(), large()
    (part,) = send(door, sent)
    used = door.budget.used
    part.detach_payload()
    assert is_referred(sent)
    assert door.budget.used == used
    assert [record.value for record in read(encode(claim(part)))][::2] == sent


def test_without_memory_a_large_message_is_not_accepted() -> None:
    door, sent = Door(), large()
    for refused in range(20):
        _kernel.refuse_memory(refused, 1)
        try:
            door.send(TOPIC, sent[0], b"key", HEADERS, 0)
        except MemoryError:
            assert not is_referred(sent)
            assert door.budget.used == 0
        else:
            break
    assert refused
    _kernel.refuse_memory(0, 0)
    (part,) = split(door.chunk(), 1).values()
    assert [record.value for record in read(encode(claim(part)))] == sent[:1]


def test_large_objects_of_a_block_are_not_copied_into_the_batch() -> None:
    sent = large()
    (part,) = put(Door(), _kernel.columns_of(sent), 1)
    batch, _ = _kernel.encode_batch([claim(part)], crc32c.crc32c)
    fail(part.chunk.whole())
    assert is_referred(sent)
    assert [record.value for record in read(bytes(batch))] == sent
    del batch
    assert not is_referred(sent)

"""Splitting a chunk by partition."""

from __future__ import annotations

import itertools
import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._kernel import (
    MURMUR2,
    NO_HASH,
    RANDOM,
    ROUND_ROBIN,
    STICKY,
    Chunk,
    Partitioner,
    Slice,
    partition_for,
)

from .helper import TOPIC, Door, claim, deliver, encode, fail, pack, read, report, seal, split


def chunk_of(*rows: tuple[bytes | None, int | None], size: int = 10) -> Chunk:
    """Return a chunk of messages, each with its key and the requested partition."""
    door = Door()
    for key, partition in rows:
        door.send(TOPIC, bytes(size), key, partition=partition)
    return door.chunk()


def keyless(count: int, size: int = 10) -> Chunk:
    return chunk_of(*[(None, None)] * count, size=size)


def places(chunk: Chunk) -> list[int]:
    return [chunk.partition_of(row) for row in range(len(chunk))]


@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=8), st.none() | st.integers(0, 5)),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 6),
)
def test_each_row_is_in_one_slice_in_order(
    rows: list[tuple[bytes | None, int | None]], partitions: int
) -> None:
    chunk = chunk_of(*rows)
    slices, unknown = chunk.split(Partitioner(MURMUR2, RANDOM), partitions, pack(range(partitions)))
    found = {part.partition: part.row_numbers() for part in slices}
    without = [] if unknown is None else unknown.row_numbers()
    assert len(found) == len(slices)
    everywhere = [*itertools.chain.from_iterable(found.values()), *without]
    assert sorted(everywhere) == list(range(len(rows)))
    for partition, numbers in found.items():
        assert numbers == sorted(numbers)
        assert 0 <= partition < partitions
        for row in numbers:
            key, wanted = rows[row]
            if wanted is not None:
                assert partition == wanted
            elif key is not None:
                assert partition == partition_for(MURMUR2, key, partitions)
    assert without == [
        row for row, (_, wanted) in enumerate(rows) if wanted is not None and wanted >= partitions
    ]


def test_slices_know_their_bytes() -> None:
    slices, unknown = chunk_of((b"abc", 0), (None, 1), (b"", 0), (None, 7)).split(None, 2, b"")
    assert {part.partition: (part.count, part.nbytes) for part in slices} == {
        0: (2, 23),
        1: (1, 10),
    }
    assert unknown is not None
    assert unknown.nbytes == 10


def test_no_partition_is_known() -> None:
    slices, unknown = chunk_of((None, 9), (None, 8)).split(None, 2, b"")
    assert slices == []
    assert unknown is not None
    assert unknown.row_numbers() == [0, 1]
    assert [unknown.chunk.partition_of(row) for row in (0, 1)] == [9, 8]


def test_a_topic_without_partitions() -> None:
    slices, unknown = keyless(3).split(Partitioner(MURMUR2, STICKY), 0, b"")
    assert slices == []
    assert unknown is not None
    assert unknown.row_numbers() == [0, 1, 2]


@pytest.mark.parametrize("without_key", [STICKY, RANDOM, ROUND_ROBIN])
@pytest.mark.parametrize("leaders", [[2, 5, 8], []])
def test_without_a_key_only_partitions_with_a_leader_or_all(
    leaders: list[int], without_key: int
) -> None:
    chunk = keyless(500, size=100)
    chunk.split(Partitioner(NO_HASH, without_key, sticky_bytes=1000), 9, pack(leaders))
    assert set(places(chunk)) == set(leaders or range(9))


@pytest.mark.parametrize("without_key", [STICKY, RANDOM, ROUND_ROBIN])
@pytest.mark.parametrize("leaders", [[1, 4, 5], [4, 5]])
def test_no_partition_beyond_the_number_is_chosen(leaders: list[int], without_key: int) -> None:
    partitioner = Partitioner(NO_HASH, without_key, sticky_bytes=1)
    partitioner.set_queue_bounds(pack(leaders), bytes(4 * len(leaders) - 1) + b"\1")
    chunk = keyless(200)
    chunk.split(partitioner, 4, pack(leaders))
    assert set(places(chunk)) == ({1} if 1 in leaders else set(range(4)))


def test_round_robin_takes_each_in_turn_also_from_chunk_to_chunk() -> None:
    partitioner = Partitioner(NO_HASH, ROUND_ROBIN)
    found: list[int] = []
    for count in (4, 1, 3):
        chunk = chunk_of(*[(b"ignored", None)] * count)
        split(chunk, 3, partitioner)
        found += places(chunk)
    assert found == [0, 1, 2, 0, 1, 2, 0, 1]


def test_random_is_spread() -> None:
    chunk = keyless(10_000)
    split(chunk, 5, Partitioner(NO_HASH, RANDOM, seed=12345))
    counts = Counter(places(chunk))
    assert len(counts) == 5
    assert all(1700 < count < 2300 for count in counts.values())


def test_sticky_fills_a_partition_before_it_takes_another() -> None:
    chunk = keyless(1000, size=88)  # 100 bytes with the overhead of a record
    split(chunk, 4, Partitioner(NO_HASH, STICKY, sticky_bytes=1000, seed=7))
    runs: list[list[int]] = []
    for partition in places(chunk):
        if runs and runs[-1][0] == partition:
            runs[-1].append(partition)
        else:
            runs.append([partition])
    assert all(len(run) % 10 == 0 for run in runs[:-1])
    assert {run[0] for run in runs} == {0, 1, 2, 3}
    assert len(runs) > 50


def test_sticky_draws_the_next_partition_by_the_shares_it_was_given() -> None:
    partitioner = Partitioner(NO_HASH, STICKY, sticky_bytes=1, seed=7)
    available = pack([1, 3])
    partitioner.set_queue_bounds(available, struct.pack("2I", 1, 10))
    chunk = keyless(10_000)
    chunk.split(partitioner, 4, available)
    counts = Counter(places(chunk))
    assert set(counts) == {1, 3}
    assert 800 < counts[1] < 1200


def test_shares_do_not_hold_for_other_partitions() -> None:
    partitioner = Partitioner(NO_HASH, STICKY, sticky_bytes=1, seed=7)
    partitioner.set_queue_bounds(pack([1, 3]), struct.pack("2I", 1, 1000))
    chunk = keyless(1000)
    chunk.split(partitioner, 4, pack([0, 2]))
    counts = Counter(places(chunk))
    assert set(counts) == {0, 2}
    assert 450 < counts[0] < 550


def test_sticky_goes_on_from_chunk_to_chunk() -> None:
    partitioner = Partitioner(NO_HASH, STICKY, sticky_bytes=100_000)
    chunks = [keyless(10) for _ in range(5)]
    for chunk in chunks:
        split(chunk, 6, partitioner)
    assert len({partition for chunk in chunks for partition in places(chunk)}) == 1


def test_sticky_leaves_a_partition_that_has_lost_its_leader() -> None:
    partitioner = Partitioner(NO_HASH, STICKY, sticky_bytes=1 << 40)
    first = keyless(10)
    split(first, 3, partitioner)
    (lost,) = set(places(first))
    rest = [partition for partition in range(3) if partition != lost]
    second = keyless(10)
    second.split(partitioner, 3, pack(rest))
    assert set(places(second)) < set(rest)


def test_sticky_leaves_a_partition_that_the_topic_does_not_have_any_more() -> None:
    partitioner = Partitioner(NO_HASH, STICKY, sticky_bytes=1 << 40, seed=3)
    for _ in range(20):
        split(keyless(1), 8, partitioner)
        chunk = keyless(1)
        split(chunk, 1, partitioner)
        assert places(chunk) == [0]


def test_rows_assigned_by_hand() -> None:
    chunk = chunk_of((b"a", None), (None, 1), (b"c", None))
    assert chunk.unassigned() == [0, 2]
    assert [chunk.key(row) for row in (0, 1, 2)] == [b"a", None, b"c"]
    chunk.assign(2, 0)
    assert chunk.unassigned() == [0]
    slices, unknown = chunk.split(None, 2, b"")
    assert {part.partition: part.row_numbers() for part in slices} == {0: [2], 1: [1]}
    assert unknown is not None
    assert unknown.row_numbers() == [0]


def test_a_chunk_may_be_split_after_some_of_it_has_expired() -> None:
    door = Door()
    for i in range(100):
        door.send(TOPIC, b"%d" % i, delivery_timeout_ms=10 if i % 2 else 1000)
    chunk = door.chunk()
    door.clock.jump(0.5)
    for late in chunk.expired(door.clock.monotonic()):
        late.fail(LookupError(), TimeoutError()).finish()  # type: ignore[union-attr]
    found: list[bytes] = []
    for part in split(chunk, 3, Partitioner(NO_HASH, ROUND_ROBIN)).values():
        found += [record.value for record in read(encode(claim(part)))]
    assert sorted(found, key=int) == [b"%d" % i for i in range(0, 100, 2)]


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("partitioner", [Partitioner(MURMUR2, STICKY), None])
def test_a_row_that_has_expired_is_not_partitioned(
    size: int, partitioner: Partitioner | None
) -> None:
    """The key of such a row may be freed, and its partition would be computed from it."""
    door = Door()
    for i in range(9):
        timeout = 1000 if i % 3 else 10
        door.send(TOPIC, bytes(size), b"key", delivery_timeout_ms=timeout)
    chunk = door.chunk()
    door.clock.jump(0.5)
    for part in chunk.expired(door.clock.monotonic()):
        fail(part)
    if partitioner is None:
        for row in chunk.unassigned():
            chunk.assign(row, 1)
    slices, unknown = chunk.split(partitioner, 3, pack(range(3)))
    assert [places(chunk)[row] for row in (0, 3, 6)] == [-1, -1, -1]
    assert unknown is None
    assert [part.waiting() for part in slices] == [6]
    for part in slices:
        deliver(seal(part))
    assert door.budget.used == 0


def test_rows_of_an_expired_chunk_are_in_no_slice() -> None:
    """All rows are settled, and the last one has not been reported."""
    door = Door()
    for _ in range(3):
        door.send(TOPIC, b"value", b"key", delivery_timeout_ms=10)
    chunk = door.chunk()
    door.clock.jump(0.5)
    late = chunk.expired(door.clock.monotonic())
    settled = [part.fail(LookupError(), TimeoutError()) for part in late]
    assert chunk.split(Partitioner(MURMUR2, STICKY), 3, pack(range(3))) == ([], None)
    for part in settled:
        report(part)
    assert door.budget.used == 0


def test_each_partition_has_one_bound() -> None:
    partitioner = Partitioner(NO_HASH, STICKY)
    with pytest.raises(ValueError, match="bounds must have one entry for each"):
        partitioner.set_queue_bounds(pack([0]), struct.pack("2I", 1, 2))


@pytest.mark.parametrize("partitions", [[], [0, 1]])
def test_without_a_share_for_any_partition_all_are_alike(partitions: list[int]) -> None:
    partitioner = Partitioner(NO_HASH, STICKY, sticky_bytes=1)
    partitioner.set_queue_bounds(pack(partitions), bytes(4 * len(partitions)))
    chunk = keyless(100)
    chunk.split(partitioner, 2, pack(partitions))
    assert set(places(chunk)) == {0, 1}


def test_many_partitions() -> None:
    door = Door()
    for i in range(5000):
        door.send(TOPIC, b"%d" % i, partition=(i * 7) % 5000)
    parts: dict[int, Slice] = split(door.chunk(), 10_000)
    assert len(parts) == 5000
    assert all(part.count == 1 for part in parts.values())
    for part in parts.values():
        deliver(seal(part))
    assert door.budget.used == 0

"""The writer: each row is delivered or rejected, with its number, however the batches are cut."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
import pytest

from pykaproducer import MessageTooLargeError, TopicPartition
from pykaproducer._load.checksum import checksum_of, row_checksum
from pykaproducer._load.refused import DeadLetters, Fail, RefusedRow, RowsRefusedError, describe
from pykaproducer._load.summary import Summary, Written
from pykaproducer._load.writer import Writer
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Hold, Refuse

TOPIC_AUTHORIZATION_FAILED = 29
SOON = 30


class Kept:
    """A collector of rejected rows."""

    wants_rows = True
    ends_the_load = False

    def __init__(self) -> None:
        self.rows: list[tuple[int, Any, BaseException]] = []

    def take(self, origin: Any, rows: Sequence[RefusedRow]) -> None:
        for row, place, error in rows:
            self.rows.append((row, origin.slice(place, 1).to_pylist()[0], error))

    def finish(self, summary: Summary) -> None:
        summary.refused += len(self.rows)


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as scripted:
        scripted.add_topic("t", 2)
        yield scripted


def batch(**columns: Any) -> Any:
    return pyarrow.record_batch(columns)


def numbers(rows: range) -> list[str]:
    return [str(row) for row in rows]


def test_batches_larger_than_the_buffer_arrive_in_order(cluster: ScriptedCluster) -> None:
    with cluster.producer(buffer_memory=50_000) as producer:
        writer = Writer(producer, "t", Fail("rows"))
        for start in (0, 5000):
            rows = numbers(range(start, start + 5000))
            writer.write(batch(value=rows, partition=[0] * 5000))
        summary = writer.finish()
    assert [record.value for record in cluster.log("t")] == [b"%d" % n for n in range(10_000)]
    size = sum(len(str(n)) for n in range(10_000))
    assert summary.partitions == {TopicPartition("t", 0): Written(10_000, size, 0, 9_999)}


def test_a_full_buffer_is_waited_for(cluster: ScriptedCluster) -> None:
    """Longer than max_block_ms: the messages that fill the buffer have a deadline."""
    hold = Hold()
    with cluster.producer(buffer_memory=20_000, max_block_ms=1) as producer:
        producer.send("t", b"first", partition=0).result(SOON)
        cluster.next("produce", hold)
        looks = []

        def look() -> None:
            looks.append(True)
            hold.release()

        writer = Writer(producer, "t", Fail("rows"), look=look)
        writer.write(batch(value=["x" * 100] * 1000, partition=[0] * 1000))
        assert writer.finish().rows == 1000
    assert looks


def test_rows_that_lie_small_and_travel_large_are_waited_for(cluster: ScriptedCluster) -> None:
    """A dictionary's rows are indices in Arrow, but full values in the buffer: sent in pieces."""
    hold = Hold()
    values = pyarrow.array(["x" * 1000] * 1000).dictionary_encode()
    with cluster.producer(buffer_memory=100_000, max_block_ms=1) as producer:
        producer.send("t", b"first", partition=0).result(SOON)
        cluster.next("produce", hold)
        looks = []

        def look() -> None:
            looks.append(True)
            if len(looks) > 10:
                hold.release()

        writer = Writer(producer, "t", Fail("rows"), look=look)
        writer.write(batch(value=values, number=range(1000)).select(["value"]))
        assert writer.finish().rows == 1000


def test_what_is_kept_is_bounded_while_the_oldest_row_waits() -> None:
    """One partition's broker is silent, and thousands of rows after it are settled."""
    hold = Hold()
    with ScriptedCluster(2, {"t": 2}) as cluster:
        cluster.move_leader("t", 0, 0)
        cluster.move_leader("t", 1, 1)
        with cluster.producer(buffer_memory=200_000) as producer:
            for partition in range(2):
                producer.send("t", b"first", partition=partition).result(SOON)
            cluster.next("produce", hold, broker=0)
            kept = Kept()
            writer = Writer(producer, "t", kept)
            alive: weakref.WeakSet[Any] = weakref.WeakSet()
            oldest = Origin()
            writer.write(batch(value=["oldest"], partition=[0]), oldest)
            for _ in range(100):
                origin = Origin()
                alive.add(origin)
                writer.write(batch(value=["x" * 1000] * 20, partition=[1] * 20), origin)
            # Two megabytes have been sent; only about as much is kept as the buffer may hold.
            assert len(alive) <= 12
            hold.release()
            assert writer.finish().rows == 2001
            assert kept.rows == []


class Origin:
    """The origin of rows, which the writer keeps until they are settled."""


def test_rows_that_can_never_be_right_are_refused_each_by_itself(cluster: ScriptedCluster) -> None:
    """Whichever column is wrong, in whichever order the producer validates them."""
    kept = Kept()
    values = numbers(range(100))
    topics: list[str | None] = ["t"] * 100
    partitions = [0] * 100
    stamps = [1] * 100
    partitions[90] = -1
    stamps[50] = -5
    values[20] = "x" * 2000
    topics[0] = topics[10] = topics[99] = None
    topics[30] = "no topic"
    bad = {0, 10, 20, 30, 50, 90, 99}
    with cluster.producer(max_request_size=1000) as producer:
        writer = Writer(producer, None, kept)
        writer.write(batch(value=numbers(range(1000, 1010)), topic=["t"] * 10))
        writer.write(batch(value=values, topic=topics, partition=partitions, timestamp=stamps))
        writer.write(batch(value=numbers(range(2000, 2010)), topic=["t"] * 10))
        summary = writer.finish()
    found = {record.value for place in range(2) for record in cluster.log("t", place)}
    good = [*(n for n in range(100) if n not in bad), *range(1000, 1010), *range(2000, 2010)]
    assert found == {b"%d" % n for n in good}
    assert (summary.rows, summary.refused) == (len(good), len(bad))
    assert sorted(row for row, _, _ in kept.rows) == sorted(10 + n for n in bad)
    assert {10 + values.index(row["value"]) for _, row, _ in kept.rows} == {10 + n for n in bad}
    errors = {row - 10: error for row, _, error in kept.rows}
    assert isinstance(errors[20], MessageTooLargeError)
    # Row numbers refer to the whole write, not to the blocks that were tried.
    assert describe(errors[0]) == "ValueError: column 'topic' is null"
    assert describe(errors[90]).startswith("ValueError: partition must be between 0 and")
    assert "row" not in describe(errors[20])


def test_rows_that_the_broker_refuses_are_named_by_their_numbers(cluster: ScriptedCluster) -> None:
    kept = Kept()
    with cluster.producer() as producer:
        writer = Writer(producer, "t", kept, verifiable=True)
        writer.write(batch(value=numbers(range(10)), partition=[0] * 10))
        assert writer.finish().rows == 10
        cluster.next("produce", Refuse(TOPIC_AUTHORIZATION_FAILED, only=[("t", 1)]))
        writer.write(batch(value=numbers(range(10, 15)), partition=[1] * 5))
        writer.write(batch(value=numbers(range(15, 20)), partition=[0] * 5))
        summary = writer.finish()
    assert [(row, each["value"]) for row, each, _ in kept.rows] == [
        (row, str(row)) for row in range(10, 15)
    ]
    delivered = [*range(10), *range(15, 20)]
    assert summary.ranges == {TopicPartition("t", 0): [range(15)]}
    assert summary.checksum == sum(row_checksum(None, str(n), None) for n in delivered) % 2**64


def test_without_a_place_for_them_the_first_ends_the_write(cluster: ScriptedCluster) -> None:
    with cluster.producer() as producer:
        writer = Writer(producer, None, Fail("Spark partition 7 (attempt 1)"))
        with pytest.raises(RowsRefusedError) as caught:
            writer.write(batch(value=["a", "b"], topic=["t", None]))
        assert str(caught.value) == (
            "Spark partition 7 (attempt 1): 1 row was not delivered: "
            "row 1: ValueError: column 'topic' is null"
        )
        assert isinstance(caught.value.__cause__, ValueError)
        assert writer.finish().rows == 1


def test_a_row_larger_than_the_buffer_is_refused_by_itself(cluster: ScriptedCluster) -> None:
    kept = Kept()
    with cluster.producer(buffer_memory=50_000) as producer:
        writer = Writer(producer, "t", kept)
        writer.write(batch(value=["a", "x" * 60_000, "b"]))
        assert writer.finish().rows == 2
    assert [row for row, _, _ in kept.rows] == [1]
    assert "buffer_memory is 50000 bytes" in str(kept.rows[0][2])


def test_dead_letters_of_rows_that_python_cannot_hold(cluster: ScriptedCluster) -> None:
    """Text that is not UTF-8, a time out of range, a header that is null."""
    cluster.add_topic("lost", 1)
    header = pyarrow.struct({"key": pyarrow.string(), "value": pyarrow.binary()})
    headers = pyarrow.array([[{"key": "h", "value": b"v"}, None], [], []], pyarrow.list_(header))
    text = pyarrow.array([b"\xff", b"b", b"c"]).view(pyarrow.string())
    stamps = pyarrow.array([1, 2**61, -(2**61)], pyarrow.int64()).cast(pyarrow.timestamp("us"))
    rows = batch(value=text, headers=headers, timestamp=stamps)
    with cluster.producer() as producer:
        letters = DeadLetters(producer, "lost", "t", "rows")
        writer = Writer(producer, "t", letters)
        writer.write(rows)
        summary = writer.finish()
    assert (summary.rows, summary.refused) == (1, 2)
    assert {record.value for record in cluster.log("lost")} == {b"\xff", b"c"}
    assert [record.value for p in range(2) for record in cluster.log("t", p)] == [b"b"]
    assert checksum_of(rows) != 0


def test_headers_of_a_slice(cluster: ScriptedCluster) -> None:
    """Of lists and of maps: the counted bytes are the bytes sent."""
    pairs = [[("a", b"1")], [("b", b"2"), ("c", None)], None, [("d", b"4")]]
    as_map = pyarrow.array(pairs, pyarrow.map_(pyarrow.string(), pyarrow.binary()))
    kind = pyarrow.struct({"key": pyarrow.string(), "value": pyarrow.binary()})
    as_list = pyarrow.array(
        [each and [{"key": k, "value": v} for k, v in each] for each in pairs], pyarrow.list_(kind)
    )
    for column in (as_map, as_list):
        rows = batch(value=numbers(range(4)), headers=column).slice(1, 3)
        expected = [row_checksum(None, b"%d" % n, pairs[n]) for n in (1, 2, 3)]
        assert checksum_of(rows) == sum(expected)
        assert checksum_of(rows.slice(2)) == expected[2]


def test_a_wrong_column_is_no_matter_of_a_row(cluster: ScriptedCluster) -> None:
    with cluster.producer() as producer:
        writer = Writer(producer, "t", Kept())
        with pytest.raises(ValueError, match="unknown column 'vlaue'"):
            writer.write(batch(vlaue=["a"]))


def test_a_checksum_does_not_depend_on_the_order_but_on_everything_else() -> None:
    kind = pyarrow.map_(pyarrow.string(), pyarrow.binary())
    rows = batch(
        key=pyarrow.array([b"a", None, b""]),
        value=pyarrow.array(["", None, "b"]),
        headers=pyarrow.array([[("h", b"v")], None, []], kind),
    )
    turned = rows.take(pyarrow.array([2, 0, 1]))
    assert checksum_of(rows) == checksum_of(turned)
    read = [(b"a", b"", [("h", b"v")]), (None, None, []), (b"", b"b", [])]
    assert checksum_of(rows) == sum(row_checksum(*row) for row in read)
    assert checksum_of(rows, without={0}) == sum(row_checksum(*row) for row in read[1:])
    different = {
        row_checksum(*row)  # type: ignore[arg-type]
        for row in (
            *read,
            (b"", b"a", None),
            (None, b"a", None),
            (b"a", None, None),
            (b"a", b"", [("h", None)]),
            (b"a", b"", [("", b"hv")]),
            (b"ab", b"", None),
        )
    }
    assert len(different) == 9

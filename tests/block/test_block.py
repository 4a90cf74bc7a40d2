"""``send_many()`` and ``send_arrow()``: any columns arrive as the same rows sent one by one."""

from __future__ import annotations

import asyncio
import gc
import itertools
import pickle
import queue
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pykaproducer import (
    BlockDelivery,
    BlockFailures,
    BufferFullError,
    DeliveryFailures,
    DeliveryTimeoutError,
    MessageTooLargeError,
    OutcomeTimeoutError,
    Producer,
    ProducerClosedError,
    Status,
    TopicPartition,
)
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Hold, Refuse, proceed

#: Far more than any operation here takes (seconds).
SOON = 120

TOPIC_AUTHORIZATION_FAILED = 29


@pytest.fixture(scope="module")
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        yield cluster


@pytest.fixture
def shared(cluster: ScriptedCluster) -> Iterator[Producer]:
    with cluster.producer() as producer:
        yield producer


@pytest.fixture
def topic(cluster: ScriptedCluster) -> str:
    return new_topic(cluster)


numbers = itertools.count()


def new_topic(cluster: ScriptedCluster, partitions: int = 1) -> str:
    name = f"t{next(numbers)}"
    cluster.add_topic(name, partitions)
    return name


#: All examples of a test may share one producer.
one_producer = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

# Any columns

CELL = st.none() | st.binary(max_size=30)
TEXT = st.none() | st.text(max_size=20)
PAIR = st.tuples(st.text(max_size=5), CELL)
HEADERS = st.none() | st.lists(PAIR, max_size=3)
TIMESTAMP = st.none() | st.integers(0, 4_000_000_000_000)


def arrow(kind: Any) -> Callable[[list[Any]], Any]:
    return lambda cells: pyarrow.array(cells, kind)


def in_the_middle(cells: list[Any]) -> Any:
    """Return a slice of a longer array: it has an offset."""
    return pyarrow.array([b"before", None, *cells, b"behind"], pyarrow.binary())[2:-1]


BYTES_FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "NumPy's objects": lambda cells: numpy.array([*cells, None], dtype=object)[:-1],
    "bytearrays": lambda cells: [None if cell is None else bytearray(cell) for cell in cells],
    "binary": arrow(pyarrow.binary()),
    "large_binary": arrow(pyarrow.large_binary()),
    "binary_view": arrow(pyarrow.binary_view()),
    "dictionary": lambda cells: pyarrow.array(cells, pyarrow.binary()).dictionary_encode(),
    "slice": in_the_middle,
}
FORM = st.sampled_from(list(BYTES_FORMS))


def log(cluster: ScriptedCluster, topic: str) -> list[tuple[Any, ...]]:
    return [(r.key, r.value, r.headers, r.timestamp) for r in cluster.log(topic)]


@one_producer
@given(rows=st.lists(st.tuples(CELL, CELL, HEADERS, TIMESTAMP), max_size=20), value=FORM, key=FORM)
def test_any_block_arrives_as_its_rows_would(
    cluster: ScriptedCluster, shared: Producer, rows: list[Any], value: str, key: str
) -> None:
    one_by_one, at_once = new_topic(cluster), new_topic(cluster)
    times = [1 if when is None else when for *_, when in rows]
    for (cell, content, headers, _), when in zip(rows, times, strict=True):
        shared.send(one_by_one, content, cell, headers, timestamp_ms=when)
    block = shared.send_many(
        at_once,
        BYTES_FORMS[value]([content for _, content, _, _ in rows]),
        BYTES_FORMS[key]([cell for cell, _, _, _ in rows]),
        [headers for _, _, headers, _ in rows],
        timestamps_ms=times,
    )
    assert len(block) == block.result(SOON).rows == len(rows)
    shared.flush(SOON)
    assert log(cluster, at_once) == log(cluster, one_by_one)


@one_producer
@given(
    rows=st.lists(st.tuples(TEXT, TEXT, HEADERS, TIMESTAMP), min_size=1, max_size=20),
    cut=st.integers(0, 20),
    as_map=st.booleans(),
    kind=st.sampled_from([pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()]),
)
def test_any_arrow_data_arrives_as_its_rows_would(
    cluster: ScriptedCluster, shared: Producer, rows: list[Any], cut: int, as_map: bool, kind: Any
) -> None:
    entry = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    headers_type = (
        pyarrow.map_(pyarrow.string(), pyarrow.binary()) if as_map else pyarrow.list_(entry)
    )
    lists = [
        pairs
        if as_map or pairs is None
        else [{"key": name, "value": content} for name, content in pairs]
        for _, _, pairs, _ in rows
    ]
    table = pyarrow.table(
        {
            "key": pyarrow.array([key for key, _, _, _ in rows], kind),
            "value": pyarrow.array([value for _, value, _, _ in rows], kind),
            "headers": pyarrow.array(lists, headers_type),
            "timestamp": pyarrow.array(
                [1000 * (7 if when is None else when) for *_, when in rows],
                pyarrow.timestamp("us", "UTC"),
            ),
        }
    )
    # In two batches, the second with an offset.
    parts = pyarrow.concat_tables([table.slice(0, cut), table.slice(cut)])
    one_by_one, at_once = new_topic(cluster), new_topic(cluster)
    for key, value, headers, when in rows:
        shared.send(
            one_by_one,
            None if value is None else value.encode(),
            None if key is None else key.encode(),
            headers,
            timestamp_ms=7 if when is None else when,
        )
    assert shared.send_arrow(parts, at_once).result(SOON).rows == len(rows)
    shared.flush(SOON)
    assert log(cluster, at_once) == log(cluster, one_by_one)


@one_producer
@given(st.lists(st.binary(max_size=10), max_size=10), st.integers(1, 3))
def test_numpy_pads_with_nuls_that_are_not_sent(
    cluster: ScriptedCluster, shared: Producer, values: list[bytes], step: int
) -> None:
    topic = new_topic(cluster)
    array = numpy.array([b"", *values], dtype="S10")[::step]
    shared.send_many(topic, array).result(SOON)
    assert [record.value for record in cluster.log(topic)] == array.tolist()


def test_fixed_size_binary_keeps_its_nuls(
    cluster: ScriptedCluster, shared: Producer, topic: str
) -> None:
    values = [b"ab\0", b"\0\0\0"]
    shared.send_many(topic, pyarrow.array(values, pyarrow.binary(3))).result(SOON)
    assert [record.value for record in cluster.log(topic)] == values


@pytest.mark.parametrize(
    "form",
    [list, numpy.array, *map(arrow, [pyarrow.int8(), pyarrow.uint16(), pyarrow.int64()])],
)
def test_partitions_of_any_integers(
    cluster: ScriptedCluster, shared: Producer, form: Callable[[list[int]], Any]
) -> None:
    topic = new_topic(cluster, 3)
    block = shared.send_many(topic, [b"0", b"1", b"2", b"3"], partitions=form([2, 0, 2, 1]))
    assert block.result(SOON).offsets == {
        TopicPartition(topic, 2): [range(2)],
        TopicPartition(topic, 0): [range(1)],
        TopicPartition(topic, 1): [range(1)],
    }
    assert [[r.value for r in cluster.log(topic, p)] for p in range(3)] == [
        [b"1"],
        [b"3"],
        [b"0", b"2"],
    ]


def test_a_null_partition_is_chosen_and_a_null_time_is_now(
    cluster: ScriptedCluster, shared: Producer
) -> None:
    topic = new_topic(cluster, 2)
    before = shared.send(topic, b"", partition=1).timestamp
    block = shared.send_many(
        topic, [b"a", b"b"], [b"key", b"key"], partitions=[None, 1], timestamps_ms=[None, 5]
    )
    block.result(SOON)
    alone = shared.send(topic, b"", b"key").result(SOON)
    chosen = [(p, r) for p in range(2) for r in cluster.log(topic, p) if r.value == b"a"]
    assert [partition for partition, _ in chosen] == [alone.partition]
    assert chosen[0][1].timestamp >= before
    assert [r.timestamp for r in cluster.log(topic, 1) if r.value == b"b"] == [5]


def test_rows_of_several_topics_keep_their_order(
    cluster: ScriptedCluster, shared: Producer
) -> None:
    topics = [new_topic(cluster) for _ in range(3)]
    names = [topics[number % 3] for number in range(100)]
    batch = pyarrow.table({"topic": names, "value": pyarrow.array([b"%d" % n for n in range(100)])})
    found = shared.send_arrow(batch).result(SOON)
    assert found.offsets == {
        TopicPartition(name, 0): [range(count)]
        for name, count in zip(topics, (34, 33, 33), strict=True)
    }
    for first, name in enumerate(topics):
        assert [int(r.value or b"") for r in cluster.log(name)] == list(range(first, 100, 3))


def test_rows_of_many_topics_find_theirs(cluster: ScriptedCluster, shared: Producer) -> None:
    topics = [new_topic(cluster) for _ in range(200)]
    names = [topics[number * 7 % 200] for number in range(2000)]
    values = [name.encode() for name in names]
    batch = pyarrow.table({"topic": pyarrow.array(names).dictionary_encode(), "value": values})
    shared.send_arrow(batch).result(SOON)
    for name in topics:
        assert [record.value for record in cluster.log(name)] == [name.encode()] * 10


def test_a_topic_of_the_call_goes_before_the_column(
    cluster: ScriptedCluster, shared: Producer, topic: str
) -> None:
    batch = pyarrow.record_batch({"value": [b"value"], "topic": ["elsewhere"]})
    shared.send_arrow(batch, topic).result(SOON)
    assert [record.value for record in cluster.log(topic)] == [b"value"]


def test_large_blocks_fill_many_chunks(
    cluster: ScriptedCluster, shared: Producer, topic: str
) -> None:
    values = [b"%d" % number for number in range(100_000)]
    assert shared.send_many(topic, values).result(SOON).offsets == {
        TopicPartition(topic, 0): [range(100_000)]
    }
    assert [record.value for record in cluster.log(topic)] == values


def test_a_message_may_be_larger_than_a_chunk(cluster: ScriptedCluster, topic: str) -> None:
    with cluster.producer(max_request_size=20_000_000) as producer:
        values = [b"small", bytes(6_000_000), b"small"]
        producer.send_many(topic, values).result(SOON)
        assert [len(record.value or b"") for record in cluster.log(topic)] == [5, 6_000_000, 5]


def test_what_is_sent_before_and_behind_stays_there(cluster: ScriptedCluster, topic: str) -> None:
    with cluster.producer(linger_ms=60_000) as producer:
        for number in range(0, 60, 3):
            producer.send(topic, b"%d" % number)
            producer.send_many(topic, [b"%d" % (number + 1), b"%d" % (number + 2)])
        producer.flush(SOON)
        assert [int(r.value or b"") for r in cluster.log(topic)] == list(range(60))
        assert producer.accepted == 60
        assert producer._budget.used == 0


def test_serializers(cluster: ScriptedCluster, topic: str) -> None:
    with cluster.producer(value_serializer=str.encode, key_serializer=str.encode) as producer:
        producer.send_many(topic, ["ä", "b"], ["k", "l"]).result(SOON)
        assert [(r.key, r.value) for r in cluster.log(topic)] == [
            (b"k", "ä".encode()),
            (b"l", b"b"),
        ]
        with pytest.raises(ValueError, match="key_serializer is set"):
            producer.send_arrow(pyarrow.record_batch({"value": [b"v"]}), topic)


# Invalid rows: nothing is accepted, and the error names the row

HEADER = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))


def batch(**columns: Any) -> Any:
    return pyarrow.record_batch(columns)


def many(*columns: Any, **more: Any) -> Callable[[Producer], object]:
    return lambda producer: producer.send_many("t", *columns, **more)


def rows(data: Any, topic: str | None = "t") -> Callable[[Producer], object]:
    return lambda producer: producer.send_arrow(data, topic)


TOO_LARGE = bytes(2_000_000)
TWO_BATCHES = pyarrow.Table.from_batches([batch(value=[b"", b""]), batch(value=[TOO_LARGE])])
NO_NAME = pyarrow.array([[], [{"key": None, "value": b""}]], HEADER)

BAD: dict[str, tuple[Callable[[Producer], object], type[Exception], str]] = {
    "one text": (many("text"), TypeError, "values must be a sequence"),
    "one number": (many(5), TypeError, "values must be a sequence"),
    "a text": (many([b"", "v"]), TypeError, r"values\[1\].*value_serializer"),
    "a key": (many([b""], [1]), TypeError, r"keys\[0\].*key_serializer"),
    "lengths": (many([b""], []), ValueError, "keys has 0 .* values has 1"),
    "a header": (
        many([b"", b""], headers=[None, [("n", "text")]]),
        TypeError,
        r"headers\[1\]: headers\[0\]",
    ),
    "headers": (many([b""], headers=[]), ValueError, "headers has 0"),
    "a partition": (many([b"", b""], partitions=[0, -1]), ValueError, r"partitions\[1\]"),
    "a partition that is too large": (
        many([b""], partitions=numpy.array([1 << 40])),
        ValueError,
        r"partitions\[0\]",
    ),
    "a partition of Arrow": (
        many([b"", b""], partitions=pyarrow.array([0, -1])),
        ValueError,
        r"partitions\[1\]",
    ),
    "a time": (many([b""], timestamps_ms=["now"]), TypeError, r"timestamps_ms\[0\]"),
    "too large": (many([b"", TOO_LARGE]), MessageTooLargeError, "row 1: .* needs 2000"),
    "too large, in the second batch": (
        rows(TWO_BATCHES),
        MessageTooLargeError,
        "row 2: .* needs 2000",
    ),
    "in pieces, of numbers": (many(pyarrow.chunked_array([[1], [2]])), TypeError, "format 'l'"),
    "in no piece, of numbers": (many(pyarrow.chunked_array([], "int8")), TypeError, "format 'c'"),
    "no batch, another column": (
        rows(pyarrow.table({"v": pyarrow.chunked_array([], "binary")})),
        ValueError,
        "unknown column 'v'",
    ),
    "no batch, no bytes": (
        rows(pyarrow.table({"value": pyarrow.chunked_array([], "int8")})),
        TypeError,
        "format 'c'",
    ),
    "two dimensions": (many(numpy.array([[b"v"]])), ValueError, "one dimension"),
    "no topic": (rows(batch(value=[b""]), None), ValueError, "no topic"),
    "a null topic": (
        rows(batch(value=[b"", b""], topic=["t", None]), None),
        ValueError,
        "row 1: column 'topic' is null",
    ),
    "a topic": (
        rows(batch(value=[b"", b""], topic=["t", "no/name"]), None),
        ValueError,
        "row 1: topic 'no/name'",
    ),
    "the topic": (lambda p: p.send_many("no/name", [b""]), ValueError, "'no/name'"),
    "no name": (lambda p: p.send_many(5, [b""]), TypeError, "topic must be"),  # type: ignore[arg-type]
    "no value": (rows(batch(key=[b""])), ValueError, "no column 'value'"),
    "a column": (rows(batch(value=[b""], vlaue=[b""])), ValueError, "unknown column 'vlaue'"),
    "a type": (rows(batch(value=[1.5])), TypeError, "column 'value'.*'g'"),
    "partitions that are none": (
        rows(batch(value=[b""], partition=["0"])),
        TypeError,
        "column 'partition'.*integers",
    ),
    "headers that are none": (
        rows(batch(value=[b""], headers=["h"])),
        TypeError,
        "column 'headers'",
    ),
    "a header without a name": (
        rows(batch(value=[b"", b""], headers=NO_NAME)),
        ValueError,
        "row 1: a header has no name",
    ),
    "an array": (rows(pyarrow.array([b""])), TypeError, "send_many"),
    "no Arrow": (rows([b""]), TypeError, "Arrow data"),
    "no callback": (many([b""], on_delivery=1), TypeError, "callable"),
    "a deadline": (many([b""], delivery_timeout_ms=0), ValueError, "delivery_timeout_ms"),
}


@pytest.mark.parametrize(("call", "kind", "text"), BAD.values(), ids=BAD)
def test_nothing_of_a_bad_block_is_accepted(
    shared: Producer, call: Callable[[Producer], object], kind: type[Exception], text: str
) -> None:
    before = shared.accepted
    with pytest.raises(kind, match=text) as caught:
        call(shared)
    if row := re.match(r"row (\d+)|\w+\[(\d+)\]", str(caught.value)):
        assert caught.value.row == int(row[1] or row[2])  # type: ignore[attr-defined]
    assert shared.accepted == before
    shared.flush(SOON)
    assert shared._budget.used == 0


@pytest.mark.parametrize("headers", [None, [[], [("h", b"")]]])
@pytest.mark.parametrize("which", ["key", "value"])
def test_the_row_of_an_error_of_a_serializer(
    cluster: ScriptedCluster, topic: str, which: str, headers: Any
) -> None:
    def serializer(cell: Any) -> Any:
        return cell if isinstance(cell, str) else b"%d" % (6 // cell)

    with cluster.producer(**{f"{which}_serializer": serializer}) as producer:

        def error_of(cell: Any) -> Any:
            column = [1, cell] if which == "value" else [b"", b""]
            keys = [1, cell] if which == "key" else None
            with pytest.raises((ZeroDivisionError, TypeError)) as caught:
                producer.send_many(topic, column, keys, headers)
            assert caught.value.row == 1  # type: ignore[attr-defined]
            return caught.value

        assert error_of(0).__notes__ == [
            f"raised by {which}_serializer for row 1 to topic {topic!r}"
        ]
        assert f"row 1: {which}_serializer returned str" in str(error_of("text"))
        assert producer.accepted == 0


def test_headers_are_lists_of_structs(shared: Producer) -> None:
    union = pyarrow.UnionArray.from_dense(
        pyarrow.array([0, 1], pyarrow.int8()),
        pyarrow.array([0, 0], pyarrow.int32()),
        [pyarrow.array(["name"]), pyarrow.array([b"value"])],
    )
    headers = pyarrow.ListArray.from_arrays([0, 2], union)
    with pytest.raises(TypeError, match="a list of structs of key and value, or a map, not a list"):
        shared.send_arrow(pyarrow.record_batch({"value": ["v"], "headers": headers}), "t")


def test_a_header_that_is_null_has_no_name(shared: Producer) -> None:
    kind = pyarrow.struct({"key": pyarrow.string(), "value": pyarrow.binary()})
    headers = pyarrow.array([[{"key": "a", "value": b""}], [None]], pyarrow.list_(kind))
    with pytest.raises(ValueError, match="row 1: a header has no name"):
        shared.send_arrow(pyarrow.record_batch({"value": ["v", "w"], "headers": headers}), "t")


# Space


def test_a_block_is_accepted_whole_or_not_at_all(cluster: ScriptedCluster, topic: str) -> None:
    hold = Hold()
    with cluster.producer(buffer_memory=20_000, max_block_ms=0) as producer:
        cluster.next("produce", hold)
        first = producer.send_many(topic, [bytes(100)] * 60)
        with pytest.raises(BufferFullError):
            producer.send_many(topic, [bytes(100)] * 60)
        hold.release()
        first.result(SOON)
        producer.flush(SOON)  # by then the memory is free, too
        second = producer.send_many(topic, [bytes(100)] * 60)
        assert second.result(SOON).offsets == {TopicPartition(topic, 0): [range(60, 120)]}


def test_a_block_larger_than_the_buffer_goes_in_by_pieces(
    cluster: ScriptedCluster, topic: str
) -> None:
    values = [b"%d" % number for number in range(5000)]
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with cluster.producer(buffer_memory=20_000) as producer:
        block = producer.send_many(topic, values, on_delivery=lambda *said: told.put(said))
        assert block.result(SOON).rows == 5000
        producer.flush(SOON)
        assert told.get(timeout=SOON) == (None, block)
        assert [record.value for record in cluster.log(topic)] == values
        assert producer._budget.used == 0


def test_rows_that_find_no_space_fail_and_those_before_go_on(
    cluster: ScriptedCluster, topic: str
) -> None:
    hold = Hold()
    told: list[Any] = []
    with cluster.producer(buffer_memory=20_000, max_block_ms=1) as producer:
        producer.send(topic, b"first").result(SOON)
        cluster.next("produce", hold)
        block = producer.send_many(
            topic, [b"%d" % n for n in range(5000)], on_delivery=lambda *said: told.append(said)
        )
        hold.release()
        failures = block.exception(SOON)
        assert isinstance(failures, BlockFailures)
        rows, offsets, failed, _ = failures.metadata
        accepted = rows - len(failed)
        assert 0 < accepted < rows == 5000
        assert [row for row, _ in failed] == list(range(accepted, 5000))
        assert {type(error) for _, error in failed} == {BufferFullError}
        assert offsets == {TopicPartition(topic, 0): [range(1, accepted + 1)]}
        producer.flush(SOON)
        assert [type(error) for error, _ in told] == [BlockFailures]
        assert len(cluster.log(topic)) == accepted + 1


# Its future


def test_each_row_that_fails_is_named(cluster: ScriptedCluster) -> None:
    topic = new_topic(cluster, 2)
    with cluster.producer() as producer:
        cluster.always("produce", Refuse(TOPIC_AUTHORIZATION_FAILED, only=[(topic, 1)]))
        block = producer.send_many(topic, [b"v"] * 6, partitions=[0, 1] * 3)
        with pytest.raises(BlockFailures, match=r"3 of 6 .* row 1: .*_FAILED") as caught:
            block.result(SOON)
        found = caught.value.metadata
        assert [row for row, _ in found.failed] == [1, 3, 5]
        assert found.offsets == {TopicPartition(topic, 0): [range(3)]}
        assert found == block.outcome(0)
        assert {error.status for _, error in found.failed} == {Status.NOT_PERSISTED}  # type: ignore[attr-defined]
        copy = pickle.loads(pickle.dumps(caught.value))
        assert str(copy) == str(caught.value)
        assert [row for row, _ in copy.metadata.failed] == [1, 3, 5]
        producer.flush(SOON)  # the failure has been reported
        cluster.always("produce", proceed)


def test_what_nobody_was_told_flush_tells(cluster: ScriptedCluster, topic: str) -> None:
    with cluster.producer() as producer:
        cluster.next("produce", Refuse(TOPIC_AUTHORIZATION_FAILED))
        producer.send_many(topic, [b"v"] * 3)
        with pytest.raises(DeliveryFailures, match="3 messages"):
            producer.flush(SOON)


def test_a_wait_ends_at_its_timeout(cluster: ScriptedCluster, topic: str) -> None:
    clock = FakeClock()
    with cluster.producer(clock=clock, linger_ms=3_600_000, delivery_timeout_ms=36_000_000) as p:
        block = p.send_many(topic, [b"v", b"w"])
        assert not block.done()
        assert repr(block) == "<BlockDelivery of 2 messages, pending>"
        for wait in (block.result, block.exception, block.outcome):
            with pytest.raises(OutcomeTimeoutError):
                wait(0)
        p.flush()
        assert block.done()
        assert repr(block) == "<BlockDelivery of 2 messages, 0 failed>"


def test_its_messages_have_the_deadline_that_was_asked_for(
    cluster: ScriptedCluster, topic: str
) -> None:
    clock = FakeClock()
    with cluster.producer(clock=clock, linger_ms=3_600_000, delivery_timeout_ms=36_000_000) as p:
        told = threading.Event()
        block = p.send_many(
            topic, [b"v"] * 2, delivery_timeout_ms=5_000, on_delivery=lambda *_: told.set()
        )
        clock.jump(5.1)
        assert told.wait(SOON)
        assert {type(error) for _, error in block.outcome(0).failed} == {DeliveryTimeoutError}


def test_it_can_be_awaited(cluster: ScriptedCluster, shared: Producer, topic: str) -> None:
    async def send() -> Any:
        return await shared.send_many(topic, [b"a", b"b"])

    assert asyncio.run(send()).offsets == {TopicPartition(topic, 0): [range(2)]}


def test_callbacks_come_once_in_the_reports_thread_and_before_the_end_of_a_flush(
    cluster: ScriptedCluster, topic: str
) -> None:
    told: list[tuple[Any, str]] = []
    with cluster.producer(client_id="blocks") as producer:

        def report(error: BaseException | None, block: BlockDelivery) -> None:
            told.append((block, threading.current_thread().name))
            assert error is None
            assert block.done()

        blocks = [
            producer.send_many(topic, [b"v"] * size, on_delivery=report) for size in (1, 3, 70_000)
        ]
        producer.flush(SOON)
        assert told == [(block, "blocks-reports") for block in blocks]


@pytest.mark.parametrize("values", [[b"v"], []])
def test_a_block_that_is_kept_does_not_keep_its_callback(
    shared: Producer, topic: str, values: list[bytes]
) -> None:
    def report(*said: object) -> None:
        pass

    seen = weakref.ref(report)
    block = shared.send_many(topic, values, on_delivery=report)
    shared.flush(SOON)
    del report
    gc.collect()
    assert seen() is None
    assert block.done()


def test_a_callback_that_raises_harms_nobody(
    cluster: ScriptedCluster, shared: Producer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(error: BaseException | None, block: BlockDelivery) -> None:
        raise RuntimeError("a user's bug")

    block = shared.send_many(topic, [b"v"], on_delivery=raises)
    shared.flush(SOON)
    assert block.result(0).rows == 1
    assert "a user's bug" in caplog.text


def test_a_block_without_messages(shared: Producer, topic: str) -> None:
    told: list[Any] = []
    block = shared.send_many(topic, [], on_delivery=lambda *said: told.append(said))
    assert block
    assert (len(block), block.result(0)) == (0, (0, {}, [], {}))
    assert told == [(None, block)]


def test_a_closed_producer_takes_none(cluster: ScriptedCluster, topic: str) -> None:
    producer = cluster.producer()
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send_many(topic, [b"v"])


def test_its_memory_goes_with_it(cluster: ScriptedCluster, topic: str) -> None:
    with cluster.producer() as producer:
        block = producer.send_many(topic, [b"v"] * 10)
        block.result(SOON)
        producer.flush(SOON)
        chunk = block._block.segments[0].chunk
        assert chunk.handles == 1
        del block
        assert chunk.handles == 0

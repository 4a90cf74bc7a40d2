"""Arrow data of any kind: numbers, nulls, headers, streams. It arrives unchanged or is rejected."""

from __future__ import annotations

import gc
import signal
from types import FrameType
from typing import Any

import pyarrow
import pytest

from pykaproducer import Producer
from pykaproducer.testing import ScriptedCluster
from tests._support import programs
from tests._support.blocks import SOON, batch, coded, list_of, logged, with_headers

# Arrow: numbers


def test_numbers_may_be_dictionary_encoded(cluster: ScriptedCluster, producer: Producer) -> None:
    times = coded([5_000_000, None, 6_000_000, 5_000_000], pyarrow.timestamp("us"))
    rows = batch(value=["a", "b", "c", "d"], partition=coded([7, 9, None, 7]), timestamp=times)
    assert producer.send_arrow(rows, "t").result(SOON).rows == 4
    found = {r.value: (p, r.timestamp) for p in range(10) for r in cluster.log("t", p)}
    assert found[b"a"] == found[b"d"] == (7, 5000)
    assert found[b"b"][0] == 9
    assert found[b"c"][1] == 6000
    # A slice of an array; and a null in the dictionary itself.
    partitions = coded([1, 2, 3, 4])[2:]
    producer.send_many("t", [b"e", b"f"], partitions=partitions).result(SOON)
    assert [logged(cluster, partition)[-1:] for partition in (3, 4)] == [[b"e"], [b"f"]]
    dictionary = pyarrow.array([None, 5])
    places = pyarrow.array([0, 1], pyarrow.uint8())
    both = pyarrow.DictionaryArray.from_arrays(places, dictionary)
    producer.send_many("t", [b"g", b"h"], partitions=both).result(SOON)
    assert logged(cluster, 5)[-1] == b"h"


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (1 << 60, "s", "not 1152921504606846976000"),
        ((1 << 61) + 1_700_000_000, "s", "not 2305843010913693952000"),
        (-(1 << 63), "s", "not -9223372036854775808000"),
        (-(1 << 63), "ms", "not -9223372036854775808"),
        (-999, "us", "not -1"),
        (-1, "ns", "not -1"),
    ],
)
def test_a_time_that_does_not_fit_is_refused(
    producer: Producer, number: int, unit: str, text: str
) -> None:
    times = pyarrow.array([0, number], pyarrow.timestamp(unit))
    for column in (times, times.dictionary_encode()):
        with pytest.raises(ValueError, match=rf"timestamp\[1\] must be between .*{text}") as caught:
            producer.send_arrow(batch(value=["", ""], timestamp=column), "t")
        assert caught.value.row == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pyarrow.array([0, 1 << 63], pyarrow.uint64()), "not 9223372036854775808"),
        (pyarrow.array([0, -(1 << 63)]), "not -9223372036854775808"),
        (coded([0, 1 << 31]), "not 2147483648"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(producer: Producer, column: Any, text: str) -> None:
    with pytest.raises(ValueError, match=rf"partitions\[1\] must be between .*{text}"):
        producer.send_many("t", [b"", b""], partitions=column)


def test_a_time_is_no_partition(producer: Producer) -> None:
    rows = batch(value=[""], partition=pyarrow.array([0], pyarrow.timestamp("s")))
    with pytest.raises(TypeError, match="column 'partition' must have integers"):
        producer.send_arrow(rows, "t")


# Arrow: chunks, nulls and headers


class Series:
    """A column as data frames have it: an Arrow stream without a method to combine its chunks."""

    def __init__(self, *chunks: list[bytes | None], kind: Any = None) -> None:
        self._data = pyarrow.chunked_array(chunks, kind)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._data.__arrow_c_stream__()


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.binary_view(), pyarrow.large_binary()])
def test_a_column_in_chunks(cluster: ScriptedCluster, producer: Producer, kind: Any) -> None:
    values = Series([b"one", None], [], [b"three" * 9], kind=kind)
    keys = pyarrow.chunked_array([[b"k"], [b"l", b"m"]]).dictionary_encode()
    producer.send_many("t", values, keys, partitions=[0] * 3).result(SOON)
    assert logged(cluster) == [b"one", None, b"three" * 9]
    assert [record.key for record in cluster.log("t")] == [b"k", b"l", b"m"]
    assert len(producer.send_many("t", Series(kind=kind))) == 0


def test_columns_of_the_null_type(cluster: ScriptedCluster, producer: Producer) -> None:
    """All cells are None, so that Arrow knows no other type."""
    nulls = pyarrow.nulls(2)
    coded = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0, None]), pyarrow.nulls(1))
    for numbers in (nulls, coded):
        for headers in (nulls, pyarrow.array([[], None])):
            columns = {"value": [b"v", b"w"], "partition": numbers, "timestamp": numbers}
            batch = pyarrow.record_batch({**columns, "headers": headers})
            assert producer.send_arrow(batch, "t").result(SOON).rows == 2
        producer.send_many("t", [b"v", b"w"], partitions=numbers, timestamps_ms=numbers)
    producer.flush(SOON)
    headers = pyarrow.array([[None], None])
    with pytest.raises(ValueError, match="row 0: a header has no name"):
        producer.send_arrow(pyarrow.record_batch({"value": nulls, "headers": headers}), "t")


@pytest.mark.parametrize("first", [0, 1])
def test_what_lies_under_a_null_is_not_sent(producer: Producer, first: int) -> None:
    values = pyarrow.array([b"one", b"two", b"SECRET"])
    mask = pyarrow.array([False, False, True])
    rows = pyarrow.StructArray.from_arrays([values], ["value"], mask=mask)[first:]
    with pytest.raises(ValueError, match=f"row {2 - first}: the struct is null"):
        producer.send_arrow(rows, "t")
    two = pyarrow.chunked_array([rows[:1], rows])
    with pytest.raises(ValueError, match=f"row {3 - first}: the struct is null"):
        producer.send_arrow(two, "t")


def test_the_fields_of_a_header_are_found_by_name(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    header = {"key": "trace-id", "value": b"abc"}
    for kind in (
        list_of(key=pyarrow.binary(), value=pyarrow.binary()),
        list_of(value=pyarrow.binary(), key=pyarrow.string()),
        pyarrow.map_(pyarrow.string(), pyarrow.binary()),
    ):
        pairs = [[("trace-id", b"abc")]] if kind.id == pyarrow.map_("i1", "i1").id else [[header]]
        producer.send_arrow(with_headers(pairs, kind), "t").result(SOON)
    found = [record.headers for p in range(10) for record in cluster.log("t", p)]
    assert found == [(("trace-id", b"abc"),)] * 3


def test_other_fields_are_not_those_of_a_header(producer: Producer) -> None:
    kind = list_of(name=pyarrow.string(), value=pyarrow.binary())
    rows = with_headers([[{"name": "n", "value": b""}]], kind)
    with pytest.raises(TypeError, match="not of structs of 'name' and 'value'"):
        producer.send_arrow(rows, "t")


@pytest.mark.parametrize(
    "name", [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"a\x80"]
)
@pytest.mark.parametrize("encode", [False, True])
def test_a_header_whose_name_cannot_be_decoded_is_refused(
    producer: Producer, name: bytes, encode: bool
) -> None:
    with pytest.raises(UnicodeDecodeError):
        name.decode()
    names = pyarrow.array(["ä\u20ac\U0001f600".encode(), name], pyarrow.binary())
    if encode:
        names = names.dictionary_encode()
    entries = pyarrow.StructArray.from_arrays([names, names], ["key", "value"])
    headers = pyarrow.ListArray.from_arrays([0, 1, 2], entries)
    with pytest.raises(ValueError, match="row 1: a header name is not valid UTF-8"):
        producer.send_arrow(batch(value=["", ""], headers=headers), "t")


# Arrow: streams


def test_a_stream_may_need_the_gil_in_another_thread() -> None:
    """Arrow's threads may read a file that is implemented in Python, as fsspec's are."""
    assert programs.run(
        """
        import faulthandler
        import pyarrow as pa, pyarrow.dataset as ds
        from pykaproducer.testing import ScriptedCluster

        faulthandler.dump_traceback_later(50, exit=True)        # a deadlock stops all of Python
        schema = pa.schema([("value", pa.binary()), ("partition", pa.int64())])

        def reader(partition):
            batches = (
                pa.record_batch([[b"%d" % i] * 10, [partition] * 10], schema=schema)
                for i in range(5)
            )
            return ds.Scanner.from_batches(batches, schema=schema).to_reader()

        with ScriptedCluster() as cluster:
            cluster.add_topic("t", 1)
            with cluster.producer() as producer:
                print(producer.send_arrow(reader(0), "t").result(45).rows)
                try:
                    producer.send_arrow(reader(-1), "t")        # abandoned at its first batch
                except ValueError as error:
                    print(error)
        """
    ).splitlines() == ["50", "partition[0] must be between 0 and 2147483647, not -1"]


def test_a_long_stream_can_be_interrupted(producer: Producer) -> None:
    class Interrupt(Exception):
        pass

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupt

    def send() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        producer.send_arrow(stream, "t")

    rows = batch(value=["v"])
    batches = iter([rows] * 100_000)
    stream = pyarrow.RecordBatchReader.from_batches(rows.schema, batches)
    before = signal.signal(signal.SIGALRM, interrupt)
    gc.disable()  # an interrupt in a callback of the collector would be lost
    try:
        with pytest.raises(Interrupt):
            send()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert len(list(batches)) > 0, "the stream was read to its end first"
    assert producer.accepted == 0

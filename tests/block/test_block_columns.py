"""The arguments of ``send_many()`` may be any sequence or array: it arrives, or is rejected."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from pykaproducer import Producer, ProducerClosedError
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Hold
from tests._support.blocks import SOON, logged

# Sequences


class Column:
    """A sequence whose ``len()`` is not the number of its items."""

    def __init__(self, length: int, items: list[Any]) -> None:
        self.length = length
        self.items = items

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class Growing(collections.UserList[Any]):
    """A list to which another thread appends while it is read."""

    def __iter__(self) -> Iterator[Any]:
        yield from self.data
        for _ in range(10_000):
            self.data.append(self.data[0])
            yield self.data[0]


CELLS: dict[str, Any] = {
    "keys": b"key",
    "headers": [("name", b"")],
    "partitions": 0,
    "timestamps_ms": 1,
}


@pytest.mark.parametrize(("name", "cell"), CELLS.items(), ids=CELLS)
@pytest.mark.parametrize("items", [0, 1, 3, 100_000])
def test_a_sequence_counts_as_long_as_what_it_yields(
    cluster: ScriptedCluster, producer: Producer, name: str, cell: Any, items: int
) -> None:
    with pytest.raises(ValueError, match=f"{name} has {items} entries, values has 2"):
        producer.send_many("t", [b"0", b"1"], **{name: Column(2, [cell] * items)})
    producer.send_many("t", [b"0", b"1"], **{name: Column(items, [cell] * 2)}).result(SOON)
    assert sum(len(cluster.log("t", partition)) for partition in range(10)) == 2


@pytest.mark.parametrize(("name", "cell"), CELLS.items(), ids=CELLS)
def test_a_sequence_may_grow_while_it_is_read(producer: Producer, name: str, cell: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} has 10002 entries, values has 2"):
        producer.send_many("t", [b"0", b"1"], **{name: Growing([cell] * 2)})


def test_the_values_are_those_that_are_yielded(
    cluster: ScriptedCluster, producer: Producer
) -> None:
    producer.send_many("t", Column(1_000_000, [b"0", b"1"]), partitions=[0, 0]).result(SOON)
    assert logged(cluster) == [b"0", b"1"]


class Reentrant(Column):
    """A column that uses the producer while the producer reads it."""

    def __init__(self, items: list[Any], act: Callable[[], object]) -> None:
        super().__init__(len(items), items)
        self.act = act

    def __len__(self) -> int:
        self.act()
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        self.act()
        return super().__iter__()


def test_a_column_may_send(cluster: ScriptedCluster, producer: Producer) -> None:
    def act() -> None:
        producer.send("t", b"from within", partition=0)
        producer.send_many("t", [b"from within"], partitions=[0])

    column = Reentrant([b"value"], act)
    producer.send_many("t", column, partitions=Reentrant([0], act)).result(SOON)
    producer.flush(SOON)
    found = logged(cluster)
    assert found.count(b"value") == 1
    assert found[-1] == b"value"
    assert len(found) == 1 + found.count(b"from within") == producer.accepted


def test_a_column_may_close_the_producer(cluster: ScriptedCluster) -> None:
    producer = cluster.producer()
    producer.send("t", b"before", partition=0)
    with pytest.raises(ProducerClosedError):
        producer.send_many("t", Reentrant([b"value"], producer.close))
    assert logged(cluster) == [b"before"]


class Lying(int):
    """An int that compares as if it were in any range."""

    def __le__(self, other: object) -> bool:
        return True

    __ge__ = __lt__ = __gt__ = __le__  # type: ignore[assignment]


def test_an_int_is_what_it_is(producer: Producer) -> None:
    with pytest.raises(ValueError, match="partition must be between 0 and 2147483647, not 10995"):
        producer.send("t", b"", partition=Lying(1 << 40))
    with pytest.raises(ValueError, match=r"partitions\[0\] must be between 0 and 2147483647"):
        producer.send_many("t", [b""], partitions=[Lying(1 << 40)])


class Name(str):
    """A str that encodes itself as something else."""

    __slots__ = ()

    def encode(self, *args: Any) -> Any:
        return [1, 2, 3]


class Content(bytes):
    """Bytes that report other content."""

    def __bytes__(self) -> bytes:
        return Content(b"other")

    def __len__(self) -> int:
        return 1000


def test_headers_are_written_as_what_they_are(cluster: ScriptedCluster, producer: Producer) -> None:
    headers: Any = [(Name("name"), Content(b"value"))]
    producer.send("t", Content(b"one"), headers=headers, partition=0)
    producer.send_many("t", [Content(b"two")], headers=[headers], partitions=[0]).result(SOON)
    assert [(record.value, record.headers) for record in cluster.log("t")] == [
        (b"one", (("name", b"value"),)),
        (b"two", (("name", b"value"),)),
    ]


class Undecodable(list[Any]):
    """Headers that raise an error that cannot be constructed from a text alone."""

    def __iter__(self) -> Iterator[Any]:
        b"\xff".decode()
        return super().__iter__()


def test_an_error_in_headers_names_the_row(producer: Producer) -> None:
    with pytest.raises(ValueError, match=r"headers\[1\]: 'utf-8' codec can't decode"):
        producer.send_many("t", [b"", b""], headers=[None, Undecodable()])


def test_a_serializer_is_given_the_headers_of_its_message(cluster: ScriptedCluster) -> None:
    class Serializer:
        def __init__(self) -> None:
            self.given: list[Any] = []

        def serialize(self, topic: str, headers: Any, data: bytes) -> bytes:
            self.given.append((data, headers))
            return data

    serializer = Serializer()
    with cluster.producer(value_serializer=serializer, key_serializer=serializer) as producer:
        own = [[("n", b"0")], None]
        producer.send_many("t", [b"v", b"w"], [b"k", b"l"], headers=own)
        assert serializer.given == [
            (b"k", own[0]),
            (b"l", None),
            (b"v", own[0]),
            (b"w", None),
        ]
        for name, columns in (("keys", ([b"", b""], [b""])), ("values", ([b""], None))):
            with pytest.raises(ValueError, match=f"headers has 2 entries, {name} has 1"):
                producer.send_many("t", *columns, headers=own)


# NumPy


def test_numpy_with_any_strides(cluster: ScriptedCluster, producer: Producer) -> None:
    array = numpy.array([b"0", b"11", b"222", b"3333"], dtype="S4")
    forms = [array[::-1], array[::-3], numpy.broadcast_to(array[2:3], 3), array[:0]]
    for form in forms:
        form.flags.writeable = False
        zeros = numpy.broadcast_to(numpy.array([0]), len(form))
        producer.send_many("t", form, partitions=zeros).result(SOON)
    assert logged(cluster) == [value for form in forms for value in form.tolist()]


class NotAnArray:
    """An object whose description would cause a read beyond the end of its memory."""

    __array_interface__: Any = {"shape": (1000,), "typestr": "|S1000", "version": 3}

    def __init__(self) -> None:
        self.dtype = numpy.dtype("S1000")
        self.ndim = 1
        self.strides = (1000,)
        self.ctypes = numpy.zeros(1, "S1").ctypes

    def __len__(self) -> int:
        return 1000


def test_an_array_lies_where_its_buffer_is(producer: Producer) -> None:
    with pytest.raises(TypeError, match="bytes-like object"):
        producer.send_many("t", NotAnArray())


def test_what_is_masked_is_not_sent(cluster: ScriptedCluster, producer: Producer) -> None:
    masked = numpy.ma.MaskedArray(numpy.array([b"one", b"SECRET"]), [False, True])
    producer.send_many("t", masked, partitions=[0, 0]).result(SOON)
    assert logged(cluster) == [b"one", None]


@pytest.mark.parametrize("unit", ["ms", "ns"])
def test_times_of_numpy_have_a_unit_that_is_not_guessed(producer: Producer, unit: str) -> None:
    times = numpy.array(["2024-01-01"], f"datetime64[{unit}]")
    with pytest.raises(TypeError, match=r"timestamps_ms must be integers.*datetime64\[ms\]"):
        producer.send_many("t", [b""], timestamps_ms=times)


def test_an_array_that_is_changed_while_it_is_read(cluster: ScriptedCluster) -> None:
    """An array that changes while a call waits for space must not overrun the buffer.

    1. The rows are measured.
    2. They wait for space.
    3. Another thread writes to the array.
    """
    array = numpy.array([b"short"] * 100, dtype="S100")
    hold, pause = Hold(), threading.Event()

    def change(*_: object) -> None:
        array[:] = b"x" * 100

    def release() -> None:
        while not producer.stats()["buffer"]["waiting_senders"]:
            pause.wait(0.001)
        hold.release()

    with cluster.producer(buffer_memory=30_000) as producer:
        cluster.next("produce", hold)
        producer.send("t", bytes(25_000), partition=0, on_delivery=change)
        hold.wait_until_held()
        threading.Thread(target=release).start()
        with pytest.raises(ValueError, match="was modified during the call"):
            producer.send_many("t", array, partitions=[0] * len(array))
        producer.flush(SOON)
        assert producer._budget.used == 0
        assert len(cluster.log("t")) == 1

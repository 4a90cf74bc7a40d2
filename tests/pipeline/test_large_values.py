"""Large values, which stay the program's own objects on their way to the socket."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing.scripted import Drop, Refuse
from tests._support.fixtures.gil import FREE_THREADED

from .helper import FAST, RefuseIf, batches_of, log, offsets, running, send, until

pytestmark = pytest.mark.usefixtures("at_any_depth")


def values(count: int = 8, size: int = 50_000) -> list[bytes]:
    """Return new objects of different lengths."""
    return [bytes([65 + number]) * (size + number) for number in range(count)]


def are_only_ours(sent: list[bytes]) -> bool:
    """Return whether nothing but *sent* refers to its values.

    Without the GIL, a thread that drops an object of another thread leaves it to that thread, for
    when it next runs, or to a collection: one for a batch, one for its bytes, one for their list.
    """
    if FREE_THREADED:
        gc.collect()
    return all(sys.getrefcount(each) == 3 for each in sent)  # the list, each, argument


FAULTS: dict[str, list[Any]] = {
    "none": [],
    "moved": [Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)],
    "lost": [Drop()],
    "answer lost": [Drop(appended=True)],
    "split": [RefuseIf(ErrorCode.MESSAGE_TOO_LARGE, lambda values: len(values) > 3)] * 20,
}


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_log_has_them_once_and_in_order(fault: str, compression: str | None) -> None:
    sent = values()
    with running(compression_type=compression, **batches_of(8)) as (cluster, producer):
        cluster.next("produce", *FAULTS[fault])
        deliveries = send(producer, sent)
        assert offsets(deliveries) == list(range(8))
        assert log(cluster) == sent
        until(lambda: producer.stats()["buffer"]["used"] == 0)
        assert deliveries[0].value is None  # a delivered message does not keep its value
        until(lambda: are_only_ours(sent))


def test_one_object_sent_twice_and_to_two_topics() -> None:
    (value,) = values(1)
    with running(topics={"t": 1, "u": 1}, **FAST) as (cluster, producer):
        for topic in "ttu":
            producer.send(topic, value, key=value[:100], headers=[("name", value[:10])])
        producer.flush(30)
        assert log(cluster) == [value, value]
        assert log(cluster, "u") == [value]


def test_a_failed_message_can_be_sent_again() -> None:
    (value,) = values(1)
    with running(**FAST) as (cluster, producer):
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        failed = producer.send("t", value, key=b"key")
        assert failed.exception(30) is not None
        del value
        assert producer.send("t", failed.value, key=failed.key).result(30).offset == 0
        assert log(cluster) == values(1)

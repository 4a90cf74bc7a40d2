"""Garbage from a broker: the connection is dropped, a new one is made, and nothing is lost."""

from __future__ import annotations

import dataclasses
import logging
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import DeliveryTimeoutError, Status
from pykaproducer.testing.scripted import (
    Exchange,
    Mangle,
    Omit,
    Refuse,
    cut_short,
    garbage,
    huge_length,
    negative_length,
    truncated,
    twice,
    wrong_correlation_id,
)

from .helper import (
    FAST,
    SOON,
    Amend,
    Held,
    attempts,
    backs_off,
    came,
    error_of,
    frozen,
    log,
    numbers,
    offsets,
    running,
    send,
    sent,
    warm_up,
)

BOTH = pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])


def empty(framed: bytes) -> bytes:
    """Return an empty frame."""
    return bytes(4)


def http(framed: bytes) -> bytes:
    """Return the response of an HTTP server."""
    return b"HTTP/1.1 400 Bad Request\r\n\r\n"


#: The bytes that replace an answer, and the text logged for them.
MANGLES: dict[str, tuple[Mangle, str]] = {
    "garbage": (Mangle(garbage), "malformed response"),
    "truncated": (Mangle(truncated), "malformed response"),
    "cut short": (Mangle(cut_short, disconnect=True), "closed the connection"),
    "wrong correlation id": (Mangle(wrong_correlation_id), "2147483632"),
    "huge length": (Mangle(huge_length), "2147483647"),
    "negative length": (Mangle(negative_length), "-1"),
    "empty frame": (Mangle(empty), "malformed response"),
    "another protocol": (Mangle(http), "malformed response"),
}

mangles = pytest.mark.parametrize(
    ("mangle", "told"), MANGLES.values(), ids=[name.replace(" ", "-") for name in MANGLES]
)


@BOTH
@mangles
def test_an_answer_to_produce_that_makes_no_sense(
    mangle: Mangle, told: str, idempotent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="pykaproducer")
    with running(enable_idempotence=idempotent, retries=1, **FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", *[mangle] * 3)
        (delivery,) = send(producer, [b"value"])
        # It was appended each time; the broker recognises a batch by its sequence numbers.
        assert offsets([delivery]) == [1 if idempotent else 4]
        assert log(cluster) == [b"first"] + [b"value"] * (1 if idempotent else 4)
        # Each time over a new connection.
        used = [received.connection for received in cluster.received("produce")]
        assert len(set(used[1:])) == 4
        assert all(batch == sent(cluster)[1] for batch in sent(cluster)[1:])
    texts = [record.getMessage() for record in caplog.records]
    assert any(told in text for text in texts), texts
    assert not any("value" in text for text in texts)


@mangles
@pytest.mark.parametrize("api", ["metadata", "init_producer_id"])
def test_an_answer_to_metadata_s_requests_that_makes_no_sense(
    api: str, mangle: Mangle, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(retries=1, **FAST) as (cluster, producer):
        cluster.next(api, *[mangle] * 3)
        assert offsets(send(producer, numbers(3))) == [0, 1, 2]
        assert log(cluster) == numbers(3)
        assert len(cluster.received(api)) >= 4
        # Metadata has its own connection: no message was sent twice.
        assert len(set(sent(cluster))) == len(sent(cluster))
    assert told in caplog.text
    assert "broken" not in caplog.text


@mangles
def test_a_handshake_that_makes_no_sense(mangle: Mangle, told: str) -> None:
    """The bytes arrive on Metadata's connection and on the Bridge's, in either order."""
    with running(retries=1, **FAST) as (cluster, producer):
        cluster.next("api_versions", *[mangle] * 6)
        assert offsets(send(producer, numbers(3))) == [0, 1, 2]
        assert log(cluster) == numbers(3)


def test_an_answer_that_nobody_asked_for_costs_only_the_connection() -> None:
    """The first of the two is the answer; no request waits for the second."""
    with running(retries=1, **FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", *[Mangle(twice)] * 3)
        for number in range(1, 6):
            assert offsets(send(producer, [b"%d" % number])) == [number]
        assert log(cluster) == [b"first", *numbers(5, 1)]


def test_no_memory_is_taken_for_a_length_that_cannot_be() -> None:
    tracemalloc.start()
    try:
        with running(retries=1, **FAST) as (cluster, producer):
            warm_up(producer)
            cluster.next("produce", *[Mangle(huge_length)] * 3)
            offsets(send(producer, [b"value"]))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 50_000_000


def test_a_length_within_bounds_that_never_comes_ends_with_the_request() -> None:
    """Half of the frame arrives, the rest does not: request_timeout_ms applies."""
    with frozen(request_timeout_ms=10_000) as (cluster, clock, producer):
        warm_up(producer)
        cluster.next("produce", Mangle(cut_short))
        (delivery,) = send(producer, [b"value"])
        came(cluster, "produce", 2)
        clock.jump(9.9)
        assert not delivery.done()
        clock.jump(0.2)
        assert offsets([delivery], clock) == [1]
        assert log(cluster) == [b"first", b"value"]


# Well-formed answers with invalid content


def other_partition(answer: Any) -> None:
    for topic in answer.responses:
        for part in topic.partition_responses:
            part.index += 100


def other_topic(answer: Any) -> None:
    for topic in answer.responses:
        topic.name = "other"


def nothing(answer: Any) -> None:
    answer.responses = []


@BOTH
@pytest.mark.parametrize("change", [other_partition, other_topic, nothing])
def test_an_answer_about_something_else(change: Callable[[Any], None], idempotent: bool) -> None:
    with running(enable_idempotence=idempotent, retries=1, **FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", *[Amend(change)] * 3)
        assert offsets(send(producer, [b"value"])) == [1 if idempotent else 4]
        assert attempts(cluster) == 5


def last_offset(answer: Any) -> None:
    for topic in answer.responses:
        for part in topic.partition_responses:
            part.base_offset = (1 << 63) - 1


@BOTH
def test_offsets_that_do_not_fit_64_bits(idempotent: bool) -> None:
    with running(enable_idempotence=idempotent, **FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", Amend(last_offset))
        found = producer.send_many("t", numbers(2), partitions=[0, 0]).result(SOON)
        assert found.offsets == {("t", 0): [range(1, 3) if idempotent else range(3, 5)]}


def test_a_missing_partition_sends_the_whole_request_again_and_doubles_nothing() -> None:
    with running(topics={"t": 2}, linger_ms=60_000, **FAST) as (cluster, producer):
        cluster.next("produce", Omit("t", 1, appended=True))
        both = [send(producer, [b"value"], partition=i)[0] for i in range(2)]
        producer.flush(SOON)
        assert offsets(both) == [0, 0]
        assert [log(cluster, "t", i) for i in range(2)] == [[b"value"], [b"value"]]
        assert {(b.partition, b.first_sequence) for b in sent(cluster)} == {(0, 0), (1, 0)}


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer.brokers.clear(),
        lambda answer: [setattr(p, "leader_id", 77) for t in answer.topics for p in t.partitions],
        lambda answer: [setattr(p, "leader_id", -7) for t in answer.topics for p in t.partitions],
    ],
    ids=["no brokers", "an unknown leader", "a negative leader"],
)
def test_metadata_that_says_strange_things_is_asked_for_again(change: Any) -> None:
    with running(**FAST) as (cluster, producer):
        cluster.next("metadata", *[Amend(change)] * 3)
        assert offsets(send(producer, numbers(3))) == [0, 1, 2]
        assert log(cluster) == numbers(3)


def test_garbage_without_end_ends_at_the_deadline() -> None:
    with frozen(delivery_timeout_ms=8_000) as (cluster, clock, producer):
        cluster.next("produce", *[Mangle(garbage)] * 99)
        (delivery,) = send(producer, [b"value"])
        came(cluster, "produce", 1)
        backs_off(clock, 2)
        clock.jump(8.1)
        error = error_of(delivery)
        assert isinstance(error, DeliveryTimeoutError)
        assert error.status is Status.POSSIBLY_PERSISTED
        assert "malformed response" in str(error)


def test_what_was_answered_in_front_of_the_garbage_is_delivered() -> None:
    """Two requests are in flight; the answer to the first is good."""
    with running(batch_max_messages=1, linger_ms=60_000, retries=1, **FAST) as (cluster, producer):
        warm_up(producer)
        held = Held()
        cluster.next("produce", held, Mangle(garbage))
        deliveries = send(producer, numbers(3))
        held.wait_until_held()
        held.release()
        assert offsets(deliveries) == [1, 2, 3]
        assert log(cluster) == [b"first", *numbers(3)]
        assert len([batch for batch in sent(cluster) if batch.values == (b"0",)]) == 1


@dataclasses.dataclass
class Chatter:
    """Sends unsolicited bytes before the answer."""

    said: bytes

    def __call__(self, exchange: Exchange) -> None:
        exchange.send(self.said)
        exchange.answer(exchange.apply())


@pytest.mark.parametrize("said", [b"\x00", b"\x00\x00\x00\x04\x00\x00\x00\x00", b"\xff" * 100])
def test_bytes_that_nobody_asked_for(said: bytes) -> None:
    settings = {"retries": 1, "request_timeout_ms": 20_000, "receive_message_max_bytes": 1000}
    with running(**settings, **FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", Chatter(said), Refuse(19))
        assert offsets(send(producer, [b"value"])) == [1]
        assert log(cluster) == [b"first", b"value"]

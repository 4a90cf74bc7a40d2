"""The path of one message through the stages."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._pipeline.bridge import Bridge
from pykaproducer.testing.scripted import Drop, Refuse

from .helper import FAST, SOON, came, error_of, offsets, running, send, warm_up

WAY = [
    "accepted",
    "dispatched",
    "partitioned",
    "forwarded",
    "queued",
    "sealed",
    "sent",
    "answered",
    "settled",
    "reported",
]


def names(events: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in events]


def test_the_way_through_the_stages() -> None:
    # With a partitioner in Python, no message is sent by its caller.
    with running(topics={"t": 2}, partitioner=lambda *_: 0, **FAST) as (_, producer):
        warm_up(producer, partition=1)
        with producer.traced() as trace:
            (delivery,) = send(producer, [b"12345"], partition=1)
            offsets([delivery])
            producer.flush(SOON)
        events = trace.events(delivery)
        assert names(events) == WAY
        assert events[0]["at_s"] == 0
        assert [e["at_s"] for e in events] == sorted(e["at_s"] for e in events)
        assert all(event["time"] > 1e9 for event in events)
        by_name = {event["event"]: event for event in events}
        assert by_name["dispatched"]["stage"] == "Dispatcher"
        assert by_name["partitioned"]["partition"] == 1
        assert by_name["sealed"]["rows"] == 1
        assert "before compression" in by_name["sealed"]["detail"]
        assert by_name["sent"]["broker"] == 0
        assert by_name["sent"]["name"].endswith("bridge-0")
        assert by_name["answered"]["detail"] == "offset 1"
        assert by_name["settled"]["detail"] == "delivered"


def test_each_message_has_its_own() -> None:
    with running(topics={"t": 2}, **FAST) as (_, producer):
        with producer.traced() as trace:
            deliveries = [producer.send("t", b"%d" % n, partition=n % 2) for n in range(50)]
            offsets(deliveries)
            producer.flush(SOON)
        for delivery in deliveries:
            events = trace.events(delivery)
            partitions = {event["partition"] for event in events if "partition" in event}
            assert partitions == {delivery.partition}
            assert names(events).count("sealed") == 1
            assert names(events).count("settled") == 1


def test_a_detour() -> None:
    """The message is rejected once, then the connection is lost."""
    with running(**FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", Refuse(ErrorCode.NOT_ENOUGH_REPLICAS), Drop())
        with producer.traced() as trace:
            (delivery,) = send(producer, [b"1"])
            offsets([delivery])
            producer.flush(SOON)
        events = trace.events(delivery)
        found = names(events)
        assert found.count("retry scheduled") == 2
        assert found.count("retried") == 2
        assert found.count("sent") == 3
        assert found.count("lost") == 1
        again = [event for event in events if event["event"] == "retry scheduled"]
        assert [event["level"] for event in again] == [1, 2]
        assert "NOT_ENOUGH_REPLICAS" in again[0]["detail"]
        assert all(event["wait_s"] >= 0 for event in again)


def test_waiting_for_metadata_and_for_a_leader() -> None:
    with running(2, topics={}, **FAST) as (cluster, producer):
        cluster.stop(1)
        with producer.traced() as trace:
            (delivery,) = send(producer, [b"1"], partition=1)
            came(cluster, "metadata", 2)
            cluster.add_topic("t", 2)
            # The partition's leader is down.
            came(cluster, "metadata", len(cluster.received("metadata")) + 3)
            cluster.move_leader("t", 1, 0)
            offsets([delivery])
            producer.flush(SOON)
        found = names(trace.events(delivery))
        assert found[:5] == [
            "accepted",
            "dispatched",
            "waits for metadata",
            "partitioned",
            "waits for a leader",
        ]
        assert found[5:] == WAY[3:]


def test_a_failure_and_a_callback() -> None:
    with running(**FAST) as (cluster, producer):
        warm_up(producer)
        cluster.next("produce", Refuse(ErrorCode.INVALID_RECORD))
        with producer.traced() as trace:
            delivery = producer.send("t", b"1", on_delivery=lambda *_: None)
            error = error_of(delivery)
            producer.flush(SOON)
        events = {event["event"]: event for event in trace.events(delivery)}
        assert events["settled"]["detail"] == str(error)
        assert events["reported"]["stage"] == "Reports"


def test_what_was_sent_before_is_not_known() -> None:
    with running(**FAST) as (_, producer):
        (delivery,) = send(producer, [b"1"])
        offsets([delivery])
        with producer.traced() as trace:
            pass
        assert trace.events(delivery) == []


def test_one_at_a_time() -> None:
    with running(**FAST) as (_, producer):
        with (
            producer.traced(),
            pytest.raises(RuntimeError, match="already being traced"),
            producer.traced(),
        ):
            pass
        with producer.traced() as trace:
            (delivery,) = send(producer, [b"1"])
            offsets([delivery])
        assert trace.events(delivery)


def test_a_trace_may_begin_between_the_decoding_of_a_response_and_its_handling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two stages look whether there is a trace, one after the other."""
    traces = contextlib.ExitStack()
    decoded = Bridge._decoded

    def traced_from_here(bridge: Bridge, *args: Any) -> Any:
        answer = decoded(bridge, *args)
        if not found:
            found.append(traces.enter_context(producer.traced()))
        return answer

    # With a partitioner in Python, no message is sent by its caller.
    with running(partitioner=lambda *_: 0, **FAST) as (_, producer), traces:
        found: list[Any] = []
        warm_up(producer)
        monkeypatch.setattr(Bridge, "_decoded", traced_from_here)
        deliveries = [producer.send("t", b"%d" % n, on_delivery=lambda *_: None) for n in range(3)]
        assert offsets(deliveries) == [1, 2, 3]
        producer.flush(SOON)
        assert producer.stats()["state"] == "running"
        assert found

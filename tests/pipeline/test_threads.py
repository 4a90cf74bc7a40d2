"""The threads that a producer has, in both modes of stage_threads."""

from __future__ import annotations

import threading

from pykaproducer import Producer
from tests._support.threads import threads_left

from .helper import offsets, pipeline_of, running

TOPICS = {"t": 12}


def prefix_of(producer: Producer) -> str:
    return pipeline_of(producer).dispatcher.name.removesuffix("dispatcher")


def threads_of(prefix: str) -> set[str]:
    """Return the names of the threads that begin with *prefix*, without it."""
    return {
        thread.name.removeprefix(prefix)
        for thread in threading.enumerate()
        if thread.name.startswith(prefix)
    }


def after_one_message_for_each_partition(producer: Producer) -> set[str]:
    for partition in range(TOPICS["t"]):
        heard = threading.Event()
        delivery = producer.send(
            "t", b"value", partition=partition, on_delivery=lambda *_, heard=heard: heard.set()
        )
        offsets([delivery])
        assert heard.wait(30)
    return threads_of(prefix_of(producer))


ALWAYS = {"dispatcher", "metadata", "reports"}
BROKERS = {f"{kind}-{number}" for kind in ("broker", "bridge") for number in range(3)}


def test_topics_and_partitions_share_the_threads_of_their_neighbours() -> None:
    with running(3, topics=TOPICS, stage_threads="shared") as (_, producer):
        names = after_one_message_for_each_partition(producer)
        # A stage whose items another stage's thread can handle has a thread only if it was busy.
        assert names - {"log-writer"} <= ALWAYS | BROKERS


def test_each_topic_and_partition_has_its_own_thread_on_request() -> None:
    with running(3, topics=TOPICS, stage_threads="own") as (_, producer):
        names = after_one_message_for_each_partition(producer)
        prefix = prefix_of(producer)
        own = {"topic-t", *(f"partition-t-{number}" for number in range(TOPICS["t"]))}
        assert own <= names
        assert names - {"log-writer"} <= own | ALWAYS | BROKERS
    assert not threads_left(prefix.removesuffix("-"))

"""Many topics and partitions: the cost of unknown topics for the existing ones.

``unknown``: a loop sends to an existing topic, first alone, and then while messages wait for
thousands of topics that the cluster does not know. ``dead``: the same, while a thread sends to one
such topic as fast as it can, so that it waits for ``buffer_memory``. ``partitions``: one message to
each of thousands of partitions. All close with these messages still in place. Only pykaproducer.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import options, payloads
from benchmarks.child import Parent, RunFailed
from benchmarks.process import Usage, resident
from benchmarks.report import Column
from benchmarks.runner import Measures, Session, in_fresh_process
from pykaproducer import Producer, ProducerClosedError

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

PEERS: tuple[str, ...] = ()

HELP = "the cost of thousands of unknown topics, or of partitions"

COLUMNS = (
    Column("share", "speed beside them, %", ".0f", unit=0.01, compared=False),
    Column("send_s", "send() to all, s", ".2f", compared=False),
    Column("delivered_s", "all delivered, s", ".2f", compared=False),
    Column("rss", "RSS increase, MiB", ".0f", unit=2**20, compared=False),
    Column("idle_ms", "idle CPU ms/s", ".1f", compared=False),
    Column("threads", "threads", ".0f", compared=False),
    Column("close_s", "close(), s", ".2f", compared=False),
)

_LIMIT = 300.0
_MESSAGES, _REPEATS = 300_000, 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--unknown", type=options.positive, default=10_000, help="default: 10000")
    parser.add_argument("--partitions", type=options.positive, default=5_000, help="default: 5000")


def run(arguments: argparse.Namespace, session: Session) -> None:
    with session.cluster as cluster:
        for kind, count, noun in (
            ("unknown", arguments.unknown, "unknown topics"),
            ("dead", 1, "unknown topic that fills the buffer"),
            ("partitions", arguments.partitions, "partitions"),
        ):
            session.alternate(f"{count:,} {noun}", partial(_one_run, cluster, kind, count))


def _one_run(cluster: KafkaCluster, kind: str, count: int, client: str) -> Measures:
    partitions = count if kind == "partitions" else 12
    with options.fresh_topic(cluster, partitions) as topic:
        job = {"kind": kind, "count": count, "topic": topic, "servers": cluster.bootstrap_servers}
        return in_fresh_process("benchmarks.topics", job, limit=_LIMIT)


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    producer = Producer(
        bootstrap_servers=job["servers"], acks=1, linger_ms=5, allow_auto_create_topics=False
    )
    measures = {"unknown": _unknown, "dead": _dead, "partitions": _partitions}[job["kind"]]
    found = measures(producer, job["topic"], job["count"])
    start = time.perf_counter()
    producer.close(0)
    return {**found, "close_s": time.perf_counter() - start}


def _unknown(producer: Producer, topic: str, count: int) -> dict[str, float | None]:
    _speed(producer, topic)  # connections, and memory that Python keeps
    alone = median(_speed(producer, topic) for _ in range(_REPEATS))
    before, start = resident(), time.perf_counter()
    for number in range(count):
        producer.send(f"{topic}-unknown-{number}", b"value")
    sent = time.perf_counter() - start
    beside = median(_speed(producer, topic) for _ in range(_REPEATS))
    return {"share": beside / alone, "send_s": sent, **_at_rest(before)}


def _dead(producer: Producer, topic: str, count: int) -> dict[str, float | None]:
    _speed(producer, topic)
    alone = median(_speed(producer, topic) for _ in range(_REPEATS))
    before, start = resident(), time.perf_counter()

    def fill() -> None:
        value = bytes(1000)
        with contextlib.suppress(ProducerClosedError):
            while True:
                producer.send(f"{topic}-unknown", value)

    threading.Thread(target=fill, daemon=True).start()
    while not producer.stats()["buffer"]["waiting_senders"]:
        _speed(producer, topic)
    sent = time.perf_counter() - start
    beside = median(_speed(producer, topic) for _ in range(_REPEATS))
    return {"share": beside / alone, "send_s": sent, **_at_rest(before)}


def _partitions(producer: Producer, topic: str, count: int) -> dict[str, float | None]:
    producer.send(topic, b"value", partition=0).result(60)
    before = resident()
    # Twice: at first the broker makes a directory and files for each partition.
    for _ in range(2):
        start = time.perf_counter()
        for number in range(count):
            producer.send(topic, b"value", partition=number)
        sent = time.perf_counter() - start
        producer.flush(120)
        delivered = time.perf_counter() - start
    return {"send_s": sent, "delivered_s": delivered, **_at_rest(before)}


def _speed(producer: Producer, topic: str) -> float:
    """Return messages per second, measured until the last callback."""
    tally, value = payloads.Tally(), bytes(100)
    start = time.perf_counter()
    for _ in range(_MESSAGES):
        producer.send(topic, value, on_delivery=tally.on_delivery)
    # Not flush(): that would wait for the unknown topics as well.
    limit = start + _LIMIT / 10
    while tally.delivered < _MESSAGES and time.perf_counter() < limit:
        time.sleep(0.002)
    complaint = tally.complaint(_MESSAGES)
    if complaint:
        raise RunFailed(complaint)
    return _MESSAGES / (time.perf_counter() - start)


def _at_rest(before: int) -> dict[str, float | None]:
    start = Usage.now()
    time.sleep(3)
    used = Usage.now() - start
    return {
        "rss": resident() - before,
        "idle_ms": used.cpu / used.wall * 1000,
        "threads": threading.active_count(),
    }

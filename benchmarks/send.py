"""Throughput: a loop that sends many small messages, each with a callback.

A run is valid if every message was delivered, every callback was called, and the broker's log
holds exactly as many messages as were sent: asked after the run, with another client.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import clients, options, payloads, report
from benchmarks.child import Parent, RunFailed
from benchmarks.clients import Client, Load, Settings
from benchmarks.process import Usage, calibrate, peak_resident
from benchmarks.report import Column
from benchmarks.runner import Measures, Session, in_fresh_process

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

HELP = "throughput and processor time of a send loop with a callback for each message"

COLUMNS = (
    Column("messages_per_s", "M messages/s", unit=1e6),
    Column("cpu_us", "CPU us/message"),
    Column("loop_ns", "loop ns/message", ".0f"),
    Column("overlap", "acked in the loop, %", ".0f", unit=0.01, compared=False),
    Column("peak_rss", "peak RSS, MiB", ".0f", unit=2**20),
)

#: Sent and waited for before the clock starts: connections, metadata, every partition.
WARM_UP = 1_000

#: Seconds for a run: this, and a second for each so many messages.
_LIMIT, _SLOWEST = 60.0, 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=options.positive, default=1_000_000)
    parser.add_argument("--size", type=options.positive, default=100, help="bytes of a value")
    parser.add_argument(
        "--partitions", type=options.positive, nargs="+", default=[1, 12], metavar="N"
    )
    parser.add_argument("--keyed", action="store_true", help="give each message a key")
    outcome = parser.add_mutually_exclusive_group()
    outcome.add_argument(
        "--no-callback", dest="outcome", action="store_const", const="none", default="callback"
    )
    outcome.add_argument(
        "--handles",
        dest="outcome",
        action="store_const",
        const="handles",
        help="no callback, but keep every handle that send() returns",
    )
    parser.add_argument(
        "--warm-up-rounds", type=int, default=1, help="rounds at first that do not count"
    )
    parser.add_argument(
        "--poll-every", type=options.positive, default=1000, help="confluent-kafka: poll(0)"
    )
    options.add_producer_options(parser)


def run(arguments: argparse.Namespace, session: Session) -> None:
    with session.cluster as cluster:
        warm_up_rounds = arguments.warm_up_rounds
        for partitions in arguments.partitions:
            session.alternate(
                f"{partitions} partition{'s' if partitions > 1 else ''}",
                partial(_one_run, arguments, cluster, partitions),
                warm_up_rounds=warm_up_rounds,
            )
            # The broker stays warm.
            warm_up_rounds = 0


def _one_run(
    arguments: argparse.Namespace, cluster: KafkaCluster, partitions: int, client: str
) -> Measures:
    with options.fresh_topic(cluster, partitions) as topic:
        job = {
            "client": client,
            "settings": vars(options.settings(arguments, cluster)),
            "topic": topic,
            "messages": arguments.messages,
            "size": arguments.size,
            "keyed": arguments.keyed,
            "outcome": arguments.outcome,
        }
        limit = _LIMIT + arguments.messages / _SLOWEST
        measures = in_fresh_process("benchmarks.send", job, limit=limit)
        _check_log(cluster, topic, partitions, arguments.messages + WARM_UP)
    return measures


def _check_log(cluster: KafkaCluster, topic: str, partitions: int, expected: int) -> None:
    """Every message is in the log, once: ask with kafka-python's consumer."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    try:
        ends = consumer.end_offsets([TopicPartition(topic, i) for i in range(partitions)])
    finally:
        consumer.close()
    found = sum(ends.values())
    if found != expected:
        raise RunFailed(f"{expected} messages were sent and the log holds {found}")


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    """The run itself: from the first send to the last callback."""
    values = payloads.text_values(job["size"])
    keys = payloads.keys()
    client = clients.factory(job["client"])(Settings(**job["settings"]))
    warm_up(client, job["topic"], values, job["limit"])
    load = Load(job["topic"], job["messages"], values, keys if job["keyed"] else None)
    tally = payloads.Tally()
    speed = calibrate()
    start = Usage.now()
    delivered = _send(client, load, job["outcome"], tally)
    looped, in_loop = Usage.now(), tally.delivered
    client.flush(job["limit"])
    used = Usage.now() - start
    peak = peak_resident()
    speed = (speed + calibrate()) / 2
    if job["outcome"] == "callback":
        complaint = tally.complaint(load.count)
        if complaint:
            raise RunFailed(complaint)
    elif delivered is not None and delivered() != load.count:
        raise RunFailed(f"of {load.count} messages {delivered()} were delivered")
    client.abandon()
    return {
        "messages_per_s": load.count / used.wall,
        "cpu_us": used.cpu / load.count * 1e6,
        "loop_ns": (looped - start).wall / load.count * 1e9,
        "overlap": in_loop / load.count if job["outcome"] == "callback" else None,
        "peak_rss": peak,
        "sleeps": used.sleeps,
        report.CALIBRATION: speed,
    }


def _send(
    client: Client, load: Load, outcome: str, tally: payloads.Tally
) -> Callable[[], int] | None:
    if outcome == "handles":
        return client.send_keeping_handles(load)
    client.send_all(load, tally.on_delivery if outcome == "callback" else None)
    return None


def warm_up(client: Client, topic: str, values: list[bytes], timeout: float) -> None:
    """Connect and reach every partition (by keys); all of it delivered when this returns."""
    tally = payloads.Tally()
    client.send_all(Load(topic, WARM_UP, values, payloads.keys()), tally.on_delivery)
    client.flush(timeout)
    complaint = tally.complaint(WARM_UP)
    if complaint:
        raise RunFailed(f"warm-up: {complaint}")

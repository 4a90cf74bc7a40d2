"""Latency: one message at a time, each awaited before the next is sent; no linger.

``raw`` is the round trip on a bare socket, with a prebuilt request.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any

from benchmarks import clients, options, payloads, peers, readback, send
from benchmarks.child import Parent, RunFailed
from benchmarks.clients import Load, Settings
from benchmarks.process import Usage, calibrate
from benchmarks.report import Column
from benchmarks.runner import CALIBRATION, Measures, Session, in_fresh_process

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

PEERS = ("confluent-kafka", "kafka-python", "aiokafka", "franz-go", "raw")
#: Those that run in Python, in a process of this module.
_IN_PYTHON = frozenset(PEERS) - {"franz-go"} | {"pykaproducer"}

HELP = "latency of single messages, each awaited before the next"

COLUMNS = (
    Column("p50_us", "p50, us", ".0f"),
    Column("p99_us", "p99, us", ".0f"),
    Column("mean_us", "mean, us", ".0f"),
    Column("cpu_us", "CPU us/message", ".0f"),
    Column("sleeps", "wake-ups/message", ".1f", compared=False),
)

#: Sent before, in the same way, and not counted.
_WARM_UP = 500

#: The seconds for a run: this, and one more per that many messages.
_LIMIT, _SLOWEST = 60.0, 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=_at_least_100, default=10_000, help="default: 10000")
    parser.add_argument(
        "--size", type=options.positive, default=100, help="bytes of a value; default: %(default)s"
    )
    parser.add_argument("--partitions", type=options.positive, nargs="+", default=[1], metavar="N")
    parser.add_argument(
        "--warm-up-rounds", type=int, default=1, help="initial rounds that do not count"
    )
    options.add_producer_options(parser, linger_ms=0)


def _at_least_100(text: str) -> int:
    """Parse a number; a 99th percentile needs at least 100 messages."""
    number = options.positive(text)
    if number < 100:
        raise argparse.ArgumentTypeError(f"must be at least 100, not {number}")
    return number


def run(arguments: argparse.Namespace, session: Session) -> None:
    with session.cluster as cluster:
        warm_up_rounds = arguments.warm_up_rounds
        for partitions in arguments.partitions:
            session.alternate(
                send.named(partitions),
                partial(_one_run, arguments, cluster, partitions),
                warm_up_rounds=warm_up_rounds,
            )
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
        }
        limit = _LIMIT + arguments.messages / _SLOWEST
        if client in _IN_PYTHON:
            measures = in_fresh_process("benchmarks.sync", job, limit=limit)
        else:
            job |= {"topics": [topic], "warm_up": _WARM_UP, "keyed": False, "outcome": "waited"}
            measures = peers.TABLE[client].send(job, limit)
        readback.check_log(cluster, [topic], partitions, arguments.messages + _WARM_UP)
    return measures


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    values = payloads.text_values(job["size"])
    client = clients.factory(job["client"])(Settings(**job["settings"]))
    client.send_one_by_one(Load(job["topic"], _WARM_UP, values))
    load = Load(job["topic"], job["messages"], values)
    speed = calibrate()
    start = Usage.now()
    times = client.send_one_by_one(load)
    used = Usage.now() - start
    speed = (speed + calibrate()) / 2
    client.flush(job["limit"])
    client.abandon()
    if len(times) != load.count:
        raise RunFailed(f"only {len(times)} of {load.count} messages were sent")
    percentiles = quantiles(times, n=100, method="inclusive")
    return {
        "p50_us": percentiles[49] / 1000,
        "p99_us": percentiles[98] / 1000,
        "mean_us": fmean(times) / 1000,
        "most_us": max(times) / 1000,
        "cpu_us": used.cpu / load.count * 1e6,
        "sleeps": used.sleeps / load.count,
        CALIBRATION: speed,
    }

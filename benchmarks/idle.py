"""Idleness: the processor time of a connected producer that has nothing to do."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import clients, options, payloads, send
from benchmarks.child import Parent
from benchmarks.clients import Settings
from benchmarks.process import Usage, resident, threads
from benchmarks.report import Column
from benchmarks.runner import Measures, Session, in_fresh_process

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

PEERS = ("confluent-kafka", "kafka-python")

HELP = "processor time of a connected producer that has nothing to do"

COLUMNS = (
    Column("cpu_ms", "CPU ms/s", ".2f", compared=False),
    Column("wake_ups", "wake-ups/s", ".1f", compared=False),
    Column("rss", "RSS, MiB", ".0f", unit=2**20),
    Column("threads", "threads", ".0f", compared=False),
)

#: Seconds between the last message and the measurement.
_SETTLE = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=10.0, help="default: 10")
    parser.add_argument("--partitions", type=options.positive, nargs="+", default=[12], metavar="N")


def run(arguments: argparse.Namespace, session: Session) -> None:
    with session.cluster as cluster:
        for partitions in arguments.partitions:
            session.alternate(
                f"{partitions} partitions, each client's defaults",
                partial(_one_run, arguments.seconds, cluster, partitions),
            )


def _one_run(seconds: float, cluster: KafkaCluster, partitions: int, client: str) -> Measures:
    settings = vars(Settings(cluster.bootstrap_servers))
    with options.fresh_topic(cluster, partitions) as topic:
        job = {"client": client, "settings": settings, "topic": topic, "seconds": seconds}
        return in_fresh_process("benchmarks.idle", job, limit=seconds + 60)


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    client = clients.factory(job["client"])(Settings(**job["settings"]))
    send.warm_up(client, job["topic"], payloads.text_values(100), job["limit"])
    time.sleep(_SETTLE)
    start = Usage.now()
    time.sleep(job["seconds"])
    used = Usage.now() - start
    measures = {
        "cpu_ms": used.cpu / used.wall * 1000,
        # One of them is this thread's own sleep.
        "wake_ups": (used.sleeps - 1) / used.wall,
        "rss": resident(),
        "threads": threads(),
    }
    client.abandon()
    return measures

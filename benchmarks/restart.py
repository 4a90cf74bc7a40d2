"""Maintenance: three brokers are restarted one after the other, while messages keep coming.

Each partition is on all three, and the next broker ends only when all replicas are in sync again.
Messages have callbacks and come at a steady rate until the last broker is back.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Mapping
from functools import partial
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from benchmarks import clients, options, payloads, send
from benchmarks.child import Parent, RunFailed
from benchmarks.clients import Settings
from benchmarks.process import Usage
from benchmarks.report import Column
from benchmarks.runner import Measures, Session, in_fresh_process

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

PEERS = ("confluent-kafka", "kafka-python")

HELP = "latencies and processor time while three brokers are restarted one after the other"

COLUMNS = (
    Column("p99_ms", "p99, ms", ".0f"),
    Column("longest_ms", "longest, ms", ".0f"),
    Column("failed", "failed", ".0f", compared=False),
    Column("cpu_us", "CPU us/message", ".0f"),
    Column("sent", "messages", ".0f", compared=False),
)

_BROKERS, _PARTITIONS = 3, 12

#: How long a round may take beside the starts of the brokers (seconds).
_LIMIT = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kill", action="store_true", help="end the brokers by SIGKILL")
    parser.add_argument(
        "--rate", type=options.positive, default=300, help="messages/s; default: %(default)s"
    )
    parser.add_argument("--size", type=options.positive, default=100, help="default: %(default)s")
    options.add_producer_options(parser, linger_ms=0, acks="all", idempotence=True)


def run(arguments: argparse.Namespace, session: Session) -> None:
    from pykaproducer.testing import KafkaCluster

    with KafkaCluster(_BROKERS) as cluster:
        title = f"{_BROKERS} brokers {'killed' if arguments.kill else 'terminated'} in turn"
        session.alternate(title, partial(_one_run, arguments, cluster))


def _one_run(arguments: argparse.Namespace, cluster: KafkaCluster, client: str) -> Measures:
    config = {"min.insync.replicas": "2"}
    with options.fresh_topic(cluster, _PARTITIONS, config) as topic:
        job = {
            "client": client,
            "settings": vars(options.settings(arguments, cluster)),
            "topic": topic,
            "rate": arguments.rate,
            "size": arguments.size,
        }
        restart = partial(_restart_each, cluster, topic, arguments.kill)
        return in_fresh_process("benchmarks.restart", job, limit=_LIMIT, at={"restart": restart})


def _restart_each(cluster: KafkaCluster, topic: str, kill: bool) -> None:
    for number in range(_BROKERS):
        (cluster.kill if kill else cluster.terminate)(number)
        cluster.restart(number)
        _wait_until_in_sync(cluster, topic)


def _wait_until_in_sync(cluster: KafkaCluster, topic: str) -> None:
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        while any(
            len(partition["isr_nodes"]) < _BROKERS
            for (described,) in [admin.describe_topics([topic])]
            for partition in described["partitions"]
        ):
            time.sleep(0.1)
    finally:
        admin.close()


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    client = clients.factory(job["client"])(Settings(**job["settings"]))
    values = payloads.text_values(job["size"])
    with client.served():
        send.warm_up(client, job["topic"], values, job["limit"])
        load = _Load(client, job["topic"], values, job["rate"])
        start = Usage.now()
        load.start()
        parent.reach("restart")
        load.stop()
        client.flush(job["limit"])
        used = Usage.now() - start
    client.abandon()
    return load.measures(used)


class _Load(threading.Thread):
    def __init__(self, client: Any, topic: str, values: Any, rate: int) -> None:
        super().__init__()
        self._client = client
        self._topic = topic
        self._values = values
        self._gap = 1 / rate
        self._end = threading.Event()
        self._sent = self._failed = 0
        self._latencies: list[float] = []

    def run(self) -> None:
        begin = time.monotonic()
        while not self._end.wait(max(0.0, begin + self._sent * self._gap - time.monotonic())):
            value = self._values[self._sent % len(self._values)]
            on_delivery = partial(self._on_delivery, time.monotonic())
            self._client.send(self._topic, value, on_delivery)
            self._sent += 1

    def stop(self) -> None:
        self._end.set()
        self.join()

    def _on_delivery(self, sent_at: float, error: Any, report: Any) -> None:
        self._latencies.append(time.monotonic() - sent_at)
        self._failed += error is not None

    def measures(self, used: Usage) -> Measures:
        if len(self._latencies) != self._sent:
            raise RunFailed(f"{self._sent} messages have {len(self._latencies)} outcomes")
        return {
            "p99_ms": quantiles(self._latencies, n=100, method="inclusive")[98] * 1000,
            "longest_ms": max(self._latencies) * 1000,
            "failed": self._failed,
            "cpu_us": used.cpu / self._sent * 1e6,
            "sent": self._sent,
        }

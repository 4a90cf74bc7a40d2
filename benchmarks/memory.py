"""Memory: the use of a producer while the broker is stopped and a loop keeps sending.

The broker is stopped with SIGSTOP: its sockets stay open and silent. The loop ends when the buffer
is full. Then the broker continues, and every accepted message must be delivered.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import clients, options, payloads, send
from benchmarks.child import Parent, RunFailed
from benchmarks.clients import Client, Settings
from benchmarks.process import peak_resident, resident
from benchmarks.report import Column
from benchmarks.runner import Measures, Session, in_fresh_process

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

PEERS = ("confluent-kafka",)
REFUSED = {"kafka-python": "kafka-python has no buffer limit: its buffer would never be full"}

HELP = "memory when the broker is stopped and a loop sends until the buffer is full"

COLUMNS = (
    Column("rss_share", "RSS above idle / buffer_memory", ".2f"),
    Column("rss_above", "RSS above idle, MiB", ".0f", unit=2**20),
    Column("accepted", "messages accepted", ".0f"),
    Column("bytes_per_message", "RSS bytes/message", ".0f"),
    Column("blocked_ms", "last send() waited, ms", ".1f", compared=False),
)

_LIMIT = 150.0
_WARM_UP_SIZE = 10
#: No buffer holds more: a client that has accepted as many has no limit.
_ENDLESS = 20_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=options.positive, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--partitions", type=options.positive, default=12, metavar="N")
    parser.add_argument(
        "--buffer-memory", type=options.positive, default=64, metavar="MIB", help="default: 64"
    )
    parser.add_argument("--max-block-ms", type=options.positive, default=500, help="default: 500")


def run(arguments: argparse.Namespace, session: Session) -> None:
    with session.cluster:
        for size in arguments.size:
            session.alternate(
                f"{size} B messages, buffer_memory {arguments.buffer_memory} MiB, "
                f"max_block_ms {arguments.max_block_ms}",
                partial(_one_run, arguments, session.cluster, size),
            )


def _one_run(
    arguments: argparse.Namespace, cluster: KafkaCluster, size: int, client: str
) -> Measures:
    settings = Settings(
        cluster.bootstrap_servers,
        acks="1",
        idempotence=False,
        linger_ms=5,
        batch_size=1_000_000,
        buffer_memory=arguments.buffer_memory * options.MIB,
        max_block_ms=arguments.max_block_ms,
    )
    with options.fresh_topic(cluster, arguments.partitions) as topic:
        job = {"client": client, "settings": vars(settings), "topic": topic, "size": size}
        at = {"idle": lambda: cluster.pause(0), "full": lambda: cluster.resume(0)}
        try:
            return in_fresh_process("benchmarks.memory", job, limit=_LIMIT, at=at)
        finally:
            cluster.resume(0)


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    values = payloads.text_values(job["size"])
    settings = Settings(**job["settings"])
    client = clients.factory(job["client"])(settings)
    # Small messages: the warm-up must fit into any buffer.
    send.warm_up(client, job["topic"], payloads.text_values(_WARM_UP_SIZE), job["limit"])
    parent.reach("idle")
    tally = payloads.Tally()
    idle = resident()
    accepted, blocked = _fill(client, job["topic"], values, tally)
    above = peak_resident() - idle
    parent.reach("full")
    client.flush(job["limit"])
    complaint = tally.complaint(accepted)
    if complaint:
        raise RunFailed(f"after the broker resumed: {complaint}")
    client.abandon()
    assert settings.buffer_memory is not None
    return {
        "rss_share": above / settings.buffer_memory,
        "rss_above": above,
        "rss_idle": idle,
        "accepted": accepted,
        "bytes_per_message": above / accepted,
        "blocked_ms": blocked * 1000,
    }


def _fill(
    client: Client, topic: str, values: list[bytes], tally: payloads.Tally
) -> tuple[int, float]:
    """Send until the buffer is full; return the accepted messages and the last send()'s wait."""
    for accepted in range(_ENDLESS):
        start = time.perf_counter()
        try:
            client.send(topic, values[accepted % len(values)], tally.on_delivery)
        except client.buffer_full:
            return accepted, time.perf_counter() - start
    raise RunFailed(f"the buffer is not full after {_ENDLESS} messages")

"""Latency: one message at a time, each awaited before the next is sent; no linger.

``--cases`` measures other callers that wait: over TLS, with compression or larger values, beside
other threads. Each is compared with the same settings for all clients.

``raw`` is the round trip on a bare socket, with a prebuilt request.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
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

#: The last two are pykaproducer's drop-in replacements.
PEERS = (
    *("confluent-kafka", "kafka-python", "aiokafka", "franz-go", "raw"),
    *("as-confluent-kafka", "as-kafka-python"),
)
#: Those that do not run in Python, in a process of this module.
_PROGRAMS = frozenset({"franz-go"})
#: Those with the cases beside the plain one.
_WITH_CASES = frozenset(PEERS) - {"aiokafka", "franz-go", "raw"} | {"pykaproducer"}

HELP = "latency of single messages, each awaited before the next"

COLUMNS = (
    Column("p50_us", "p50, us", ".0f"),
    Column("p99_us", "p99, us", ".0f"),
    Column("mean_us", "mean, us", ".0f"),
    Column("cpu_us", "CPU us/message", ".0f"),
    Column("sleeps", "wake-ups/message", ".1f", compared=False),
)


@dataclass(frozen=True)
class Case:
    """A caller that waits. *settings* take precedence over those of the command line."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    #: "SSL", "SASL_SSL" or None.
    security: str | None = None
    #: Bytes of a value; None: as the command line says.
    size: int | None = None
    #: Whether each message has a callback, too.
    callback: bool = False
    #: Threads that wait, each for its own messages.
    threads: int = 1
    #: Whether another thread sends a message each 2 ms, and does not wait.
    beside: bool = False


CASES = {
    "plain": Case(),
    "tls": Case(security="SSL"),
    "sasl-ssl": Case(security="SASL_SSL"),
    **{codec: Case({"compression": codec}) for codec in ("lz4", "zstd", "gzip")},
    "callback": Case(callback=True),
    "10kB": Case(size=10_000),
    "100kB": Case(size=100_000),
    "beside": Case(beside=True),
    "threads": Case(threads=8),
    "linger": Case({"linger_ms": 5}),
}

#: Sent before, in the same way, and not counted.
_WARM_UP = 500

#: The seconds for a run: this, and one more per that many messages.
_LIMIT, _SLOWEST = 60.0, 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--messages", type=options.at_least_100, default=10_000, help="default: 10000"
    )
    parser.add_argument(
        "--size", type=options.positive, default=100, help="bytes of a value; default: %(default)s"
    )
    parser.add_argument("--partitions", type=options.positive, nargs="+", default=[1], metavar="N")
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=CASES,
        default=["plain"],
        metavar="CASE",
        help=f"{', '.join(CASES)}; default: plain",
    )
    parser.add_argument(
        "--warm-up-rounds", type=int, default=1, help="initial rounds that do not count"
    )
    options.add_producer_options(parser, linger_ms=0)


def refused(arguments: argparse.Namespace) -> str | None:
    """Return why this command cannot run, if so."""
    lacking = [name for name in arguments.vs if name not in _WITH_CASES]
    if lacking and arguments.cases != ["plain"]:
        return f"{lacking[0]} does not support --cases"
    return None


def run(arguments: argparse.Namespace, session: Session) -> None:
    for name in arguments.cases:
        with place(session, CASES[name].security) as (cluster, found):
            warm_up_rounds = arguments.warm_up_rounds
            for partitions in arguments.partitions:
                title = send.named(partitions)
                session.alternate(
                    title if name == "plain" else f"{title}, {name}",
                    partial(_one_run, arguments, cluster, found, CASES[name], partitions),
                    warm_up_rounds=warm_up_rounds,
                )
                warm_up_rounds = 0


@contextmanager
def place(
    session: Session, security: str | None, brokers: int = 1
) -> Iterator[tuple[KafkaCluster, dict[str, Any]]]:
    """Yield a cluster with such a listener, and the settings with which clients find it.

    A plain one with one broker is the session's own.
    """
    from pykaproducer.testing import KafkaCluster, Security

    lent = session.cluster
    if security is not None:
        session.cluster = KafkaCluster(brokers, security=Security(security))
    elif brokers > 1:
        session.cluster = KafkaCluster(brokers)
    try:
        with session.cluster as cluster:
            found = cluster.settings()
            yield (
                cluster,
                {
                    "bootstrap_servers": found["bootstrap_servers"],
                    "security": {name: found[name] for name in _SECURITY if name in found} or None,
                },
            )
    finally:
        session.cluster = lent


_SECURITY = (
    *("security_protocol", "ssl_cafile", "sasl_mechanism"),
    *("sasl_plain_username", "sasl_plain_password"),
)


def _one_run(
    arguments: argparse.Namespace,
    cluster: KafkaCluster,
    found: Mapping[str, Any],
    case: Case,
    partitions: int,
    client: str,
) -> Measures:
    settings = replace(options.settings(arguments, cluster), **found, **case.settings)
    with options.fresh_topic(cluster, partitions) as topic:
        job = {
            "client": client,
            "settings": vars(settings),
            "case": asdict(case),
            "topic": topic,
            "messages": arguments.messages,
            "size": case.size or arguments.size,
        }
        limit = _LIMIT + arguments.messages / _SLOWEST
        if client in _PROGRAMS:
            job |= {"topics": [topic], "warm_up": _WARM_UP, "keyed": False, "outcome": "waited"}
            measures = peers.TABLE[client].send(job, limit)
        else:
            measures = in_fresh_process("benchmarks.sync", job, limit=limit)
        expected = arguments.messages + _WARM_UP + measures.get("beside", 0)
        readback.check_log(cluster, [topic], partitions, expected)
    return measures


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    case = Case(**job["case"])
    values = payloads.text_values(job["size"])
    client = clients.factory(job["client"])(Settings(**job["settings"]))
    client.send_one_by_one(Load(job["topic"], _WARM_UP, values, callback=case.callback))
    count = job["messages"] // case.threads
    loads = [Load(job["topic"], count, values, callback=case.callback)] * case.threads
    loads[0] = replace(loads[0], count=job["messages"] - count * (case.threads - 1))
    speed = calibrate()
    with _other_sender(client, loads[0], case.beside) as sent:
        start = Usage.now()
        times = _send(client, loads)
        used = Usage.now() - start
    speed = (speed + calibrate()) / 2
    client.flush(job["limit"])
    client.abandon()
    if len(times) != job["messages"]:
        raise RunFailed(f"only {len(times)} of {job['messages']} messages were sent")
    percentiles = quantiles(times, n=100, method="inclusive")
    return {
        "p50_us": percentiles[49] / 1000,
        "p99_us": percentiles[98] / 1000,
        "mean_us": fmean(times) / 1000,
        "most_us": max(times) / 1000,
        "cpu_us": used.cpu / len(times) * 1e6,
        "sleeps": used.sleeps / len(times),
        "beside": len(sent),
        CALIBRATION: speed,
    }


def _send(client: Any, loads: Sequence[Load]) -> list[int]:
    """Send each load in a thread, a single one in this thread; return the times of all."""
    if len(loads) == 1:
        times: list[int] = client.send_one_by_one(loads[0])
        return times
    with ThreadPoolExecutor(len(loads)) as threads:
        return [time for times in threads.map(client.send_one_by_one, loads) for time in times]


@contextmanager
def _other_sender(client: Any, load: Load, wanted: bool) -> Iterator[list[int]]:
    """Send a message each 2 ms in a thread, if *wanted*; the list has an item for each."""
    sent: list[int] = []
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.002):
            client.send(load.topic, load.values[0])
            sent.append(1)

    thread = threading.Thread(target=work)
    if not wanted:
        yield sent
        return
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join()

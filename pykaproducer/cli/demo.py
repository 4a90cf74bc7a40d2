"""``pykaproducer demo``: real text through a real broker, and back, byte for byte.

The text is Python's own standard library, line by line, keyed by module: it is on every machine
that can run this, everybody knows it, and its lines are as uneven as real messages.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import pathlib
import sysconfig
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pykaproducer.cli.common import (
    UserError,
    add_settings,
    human_bytes,
    progress,
    settings_of,
)
from pykaproducer.delivery import Delivery
from pykaproducer.producer import Producer

_STAGES = """\
 send() -> Dispatcher -> TopicWorker -> PartitionWorker -> BrokerWorker -> Bridge -> Kafka
               ^                                             |
               +--------------- RetryHandler <---------------+-> Reports -> your callbacks
"""


def add_parser(commands: Any) -> None:
    """``demo`` and its options."""
    parser = commands.add_parser(
        "demo",
        help="send real text through a real broker and compare what comes back",
        description="Starts a Kafka broker (or uses yours), sends the source of Python's standard "
        "library line by line, reads it back with kafka-python's consumer, and compares.",
    )
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT,...", help="use this cluster, and start none"
    )
    parser.add_argument("--topic", help="default: a new one, pykaproducer-demo-...")
    parser.add_argument(
        "--partitions", type=int, default=6, metavar="N", help="of a new topic (default 6)"
    )
    parser.add_argument(
        "--lines", type=int, default=300_000, metavar="N", help="at most so many (default 300000)"
    )
    add_settings(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """The whole demonstration; status 0 only if every byte came back in order."""
    if options.lines < 1 or options.partitions < 1:
        raise UserError("--lines and --partitions: at least 1")
    with _cluster(options) as servers:
        settings = settings_of(options.settings, servers)
        topic = options.topic or f"pykaproducer-demo-{time.time_ns() // 1_000_000}"
        print(_STAGES)
        sent = _send(settings, topic, options.lines)
        _tell(sent, topic)
        return _compare(sent, servers, topic)


@contextlib.contextmanager
def _cluster(options: argparse.Namespace) -> Iterator[str]:
    if options.bootstrap_servers:
        yield options.bootstrap_servers
        return
    from pykaproducer.testing import ClusterError, KafkaCluster

    print("Starting a Kafka broker on this machine ... ", end="", flush=True)
    began = time.monotonic()
    try:
        with KafkaCluster(properties={"num.partitions": str(options.partitions)}) as cluster:
            print(f"it serves at {cluster.bootstrap_servers} after {_since(began)}.\n")
            yield cluster.bootstrap_servers
    except ClusterError as error:
        print()
        raise UserError(str(error)) from None


@dataclass
class _Sent:
    """What was sent, and what became of it."""

    #: In the order of their callbacks, which is their order within a partition.
    partitions: dict[int, list[tuple[bytes, bytes]]] = field(
        default_factory=lambda: collections.defaultdict(list)
    )
    latencies: list[float] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    lines: int = 0
    size: int = 0
    seconds: float = 0.0
    threads: list[str] = field(default_factory=list)


def _send(settings: dict[str, Any], topic: str, most: int) -> _Sent:
    """Stream the lines through a producer."""
    sent = _Sent()

    def report(error: BaseException | None, delivery: Delivery) -> None:
        if error is not None:
            sent.errors.append(error)
            return
        sent.latencies.append(time.time() * 1000 - delivery.timestamp)

    kept: list[tuple[bytes, bytes, Delivery]] = []
    with Producer(**{"linger_ms": 5, **settings}) as producer:
        began = time.perf_counter()
        with progress("sending", None) as shown:
            for key, line in itertools.islice(_library(), most):
                kept.append((key, line, producer.send(topic, line, key, on_delivery=report)))
                sent.size += len(key) + len(line)
                if len(kept) % 1000 == 0:
                    shown.advance(sent.size)
            producer.flush()
        sent.seconds = time.perf_counter() - began
        sent.threads = sorted(
            thread.name
            for thread in threading.enumerate()
            if thread.name.startswith(producer.config.client_id)
        )
    sent.lines = len(kept)
    for key, line, delivery in kept:
        if delivery.succeeded() and delivery.partition is not None:
            sent.partitions[delivery.partition].append((key, line))
    return sent


def _library() -> Iterator[tuple[bytes, bytes]]:
    """(module, line) for every line of the standard library's sources."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root)
        if {"site-packages", "test", "tests", "__pycache__"} & set(module.parts):
            continue
        key = ".".join(module.with_suffix("").parts).encode()
        for line in path.read_bytes().split(b"\n"):
            yield key, line


def _tell(sent: _Sent, topic: str) -> None:
    """What travelled where."""
    delivered = sum(map(len, sent.partitions.values()))
    print(
        f"Sent {sent.lines:,} lines of Python's standard library ({human_bytes(sent.size)}), keyed "
        f"by module, to {topic}:\n{delivered:,} delivered in {sent.seconds:.2f} s, "
        f"{delivered / sent.seconds:,.0f} messages/s, {human_bytes(sent.size / sent.seconds)}/s.\n"
    )
    if sent.latencies:
        times = sorted(sent.latencies)
        marks = ", ".join(f"{p}% {times[(len(times) - 1) * p // 100]:.0f} ms" for p in (50, 90, 99))
        print(f"From send() to its callback: {marks} (linger_ms included).\n")
    most = max(map(len, sent.partitions.values()), default=1)
    for partition, lines in sorted(sent.partitions.items()):
        bar = "#" * max(1, round(40 * len(lines) / most))
        size = human_bytes(sum(len(key) + len(line) for key, line in lines))
        print(f"  partition {partition:>3}  {len(lines):>9,} messages  {size:>9}  {bar}")
    print("\nThreads that it took: " + ", ".join(sent.threads) + "\n")
    for error in sent.errors[:3]:
        print(f"failed: {error}")


def _compare(sent: _Sent, servers: str, topic: str) -> int:
    """Read everything back and hold it against what was sent."""
    from pykaproducer.cli._readback import read_back

    print("Reading it back with kafka-python's consumer ... ", end="", flush=True)
    began = time.monotonic()
    ends = {partition: len(lines) for partition, lines in sent.partitions.items()}
    expected = {partition: iter(lines) for partition, lines in sent.partitions.items()}
    same = 0
    for partition, key, value in read_back(servers, topic, ends, timeout=60.0):
        if next(expected[partition], None) != (key, value):
            print(f"\nDIFFERENT: partition {partition}, message {same}: {key!r} {value!r}")
            return 1
        same += 1
    if same != sent.lines:
        print(f"\nMISSING: {sent.lines - same:,} of {sent.lines:,} messages")
        return 1
    print(f"{_since(began)}.\nSAME: all {same:,} messages, byte for byte, in order.")
    return 0


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"

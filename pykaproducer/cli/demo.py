"""``pykaproducer demo``: send real text through a real broker and compare it byte for byte.

The text is Python's standard library, line by line, keyed by module. It is available wherever this
runs, and its lines vary in length as real messages do.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import pathlib
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pykaproducer.cli import _signals
from pykaproducer.cli._display import Board, Display, display
from pykaproducer.cli._readback import read_back
from pykaproducer.cli.common import (
    CommandError,
    UserError,
    add_servers,
    add_settings,
    human_bytes,
    log_shown,
    number_from,
    parser_like,
    refuse_odd_topic,
    servers_text,
    settings_from,
)
from pykaproducer.delivery import Delivery
from pykaproducer.errors import MetadataTimeoutError
from pykaproducer.producer import Producer

#: Number of messages sent one at a time, each after the previous one is acknowledged.
_ALONE = 200
#: Timeout for reading back (seconds).
_READING = 60.0
#: Shorter timeouts than the defaults, which are meant for programs that must not lose messages.
_SETTINGS = {"delivery_timeout_ms": 30_000, "max_block_ms": 10_000}

_EXAMPLES = """\
examples:
  pykaproducer demo
  pykaproducer demo -X compression_type=lz4 -X acks=1 --partitions 12
  pykaproducer demo --bootstrap-servers kafka-1:9092 --topic scratch
                                        on an existing cluster
"""

#: (Key, value) of a message.
Message = tuple[bytes, bytes]


def add_parser(commands: Any) -> None:
    """Add ``demo`` and its options."""
    parser = commands.add_parser(
        "demo",
        help="send real text through a real broker and compare what comes back",
        description="Start a Kafka broker (or use yours), send the sources of Python's standard\n"
        "library line by line, read them back with kafka-python's consumer, and compare.\n"
        "The exit status is 0 if every byte came back, in order. The first start\n"
        "downloads Kafka, about 50 MB.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    add_servers(parser, "use this cluster; start none")
    parser.add_argument("--topic", help="topic (default: a new pykaproducer-demo-...)")
    parser.add_argument(
        "--partitions", type=number_from(1), metavar="N", help="partitions of the topic (default 6)"
    )
    parser.add_argument(
        "--lines",
        type=number_from(1),
        default=300_000,
        metavar="N",
        help="send at most N lines (default 300000)",
    )
    add_settings(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the demonstration. Return 0 only if every byte came back in order."""
    # The demonstration writes to a cluster only if the command line names it.
    settings = settings_from(options, environment=False)
    if settings.get("acks") == 0:
        raise UserError("acks=0: brokers return no offsets, so there is nothing to compare")
    if options.topic is not None:
        refuse_odd_topic("--topic", options.topic)
    if "bootstrap_servers" in settings and options.partitions:
        raise UserError("--partitions: only for the built-in cluster; remove --bootstrap-servers")
    show = display()
    show.title("pykaproducer demo: real text through real Kafka, and back")
    with _signals.raised(), log_shown(lambda text: show.row("", text)):
        topic = options.topic or f"pykaproducer-demo-{time.time_ns() // 1_000_000}"
        with _cluster(settings, options, topic, show) as servers:
            if servers is not None:
                settings["bootstrap_servers"] = servers
            return _demonstrate({**_SETTINGS, **settings}, topic, options.lines, show)


@contextlib.contextmanager
def _cluster(
    settings: Mapping[str, Any], options: argparse.Namespace, topic: str, show: Display
) -> Iterator[str | None]:
    """Start a cluster and yield its servers, or None if the user named a cluster."""
    if "bootstrap_servers" in settings:
        yield None
        return
    from pykaproducer.testing import ClusterError, KafkaCluster

    show.row("Kafka", "starting on this machine ...")
    began = time.monotonic()
    try:
        with KafkaCluster() as cluster:
            cluster.create_topic(topic, options.partitions or 6)
            show.row("", f"ready after {time.monotonic() - began:.1f} s")
            yield cluster.bootstrap_servers
    except ClusterError as error:
        raise CommandError(str(error)) from None


@dataclass
class _SentMessages:
    """The messages that were sent, and their outcomes."""

    messages: list[Message]
    deliveries: list[Delivery] = field(default_factory=list)
    #: Milliseconds from send() to the callback. Appended by callbacks.
    latencies: list[float] = field(default_factory=list)
    #: Latency of each message that was sent alone (milliseconds).
    alone: list[float] = field(default_factory=list)
    #: Duration of sending all other messages (seconds).
    seconds: float = 0.0
    size: int = 0


def _demonstrate(settings: dict[str, Any], topic: str, most: int, show: Display) -> int:
    sent = _SentMessages(list(itertools.islice(_library(), most)))
    if not sent.messages:
        raise CommandError("the sources of Python's standard library are not installed")
    sent.size = sum(len(key) + len(line) for key, line in sent.messages)
    modules = len({key for key, _ in sent.messages})
    show.row(
        "Input",
        f"{len(sent.messages):,} lines of Python's standard library, {modules:,} modules, "
        f"{human_bytes(sent.size)}",
    )
    board = Board(collections.defaultdict(int), collections.defaultdict(int))
    producer = Producer(**settings)
    try:
        partitions = _partitions(producer, topic)
        board.delivered.update(dict.fromkeys(partitions, 0))
        show.row("Topic", f"{topic}, {len(partitions)} partitions, keyed by module")
        show.stages()
        with show.live(board):
            _send(producer, topic, sent, board)
            expected = _expected(sent, board)
            began = time.monotonic()
            difference = _compare(expected, producer, topic, board)
            seconds = time.monotonic() - began
    finally:
        # After a flush nothing is pending. Without one, do not wait.
        producer.abort()
    _show_speed(sent, show)
    same = sum(board.read_back.values())
    show.row("Read back", f"{same:,} messages by kafka-python's consumer in {seconds:.1f} s")
    show.verdict(
        difference is None,
        difference or f"all {same:,} messages, byte for byte, in order, at the reported offsets",
    )
    return 0 if difference is None else 1


def _partitions(producer: Producer, topic: str) -> set[int]:
    try:
        return producer.partitions_for(topic)
    except MetadataTimeoutError as error:
        servers = servers_text(producer.config.bootstrap_servers)
        raise CommandError(f"{error} (bootstrap servers: {servers})") from None
    except ValueError as error:
        raise UserError(str(error)) from None


def _library() -> Iterator[Message]:
    """Yield (module, line) for every line of the standard library's sources."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root)
        if {"site-packages", "dist-packages", "test", "tests", "__pycache__"} & set(module.parts):
            continue
        key = ".".join(module.with_suffix("").parts).encode()
        for line in path.read_bytes().splitlines():
            yield key, line


def _send(producer: Producer, topic: str, sent: _SentMessages, board: Board) -> None:
    """Send a few messages one at a time, then the others as fast as ``send()`` accepts them."""
    for key, line in sent.messages[:_ALONE]:
        before = time.perf_counter()
        delivery = producer.send(topic, line, key)
        partition = delivery.result().partition
        sent.alone.append((time.perf_counter() - before) * 1000)
        sent.deliveries.append(delivery)
        board.delivered[partition] += 1
    report = _reporter(board.delivered, sent.latencies)
    send, keep = producer.send, sent.deliveries.append
    began = time.perf_counter()
    for key, line in itertools.islice(sent.messages, _ALONE, None):
        keep(send(topic, line, key, on_delivery=report))
    producer.flush()
    sent.seconds = time.perf_counter() - began


def _reporter(
    delivered: dict[int, int], latencies: list[float]
) -> Callable[[BaseException | None, Delivery], None]:
    now = time.time

    def report(error: BaseException | None, delivery: Delivery) -> None:
        if error is None and delivery.partition is not None:
            delivered[delivery.partition] += 1
            latencies.append(now() * 1000 - delivery.timestamp)

    return report


def _expected(sent: _SentMessages, board: Board) -> dict[int, list[tuple[int, Message]]]:
    """Return (offset, message) by partition, in the order of sending.

    Raises:
        CommandError: a message was not delivered.
    """
    expected: dict[int, list[tuple[int, Message]]] = collections.defaultdict(list)
    sizes: dict[int, int] = collections.defaultdict(int)
    failed = 0
    first: BaseException | None = None
    for message, delivery in zip(sent.messages, sent.deliveries, strict=True):
        partition, offset = delivery.partition, delivery.offset
        if not delivery.succeeded() or partition is None or offset is None:
            failed += 1
            first = first or delivery.error
            continue
        expected[partition].append((offset, message))
        sizes[partition] += len(message[0]) + len(message[1])
    if failed:
        raise CommandError(f"{failed:,} messages were not delivered; the first: {first}")
    board.sizes.update(sizes)
    return expected


def _compare(
    expected: dict[int, list[tuple[int, Message]]], producer: Producer, topic: str, board: Board
) -> str | None:
    """Read everything back and compare. Return a description of the first difference, or None."""
    ranges = {partition: (rows[0][0], rows[-1][0]) for partition, rows in expected.items()}
    for partition, offset, key, value, _ in read_back(producer.config, topic, ranges, _READING):
        rows, place = expected[partition], board.read_back[partition]
        wanted, message = rows[place]
        if offset < wanted:
            continue  # from another producer, on a shared topic
        if (offset, (key, value)) != (wanted, message):
            return f"partition {partition}, offset {wanted}: {key!r} {value!r} is not {message!r}"
        board.read_back[partition] += 1
    missing = sum(map(len, expected.values())) - sum(board.read_back.values())
    return f"{missing:,} messages did not come back" if missing else None


def _show_speed(sent: _SentMessages, show: Display) -> None:
    """Print throughput and latencies."""
    alone, flood = len(sent.alone), len(sent.messages) - len(sent.alone)
    show.row("Sent", f"{alone:,} messages alone, each after the previous one was acknowledged")
    if flood:
        show.row(
            "",
            f"{flood:,} messages in {sent.seconds:.2f} s: {flood / sent.seconds:,.0f} messages/s, "
            f"{human_bytes(sent.size / sent.seconds)}/s",
        )
    times = sorted(sent.latencies)
    marks = [f"{p}% {times[(len(times) - 1) * p // 100]:.0f} ms" for p in (50, 90, 99) if times]
    show.row(
        "Latency",
        f"{statistics.median(sent.alone):.1f} ms alone; at full speed {', '.join(marks) or 'none'}",
    )

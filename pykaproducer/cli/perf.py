"""``pykaproducer perf -t TOPIC``: how fast it goes, told as Kafka's own tool tells it."""

from __future__ import annotations

import argparse
import os
import random
import signal
import string
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pykaproducer.cli import _signals
from pykaproducer.cli._pace import GRACE, Patience
from pykaproducer.cli._perf_plot import check_plot
from pykaproducer.cli._perf_report import progress_line, tell_figures
from pykaproducer.cli._perf_run import Interval, Load, Run
from pykaproducer.cli._stats_socket import add_stats_socket, with_stats_socket
from pykaproducer.cli.common import (
    UserError,
    add_headers,
    add_servers,
    add_settings,
    header_of,
    log_hidden,
    log_shown,
    number_from,
    parser_like,
    rate_of,
    refuse_odd_topic,
    servers_text,
    settings_from,
    tell,
)
from pykaproducer.errors import MetadataTimeoutError
from pykaproducer.producer import Producer

#: The payloads that are made up take at most so many bytes together, and are so many.
_PAYLOAD_BYTES = 8 << 20
_PAYLOADS = 1000
#: How characters that are hard to type may be written in --payload-delimiter.
_ESCAPES = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\0": "\0"}

_EXAMPLES = """\
examples:
  pykaproducer perf -t scratch          a million messages of 100 bytes
  pykaproducer perf -t scratch --num-records 500000 --record-size 1000 \\
      --throughput 20000                latencies at a rate that is yours
  pykaproducer perf -t scratch --payload-file orders.json --keys 1000 \\
      -X compression_type=lz4
  pykaproducer perf -t scratch --throughput 50000 --json \\
      --plot latency.svg > figures.json
  pykaproducer perf -t scratch --config client.properties --warmup 100000

A latency runs from the call of send() to the broker's confirmation (its
callback). At full speed (--throughput -1) it is mostly the time that a message
waits for its turn. MB are 1048576 bytes, of values alone, as in Kafka's tool.

exit status:
  0  every message was delivered
  1  some were not: see the reasons
  2  a mistake in the command; nothing was sent
  130  ended by Ctrl-C (what was sent gets 5 s to arrive)
"""


def add_parser(commands: Any) -> None:
    """``perf`` and its options."""
    parser = commands.add_parser(
        "perf",
        help="measure throughput and latency",
        description="Sends messages to a topic, and tells how fast it went and how long each "
        "took.\nThe messages stay in the topic: take one that is there for it.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    parser.add_argument("-t", "--topic", required=True, help="where to send them")
    add_servers(parser)
    parser.add_argument(
        "--num-records",
        type=number_from(1),
        default=1_000_000,
        metavar="N",
        help="how many messages (default 1000000)",
    )
    parser.add_argument(
        "--throughput",
        type=rate_of,
        default=None,
        metavar="RATE",
        help="messages a second; -1 (the default): as fast as it goes",
    )
    parser.add_argument(
        "--warmup",
        type=number_from(0),
        default=0,
        metavar="N",
        help="send N messages more, before, and do not count them",
    )
    _add_messages(parser)
    _add_output(parser)
    add_stats_socket(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def _add_messages(parser: argparse.ArgumentParser) -> None:
    values = parser.add_mutually_exclusive_group()
    values.add_argument(
        "--record-size",
        type=number_from(0),
        metavar="BYTES",
        help="of each value, random letters (default 100)",
    )
    values.add_argument("--payload-file", metavar="FILE", help="take the values from FILE, in turn")
    parser.add_argument(
        "--payload-delimiter",
        default="\\n",
        metavar="TEXT",
        help="what stands between the values in FILE (default \\n)",
    )
    parser.add_argument(
        "--keys",
        type=number_from(0),
        default=0,
        metavar="N",
        help="so many different keys, in turn (default 0: no keys)",
    )
    add_headers(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="the figures as JSON on standard output, one object"
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="draw the latencies, over time and by share, into FILE.png or FILE.svg",
    )
    parser.add_argument(
        "--print-metrics", action="store_true", help="print the producer's metrics at the end"
    )


def run(options: argparse.Namespace) -> int:
    """Measure, and tell the figures."""
    settings = with_stats_socket(options, settings_from(options))
    check_plot(options.plot)
    load = _load_of(options)
    # In JSON's way stands nothing else on standard output.
    out = sys.stderr if options.json else sys.stdout
    with _signals.counted() as signals:
        patience = Patience(settings, signals)
        producer = Producer(**patience.shortened(settings))

        def one(count: int, what: str) -> Run:
            def show(intervals: Sequence[Interval]) -> None:
                print(progress_line(intervals, part, what), file=out, flush=True)

            part = Load(load.topic, count, load.rate, load.payloads, load.keys, load.headers)
            measured = Run(part, producer, signals, patience, show)
            measured.go(lambda: _tell_ending(measured))
            return measured

        try:
            with log_shown():
                _meet(producer, load.topic)
                if options.warmup:
                    one(options.warmup, "warmup records sent")
                measured = one(load.count, "records sent")
                metrics = producer.metrics() if options.print_metrics else None
        finally:
            with log_hidden():
                producer.close(timeout=0)
    measured.finish()
    tell_figures(options, measured, metrics, servers_text(producer.config.bootstrap_servers))
    if signals.number:
        tell(f"ended by {signal.Signals(signals.number).name}")
        return 128 + signals.number
    return 0 if measured.delivered == measured.sent else 1


def _meet(producer: Producer, topic: str) -> None:
    """Connect, and learn of the topic, before the measurement begins."""
    try:
        producer.partitions_for(topic)
    except MetadataTimeoutError:
        pass  # the cluster may come, or create the topic, while the messages wait


def _tell_ending(measured: Run) -> None:
    tell(
        f"ending: {measured.unaccounted:,} messages are still on their way and get {GRACE:.0f} s; "
        f"once more gives them up"
    )


# What is sent -------------------------------------------------------------------------------------


def _load_of(options: argparse.Namespace) -> Load:
    refuse_odd_topic("-t", options.topic)
    keys: list[bytes | None] = [b"key-%d" % number for number in range(options.keys)]
    return Load(
        options.topic,
        options.num_records,
        options.throughput,
        _payloads(options),
        keys or [None],
        [header_of(text) for text in options.headers] or None,
    )


def _payloads(options: argparse.Namespace) -> list[bytes]:
    if options.payload_file is not None:
        return _payloads_of(options.payload_file, options.payload_delimiter)
    size = 100 if options.record_size is None else options.record_size
    rng = random.Random(size)
    letters = string.ascii_uppercase.encode()
    count = max(1, min(_PAYLOADS, _PAYLOAD_BYTES // (size or 1)))
    return [bytes(rng.choices(letters, k=size)) for _ in range(count)]


def _payloads_of(name: str, delimiter: str) -> list[bytes]:
    """The values in a file; one that the last delimiter would begin is none."""
    for escape, letter in _ESCAPES.items():
        delimiter = delimiter.replace(escape, letter)
    if not delimiter:
        raise UserError("--payload-delimiter: it must not be empty")
    between = os.fsencode(delimiter)
    try:
        values = Path(name).read_bytes().removesuffix(between).split(between)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"--payload-file {name}: {why}") from None
    if values == [b""]:
        raise UserError(f"--payload-file {name}: there is nothing in it")
    return values

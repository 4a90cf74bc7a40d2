"""``pykaproducer perf -t TOPIC``: measure throughput and latency, in the format of Kafka's tool."""

from __future__ import annotations

import argparse
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
from pykaproducer.cli._perf_report import print_results, progress_line
from pykaproducer.cli._perf_run import Interval, PerfLoad, Run
from pykaproducer.cli._stats_socket import add_stats_socket, with_stats_socket
from pykaproducer.cli.common import (
    UserError,
    add_headers,
    add_servers,
    add_settings,
    header_of,
    log_hidden,
    log_shown,
    notify,
    number_from,
    parser_like,
    rate_of,
    refuse_odd_topic,
    separator_of,
    servers_text,
    settings_from,
)
from pykaproducer.errors import MetadataTimeoutError
from pykaproducer.producer import Producer

#: Limits of the generated payloads: total bytes and count.
_PAYLOAD_BYTES = 8 << 20
_PAYLOADS = 1000

_EXAMPLES = """\
examples:
  pykaproducer perf -t scratch          a million messages of 100 bytes
  pykaproducer perf -t scratch --num-records 500000 --record-size 1000 \\
      --throughput 20000                latencies at a fixed rate
  pykaproducer perf -t scratch --payload-file orders.json --keys 1000 \\
      -X compression_type=lz4
  pykaproducer perf -t scratch --throughput 50000 --json \\
      --plot latency.svg > figures.json
  pykaproducer perf -t scratch --config client.properties --warmup 100000

Latency is measured from the call of send() to the delivery callback. At full
speed (--throughput -1) it is mostly queueing time. One MB is 1048576 bytes, and
only values are counted, as in Kafka's tool.

exit status:
  0  every message was delivered
  1  some messages were not delivered; see the reasons
  2  invalid command line; nothing was sent
  130  interrupted by Ctrl-C (pending messages get 5 s to be delivered)
"""


def add_parser(commands: Any) -> None:
    """Add ``perf`` and its options."""
    parser = commands.add_parser(
        "perf",
        help="measure throughput and latency",
        description="Send messages to a topic, and report throughput and latency.\n"
        "The messages stay in the topic, so use a dedicated one.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    parser.add_argument("-t", "--topic", required=True, help="destination topic")
    add_servers(parser)
    parser.add_argument(
        "--num-records",
        type=number_from(1),
        default=1_000_000,
        metavar="N",
        help="number of messages (default 1000000)",
    )
    parser.add_argument(
        "--throughput",
        type=rate_of,
        default=None,
        metavar="RATE",
        help="messages per second; -1 (the default) means no limit",
    )
    parser.add_argument(
        "--warmup",
        type=number_from(0),
        default=0,
        metavar="N",
        help="first send N messages that are not measured",
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
        help="size of each value, of random letters (default 100)",
    )
    values.add_argument("--payload-file", metavar="FILE", help="use the values in FILE, in turn")
    parser.add_argument(
        "--payload-delimiter",
        default="\\n",
        metavar="TEXT",
        help="separator of the values in FILE (default \\n)",
    )
    parser.add_argument(
        "--keys",
        type=number_from(0),
        default=0,
        metavar="N",
        help="use N different keys, in turn (default 0: no keys)",
    )
    add_headers(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="plot the latencies, over time and by percentile, to FILE.png or FILE.svg",
    )
    parser.add_argument(
        "--print-metrics", action="store_true", help="print the producer's metrics at the end"
    )


def run(options: argparse.Namespace) -> int:
    """Run the measurement and print the results."""
    settings = with_stats_socket(options, settings_from(options))
    check_plot(options.plot)
    load = _load_of(options)
    # With --json, standard output must contain nothing but the JSON object.
    out = sys.stderr if options.json else sys.stdout
    with _signals.counted() as signals:
        patience = Patience(settings, signals)
        producer = Producer(**patience.shortened(settings))

        def one(count: int, what: str) -> Run:
            def show(intervals: Sequence[Interval]) -> None:
                print(progress_line(intervals, part, what), file=out, flush=True)

            part = PerfLoad(load.topic, count, load.rate, load.payloads, load.keys, load.headers)
            measured = Run(part, producer, signals, patience, show)
            measured.go(lambda: _report_stopping(measured))
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
    print_results(options, measured, metrics, servers_text(producer.config.bootstrap_servers))
    if signals.number:
        notify(f"interrupted by {signal.Signals(signals.number).name}")
        return 128 + signals.number
    return 0 if measured.delivered == measured.sent else 1


def _meet(producer: Producer, topic: str) -> None:
    """Connect and fetch the topic's metadata before the measurement begins."""
    try:
        producer.partitions_for(topic)
    except MetadataTimeoutError:
        pass  # the cluster may start, or create the topic, while the messages wait


def _report_stopping(measured: Run) -> None:
    notify(
        f"stopping: waiting up to {GRACE:.0f} s for {measured.unaccounted:,} pending messages; "
        f"interrupt again to abandon them"
    )


# What is sent -------------------------------------------------------------------------------------


def _load_of(options: argparse.Namespace) -> PerfLoad:
    refuse_odd_topic("-t", options.topic)
    keys: list[bytes | None] = [b"key-%d" % number for number in range(options.keys)]
    return PerfLoad(
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
    """Return the values in a file. A trailing delimiter does not start another value."""
    between = separator_of("--payload-delimiter", delimiter)
    try:
        values = Path(name).read_bytes().removesuffix(between).split(between)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"--payload-file {name}: {why}") from None
    if values == [b""]:
        raise UserError(f"--payload-file {name}: the file is empty")
    return values

"""``pykaproducer verify -t TOPIC``: check that the log holds what the producer reported."""

from __future__ import annotations

import argparse
import json
import secrets
import signal
from collections.abc import Iterator
from typing import Any

from pykaproducer.cli import _signals
from pykaproducer.cli._audit import Audit, Messages, defect_lines
from pykaproducer.cli._ledger import ReportedOutcome
from pykaproducer.cli._pace import Patience, wait_for_callbacks
from pykaproducer.cli._readback import refuse_unreadable
from pykaproducer.cli._stats_socket import add_stats_socket, with_stats_socket
from pykaproducer.cli._verify_run import (
    COUNT,
    Result,
    Sending,
    ends_of,
    partitions_of,
    read,
)
from pykaproducer.cli.common import (
    UserError,
    add_servers,
    add_settings,
    by_partition,
    log_hidden,
    log_shown,
    notify,
    number_from,
    parser_like,
    rate_of,
    refuse_odd_topic,
    servers_text,
    settings_from,
)
from pykaproducer.producer import Producer

_EXAMPLES = """\
examples:
  pykaproducer verify -t scratch        100,000 messages to localhost:9092
  pykaproducer verify -t scratch --duration 600 --rate 5000 \\
      --config client.properties        ten minutes; restart some brokers
  pykaproducer verify -t scratch --count 5000000 --keys 0 --json > audit.json

Each message is numbered and its reported outcome is recorded. The topic is read
back with kafka-python's consumer and compared: lost, duplicated, reordered and
corrupted messages are counted, and the first of each kind are listed. The
messages stay in the topic. Messages of other producers there are ignored.

exit status:
  0  every message was delivered, and is in the log once, in order, unchanged
  1  otherwise; see the report
  2  invalid command line; nothing was sent
  130  interrupted by Ctrl-C (messages sent so far are still verified)
"""


def add_parser(commands: Any) -> None:
    """Add ``verify`` and its options."""
    parser = commands.add_parser(
        "verify",
        help="send numbered messages, read them back and compare",
        description="Verify on your cluster that each message the producer reports as delivered\n"
        "is in the log exactly once and in order.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    parser.add_argument("-t", "--topic", required=True, help="destination topic")
    add_servers(parser)
    much = parser.add_mutually_exclusive_group()
    much.add_argument(
        "--count", type=number_from(1), metavar="N", help=f"number of messages (default {COUNT})"
    )
    much.add_argument(
        "--duration",
        type=number_from(1),
        metavar="SECONDS",
        help="send for SECONDS, instead of N messages",
    )
    _add_messages(parser)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    add_stats_socket(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def _add_messages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate",
        type=rate_of,
        metavar="RATE",
        help="messages per second (default: no limit)",
    )
    parser.add_argument(
        "--keys",
        type=number_from(0),
        default=1000,
        metavar="N",
        help="use N different keys, in turn (default 1000); 0 means no keys",
    )
    parser.add_argument(
        "--record-size",
        type=number_from(8),
        default=100,
        metavar="BYTES",
        help="size of each value (default 100)",
    )


def run(options: argparse.Namespace) -> int:
    """Send the messages, read them back and print the report."""
    settings = with_stats_socket(options, settings_from(options))
    if settings.get("acks") == 0:
        raise UserError("acks=0: no broker confirms anything, so there is nothing to verify")
    refuse_odd_topic("-t", options.topic)
    run_id = secrets.token_hex(8)
    result = Result(Audit(Messages(run_id, options.record_size, options.keys)))
    with _signals.counted() as signals:
        patience = Patience(settings, signals)
        producer = Producer(**patience.shortened(settings))
        try:
            refuse_unreadable(producer.config)
            with log_shown():
                partitions = partitions_of(producer, options.topic, settings.get("max_block_ms"))
                before = ends_of(producer, options.topic, partitions)
                Sending(options, producer, signals, result, patience).go()
        finally:
            with log_hidden():
                producer.close(timeout=0)
    wait_for_callbacks(lambda: result.audit.reported >= result.audit.sent)
    with _signals.raised(), log_shown():
        read(producer.config, options.topic, before, result)
    result.audit.finish()
    if options.json:
        print(json.dumps(_figures(options, result, run_id), indent=2))
    else:
        print("\n".join(_lines(options, result, servers_text(producer.config.bootstrap_servers))))
    if signals.number:
        notify(f"sending was interrupted by {signal.Signals(signals.number).name}")
        return 128 + signals.number
    return 0 if _is_well(result) else 1


def _is_well(result: Result) -> bool:
    audit = result.audit
    outcomes = audit.ledger.counts
    return not (result.unread or audit.failures.total or audit.defects.total()) and bool(
        outcomes[ReportedOutcome.DELIVERED]
    )


def _lines(options: argparse.Namespace, result: Result, servers: str) -> Iterator[str]:
    """Format the report as text."""
    audit, seconds = result.audit, result.seconds or 1.0
    outcomes = audit.ledger.counts
    yield (
        f"sent    {audit.sent:,} messages to {options.topic} at {servers} in "
        f"{result.seconds:.2f} s, {audit.sent / seconds:,.0f} messages/s"
    )
    yield (
        f"outcome {outcomes[ReportedOutcome.DELIVERED]:,} delivered, "
        f"{outcomes[ReportedOutcome.NOT_WRITTEN]:,} failed, "
        f"{outcomes[ReportedOutcome.AMBIGUOUS]:,} failed but possibly written"
    )
    for text, count in audit.failures.by_kind():
        yield f"        {count:,} failed: {text}"
    counts = by_partition(audit.by_partition) or "none"
    yield f"found   {audit.found:,} in the log; by partition: {counts}"
    for partition, offset in result.unread:
        yield f"        partition {partition} could not be read beyond offset {offset}"
    for line in defect_lines(audit):
        yield f"        {line}"
    if _is_well(result):
        yield "SAME    every message is in the log once, in order, unchanged"
    elif audit.defects.total() or result.unread:
        yield "FAILED  the log does not match the reported outcomes"
    else:
        yield "FAILED  some messages were not delivered; the log matches the reported outcomes"


def _figures(options: argparse.Namespace, result: Result, run_id: str) -> dict[str, Any]:
    """Return the report as a JSON-serializable object."""
    audit = result.audit
    outcomes = audit.ledger.counts
    return {
        "topic": options.topic,
        "run": run_id,
        "same": _is_well(result),
        "seconds": round(result.seconds, 3),
        "sent": audit.sent,
        "reported": {
            "delivered": outcomes[ReportedOutcome.DELIVERED],
            "failed": outcomes[ReportedOutcome.NOT_WRITTEN],
            "possibly_persisted": outcomes[ReportedOutcome.AMBIGUOUS],
        },
        "failures": [{"reason": text, "count": n} for text, n in audit.failures.by_kind()],
        "found": audit.found,
        "found_by_partition": {str(p): n for p, n in sorted(audit.by_partition.items())},
        "of_others": audit.foreign,
        "unread": [{"partition": p, "offset": offset} for p, offset in result.unread],
        "defects": dict(audit.defects),
        "examples": audit.examples,
    }

"""``pykaproducer verify -t TOPIC``: is in the log what the producer says, once and in order?"""

from __future__ import annotations

import argparse
import json
import secrets
import signal
from collections.abc import Iterator
from typing import Any

from pykaproducer.cli import _signals
from pykaproducer.cli._audit import Audit, Messages, defect_lines
from pykaproducer.cli._ledger import Told
from pykaproducer.cli._pace import Patience, wait_for_callbacks
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
from pykaproducer.producer import Producer

#: Of how many partitions the report tells.
_PARTITIONS = 24

_EXAMPLES = """\
examples:
  pykaproducer verify -t scratch        100,000 messages to localhost:9092
  pykaproducer verify -t scratch --duration 600 --rate 5000 \\
      --config client.properties        ten minutes: restart brokers meanwhile
  pykaproducer verify -t scratch --count 5000000 --keys 0 --json > audit.json

Sends numbered messages, notes what the producer tells of each, reads the topic
back with kafka-python's consumer, and compares. Lost, duplicated, out of order,
corrupted: each is counted, and the first of each are named. The messages stay
in the topic; those of others there do no harm.

exit status:
  0  every message was delivered, and is in the log once, in order, as sent
  1  not so: see the report
  2  a mistake in the command; nothing was sent
  130  ended by Ctrl-C (what was sent is audited all the same)
"""


def add_parser(commands: Any) -> None:
    """``verify`` and its options."""
    parser = commands.add_parser(
        "verify",
        help="send numbered messages, read them back, and audit",
        description="Is in the log what the producer says, once and in order? Finds out, on your\n"
        "cluster.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    parser.add_argument("-t", "--topic", required=True, help="where to send them")
    add_servers(parser)
    much = parser.add_mutually_exclusive_group()
    much.add_argument(
        "--count", type=number_from(1), metavar="N", help=f"how many messages (default {COUNT})"
    )
    much.add_argument(
        "--duration", type=number_from(1), metavar="SECONDS", help="send for so long instead"
    )
    _add_messages(parser)
    parser.add_argument("--json", action="store_true", help="the report as JSON, one object")
    add_stats_socket(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def _add_messages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate",
        type=rate_of,
        metavar="RATE",
        help="messages a second (default: as fast as it goes)",
    )
    parser.add_argument(
        "--keys",
        type=number_from(0),
        default=1000,
        metavar="N",
        help="so many different keys, in turn (default 1000); 0: no keys",
    )
    parser.add_argument(
        "--record-size",
        type=number_from(8),
        default=100,
        metavar="BYTES",
        help="of each value (default 100)",
    )


def run(options: argparse.Namespace) -> int:
    """Send, read back, compare."""
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
            with log_shown():
                partitions = partitions_of(producer, options.topic, settings.get("max_block_ms"))
                before = ends_of(producer, options.topic, partitions)
                Sending(options, producer, signals, result, patience).go()
        finally:
            with log_hidden():
                producer.close(timeout=0)
    wait_for_callbacks(lambda: result.audit.told >= result.audit.sent)
    with _signals.raised(), log_shown():
        read(producer.config, options.topic, before, result)
    result.audit.finish()
    if options.json:
        print(json.dumps(_figures(options, result, run_id), indent=2))
    else:
        print("\n".join(_lines(options, result, servers_text(producer.config.bootstrap_servers))))
    if signals.number:
        tell(f"sending was ended by {signal.Signals(signals.number).name}")
        return 128 + signals.number
    return 0 if _is_well(result) else 1


def _is_well(result: Result) -> bool:
    audit = result.audit
    told = audit.ledger.counts
    return not (result.unread or audit.failures.total or audit.defects.total()) and bool(
        told[Told.DELIVERED]
    )


def _lines(options: argparse.Namespace, result: Result, servers: str) -> Iterator[str]:
    """The report for people."""
    audit, seconds = result.audit, result.seconds or 1.0
    told = audit.ledger.counts
    yield (
        f"sent    {audit.sent:,} messages to {options.topic} at {servers} in "
        f"{result.seconds:.2f} s, {audit.sent / seconds:,.0f} messages/s"
    )
    yield (
        f"told    {told[Told.DELIVERED]:,} delivered, {told[Told.NOT_WRITTEN]:,} failed, "
        f"{told[Told.DOUBTFUL]:,} failed and perhaps in the log"
    )
    for text, count in audit.failures.by_kind():
        yield f"        {count:,} failed: {text}"
    counts = sorted(audit.by_partition.items())[:_PARTITIONS]
    more = len(audit.by_partition) - len(counts)
    yield (
        f"found   {audit.found:,} in the log; by partition: "
        + (", ".join(f"{partition}: {count:,}" for partition, count in counts) or "none")
        + (f", and {more} more" if more else "")
    )
    for partition, offset in result.unread:
        yield f"        partition {partition} could not be read on from offset {offset}"
    for line in defect_lines(audit):
        yield f"        {line}"
    if _is_well(result):
        yield "SAME    every message is in the log once, in order, as it was sent"
    elif audit.defects.total() or result.unread:
        yield "FAILED  the log is not what was told"
    else:
        yield "FAILED  not all were delivered; the log is what was told"


def _figures(options: argparse.Namespace, result: Result, run_id: str) -> dict[str, Any]:
    """The report for programs."""
    audit = result.audit
    told = audit.ledger.counts
    return {
        "topic": options.topic,
        "run": run_id,
        "same": _is_well(result),
        "seconds": round(result.seconds, 3),
        "sent": audit.sent,
        "told": {
            "delivered": told[Told.DELIVERED],
            "failed": told[Told.NOT_WRITTEN],
            "possibly_persisted": told[Told.DOUBTFUL],
        },
        "failures": [{"reason": text, "count": n} for text, n in audit.failures.by_kind()],
        "found": audit.found,
        "found_by_partition": {str(p): n for p, n in sorted(audit.by_partition.items())},
        "of_others": audit.foreign,
        "unread": [{"partition": p, "offset": offset} for p, offset in result.unread],
        "defects": dict(audit.defects),
        "examples": audit.examples,
    }

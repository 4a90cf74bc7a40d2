"""``pykaproducer load SOURCE -t TOPIC``: send files, tables or queries, one message per row."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pykaproducer._load.files import FORMATS
from pykaproducer._load.names import QUERIES, SourceError, refuse_secrets
from pykaproducer.cli._load_dry_run import dry_run
from pykaproducer.cli._load_embedded import embedded
from pykaproducer.cli._load_on_spark import on_spark
from pykaproducer.cli._load_plan import Outcome
from pykaproducer.cli._load_report import summary_lines, verified
from pykaproducer.cli._stats_socket import add_stats_socket
from pykaproducer.cli.common import (
    UserError,
    add_servers,
    add_settings,
    notify,
    parser_like,
    refuse_odd_topic,
    separator_of,
    servers_text,
)

#: The script to pass to spark-submit.
_SCRIPT = Path(__file__).with_name("_spark_submit.py")

_EXAMPLES = """\
examples:
  pykaproducer load trips.parquet -t trips
                                        each row as a JSON object
  pykaproducer load 'exports/*.csv' -t users \\
      --select 'key=user_id, value=json(*)'
  pykaproducer load events/ -t events --verify --rejects lost \\
      --select "key=id, value=avro(*, 'event.avsc'), timestamp=at"
  pykaproducer load lost -t events --select ...
                                        send the rejected rows again
  pykaproducer load s3://bucket/events/ -t events
                                        also gs:// and abfs://, and with --spark
  pykaproducer load 'SELECT * FROM sales' --format sql -t sales \\
      --spark local[*]
  spark-submit $(pykaproducer load --script) events.parquet -t events

--select defines the message. By default the columns value, key, headers,
timestamp, partition and topic are used unchanged; if there is no column value,
the value is a JSON object of all columns:
  key=user_id                  a column as text; bytes and text are unchanged
  value=json(*)                all columns as an object; also json(a, b as c),
                               json(payload.*)
  value=avro(*, 'a.avsc')      an Avro record, without a schema registry prefix
  value=avro(*, 'a.avsc', id=7)
                               with that prefix, for the schema with the id 7
  headers.source='import'      a literal: 'text', a number, null
  timestamp=created_at         a timestamp, a date, milliseconds, or one as text
  partition=shard topic=kind   the destination of each row (topic=, or -t)

Text is UTF-8, or --encoding. A file that cannot be read to its end ends the
load.

--rejects DIR keeps rows that cannot be encoded, or that the producer or a
broker rejects. It keeps all columns that were read, and adds the reason as the
column pykaproducer_error, which json(*) omits when DIR is loaded. Use a new DIR
for each load.

Delivery is at least once: repeating a load sends delivered rows again. On
Spark, --exactly-once makes each row visible once; with --write-id, also if the
load is repeated:
  pykaproducer load sales/ -t sales --spark local[*] --exactly-once \\
      --transactional-id-prefix shop.sales --write-id 2025-03-01

exit status:
  0  every row was delivered (and, with --verify, read back)
  1  some rows were not delivered; see the summary
  2  invalid command line
  130  interrupted by Ctrl-C
"""


def add_parser(commands: Any) -> None:
    """Add ``load`` and its options."""
    parser = commands.add_parser(
        "load",
        help="send files, tables or queries, one message per row",
        description="Send each row of Parquet, ORC, Arrow, Avro, CSV or JSON Lines files as one\n"
        "message; with Spark, also each row of a table or a query.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    _add_source(parser)
    parser.add_argument("-t", "--topic", help="destination topic")
    add_servers(parser)
    parser.add_argument("--select", metavar="FIELD=EXPRESSION,...", help="how to build the message")
    parser.add_argument(
        "--rejects",
        metavar="DIR",
        help="keep rejected rows as Parquet and continue; without it the first one ends the load "
        "(on Spark, its task)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read everything back and compare counts and checksums",
    )
    parser.add_argument(
        "--spark",
        metavar="MASTER",
        help="run on Spark: local[*], spark://host:7077, yarn, or sc://host for Spark Connect",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="send nothing: show the columns, the first messages, and the rows that would be "
        "rejected before they are sent",
    )
    _add_once(parser)
    parser.add_argument(
        "--script", action="store_true", help="print the path of the script for spark-submit"
    )
    add_stats_socket(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def _add_once(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("exactly once, with --spark")
    group.add_argument(
        "--exactly-once",
        action="store_true",
        help="write all rows in transactions: readers of committed messages see each row once, or "
        "none if the load fails",
    )
    group.add_argument(
        "--transactional-id-prefix",
        metavar="PREFIX",
        help="required with --exactly-once: the prefix of the load's transactional ids and groups; "
        "no other write may use it at the same time",
    )
    group.add_argument(
        "--write-id",
        metavar="ID",
        help="names this load: if the last load with the prefix has the same id and was "
        "committed, nothing is written",
    )
    group.add_argument(
        "--state-topic",
        metavar="TOPIC",
        help="an existing topic, under whose name the load stores its state as committed offsets; "
        "nothing is written to it; default: the topic of -t",
    )


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="*",
        metavar="SOURCE",
        help="file, directory or pattern, here or in an object store; with --format table or sql, "
        "the table or the query",
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, *QUERIES),
        help="format (default: by file suffix); table and sql need --spark",
    )
    parser.add_argument(
        "--delimiter",
        metavar="CHAR",
        help=r"CSV delimiter, such as ';' or '\t' (default: a comma, or a tab in .tsv)",
    )
    parser.add_argument(
        "--infer-types",
        action="store_true",
        help="CSV columns that contain only numbers, or only true and false, in the first rows "
        "are such in JSON; without it all columns are text",
    )
    parser.add_argument(
        "--encoding",
        default="utf-8",
        help="encoding of CSV and JSON Lines: utf-8 (default), utf-16, latin-1, ...",
    )


def run(options: argparse.Namespace) -> int:
    """Load the source and report the outcome."""
    if options.script:
        print(_SCRIPT)
        return 0
    _check(options)
    if options.dry_run:
        return dry_run(options)
    outcome = embedded(options) if options.spark is None else on_spark(options)
    return _report(options, outcome)


def _check(options: argparse.Namespace) -> None:
    """Reject invalid combinations of options."""
    if not options.source:
        raise UserError("load: no source given; name a file, a directory or a pattern")
    if options.format not in QUERIES:
        _refuse_secrets(options.source)
    if options.format in QUERIES and options.spark is None:
        raise UserError(f"--format {options.format}: requires Spark; add --spark MASTER")
    if options.stats_socket is not None and options.spark is not None:
        raise UserError("--stats-socket: not available with --spark")
    _check_once(options)
    if options.delimiter is not None:
        options.delimiter = _delimiter_of(options.delimiter)
    if options.topic is not None:
        refuse_odd_topic("-t", options.topic)
    if options.format in QUERIES and len(options.source) > 1:
        raise UserError(f"--format {options.format}: give exactly one source, and quote it")


def _refuse_secrets(sources: Sequence[str]) -> None:
    try:
        for name in sources:
            refuse_secrets(name)
    except SourceError as error:
        raise UserError(str(error)) from None


def _delimiter_of(text: str) -> str:
    """Return the character that ``--delimiter`` names."""
    delimiter = separator_of("--delimiter", text)
    if len(delimiter) > 1 or not delimiter.isascii():
        raise UserError(f"--delimiter {text}: must be a single ASCII character")
    return delimiter.decode()


def _check_once(options: argparse.Namespace) -> None:
    if options.exactly_once:
        if options.spark is None:
            raise UserError("--exactly-once: requires Spark; add --spark MASTER")
        if options.verify:
            raise UserError("--exactly-once and --verify cannot be combined: leave one of them out")
        return
    for name in ("transactional_id_prefix", "write_id", "state_topic"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name.replace('_', '-')}: needs --exactly-once")


def _report(options: argparse.Namespace, outcome: Outcome) -> int:
    """Print the summary, verify if requested, and return the exit status."""
    summary, servers = outcome.summary, servers_text(outcome.config.bootstrap_servers)
    lines = list(summary_lines(summary, options.topic, servers, outcome.seconds))
    if summary.repeated:
        lines.append(f"  nothing was written: {options.write_id} was committed before")
    if summary.refused and options.rejects is None and not outcome.signal:
        ended = "the load" if options.spark is None else "its task"
        lines.append(
            f"  {ended} stopped there, and did not read the rest of the source; --rejects DIR "
            f"keeps such rows and continues"
        )
    notify("\n".join(lines))
    problems = [*summary.troubles, *([outcome.problem] if outcome.problem else [])]
    for problem in problems:
        notify(problem)
    good = not summary.refused and not problems
    if outcome.signal:
        name = signal.Signals(outcome.signal).name
        notify(
            f"stopped by {name} before the end of the source; a new load starts from the beginning"
        )
        return 128 + outcome.signal
    if options.verify:
        same, text = verified(summary, outcome.config)
        notify(text)
        good = good and same
    return 0 if good else 1

"""``pykaproducer load SOURCE -t TOPIC``: files, tables and queries, a message a row."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

from pykaproducer._load.files import FORMATS
from pykaproducer.cli._load_embedded import embedded
from pykaproducer.cli._load_on_spark import on_spark
from pykaproducer.cli._load_plan import Outcome
from pykaproducer.cli._load_report import summary_lines, verified
from pykaproducer.cli._stats_socket import add_stats_socket
from pykaproducer.cli.common import (
    UserError,
    add_servers,
    add_settings,
    parser_like,
    refuse_odd_topic,
    servers_text,
    tell,
)

#: What Spark reads beside files.
_QUERIES = ("table", "sql")
#: The file for spark-submit.
_SCRIPT = Path(__file__).parent.parent / "spark" / "submit.py"

_EXAMPLES = """\
examples:
  pykaproducer load trips.parquet -t trips
                                        each row a JSON object
  pykaproducer load 'exports/*.csv' -t users \\
      --select 'key=user_id, value=json(*)'
  pykaproducer load events/ -t events --verify --rejects lost \\
      --select "key=id, value=avro(*, 'event.avsc'), timestamp=at"
  pykaproducer load lost -t events --select ...
                                        the rows that were refused, once more
  pykaproducer load s3://bucket/events -t events --format parquet \\
      --spark spark://master:7077
  pykaproducer load 'SELECT * FROM sales' --format sql -t sales \\
      --spark local[*]
  spark-submit $(pykaproducer load --script) events.parquet -t events

--select says what a message is made of; by default the columns value, key,
headers, timestamp, partition and topic as they are, or, without a column value,
all columns as a JSON object:
  key=user_id                  a column as its text; bytes and texts as they are
  value=json(*)                all columns as an object; also json(a, b as c),
                               json(payload.*)
  value=avro(*, 'a.avsc')      a record of Avro, without a registry's prefix
  headers.source='import'      a literal: 'text', a number, null
  timestamp=created_at         a time, a date, milliseconds, or text of these
  partition=shard topic=kind   where each row goes (topic=, or -t)

Text is UTF-8. A file that cannot be read to its end ends the load. Refused rows
(which cannot be encoded, or which the producer or a broker refuses) are what
--rejects DIR keeps: with all columns that were read, and the reason in a column
pykaproducer_error, which json(*) leaves out when DIR is loaded in turn. Take a
new DIR each time.

At least once: a load that is repeated sends again what had been delivered.

exit status:
  0  every row was delivered (and, with --verify, read back)
  1  some were not: see the summary
  2  a mistake in the command
  130  ended by Ctrl-C
"""


def add_parser(commands: Any) -> None:
    """``load`` and its options."""
    parser = commands.add_parser(
        "load",
        help="send files, tables or queries, a message a row",
        description="Sends each row of Parquet, ORC, CSV or JSON lines as one message; on Spark\n"
        "also of a table or a query.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    _add_source(parser)
    parser.add_argument("-t", "--topic", help="where to send them")
    add_servers(parser)
    parser.add_argument("--select", metavar="FIELD=EXPRESSION,...", help="what makes a message")
    parser.add_argument(
        "--rejects",
        metavar="DIR",
        help="keep the rows that are refused, as Parquet, and go on; else the first ends the load "
        "(on Spark its task)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read everything back and compare counts and checksums",
    )
    parser.add_argument(
        "--spark",
        metavar="MASTER",
        help="do it on Spark: local[*], spark://host:7077, yarn ..., or Spark Connect: sc://host",
    )
    parser.add_argument(
        "--script", action="store_true", help="print the path of a file for spark-submit"
    )
    add_stats_socket(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="*",
        metavar="SOURCE",
        help="file, directory or pattern; with --format table or sql: its name, or the query",
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, *_QUERIES),
        help="default: by the suffix; table and sql need --spark",
    )
    parser.add_argument(
        "--delimiter", metavar="CHAR", help="of CSV; default: a comma, and a tab in .tsv"
    )
    parser.add_argument(
        "--infer-types",
        action="store_true",
        help="of CSV: find types by looking at the first rows; else all is text, as it stands",
    )


def run(options: argparse.Namespace) -> int:
    """Load, and tell what became of the rows."""
    if options.script:
        print(_SCRIPT)
        return 0
    _check(options)
    outcome = embedded(options) if options.spark is None else on_spark(options)
    return _tell_of(options, outcome)


def _check(options: argparse.Namespace) -> None:
    """Refuse what can never be."""
    if not options.source:
        raise UserError("load: name a source: a file, a directory or a pattern")
    if options.format in _QUERIES and options.spark is None:
        raise UserError(f"--format {options.format}: only Spark reads it; add --spark MASTER")
    if options.stats_socket is not None and options.spark is not None:
        raise UserError("--stats-socket: with --spark the producers are in Spark's processes")
    delimiter = options.delimiter
    if delimiter is not None and not (len(delimiter) == 1 and delimiter.isascii()):
        raise UserError(f"--delimiter {delimiter}: it must be one character of ASCII")
    if options.topic is not None:
        refuse_odd_topic("-t", options.topic)
    if options.format in _QUERIES and len(options.source) > 1:
        raise UserError(f"--format {options.format}: one at a time; quote it")


def _tell_of(options: argparse.Namespace, outcome: Outcome) -> int:
    """Print the summary, and read back what was written if that is wanted; the exit status."""
    summary, servers = outcome.summary, servers_text(outcome.config.bootstrap_servers)
    lines = list(summary_lines(summary, options.topic, servers, outcome.seconds))
    if summary.refused and options.rejects is None and not outcome.signal:
        ended = "the load" if options.spark is None else "its task"
        lines.append(
            f"  {ended} ended there; with --rejects DIR such rows are kept, and it goes on"
        )
    tell("\n".join(lines))
    troubles = [*summary.troubles, *([outcome.trouble] if outcome.trouble else [])]
    for trouble in troubles:
        tell(trouble)
    good = not summary.refused and not troubles
    if outcome.signal:
        name = signal.Signals(outcome.signal).name
        tell(
            f"ended by {name} before the end of the source; loaded again, it is sent from the start"
        )
        return 128 + outcome.signal
    if options.verify:
        same, text = verified(summary, outcome.config)
        tell(text)
        good = good and same
    return 0 if good else 1

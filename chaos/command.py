"""The options of ``python -m chaos``; it plays the acts, and prints the results."""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.options import positive
from chaos import messages
from chaos.acts import Act, earlier, report, write_json
from chaos.audit import LATENESS, Defect
from chaos.faults import KINDS
from chaos.producers import CLIENTS
from chaos.transactions import play as transactions
from chaos.transactions.audit import TransactionDefect
from chaos.transactions.faults import TRANSACTION_KINDS

HELP = "faults on three brokers, and an audit of each message's reported outcome"

#: One act per this many faults, unless seeds are given.
_FAULTS_PER_ACT = 100
#: Kafka's limit for an idempotent producer.
_MOST_IN_FLIGHT = 5

_log = logging.getLogger("chaos")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--faults",
        type=positive,
        metavar="N",
        help="total number of faults that affect in-flight batches",
    )
    parser.add_argument(
        "--seconds", type=positive, help="time after which no new fault begins; default: 60"
    )
    parser.add_argument(
        "--hours",
        type=float,
        metavar="H",
        help="the same in hours, for a long run; 0.5 is half an hour",
    )
    parser.add_argument(
        "--seed",
        type=int,
        action="append",
        help="run one act for each seed; default: 1, 2 ... as needed",
    )
    parser.add_argument("--producer", choices=list(CLIENTS), default="pykaproducer")
    parser.add_argument("--no-idempotence", action="store_true")
    parser.add_argument("--acks", choices=("1", "all"), default="all")
    parser.add_argument(
        "--in-flight",
        type=positive,
        default=5,
        metavar="N",
        help="limit of in-flight requests per broker; default: %(default)s",
    )
    parser.add_argument(
        "--stage-threads",
        choices=("shared", "own"),
        default="shared",
        help="the producer's setting of this name; default: %(default)s",
    )
    parser.add_argument(
        "--waiting",
        action="store_true",
        help="pykaproducer: wait for most messages before the next is sent",
    )
    parser.add_argument(
        "--tls", action="store_true", help="pykaproducer: TLS, with client certificates"
    )
    parser.add_argument(
        "--refused-topic",
        action="store_true",
        help="pykaproducer: send to another topic as well, which rejects every batch",
    )
    parser.add_argument(
        "--producers",
        type=positive,
        default=1,
        metavar="N",
        help="producers in the process; default: %(default)s",
    )
    parser.add_argument(
        "--rate", type=positive, default=2000, help="messages/s; default: %(default)s"
    )
    parser.add_argument("--partitions", type=positive, default=6, help="default: %(default)s")
    parser.add_argument("--size", type=positive, default=100, help="bytes; default: %(default)s")
    parser.add_argument(
        "--only",
        action="append",
        choices=TRANSACTION_KINDS,
        metavar="KIND",
        help=f"run only this kind of fault (repeatable): {', '.join(TRANSACTION_KINDS)}",
    )
    parser.add_argument("--verbose", action="store_true", help="print a line for each fault")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")
    parser.add_argument(
        "--resume", action="store_true", help="skip the seeds that the file of --json has"
    )
    transactions.add_arguments(parser)


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Reject arguments that argparse cannot check."""
    transactions.check(parser, arguments)
    if arguments.resume and arguments.json is None:
        parser.error("--resume needs --json")
    for kind in () if arguments.transactions else arguments.only or ():
        if kind not in KINDS:
            parser.error(f"--only {kind!r} needs --transactions")
        if kind not in messages.kinds_for(arguments):
            parser.error(f"--only {kind!r} cannot happen with these options")
    is_other = arguments.transactions or arguments.producer != "pykaproducer"
    if is_other and (arguments.tls or arguments.refused_topic):
        parser.error("--tls and --refused-topic need pykaproducer and no --transactions")
    peer = arguments.producer.replace("-", "_").replace("kafka_python", "kafka")
    if importlib.util.find_spec(peer) is None:
        parser.error(f"{peer} is not installed: pip install -r benchmarks/requirements.txt")
    if arguments.acks == "1" and not arguments.no_idempotence:
        parser.error("--acks 1 needs --no-idempotence")
    if arguments.hours is not None:
        if arguments.seconds is not None:
            parser.error("--hours and --seconds cannot be combined: leave one of them out")
        if not arguments.hours > 0:
            parser.error(f"--hours must be more than 0, not {arguments.hours:g}")
        arguments.seconds = math.ceil(arguments.hours * 3600)
    if arguments.in_flight > _MOST_IN_FLIGHT and not arguments.no_idempotence:
        parser.error(f"--in-flight is at most {_MOST_IN_FLIGHT} with idempotence")
    if arguments.partitions < arguments.producers:
        parser.error("--producers is at most --partitions: each sends to its own")


def run(arguments: argparse.Namespace, words: list[str]) -> int:
    """Run all acts, print the findings, and return the exit status."""
    if arguments.verbose:
        _log.setLevel(logging.INFO)
    if arguments.faults is None and arguments.seconds is None:
        arguments.seconds = 60
    mode: Any = transactions if arguments.transactions else messages
    defects = TransactionDefect if arguments.transactions else Defect
    seeds = arguments.seed or list(range(1, 1 + -(-(arguments.faults or 1) // _FAULTS_PER_ACT)))
    acts = earlier(arguments.json, seeds, defects) if arguments.resume else []
    done = {act.seed for act in acts}
    command = ["python", "-m", "chaos", *words]
    for i, seed in enumerate(seeds):
        if seed in done:
            continue
        act, begin = Act(seed), time.monotonic()
        count = None
        if arguments.faults is not None:
            count = arguments.faults * (i + 1) // len(seeds) - arguments.faults * i // len(seeds)
        seconds = None if arguments.seconds is None else arguments.seconds / len(seeds)
        mode.play(act, arguments, count, seconds)
        act.seconds = time.monotonic() - begin
        acts.append(act)
        print(act, file=sys.stderr)
        if arguments.json is not None:
            write_json(arguments, command, acts)
    allowed = mode.allowed(arguments)
    print(report(f"{' '.join(command)}\n\n{_settings(arguments)}", acts, defects, allowed))
    return 1 if any(set(act.found) - allowed for act in acts) else 0


def _settings(arguments: argparse.Namespace) -> str:
    if arguments.transactions:
        return f"{arguments.producer}, TV{1 if arguments.tv1 else 2}"
    return (
        f"{arguments.producer}, acks={arguments.acks}, idempotence "
        f"{'off' if arguments.no_idempotence else 'on'}, at most {arguments.in_flight} requests "
        f"in flight per broker; late means {LATENESS:g} s after the deadline"
    )

"""``pykaproducer cluster start``: a real Kafka cluster on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import re
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from pykaproducer.cli import _signals
from pykaproducer.cli.common import (
    CommandError,
    UserError,
    log_shown,
    notify,
    number_from,
    parser_like,
)

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

#: Lines of a broker's log that name a reason for its end; only the last few are shown.
_REASON = re.compile(r"\b(ERROR|FATAL)\b|^Caused by: |OutOfMemoryError")
_REASONS = 5

#: Interval between checks that the brokers are still running (seconds).
_LOOK = 1.0

_LAST_PORT = 65535

_EXAMPLES = """\
examples:
  pykaproducer cluster start --port 9092
                                        one broker at localhost:9092
  pykaproducer cluster start --brokers 3 --port 9092
                                        at the ports 9092, 9093 and 9094

example: a broker for a script in bash
  exec 3< <(pykaproducer cluster start); cluster=$!
  read -r servers <&3                   # returns once the cluster is ready
  pykaproducer produce -t events --bootstrap-servers "$servers" access.log
  kill $cluster
"""


def add_parser(commands: Any) -> None:
    """Add ``cluster start [--brokers N]``."""
    parser = commands.add_parser("cluster", help="run a Kafka cluster on this machine")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    start = actions.add_parser(
        "start",
        help="start a cluster, print its bootstrap servers, and run it until Ctrl-C",
        description="Start real Apache Kafka on 127.0.0.1, print its bootstrap servers as one\n"
        "line on standard output, and run until Ctrl-C or SIGTERM. All data is removed\n"
        "on exit. The first start downloads Kafka, about 50 MB.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    start.add_argument(
        "--brokers",
        type=number_from(1),
        default=1,
        metavar="N",
        help="number of brokers (default 1)",
    )
    start.add_argument(
        "--port",
        type=_port,
        metavar="PORT",
        help="port of the first broker; the others use the next ones (default: any free ports)",
    )
    start.set_defaults(run=run)


def _port(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 0 < number <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to {_LAST_PORT}")
    return number


def run(options: argparse.Namespace) -> int:
    """Run the cluster until a signal ends it."""
    from pykaproducer.testing import ClusterError, KafkaCluster

    if options.port is not None and options.port + options.brokers - 1 > _LAST_PORT:
        raise UserError(
            f"--port {options.port}: {options.brokers} brokers need as many ports from there on, "
            f"and {_LAST_PORT} is the last one; choose a port up to "
            f"{_LAST_PORT - options.brokers + 1}"
        )
    try:
        with _signals.raised(), log_shown():
            notify("starting Kafka ...")
            with KafkaCluster(options.brokers, port=options.port) as cluster:
                print(cluster.bootstrap_servers, flush=True)
                servers = "" if options.port == 9092 else f"-b {cluster.bootstrap_servers} "
                notify(f"try: pykaproducer produce -t events {servers}FILE")
                notify("press Ctrl-C to stop the cluster and remove its data")
                _watch(cluster)
    except KeyboardInterrupt:
        return 0
    except ClusterError as error:
        text = str(error).removeprefix("could not reserve: ")
        if options.port is not None and "in use" in text:
            text += "; stop the program that uses it, or choose another"
        elif options.port is not None and "Permission denied" in text:
            text += "; choose one from 1024 on, as the lower ones are reserved for root"
        raise CommandError(text) from None


def _watch(cluster: KafkaCluster) -> NoReturn:
    """Check the brokers until a signal arrives, or raise if a broker exits."""
    pause = threading.Event()
    while True:
        for broker in cluster.brokers:
            if not broker.alive:
                raise CommandError(
                    f"broker {broker.id} at {broker.host}:{broker.port} exited with status "
                    f"{broker.exit_status}; from its log:\n{_reasons(broker.log_tail(2000))}"
                )
        pause.wait(_LOOK)


def _reasons(log: str) -> str:
    """Return the last errors of a broker's log, or its last lines if it has none.

    The end of the log alone is often a part of a Java stack, without the error that caused it.
    """
    lines = log.splitlines()
    return "\n".join(([line for line in lines if _REASON.search(line)] or lines)[-_REASONS:])

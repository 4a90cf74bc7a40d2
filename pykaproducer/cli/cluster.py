"""``pykaproducer cluster start``: a real Kafka cluster on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from pykaproducer.cli import _signals
from pykaproducer.cli.common import CommandError, log_shown, number_from, parser_like, tell

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

#: How often it is looked whether the brokers still run (seconds).
_LOOK = 1.0

_EXAMPLES = """\
example: a broker for a script in bash
  exec 3< <(pykaproducer cluster start); cluster=$!
  read -r servers <&3                   # comes when the cluster serves
  pykaproducer produce -t events --bootstrap-servers "$servers" access.log
  kill $cluster
"""


def add_parser(commands: Any) -> None:
    """``cluster start [--brokers N]``."""
    parser = commands.add_parser("cluster", help="run a Kafka cluster on this machine")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    start = actions.add_parser(
        "start",
        help="start it, print its bootstrap servers, and run it until Ctrl-C",
        description="Starts real Apache Kafka on 127.0.0.1, prints its bootstrap servers, one\n"
        "line, on standard output, and runs until Ctrl-C or SIGTERM. Nothing of it is\n"
        "left then. The first start fetches Kafka, about 50 MB.",
        epilog=_EXAMPLES,
        **parser_like,
    )
    start.add_argument(
        "--brokers",
        type=number_from(1),
        default=1,
        metavar="N",
        help="how many brokers (default 1)",
    )
    start.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the cluster until a signal ends it."""
    from pykaproducer.testing import ClusterError, KafkaCluster

    try:
        with _signals.raised(), log_shown():
            tell("starting Kafka ...")
            with KafkaCluster(options.brokers) as cluster:
                print(cluster.bootstrap_servers, flush=True)
                tell(
                    f"try: pykaproducer produce -t events --bootstrap-servers "
                    f"{cluster.bootstrap_servers} FILE"
                )
                tell("Ctrl-C ends the cluster and removes its data")
                _watch(cluster)
    except KeyboardInterrupt:
        return 0
    except ClusterError as error:
        raise CommandError(str(error)) from None


def _watch(cluster: KafkaCluster) -> NoReturn:
    """Until a signal comes, or a broker ends by itself."""
    pause = threading.Event()
    while True:
        for broker in cluster.brokers:
            if not broker.alive:
                raise CommandError(
                    f"{broker} has ended with status {broker.exit_status}; its log ends with:\n"
                    f"{broker.log_tail(5)}"
                )
        pause.wait(_LOOK)

"""``pykaproducer cluster start``: a real Kafka cluster on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from pykaproducer.cli import _signals
from pykaproducer.cli.common import CommandError, log_shown, notify, number_from, parser_like

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

#: Interval between checks that the brokers are still running (seconds).
_LOOK = 1.0

_EXAMPLES = """\
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
    start.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the cluster until a signal ends it."""
    from pykaproducer.testing import ClusterError, KafkaCluster

    try:
        with _signals.raised(), log_shown():
            notify("starting Kafka ...")
            with KafkaCluster(options.brokers) as cluster:
                print(cluster.bootstrap_servers, flush=True)
                notify(
                    f"try: pykaproducer produce -t events --bootstrap-servers "
                    f"{cluster.bootstrap_servers} FILE"
                )
                notify("press Ctrl-C to stop the cluster and remove its data")
                _watch(cluster)
    except KeyboardInterrupt:
        return 0
    except ClusterError as error:
        raise CommandError(str(error)) from None


def _watch(cluster: KafkaCluster) -> NoReturn:
    """Check the brokers until a signal arrives, or raise if a broker exits."""
    pause = threading.Event()
    while True:
        for broker in cluster.brokers:
            if not broker.alive:
                raise CommandError(
                    f"{broker} exited with status {broker.exit_status}; its log ends with:\n"
                    f"{broker.log_tail(5)}"
                )
        pause.wait(_LOOK)

"""``pykaproducer cluster start``: a real Kafka cluster on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from types import FrameType
from typing import Any

from pykaproducer.cli.common import UserError


def add_parser(commands: Any) -> None:
    """``cluster start [--brokers N]``."""
    parser = commands.add_parser("cluster", help="run a Kafka cluster on this machine")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    start = actions.add_parser(
        "start",
        help="start it, print its bootstrap servers, and run it until Ctrl-C",
        description="Starts real Apache Kafka on 127.0.0.1, prints the bootstrap servers on one "
        "line, and runs until Ctrl-C. Everything in it is gone afterwards.",
    )
    start.add_argument(
        "--brokers", type=int, default=1, metavar="N", help="how many brokers (default 1)"
    )
    start.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the cluster until a signal ends it."""
    from pykaproducer.testing import ClusterError, KafkaCluster

    if options.brokers < 1:
        raise UserError("--brokers: at least 1")
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    # The command owns its process: these are its handlers, not the library's.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    print("starting Kafka ...", file=sys.stderr)
    try:
        with KafkaCluster(options.brokers) as cluster:
            print(cluster.bootstrap_servers, flush=True)
            print("running; Ctrl-C ends it", file=sys.stderr)
            ended.wait()
    except ClusterError as error:
        raise UserError(str(error)) from None
    return 0

"""A distant cluster: the send loop through a relay that delays everything by a fixed time.

The relay runs in a separate process. A round trip takes twice the delay, and as long as a nearby
broker needs in addition. Each case is measured with the same settings for all clients, and with
each client's own defaults.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from benchmarks import options, peers, send
from benchmarks.report import Column
from benchmarks.runner import Session

if TYPE_CHECKING:
    from pykaproducer.testing import FaultProxy

PEERS = peers.NAMES[1:]

HELP = "throughput of a send loop, 5 to 100 ms away from the broker"

COLUMNS = (
    Column("messages_per_s", "M messages/s", unit=1e6),
    Column("cpu_us", "CPU us/message"),
    Column("overlap", "acked in the loop, %", ".0f", unit=0.01, compared=False),
    Column("peak_rss", "peak RSS, MiB", ".0f", unit=2**20),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    send.add_load_options(parser, partitions=(1, 12), messages=500_000)
    parser.add_argument(
        "--delays",
        type=float,
        nargs="+",
        default=[5.0, 40.0, 100.0],
        metavar="MS",
        help="milliseconds in each direction; default: 5 40 100",
    )
    parser.add_argument(
        "--in-flight",
        type=options.positive,
        nargs="+",
        default=[5],
        metavar="N",
        help="limits of in-flight requests, for the cases with the same settings; default: 5",
    )
    options.add_producer_options(parser)
    parser.set_defaults(outcome="callback")


def run(arguments: argparse.Namespace, session: Session) -> None:
    from pykaproducer.testing import KafkaCluster

    warm_up_rounds = arguments.warm_up_rounds
    with closing(Relay()) as relay, KafkaCluster(proxies=[cast("FaultProxy", relay)]) as cluster:
        session.cluster = cluster
        for delay in arguments.delays:
            relay.delay(delay / 1000)
            for case in _cases(arguments, delay):
                servers = {**(case.settings or {}), "bootstrap_servers": cluster.proxied_servers}
                own = argparse.Namespace(**{**vars(arguments), "defaults": not case.settings})
                session.alternate(
                    case.title,
                    partial(send.one_run, own, cluster, replace(case, settings=servers)),
                    warm_up_rounds=warm_up_rounds,
                )
                warm_up_rounds = 0


def _cases(arguments: argparse.Namespace, delay: float) -> list[send.Case]:
    cases: list[send.Case] = []
    for partitions in arguments.partitions:
        title = f"{delay:g} ms, {send.named(partitions)}"
        if not arguments.defaults:
            cases += [
                send.Case(f"{title}, {limit} in flight", partitions, settings=_in_flight(limit))
                for limit in arguments.in_flight
            ]
        cases.append(send.Case(f"{title}, defaults", partitions))
    return cases


def _in_flight(limit: int) -> dict[str, int]:
    return {"in_flight": limit, "max_in_flight": limit}


class Relay:
    """A :class:`~pykaproducer.testing.FaultProxy` in a separate process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.distant"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port: int = self._answer()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def target(self) -> None:
        return None

    @target.setter
    def target(self, target: tuple[str, int]) -> None:
        self._ask(target=target)

    def delay(self, seconds: float) -> None:
        """Delay everything in each direction by *seconds*."""
        self._ask(delay=seconds)

    def close(self) -> None:
        """End the process."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()

    def _ask(self, **command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def _relay() -> None:
    """Be the relay: print the port, then obey each line of the standard input until its end."""
    from pykaproducer.testing import FaultProxy

    with FaultProxy() as proxy:
        print(proxy.port, flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            if "target" in command:
                host, port = command["target"]
                proxy.target = host, port
            if "delay" in command:
                proxy.delay(command["delay"])
            print("null", flush=True)


if __name__ == "__main__":
    _relay()

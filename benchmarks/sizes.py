"""Large values: how fast a send loop is by the size of a value, plain and over TLS."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import options, peers, send, sync
from benchmarks.report import Column
from benchmarks.runner import Measures, Session

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

PEERS = peers.NAMES[1:]

HELP = "throughput and processor time of a send loop by the size of a value"

COLUMNS = (
    Column("bytes_per_s", "MB/s", ".0f", unit=1e6),
    Column("cpu_s_a_byte", "CPU s/GB", unit=1e-9),
    Column("peak_rss", "peak RSS, MiB", ".0f", unit=2**20),
)

#: Clients that connect with TLS here.
_WITH_TLS = frozenset({"pykaproducer", "confluent-kafka", "kafka-python"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        type=options.positive,
        nargs="+",
        default=[1_000, 10_000, 100_000, 900_000],
        metavar="BYTES",
        help="default: 1000 10000 100000 900000",
    )
    parser.add_argument(
        "--megabytes", type=options.positive, default=1_000, help="of a run; default: %(default)s"
    )
    parser.add_argument("--partitions", type=options.positive, default=1, metavar="N")
    parser.add_argument("--tls", action="store_true", help="encrypt the connections")
    parser.add_argument(
        "--warm-up-rounds", type=int, default=1, help="initial rounds that do not count"
    )
    options.add_producer_options(parser)
    parser.set_defaults(keyed=False, outcome="callback")


def refused(arguments: argparse.Namespace) -> str | None:
    """Return why this command cannot run, if so."""
    lacking = [name for name in arguments.vs if name not in _WITH_TLS]
    return f"{lacking[0]} does not support --tls" if arguments.tls and lacking else None


def run(arguments: argparse.Namespace, session: Session) -> None:
    with sync.place(session, "SSL" if arguments.tls else None) as (cluster, found):
        warm_up_rounds = arguments.warm_up_rounds
        for size in arguments.sizes:
            title = f"{size:,} bytes, {send.named(arguments.partitions)}"
            # A thousand large values would take longer than the run itself.
            case = send.Case(title, arguments.partitions, settings=found, warm_up=20)
            session.alternate(
                f"{title}, TLS" if arguments.tls else title,
                partial(_one_run, arguments, cluster, case, size),
                warm_up_rounds=warm_up_rounds,
            )
            warm_up_rounds = 0


def _one_run(
    arguments: argparse.Namespace, cluster: KafkaCluster, case: send.Case, size: int, client: str
) -> Measures:
    messages = max(1, arguments.megabytes * 1_000_000 // size)
    own: dict[str, Any] = {**vars(arguments), "messages": messages, "size": size}
    measures = send.one_run(argparse.Namespace(**own), cluster, case, client)
    measures["bytes_per_s"] = measures["messages_per_s"] * size
    measures["cpu_s_a_byte"] = measures["cpu_us"] / 1e6 / size
    return measures

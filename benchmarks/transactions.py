"""Transactions: begin, send a number of messages, commit; for a number of seconds.

Each client runs whole transactions, one after the other, with 1 to 100,000 messages in each. A run
is valid if every message is in the broker's log in a committed transaction.

``idempotent`` and ``flushing`` are pykaproducer without transactions: ``idempotent`` sends the same
messages without waiting in between, ``flushing`` calls ``flush()`` where the others commit. ``tv1``
is pykaproducer with the transaction protocol before KIP-890, on the same broker. With ``--offsets``
each transaction also has an offset of a consumer group, which the run then finds committed.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from benchmarks import clients, options, payloads, peers, readback
from benchmarks.child import Parent, RunFailed
from benchmarks.clients import Load, OnDelivery, Settings
from benchmarks.process import Usage, calibrate
from benchmarks.report import Column
from benchmarks.runner import CALIBRATION, Measures, Session, in_fresh_process

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

_PROGRAMS = ("java", "franz-go")

PEERS = (
    "confluent-kafka",
    "kafka-python",
    *_PROGRAMS,
    "tv1",
    "idempotent",
    "flushing",
)

HELP = "transactions per second, and the latency of a transaction, by the number of its messages"

COLUMNS = (
    Column("transactions_per_s", "transactions/s", ".4g"),
    Column("messages_per_s", "k messages/s", ".4g", unit=1e3),
    Column("p50_ms", "p50, ms", ".2f"),
    Column("p99_ms", "p99, ms", ".2f"),
    Column("cpu_us", "CPU us/transaction", ".0f"),
    Column("sleeps", "wake-ups/transaction", ".1f", compared=False),
)

#: The seconds for a run, in addition to those that are measured.
_LIMIT = 120.0

#: The level of the feature ``transaction.version`` without KIP-890.
_TV1 = {"transaction.version": 0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--messages",
        type=options.positive,
        nargs="+",
        default=[1, 100, 10_000, 100_000],
        metavar="N",
        help="messages of a transaction; default: 1 100 10000 100000",
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="measured in each run; default: %(default)s"
    )
    parser.add_argument(
        "--warm-up-seconds",
        type=float,
        default=2.0,
        help="transactions before the clock starts; default: %(default)s",
    )
    parser.add_argument(
        "--size", type=options.positive, default=100, help="bytes of a value; default: %(default)s"
    )
    parser.add_argument(
        "--partitions", type=options.positive, metavar="N", help="default: one for each broker"
    )
    # Not "keyed": every client here can send keys.
    parser.add_argument("--keyed", dest="keys", action="store_true", help="give messages keys")
    parser.add_argument("--brokers", type=options.positive, default=1, help="default: 1")
    parser.add_argument(
        "--tv1", action="store_true", help="brokers without KIP-890: all clients use TV1"
    )
    parser.add_argument("--callback", action="store_true", help="give each message a callback")
    parser.add_argument(
        "--offsets", action="store_true", help="add an offset of a group to each transaction"
    )
    parser.add_argument(
        "--warm-up-rounds", type=int, default=1, help="initial rounds that do not count"
    )
    options.add_producer_options(parser, acks="all", idempotence=None)


def peer(name: str) -> peers.Peer:
    """Return the peer as it is run here."""
    return peers.JAVA_TRANSACTIONS if name == "java" else peers.TABLE[name]


def run(arguments: argparse.Namespace, session: Session) -> None:
    if arguments.brokers > 1 or arguments.tv1:
        from pykaproducer.testing import KafkaCluster

        session.cluster = KafkaCluster(
            arguments.brokers, features=_TV1 if arguments.tv1 else {}, fast_start=False
        )
    with session.cluster as cluster:
        warm_up_rounds = arguments.warm_up_rounds
        for messages in arguments.messages:
            session.alternate(
                f"{messages:,} message{'s' if messages > 1 else ''} per transaction",
                partial(_one_run, arguments, cluster, messages),
                warm_up_rounds=warm_up_rounds,
            )
            warm_up_rounds = 0


def _one_run(
    arguments: argparse.Namespace, cluster: KafkaCluster, messages: int, client: str
) -> Measures:
    partitions = arguments.partitions or arguments.brokers
    settings = options.settings(arguments, cluster)
    # A new id for each run: the coordinator has nothing to look up or to end.
    settings = replace(settings, transactional_id=f"benchmark-{uuid4().hex[:12]}")
    group = settings.transactional_id if arguments.offsets else None
    with options.fresh_topic(cluster, partitions) as topic:
        readback.wait_until_served(cluster, [topic], partitions)
        job = {
            "client": client,
            "settings": vars(settings),
            "topics": [topic],
            "messages": messages,
            "size": arguments.size,
            "keyed": arguments.keys,
            "seconds": arguments.seconds,
            "warm_up_seconds": arguments.warm_up_seconds,
            "callback": arguments.callback,
            "group": group,
            "outcome": "transactions",
        }
        limit = _LIMIT + 2 * (arguments.seconds + arguments.warm_up_seconds)
        if client in _PROGRAMS:
            measures = peer(client).send(job, limit)
        else:
            measures = in_fresh_process("benchmarks.transactions", job, limit=limit)
        sent = measures.pop("sent")
        readback.check_committed(cluster, topic, sent)
        if group is not None:
            readback.check_offset(cluster, group, topic, sent // messages)
    return measures


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    values = payloads.text_values(job["size"])
    client = clients.factory(job["client"])(Settings(**job["settings"]))
    keys = payloads.keys() if job["keyed"] else None
    load = Load(job["topics"][0], job["messages"], values, keys)
    tally = payloads.Tally()
    on_delivery = tally.on_delivery if job["callback"] else None
    limit = job["limit"]
    client.init_transactions(limit)
    commit = partial(client.commit, limit)
    if (group := job["group"]) is not None:
        commit = _with_offsets(client, group, load.topic, commit)
    before = _transact(client, load, on_delivery, job["warm_up_seconds"], commit)
    client.flush(limit)  # without transactions: what is not delivered yet
    speed = calibrate()
    start = Usage.now()
    times = _transact(client, load, on_delivery, job["seconds"], commit)
    client.flush(limit)
    used = Usage.now() - start
    speed = (speed + calibrate()) / 2
    client.abandon()
    count, sent = len(times), (len(before) + len(times)) * load.count
    complaint = tally.complaint(sent) if job["callback"] else None
    if complaint:
        raise RunFailed(complaint)
    waits = client.waits
    return {
        "transactions_per_s": count / used.wall if waits else None,
        "messages_per_s": count * load.count / used.wall,
        "p50_ms": median(times) * 1e3 if waits else None,
        "p99_ms": _p99(times) * 1e3 if waits else None,
        "cpu_us": used.cpu / count * 1e6,
        "sleeps": used.sleeps / count,
        "transactions": count,
        "sent": sent,
        CALIBRATION: speed,
    }


def _with_offsets(
    client: Any, group: str, topic: str, commit: Callable[[], None]
) -> Callable[[], None]:
    """Return *commit* with the number of transactions so far, as the offset of *group*."""
    send_offset = client.offset_sender(group, topic)
    numbers = itertools.count(1)

    def both() -> None:
        send_offset(next(numbers))
        commit()

    return both


def _transact(
    client: Any,
    load: Load,
    on_delivery: OnDelivery | None,
    seconds: float,
    commit: Callable[[], None],
) -> list[float]:
    """Run transactions for some seconds, at least one; return the seconds of each."""
    begin, send_all, now = client.begin, client.send_all, time.perf_counter
    times: list[float] = []
    until = now() + seconds
    start = now()
    while start < until or not times:
        begin()
        send_all(load, on_delivery)
        commit()
        end = now()
        times.append(end - start)
        start = end
    return times


def _p99(times: list[float]) -> float:
    return quantiles(times, n=100, method="inclusive")[98] if len(times) > 1 else times[0]

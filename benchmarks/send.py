"""Throughput: a loop that sends many small messages, each with a callback.

A run is valid if every message was delivered, every callback was called, and the broker's log holds
exactly as many messages as were sent, which another client counts after the run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import clients, options, payloads, peers, readback
from benchmarks.child import Parent, RunFailed
from benchmarks.clients import Client, Load, Settings
from benchmarks.process import Usage, calibrate, peak_resident, resident, threads
from benchmarks.report import Column
from benchmarks.runner import CALIBRATION, Measures, Session

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

PEERS = peers.NAMES[1:]

HELP = "throughput and processor time of a send loop with a callback for each message"

COLUMNS = (
    Column("messages_per_s", "M messages/s", unit=1e6),
    Column("cpu_us", "CPU us/message"),
    Column("loop_ns", "loop ns/message", ".0f"),
    Column("overlap", "acked in the loop, %", ".0f", unit=0.01, compared=False),
    Column("peak_rss", "peak RSS, MiB", ".0f", unit=2**20),
)

#: Sent and awaited before the clock starts: connections, metadata, every partition.
WARM_UP = 1_000

#: The seconds for a run: this, and one more per that many messages.
_LIMIT, _SLOWEST = 60.0, 10_000


@dataclass(frozen=True)
class Case:
    """Runs that are compared with each other: the messages, topics and settings."""

    title: str
    partitions: int
    #: The number of topics that are used in turn.
    topics: int = 1
    #: Settings that override the command line.
    settings: Mapping[str, Any] | None = None
    warm_up: int = WARM_UP
    #: Whether to measure the size of the messages in the log.
    weighed: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_load_options(parser, partitions=(1, 12))
    outcome = parser.add_mutually_exclusive_group()
    outcome.add_argument(
        "--no-callback", dest="outcome", action="store_const", const="none", default="callback"
    )
    outcome.add_argument(
        "--handles",
        dest="outcome",
        action="store_const",
        const="handles",
        help="use no callbacks, but keep every handle that send() returns",
    )
    options.add_producer_options(parser)


def add_load_options(
    parser: argparse.ArgumentParser, *, partitions: Iterable[int], messages: int = 1_000_000
) -> None:
    """Add options for the messages."""
    parser.add_argument("--messages", type=options.positive, default=messages, help="%(default)s")
    parser.add_argument(
        "--size", type=options.positive, default=100, help="bytes of a value; default: %(default)s"
    )
    parser.add_argument(
        "--partitions", type=options.positive, nargs="+", default=[*partitions], metavar="N"
    )
    parser.add_argument("--keyed", action="store_true", help="give each message a key")
    parser.add_argument(
        "--warm-up-rounds", type=int, default=1, help="initial rounds that do not count"
    )


def run(arguments: argparse.Namespace, session: Session) -> None:
    run_cases(arguments, session, [Case(named(n), n) for n in arguments.partitions])


def named(partitions: int) -> str:
    return f"{partitions:,} partition{'s' if partitions > 1 else ''}"


def run_cases(arguments: argparse.Namespace, session: Session, cases: Iterable[Case]) -> None:
    """Run all clients in turn, case by case."""
    with session.cluster as cluster:
        warm_up_rounds = arguments.warm_up_rounds
        for case in cases:
            session.alternate(
                case.title,
                partial(one_run, arguments, cluster, case),
                warm_up_rounds=warm_up_rounds,
            )
            # The broker stays warm.
            warm_up_rounds = 0


def one_run(
    arguments: argparse.Namespace, cluster: KafkaCluster, case: Case, client: str
) -> Measures:
    settings = replace(options.settings(arguments, cluster), **(case.settings or {}))
    with options.fresh_topics(cluster, case.topics, case.partitions) as topics:
        readback.wait_until_served(cluster, topics, case.partitions)
        job = {
            "client": client,
            "settings": vars(settings),
            "topics": topics,
            "messages": arguments.messages,
            "warm_up": case.warm_up,
            "size": arguments.size,
            "keyed": arguments.keyed,
            "outcome": arguments.outcome,
            "block": getattr(arguments, "block", 0),
        }
        limit = _LIMIT + arguments.messages / _SLOWEST
        measures = peers.TABLE[client].send(job, limit)
        readback.check_log(
            cluster,
            topics,
            case.partitions,
            arguments.messages + case.warm_up,
            # Without acknowledgements the broker may not have read them all yet.
            patience=10.0 if settings.acks == "0" else 0.0,
        )
        if case.weighed:
            count = arguments.messages + case.warm_up
            measures["log_bytes"] = readback.log_bytes(cluster, topics, case.partitions) / count
    return measures


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    """Measure a run, from the first send to the last callback."""
    values = payloads.text_values(job["size"])
    keys = payloads.keys()
    client = clients.factory(job["client"])(Settings(**job["settings"]))
    topics = job["topics"]
    several = topics if len(topics) > 1 else ()
    warm_up(client, topics[0], values, job["limit"], job["warm_up"], several)
    load = Load(
        topics[0], job["messages"], values, keys if job["keyed"] else None, several, job["block"]
    )
    tally = payloads.Tally()
    work = _work(client, load, job["outcome"], tally)
    speed = calibrate()
    start = Usage.now()
    delivered = work()
    looped, in_loop = Usage.now(), tally.delivered
    client.flush(job["limit"])
    used = Usage.now() - start
    peak, left, running = peak_resident(), resident(), threads()
    speed = (speed + calibrate()) / 2
    if job["outcome"] == "callback":
        complaint = tally.complaint(load.count)
        if complaint:
            raise RunFailed(complaint)
    elif delivered is not None and delivered() != load.count:
        raise RunFailed(f"only {delivered()} of {load.count} messages were delivered")
    client.abandon()
    return {
        "messages_per_s": load.count / used.wall,
        "cpu_us": used.cpu / load.count * 1e6,
        "loop_ns": (looped - start).wall / load.count * 1e9,
        "overlap": in_loop / load.count if job["outcome"] == "callback" else None,
        "peak_rss": peak,
        "rss": left,
        "threads": running,
        "sleeps": used.sleeps,
        CALIBRATION: speed,
    }


#: The measured work; it may return a function that counts the delivered messages.
_Work = Callable[[], Callable[[], int] | None]


def _work(client: Any, load: Load, outcome: str, tally: payloads.Tally) -> _Work:
    """Return the send loop; everything that can be built before the clock starts is built here."""
    if outcome == "callback":
        return partial(client.send_all, load, tally.on_delivery)
    if outcome == "none":
        return partial(client.send_all, load, None)
    if outcome == "handles":
        return partial(client.send_keeping_handles, load)
    # "bulk", "arrow", "batches": blocks, built in advance.
    blocks = getattr(client, f"prepare_{outcome}")(load)
    return partial(getattr(client, f"send_{outcome}"), load, blocks)


def warm_up(
    client: Client,
    topic: str,
    values: list[bytes],
    timeout: float,
    count: int = WARM_UP,
    topics: Iterable[str] = (),
) -> None:
    """Connect and reach every partition (by keys); everything is delivered when this returns."""
    tally = payloads.Tally()
    load = Load(topic, count, values, payloads.keys(), tuple(topics))
    client.send_all(load, tally.on_delivery)
    client.flush(timeout)
    complaint = tally.complaint(count)
    if complaint:
        raise RunFailed(f"warm-up: {complaint}")

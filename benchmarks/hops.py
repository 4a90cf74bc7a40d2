"""Hops: the stages of the latency of a message that is sent alone and waited for.

Six timestamps of each message are taken in the process, for the five intervals between them: the
hand-over to the dispatcher's thread, the way to the socket, the broker and the wake-up of the
reading thread, the handling of the response, and the wake-up of the waiting thread. Taking them
costs a few microseconds. The medians are shown, because an occasional metadata refresh falls into
an interval. The batches are limited to fewer messages than a thread sends itself: otherwise the
sending thread would write the message, and it would pass no stage.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import options, payloads
from benchmarks.child import Parent
from benchmarks.report import Column
from benchmarks.runner import Measures, Session, in_fresh_process

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

PEERS: tuple[str, ...] = ()

HELP = "the stages of the latency of a single message"

COLUMNS = (
    Column("to_dispatcher", "send() to dispatcher, us", ".0f"),
    Column("to_socket", "dispatcher to socket, us", ".0f"),
    Column("to_answer", "broker and wake-up, us", ".0f"),
    Column("to_outcome", "response to outcome, us", ".0f"),
    Column("to_result", "outcome to result(), us", ".0f"),
    Column("whole", "total, us", ".0f"),
)

_WARM_UP = 300
_LIMIT = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=options.positive, default=3000, help="default: 3000")


def run(arguments: argparse.Namespace, session: Session) -> None:
    with session.cluster as cluster:
        session.alternate("1 partition", partial(_one_run, arguments.messages, cluster))


def _one_run(messages: int, cluster: KafkaCluster, client: str) -> Measures:
    with options.fresh_topic(cluster, 1) as topic:
        job = {"servers": cluster.bootstrap_servers, "topic": topic, "messages": messages}
        return in_fresh_process("benchmarks.hops", job, limit=_LIMIT + messages / 100)


# In the fresh process


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    from pykaproducer import Producer

    moments = _Moments()
    moments.watch()
    value = payloads.text_values(100)[0]
    with Producer(
        bootstrap_servers=job["servers"],
        acks=1,
        enable_idempotence=False,
        partitioner=_first,
    ) as producer:
        for _ in range(_WARM_UP):
            producer.send(job["topic"], value, partition=0).result(_LIMIT)
        hops = []
        for _ in range(job["messages"]):
            start = time.perf_counter()
            producer.send(job["topic"], value, partition=0).result(_LIMIT)
            hops.append(moments.hops(start, time.perf_counter()))
    keys = [column.key for column in COLUMNS]
    return {key: median(hop[key] for hop in hops) * 1e6 for key in keys}


def _first(key: bytes | None, everything: list[int], available: list[int]) -> int:
    """With a partitioner in Python, the stages send all messages. This one is never called."""
    raise AssertionError("each message has a partition")


class _Moments:
    """The times at which the last message passed each stage."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def watch(self) -> None:
        """Patch the stages to record times; the process is separate, so they stay patched."""
        from pykaproducer._net.transport import PlainTransport
        from pykaproducer._pipeline.bridge import Bridge
        from pykaproducer._pipeline.dispatcher import Dispatcher

        for owner, method, name, before in (
            (Dispatcher, "handle", "dispatcher", True),
            (PlainTransport, "send", "socket", False),
            (PlainTransport, "receive", "answer", True),
            (Bridge, "on_answer", "outcome", False),
        ):
            setattr(owner, method, self._told(getattr(owner, method), name, before=before))

    def _told(self, method: Callable[..., Any], name: str, *, before: bool) -> Callable[..., Any]:
        def told(*args: Any, **how: Any) -> Any:
            if before:
                self._seen[name] = time.perf_counter()
            result = method(*args, **how)
            if not before:
                self._seen[name] = time.perf_counter()
            return result

        return told

    def hops(self, start: float, end: float) -> dict[str, float]:
        """Return the seconds between the stages.

        The waiting thread may continue before the method that handles the response returns.
        """
        seen = self._seen
        outcome = min(seen["outcome"], end)
        return {
            "to_dispatcher": seen["dispatcher"] - start,
            "to_socket": seen["socket"] - seen["dispatcher"],
            "to_answer": seen["answer"] - seen["socket"],
            "to_outcome": outcome - seen["answer"],
            "to_result": end - outcome,
            "whole": end - start,
        }

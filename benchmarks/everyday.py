"""The everyday load: messages at a steady rate, each with a callback or an ``await``.

A web worker or a service sends a message now and then, and does not wait for it. Each case is such
a program: so many messages a second, over TLS, to several brokers, from several threads, beside a
thread that computes, or in an event loop. Latencies are those of single messages, from the call
until the callback or until the ``await`` returns.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any, cast

from benchmarks import clients, options, payloads, readback, sync
from benchmarks.child import Parent, RunFailed
from benchmarks.clients import Settings
from benchmarks.distant import Relay
from benchmarks.process import Usage, calibrate, cpu_of_process, sleeps_of_threads
from benchmarks.report import Column
from benchmarks.runner import CALIBRATION, Measures, Session, in_fresh_process

if TYPE_CHECKING:
    from pykaproducer.testing import FaultProxy, KafkaCluster

PEERS = ("confluent-kafka", "kafka-python", "aiokafka")
#: Those with ``await``; the others are measured in the cases with callbacks.
_ASYNC_ONLY, _WITH_AWAIT = {"aiokafka"}, {"pykaproducer", "aiokafka"}

HELP = "messages at a steady rate, with callbacks or in asyncio: latency and processor time"

COLUMNS = (
    Column("p50_us", "p50, us", ".0f"),
    Column("p99_us", "p99, us", ".0f"),
    Column("cpu_us", "CPU us/message", ".0f"),
    Column("send_p50_us", "send() p50, us", ".0f"),
    Column("send_p99_us", "send() p99, us", ".0f"),
    Column("sleeps", "wake-ups/message", ".2f", compared=False),
    Column("batches", "batches/message", ".3f"),
    Column("broker_us", "broker's CPU us/message", ".0f"),
    Column("in_log_ms", "in the log after, ms", ".2f", compared=False),
)

#: Sent before, and not counted.
_WARM_UP = 500

#: The seconds for a run beside those in which it sends.
_LIMIT = 120.0

#: How many messages an event loop has under way in the case "gather".
_AT_ONCE = 100


@dataclass(frozen=True)
class Case:
    """A program that sends."""

    #: Messages a second, of all threads together.
    rate: float
    partitions: int = 1
    keyed: bool = False
    threads: int = 1
    topics: int = 1
    brokers: int = 1
    tls: bool = False
    compression: str | None = None
    #: "callback"; "computing": the thread that sends computes in between; "await": one message at a
    #: time; "gather": many at once, as fast as they come.
    style: str = "callback"

    @property
    def is_async(self) -> bool:
        return self.style in ("await", "gather")


CASES = {
    "100/s": Case(100),
    "500/s": Case(500),
    "2000/s": Case(2_000),
    "10000/s": Case(10_000),
    "50000/s": Case(50_000),
    "keyed": Case(1_000, partitions=12, keyed=True),
    "brokers": Case(1_000, partitions=12, brokers=3),
    "threads": Case(1_000, threads=8),
    "100-topics": Case(1_000, topics=100),
    "500-topics": Case(1_000, topics=500),
    "tls": Case(500, tls=True),
    "zstd": Case(500, compression="zstd"),
    "computing": Case(100, style="computing"),
    "await": Case(500, style="await"),
    "gather": Case(0, style="gather"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=CASES,
        default=list(CASES),
        metavar="CASE",
        help=f"default: all of {', '.join(CASES)}",
    )
    parser.add_argument(
        "--delay",
        type=float,
        default=0.0,
        metavar="MS",
        help="milliseconds in each direction, through a relay (not over TLS); default: none",
    )
    parser.add_argument(
        "--messages", type=options.at_least_100, default=3_000, help="default: 3000"
    )
    parser.add_argument(
        "--size", type=options.positive, default=100, help="bytes of a value; default: %(default)s"
    )
    parser.add_argument(
        "--warm-up-rounds", type=int, default=1, help="initial rounds that do not count"
    )
    options.add_producer_options(parser, linger_ms=0, acks="all", idempotence=True)


def refused(arguments: argparse.Namespace) -> str | None:
    """Return why this command cannot run, if so."""
    if arguments.delay < 0:
        return f"--delay must not be negative, but is {arguments.delay:g}"
    if arguments.delay and any(CASES[name].tls for name in arguments.cases):
        return "--delay needs --cases without tls: there is no relay for an encrypted listener"
    return None


def run(arguments: argparse.Namespace, session: Session) -> None:
    everyone = session.clients
    for name in arguments.cases:
        case = CASES[name]
        if case.is_async:
            session.clients = [client for client in everyone if client in _WITH_AWAIT]
        else:
            session.clients = [client for client in everyone if client not in _ASYNC_ONLY]
        title = f"{name}, {arguments.delay:g} ms away" if arguments.delay else name
        with _place(session, case, arguments.delay / 1000) as found:
            session.alternate(
                title,
                partial(_one_run, arguments, session.cluster, found, case),
                warm_up_rounds=arguments.warm_up_rounds,
            )
    session.clients = everyone


@contextmanager
def _place(session: Session, case: Case, delay: float) -> Iterator[dict[str, Any]]:
    """Start the cluster of a case; yield the settings with which its clients find it."""
    from pykaproducer.testing import KafkaCluster

    if not delay:
        with sync.place(session, "SSL" if case.tls else None, case.brokers) as (_, found):
            yield found
        return
    lent = session.cluster
    with ExitStack() as stack:
        relays = [stack.enter_context(closing(Relay())) for _ in range(case.brokers)]
        proxies = cast("list[FaultProxy]", relays)
        session.cluster = stack.enter_context(KafkaCluster(case.brokers, proxies=proxies))
        stack.callback(setattr, session, "cluster", lent)
        for relay in relays:
            relay.delay(delay)
        yield {"bootstrap_servers": session.cluster.proxied_servers}


def _one_run(
    arguments: argparse.Namespace,
    cluster: KafkaCluster,
    found: Mapping[str, Any],
    case: Case,
    client: str,
) -> Measures:
    config = {"message.timestamp.type": "LogAppendTime"} if case.style == "computing" else {}
    settings = replace(options.settings(arguments, cluster), **found)
    if case.compression is not None:
        settings = replace(settings, compression=case.compression)
    with options.fresh_topics(cluster, case.topics, case.partitions, config) as topics:
        broker = _BrokerUse(cluster, topics)
        measures = in_fresh_process(
            "benchmarks.everyday",
            {
                "client": client,
                "settings": vars(settings),
                "case": asdict(case),
                "topics": topics,
                "messages": arguments.messages,
                "size": arguments.size,
            },
            limit=_LIMIT + (arguments.messages / case.rate if case.rate else 0),
            at={"start": broker.note, "end": broker.note},
        )
        readback.check_log(cluster, topics, case.partitions, arguments.messages + _WARM_UP)
    return measures | broker.used(arguments.messages)


class _BrokerUse:
    """The processor time and the batches of the brokers, each time that it is noted."""

    def __init__(self, cluster: KafkaCluster, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._brokers = [broker.pid for broker in cluster.brokers]
        # With many topics counting takes longer than the run.
        self._topic = topics[0] if len(topics) == 1 else None
        self._cpu: list[float | None] = []
        self._batches: list[int] = []

    def note(self) -> None:
        times = [cpu_of_process(pid) for pid in self._brokers]
        known = [time for time in times if time is not None]
        self._cpu.append(sum(known) if len(known) == len(times) else None)
        if self._topic is not None:
            logs = readback.log_directories(self._cluster, self._topic)
            self._batches.append(readback.count_batches(logs))

    def used(self, messages: int) -> Measures:
        before, after = self._cpu
        cpu = None if before is None or after is None else (after - before) / messages * 1e6
        batches = (self._batches[1] - self._batches[0]) / messages if self._batches else None
        return {"broker_us": cpu, "batches": batches}


# In the fresh process


class Record:
    """When each message was sent, and when its outcome was there (nanoseconds)."""

    def __init__(self, count: int) -> None:
        self.begun = [0] * count
        self.returned = [0] * count
        self.ended = [0] * count
        #: When it was sent, by the clock on the wall, and the broker's time (ms).
        self.sent_at = [0.0] * count
        self.reports: list[Any] = [None] * count
        self.failures: list[Any] = []

    def on_delivery(self, number: int, error: Any, report: Any) -> None:
        self.ended[number] = time.perf_counter_ns()
        self.reports[number] = report
        if error is not None:
            self.failures.append(error)

    def measures(self, append_time: Callable[[Any], float] | None) -> Measures:
        """Return the percentiles; raise RunFailed if a message has failed or has no outcome."""
        if self.failures:
            raise RunFailed(f"{len(self.failures)} messages failed; first: {self.failures[0]}")
        if lost := self.ended.count(0):
            raise RunFailed(f"{lost} of {len(self.ended)} messages have no outcome")
        found = _percentiles("", self.begun, self.ended)
        if all(self.returned):
            found |= _percentiles("send_", self.begun, self.returned)
        if append_time is not None:
            # The broker's time is cut to a millisecond, on average by half of one.
            times = [append_time(report) + 0.5 for report in self.reports]
            found["in_log_ms"] = fmean(a - b for a, b in zip(times, self.sent_at, strict=True))
        return found


def _percentiles(name: str, begun: Sequence[int], ended: Sequence[int]) -> Measures:
    times = [(b - a) / 1000 for a, b in zip(begun, ended, strict=True)]
    percentiles = quantiles(times, n=100, method="inclusive")
    return {f"{name}p50_us": percentiles[49], f"{name}p99_us": percentiles[98]}


#: The messages of a thread: number, topic, value, key.
Rows = Sequence[tuple[int, str, bytes, bytes | None]]


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    case = Case(**job["case"])
    client = clients.factory(job["client"])(Settings(**job["settings"]))
    count, topics = job["messages"], cycle(job["topics"])
    values, keys = cycle(payloads.text_values(job["size"])), cycle(payloads.keys())
    rows = [
        (i, next(topics), next(values), next(keys) if case.keyed else None)
        for i in range(_WARM_UP + count)
    ]
    record = Record(count)
    with client.served():
        if case.is_async:
            usage = client.run(_in_event_loop(case, client.awaitable(), rows, record, parent))
        else:
            usage = _in_threads(case, client, rows, record, parent, job["limit"])
    client.abandon()
    (start, sleeps), (end, more), speed = usage
    used = end - start
    woken = {name: (n - sleeps.get(name, 0)) / count for name, n in more.items()}
    computing = case.style == "computing"
    return {
        **record.measures(client.append_time if computing else None),
        # A thread that computes uses a whole core by itself.
        "cpu_us": None if computing else used.cpu / count * 1e6,
        "sleeps": used.sleeps / count,
        "sleeps_by_thread": woken,
        CALIBRATION: speed,
    }


_Usage = tuple[tuple[Usage, dict[str, int]], tuple[Usage, dict[str, int]], float]


def _usage() -> tuple[Usage, dict[str, int]]:
    return Usage.now(), sleeps_of_threads()


def _in_threads(
    case: Case, client: Any, rows: Rows, record: Record, parent: Parent, limit: float
) -> _Usage:
    warm = Record(_WARM_UP)
    for number, topic, value, key in rows[:_WARM_UP]:
        client.send(topic, value, partial(warm.on_delivery, number), key)
    client.flush(limit)
    warm.measures(None)
    rows = _after_warm_up(rows)
    parent.reach("start")
    speed = calibrate()
    before, gap = _usage(), int(1e9 / case.rate)
    begin = time.perf_counter_ns() + gap
    wait = _compute_until if case.style == "computing" else _sleep_until
    threads = [
        threading.Thread(
            target=_send, args=(client.send, rows[i :: case.threads], record, begin, gap, wait)
        )
        for i in range(1, case.threads)
    ]
    for thread in threads:
        thread.start()
    _send(client.send, rows[:: case.threads], record, begin, gap, wait)
    for thread in threads:
        thread.join()
    client.flush(limit)
    after = _usage()
    speed = (speed + calibrate()) / 2
    parent.reach("end")
    return before, after, speed


def _after_warm_up(rows: Rows) -> Rows:
    return [(number - _WARM_UP, topic, value, key) for number, topic, value, key in rows[_WARM_UP:]]


def _send(
    send: Callable[..., None],
    rows: Rows,
    record: Record,
    begin: int,
    gap: int,
    wait: Callable[[int], None],
) -> None:
    now, on_delivery = time.perf_counter_ns, record.on_delivery
    begun, returned, sent_at = record.begun, record.returned, record.sent_at
    for number, topic, value, key in rows:
        wait(begin + number * gap)
        sent_at[number] = time.time() * 1000
        begun[number] = now()
        send(topic, value, partial(on_delivery, number), key)
        returned[number] = now()


def _sleep_until(due: int) -> None:
    left = due - time.perf_counter_ns()
    if left > 0:
        time.sleep(left / 1e9)


def _compute_until(due: int) -> None:
    now = time.perf_counter_ns
    while now() < due:
        pass


async def _in_event_loop(
    case: Case, send: Callable[..., Any], rows: Rows, record: Record, parent: Parent
) -> _Usage:
    await asyncio.gather(*(send(topic, value, key) for _, topic, value, key in rows[:_WARM_UP]))
    rows = _after_warm_up(rows)
    parent.reach("start")
    speed = calibrate()
    before = _usage()
    if case.style == "await":
        await _one_at_a_time(case.rate, send, rows, record)
    else:
        await _many_at_once(send, rows, record)
    after = _usage()
    speed = (speed + calibrate()) / 2
    parent.reach("end")
    return before, after, speed


async def _one_at_a_time(rate: float, send: Callable[..., Any], rows: Rows, record: Record) -> None:
    now, begin, gap = time.perf_counter_ns, time.perf_counter_ns(), 1e9 / rate
    for number, topic, value, key in rows:
        await asyncio.sleep(max(0.0, (begin + number * gap - now()) / 1e9))
        record.begun[number] = now()
        await send(topic, value, key)
        record.ended[number] = now()


async def _many_at_once(send: Callable[..., Any], rows: Rows, record: Record) -> None:
    now = time.perf_counter_ns

    async def one(number: int, topic: str, value: bytes, key: bytes | None) -> None:
        record.begun[number] = now()
        await send(topic, value, key)
        record.ended[number] = now()

    for first in range(0, len(rows), _AT_ONCE):
        await asyncio.gather(*(one(*row) for row in rows[first : first + _AT_ONCE]))

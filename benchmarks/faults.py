"""Production faults on real brokers: an outage, a failed disk, a slow link, a failover.

``outage``: all brokers are stopped for minutes while messages keep coming; the cost, the delay of
expiries, and the time until delivery resumes. ``disk``: one of a broker's two disks fails under
load. ``link``: more messages than a slow line can carry within the timeout of a request.
``failover``: the leader of a partition dies, and the producer knows thousands of partitions; also
while another thread computes. Only pykaproducer.
"""

from __future__ import annotations

import argparse
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks import options
from benchmarks.child import Parent, RunFailed
from benchmarks.process import Usage, resident
from benchmarks.report import Column
from benchmarks.runner import Measures, Session, in_fresh_process
from pykaproducer import DeliveryError, Producer
from pykaproducer.testing import FaultProxy, KafkaCluster

if TYPE_CHECKING:
    from pykaproducer import Delivery

PEERS: tuple[str, ...] = ()

HELP = "the cost of an outage, a failed disk, a slow link and a failover"

KINDS = ("outage", "disk", "link", "failover")

COLUMNS = (
    Column("delivered", "delivered", ".0f", compared=False),
    Column("failed", "failed", ".0f", compared=False),
    Column("records", "records in the log", ".0f", compared=False),
    Column("rss", "RSS above idle, MiB", ".0f", unit=2**20, compared=False),
    Column("cpu", "CPU, % of a core", ".1f", unit=0.01, compared=False),
    Column("log_lines", "log lines/min", ".1f", compared=False),
    Column("late_s", "latest expiry, s", ".3f", compared=False),
    Column("p99_s", "p99 of outcomes, s", ".2f", compared=False),
    Column("recovery_s", "recovery, s", ".2f", compared=False),
    Column("seconds", "total, s", ".1f", compared=False),
)

_PARTITIONS = 12
#: Seconds.
_READY = 30.0
_TICK = 0.001


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        action="append",
        choices=KINDS,
        metavar="KIND",
        help="run only this kind (repeatable)",
    )
    parser.add_argument(
        "--outage-seconds", type=options.positive, default=600, metavar="S", help="%(default)s"
    )
    parser.add_argument("--rate", type=options.positive, default=1000, help="messages/s")
    parser.add_argument(
        "--partitions",
        type=options.positive,
        default=10_000,
        help="partitions that the producer knows at the failover",
    )


def run(arguments: argparse.Namespace, session: Session) -> None:
    kinds = arguments.only or KINDS
    if "outage" in kinds:
        case = f"outage of {arguments.outage_seconds} s at {arguments.rate} messages/s"
        session.alternate(case, partial(_outage, arguments))
    if "disk" in kinds:
        session.alternate("a disk of one of three brokers fails", partial(_disk, arguments))
    for idempotence in (True, False):
        if "link" in kinds:
            what = "" if idempotence else ", without idempotence"
            session.alternate(f"a 1 MB/s link{what}", partial(_link, idempotence))
    for busy in (False, True):
        if "failover" in kinds:
            beside = " beside a thread that computes" if busy else ""
            session.alternate(
                f"failover with {arguments.partitions:,} partitions{beside}",
                partial(_failover, arguments.partitions, busy),
            )


def _outage(arguments: argparse.Namespace, client: str) -> Measures:
    seconds = arguments.outage_seconds
    with KafkaCluster() as cluster:
        cluster.create_topic("faults", _PARTITIONS)
        job = {
            "kind": "outage",
            "servers": cluster.bootstrap_servers,
            "seconds": seconds,
            "rate": arguments.rate,
        }
        at = {"down": lambda: cluster.kill(0), "up": lambda: cluster.restart(0)}
        return in_fresh_process("benchmarks.faults", job, limit=seconds + 180, at=at)


def _disk(arguments: argparse.Namespace, client: str) -> Measures:
    with KafkaCluster(3, disks=2) as cluster:
        cluster.create_topic("faults", _PARTITIONS, config={"min.insync.replicas": "2"})

        def fail() -> None:
            leaders = {p: cluster.leader_of("faults", p) for p in range(_PARTITIONS)}
            cluster.fail_disk(
                next(i for p, i in leaders.items() if cluster.disk_of(i, "faults", p) == 1)
            )

        job = {
            "kind": "disk",
            "servers": cluster.bootstrap_servers,
            "seconds": 30,
            "rate": arguments.rate,
        }
        measures = in_fresh_process("benchmarks.faults", job, limit=180, at={"down": fail})
        return {**measures, "records": _records(cluster)}


def _link(idempotence: bool, client: str) -> Measures:
    with FaultProxy() as proxy, KafkaCluster(proxies=[proxy]) as cluster:
        cluster.create_topic("faults", _PARTITIONS)
        job = {"kind": "link", "servers": cluster.proxied_servers, "idempotence": idempotence}
        at = {"down": lambda: proxy.throttle(1_000_000), "up": proxy.restore}
        measures = in_fresh_process("benchmarks.faults", job, limit=180, at=at)
        return {**measures, "records": _records(cluster)}


def _failover(partitions: int, busy: bool, client: str) -> Measures:
    with KafkaCluster(3) as cluster:
        # Enough partitions to know, and one to wait for.
        cluster.create_topic("faults", partitions=1, replication_factor=3)
        for number in range(-(-partitions // 1000)):
            cluster.create_topic(f"known-{number}", partitions=1000, replication_factor=1)

        def fail_over() -> None:
            leader = cluster.leader_of("faults", 0)
            cluster.kill(leader)
            while cluster.leader_of("faults", 0) == leader:
                time.sleep(_TICK)

        topics = [f"known-{number}" for number in range(-(-partitions // 1000))]
        job = {
            "kind": "failover",
            "servers": cluster.bootstrap_servers,
            "topics": topics,
            "busy": busy,
        }
        return in_fresh_process("benchmarks.faults", job, limit=300, at={"down": fail_over})


def _records(cluster: KafkaCluster) -> int:
    """Return how many records the topic's log has."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    try:
        ends = consumer.end_offsets([TopicPartition("faults", p) for p in range(_PARTITIONS)])
        return sum(ends.values())
    finally:
        consumer.close()


# In the fresh process


class Outcomes:
    """Counts outcomes; called in the Reports thread."""

    def __init__(self, partitions: int = _PARTITIONS) -> None:
        self._partitions = partitions
        self.sent = self.delivered = self.failed = 0
        self.latencies: list[float] = []
        #: When the latest message was delivered (monotonic seconds).
        self.last = 0.0

    def send(self, producer: Producer, value: bytes, partition: int) -> None:
        sent_at = time.monotonic()

        def on_delivery(error: DeliveryError | None, delivery: Delivery) -> None:
            now = time.monotonic()
            self.latencies.append(now - sent_at)
            if error is None:
                self.delivered += 1
                self.last = now
            else:
                self.failed += 1

        producer.send("faults", value, partition=partition, on_delivery=on_delivery)
        self.sent += 1

    def send_for(self, producer: Producer, seconds: float, rate: float, value: bytes) -> None:
        """Send at a steady rate."""
        begin, count = time.monotonic(), 0
        while (elapsed := time.monotonic() - begin) < seconds:
            while count < elapsed * rate:
                self.send(producer, value, count % self._partitions)
                count += 1
            time.sleep(_TICK)


class LogLines(logging.Handler):
    """Counts the library's log records from INFO on."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def measure(job: Mapping[str, Any], parent: Parent) -> Measures:
    lines = LogLines()
    logger = logging.getLogger("pykaproducer")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    kinds: dict[str, Callable[..., Measures]] = {
        "outage": measure_outage,
        "disk": measure_disk,
        "link": measure_link,
        "failover": measure_failover,
    }
    return kinds[job["kind"]](job, parent, lines)


def measure_outage(job: Mapping[str, Any], parent: Parent, lines: LogLines) -> Measures:
    timeout = 10.0
    producer = Producer(bootstrap_servers=job["servers"], delivery_timeout_ms=int(timeout * 1000))
    outcomes, value = Outcomes(), b"x" * 100
    outcomes.send_for(producer, 5.0, job["rate"], value)
    producer.flush(_READY)
    parent.reach("down")
    idle, counted, start = resident(), lines.count, Usage.now()
    before, latencies = outcomes.delivered, len(outcomes.latencies)
    outcomes.send_for(producer, job["seconds"], job["rate"], value)
    used, logged = Usage.now() - start, lines.count - counted
    above = resident() - idle
    late = max(outcomes.latencies[latencies:], default=timeout) - timeout
    # Restarting takes seconds, during which the load continues; the first outcome shows how long
    # the producer took once the broker was back.
    with _load(outcomes, producer, job["rate"], value):
        parent.reach("up")
        up = time.monotonic()
        while outcomes.last < up and time.monotonic() < up + _READY:
            time.sleep(_TICK)
        recovery = outcomes.last - up
    producer.flush(_READY)
    producer.close(_READY)
    if outcomes.delivered == before:
        raise RunFailed("nothing was delivered after the outage")
    return {
        "delivered": outcomes.delivered,
        "failed": outcomes.failed,
        # Without the benchmark's own latencies: eight bytes and an object each.
        "rss": above - 32 * (len(outcomes.latencies) - latencies),
        "cpu": used.cpu / used.wall,
        "log_lines": logged / used.wall * 60,
        "late_s": late,
        "recovery_s": max(0.0, recovery),
        "seconds": used.wall,
    }


@contextmanager
def _load(outcomes: Outcomes, producer: Producer, rate: float, value: bytes) -> Iterator[None]:
    """Keep sending in a separate thread."""
    end = threading.Event()

    def send() -> None:
        while not end.is_set():
            outcomes.send_for(producer, 0.1, rate, value)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def measure_disk(job: Mapping[str, Any], parent: Parent, lines: LogLines) -> Measures:
    producer = Producer(bootstrap_servers=job["servers"])
    outcomes, value = Outcomes(), b"x" * 1000
    outcomes.send_for(producer, 2.0, job["rate"], value)
    start = Usage.now()
    with _load(outcomes, producer, job["rate"], value):
        parent.reach("down")
        time.sleep(job["seconds"])
    producer.flush(150.0)
    used = Usage.now() - start
    producer.close(_READY)
    return _outcome(outcomes, used, lines)


def measure_link(job: Mapping[str, Any], parent: Parent, lines: LogLines) -> Measures:
    producer = Producer(
        bootstrap_servers=job["servers"],
        request_timeout_ms=5000,
        delivery_timeout_ms=60_000,
        enable_idempotence=job["idempotence"],
    )
    outcomes, value = Outcomes(), b"x" * 10_000
    outcomes.send(producer, value, 0)
    producer.flush(_READY)
    parent.reach("down")
    start = Usage.now()
    for number in range(2000):
        outcomes.send(producer, value, number % _PARTITIONS)
    producer.flush(90.0)
    used = Usage.now() - start
    parent.reach("up")
    producer.close(_READY)
    return _outcome(outcomes, used, lines)


def measure_failover(job: Mapping[str, Any], parent: Parent, lines: LogLines) -> Measures:
    producer = Producer(bootstrap_servers=job["servers"])
    outcomes, value = Outcomes(partitions=1), b"x"
    for topic in job["topics"]:
        producer.send(topic, value)
    outcomes.send(producer, value, 0)
    producer.flush(_READY)
    end = threading.Event()
    busy = threading.Thread(target=_compute, args=(end,))
    if job["busy"]:
        busy.start()
    try:
        start = Usage.now()
        with _load(outcomes, producer, 100, value):
            parent.reach("down")
            there = time.monotonic()
            while outcomes.last < there and time.monotonic() < there + 120:
                time.sleep(_TICK)
        used = Usage.now() - start
        recovery = outcomes.last - there
    finally:
        end.set()
        if job["busy"]:
            busy.join()
    producer.close(_READY)
    return {**_outcome(outcomes, used, lines), "recovery_s": recovery}


def _compute(end: threading.Event) -> None:
    while not end.is_set():
        sum(range(2000))


def _outcome(outcomes: Outcomes, used: Usage, lines: LogLines) -> Measures:
    latencies = sorted(outcomes.latencies)
    return {
        "delivered": outcomes.delivered,
        "failed": outcomes.failed,
        "p99_s": latencies[int(len(latencies) * 0.99)],
        "cpu": used.cpu / used.wall,
        "log_lines": lines.count / used.wall * 60,
        "seconds": used.wall,
    }

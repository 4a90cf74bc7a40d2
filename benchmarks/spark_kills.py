"""Spark: a worker, an executor, the driver or a broker is killed in the middle of a write.

Each case writes a batch, or a stream with several micro-batches, exactly once. The application
pauses at a named point of the protocol (see :mod:`pykaproducer._exactly_once.points`), and this
program kills the process. It restarts a driver that it has killed, with the same number of tasks or
another one. Then a reader of committed messages must see each row once, and no transaction may be
open.

With ``--at-least-once`` there are no points: the process is killed when half of the rows are in the
log, and each row must be there at least once.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import machine, options
from benchmarks.child import RunFailed
from benchmarks.peers import Unavailable, spark, spark_usage

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

HELP = "kills of each process of a Spark write, and an audit of its rows"

KINDS = ("batch", "stream")
VICTIMS = ("worker", "executor", "driver", "broker")
TASK_POINTS = ("read", "initialized", "rows", "sent", "marked", "prepared")
DRIVER_POINTS = (
    "driver-initialized",
    "driver-read",
    "checked",
    "written",
    "decided",
    "ended",
    "completed",
    "swept",
)
#: A stream's files: one for each micro-batch. The first of them is written before the kill.
_FILES = 4
_PARTITIONS = 4
_TASKS = 2
#: How long an application may take to its point, and to its end (seconds).
_ARRIVAL, _END = 600.0, 600.0
#: How long a reader waits for the next records before the end of the log (seconds).
_PATIENCE = 60.0
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class Case:
    """A write, and the process that is killed in it."""

    kind: str
    victim: str
    #: The point at which it pauses; None with ``--at-least-once``.
    point: str | None
    #: Whether the restarted driver has another number of tasks.
    other_layout: bool = False

    def __str__(self) -> str:
        where = f" at {self.point}" if self.point else ""
        return f"{self.kind}: {self.victim}{where}" + ", other layout" * self.other_layout


@dataclass(frozen=True)
class Result:
    """What a reader found after a case."""

    case: Case
    rows: int
    lost: int
    doubled: int
    #: Partitions whose last stable offset is before their end.
    hanging: int
    seconds: float
    failure: str | None = None

    def is_good(self, *, once: bool) -> bool:
        """Return whether the guarantee holds."""
        return not (self.failure or self.lost or self.hanging or (once and self.doubled))


def cases(*, once: bool) -> Iterator[Case]:
    """Yield all cases."""
    if not once:
        yield from (Case(kind, victim, None) for kind in KINDS for victim in VICTIMS)
        return
    for kind in KINDS:
        yield from (Case(kind, "worker", point) for point in TASK_POINTS)
        yield from (Case(kind, "executor", point) for point in ("rows", "prepared"))
        for point in ("rows", "prepared", "checked", "written", "ended"):
            yield Case(kind, "broker", point)
        for other in (False, True):
            for point in (*TASK_POINTS, *DRIVER_POINTS):
                yield Case(kind, "driver", point, other)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=options.positive, default=400_000, help="%(default)s")
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--victim", choices=VICTIMS, nargs="+", default=list(VICTIMS))
    parser.add_argument(
        "--point", choices=(*TASK_POINTS, *DRIVER_POINTS), nargs="+", metavar="POINT"
    )
    parser.add_argument("--at-least-once", action="store_true", help="without exactlyOnce")
    parser.add_argument("--tv1", action="store_true", help="the protocol before KIP-890")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Reject arguments that argparse cannot check."""
    if arguments.at_least_once and arguments.point:
        parser.error("--point has no meaning with --at-least-once")
    try:
        spark.prepare([spark.OURS])
    except Unavailable as error:
        parser.error(str(error))


def run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run the cases, print the results, and return the exit status."""
    from pykaproducer.testing import KafkaCluster

    once = not arguments.at_least_once
    chosen = [
        case
        for case in cases(once=once)
        if case.kind in arguments.kind
        and case.victim in arguments.victim
        and (arguments.point is None or case.point in arguments.point)
    ]
    results: list[Result] = []
    features = {"transaction.version": 0} if arguments.tv1 else {}
    with KafkaCluster(features=features, fast_start=True) as cluster:
        for number, case in enumerate(chosen):
            results.append(_play(case, cluster, f"kills-{number}", arguments.rows, once=once))
            print(_line(results[-1], once=once), flush=True)
            if arguments.json is not None:
                _write_json(arguments.json, words, results)
    bad = sum(not result.is_good(once=once) for result in results)
    lost, doubled = (sum(getattr(each, name) for each in results) for name in ("lost", "doubled"))
    print(
        f"\n{len(results)} cases of {arguments.rows:,} rows: {lost:,} lost, {doubled:,} doubled, "
        f"{bad} cases failed"
    )
    return 1 if bad else 0


def _line(result: Result, *, once: bool) -> str:
    verdict = "ok" if result.is_good(once=once) else "FAILED"
    line = (
        f"{verdict:<7}{result.case!s:<52}{result.lost:>8,} lost {result.doubled:>8,} doubled"
        f"{result.hanging:>3} hanging {result.seconds:>6.1f} s"
    )
    return line if result.failure is None else f"{line}\n{result.failure}"


def _write_json(path: Path, words: Sequence[str], results: Sequence[Result]) -> None:
    found = machine.describe(["python", "-m", "benchmarks", *words], [spark.OURS])
    found["results"] = [asdict(result) for result in results]
    path.write_text(json.dumps(found, indent=1) + "\n")


# A case


def _play(case: Case, cluster: KafkaCluster, topic: str, rows: int, *, once: bool) -> Result:
    begin = time.monotonic()
    result = Result(case, rows, 0, 0, 0, 0.0)
    cluster.create_topic(topic, partitions=_PARTITIONS)
    with tempfile.TemporaryDirectory(
        prefix="pykaproducer-kills-", ignore_cleanup_errors=True
    ) as name:
        write = _Write(case, cluster, topic, rows, Path(name), once=once)
        try:
            write.play()
            lost, doubled, hanging = _audit(cluster, topic, rows)
        except RunFailed as error:
            result = replace(result, failure=str(error))
        else:
            result = replace(result, lost=lost, doubled=doubled, hanging=hanging)
    cluster.delete_topic(topic)
    return replace(result, seconds=time.monotonic() - begin)


class _Write:
    """A write that is killed, and restarted if its driver was killed."""

    def __init__(
        self,
        case: Case,
        cluster: KafkaCluster,
        topic: str,
        rows: int,
        directory: Path,
        *,
        once: bool,
    ) -> None:
        self._case = case
        self._cluster = cluster
        self._topic = topic
        self._rows = rows
        self._directory = directory
        self._once = once
        self._pipe = directory / "pause"
        if case.kind == "stream":
            self._make_files()

    def play(self) -> None:
        """Write all rows, and kill a process in between.

        Raises:
            RunFailed: the application failed, or took too long.
        """
        with self._application(_TASKS, killed=True) as running:
            pid = self._arrival(running)
            self._kill(running, pid)
            if self._case.victim != "driver":
                self._end(running)
                return
        with self._application(_TASKS + self._case.other_layout, killed=False) as running:
            self._end(running)

    def _make_files(self) -> None:
        each = self._rows // _FILES
        for number in range(_FILES):
            # At least once, half of the rows are in the log before the kill; see _arrival().
            folder = self._directory / ("in" if number == 0 or not self._once else "later")
            folder.mkdir(exist_ok=True)
            first = number * each
            last = self._rows if number == _FILES - 1 else first + each
            folder.joinpath(str(number)).write_text(
                "".join(f"{row}\n" for row in range(first, last))
            )

    @contextmanager
    def _application(self, tasks: int, *, killed: bool) -> Iterator[subprocess.Popen[bytes]]:
        """Yield a running application. Kill it and all its processes at the end."""
        settings = {"kafka.bootstrap.servers": self._cluster.bootstrap_servers}
        settings["topic"] = self._topic
        if self._once:
            settings |= {"exactlyOnce": "true", "transactionalIdPrefix": self._topic}
            if self._case.kind == "batch":
                settings["writeId"] = "write"
        small_cluster = self._case.victim in ("worker", "executor")
        job = {
            "kind": self._case.kind,
            "rows": self._rows,
            "tasks": tasks,
            "master": "local-cluster[2,1,1024]" if small_cluster else f"local[{tasks},4]",
            "directory": str(self._directory),
            "options": settings,
            "first": killed and self._once,
            "pipe": str(self._pipe) if killed and self._once else None,
        }
        environment = spark.environment(str(self._directory))
        if killed and self._once:
            task, attempt = ("1", "0") if self._case.point in TASK_POINTS else ("*", "*")
            environment["PYKA_FAULT"] = f"{self._case.point}:{task}:{attempt}:pause:{self._pipe}"
        with open(self._directory / "log", "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "benchmarks.peers.spark_kill_app", json.dumps(job)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            _kill_all(process)

    def _arrival(self, running: subprocess.Popen[bytes]) -> int:
        """Wait until a process has arrived at the point, and return its process id."""
        deadline = time.monotonic() + _ARRIVAL
        if not self._once:
            while _size_of_log(self._cluster, self._topic) < self._rows // 2:
                self._check(running, deadline)
                time.sleep(0.01)
            return _a_worker(running.pid)
        while not self._pipe.exists():
            self._check(running, deadline)
            time.sleep(0.05)
        reader = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while not select.select([reader], [], [], 1.0)[0]:
                self._check(running, deadline)
            # A later process that arrives at the point does not pause.
            self._pipe.unlink()
            os.set_blocking(reader, True)
            return int(os.read(reader, 32))
        finally:
            os.close(reader)

    def _check(self, running: subprocess.Popen[bytes], deadline: float) -> None:
        if running.poll() is not None:
            raise RunFailed(f"ended with status {running.returncode}:\n{self._words()}")
        if time.monotonic() > deadline:
            raise RunFailed(f"did not arrive in {_ARRIVAL:.0f} s:\n{self._words()}")

    def _kill(self, running: subprocess.Popen[bytes], pid: int) -> None:
        victims: dict[str, Callable[[], object]] = {
            "worker": lambda: os.kill(pid, signal.SIGKILL),
            "executor": lambda: os.kill(_executor_of(pid), signal.SIGKILL),
            "driver": lambda: _kill_all(running),
            "broker": lambda: self._cluster.kill(0),
        }
        victims[self._case.victim]()
        if self._case.victim == "broker":
            if self._once:
                Path(f"{self._pipe}-done").write_text("continue")
            self._cluster.restart(0)

    def _end(self, running: subprocess.Popen[bytes]) -> None:
        try:
            status = running.wait(_END)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"no end in {_END:.0f} s:\n{self._words()}") from None
        if status != 0:
            raise RunFailed(f"ended with status {status}:\n{self._words()}")

    def _words(self) -> str:
        return (self._directory / "log").read_text()[-4000:]


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill an application with its JVM, its executors and its Python processes."""
    found = [each.pid for each in spark_usage.below(process.pid, spark_usage.running())]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _executor_of(pid: int) -> int:
    """Return the executor of a Python worker, which a daemon has forked."""
    processes = {each.pid: each for each in spark_usage.running()}
    while _EXECUTOR not in processes[pid].command:
        pid = processes[pid].parent
    return pid


def _a_worker(root: int) -> int:
    """Return a Python worker of an application."""
    processes = list(spark_usage.below(root, spark_usage.running()))
    workers = {each.pid for each in processes if each.command[-1] == spark_usage.WORKERS}
    for each in processes:
        if each.pid in workers and each.parent in workers:
            return each.pid
    raise RunFailed("no Python worker is running")


# The audit


def _size_of_log(cluster: KafkaCluster, topic: str) -> int:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    try:
        return sum(
            consumer.end_offsets([TopicPartition(topic, i) for i in range(_PARTITIONS)]).values()
        )
    finally:
        consumer.close()


def _audit(cluster: KafkaCluster, topic: str, rows: int) -> tuple[int, int, int]:
    """Read all committed rows. Return those lost, those doubled, and the hanging partitions."""
    from kafka import KafkaConsumer, TopicPartition

    counts = bytearray(rows)
    places = [TopicPartition(topic, partition) for partition in range(_PARTITIONS)]
    consumer, plain = (
        KafkaConsumer(
            bootstrap_servers=cluster.bootstrap_servers,
            isolation_level=level,
            enable_auto_commit=False,
            max_poll_records=5000,
            max_partition_fetch_bytes=4 * 1024 * 1024,
        )
        for level in ("read_committed", "read_uncommitted")
    )
    try:
        consumer.assign(places)
        stable, ends = consumer.end_offsets(places), plain.end_offsets(places)
        consumer.seek_to_beginning(*places)
        deadline = time.monotonic() + _PATIENCE
        while any(consumer.position(place) < stable[place] for place in places):
            for records in consumer.poll(1000).values():
                for record in records:
                    number = int(record.value)
                    counts[number] = min(counts[number] + 1, 255)
                deadline = time.monotonic() + _PATIENCE
            if time.monotonic() > deadline:
                raise RunFailed(f"the end of the log was not reached: {stable}")
    finally:
        consumer.close()
        plain.close()
    hanging = sum(stable[place] < ends[place] for place in places)
    return counts.count(0), sum(max(each - 1, 0) for each in counts), hanging

"""Runs in fresh processes, in turn.

A :class:`Session` runs every client in every round, each run in a separate process, and reverses
the order from one round to the next: a drift (a broker that warms up, other work on the machine)
affects all clients alike. Ratios are taken within a round, between neighbouring runs.

The fresh process imports this module too, with the benchmark that it runs. So nothing here, nor in
a benchmark, imports pykaproducer at the top: a peer must not include our memory and import time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from benchmarks.child import RunFailed
from benchmarks.neighbours import Watch
from benchmarks.process import calibrate

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

#: The result of a measurement; numbers are summarised, text is kept unchanged.
Measures = dict[str, Any]

#: The measure of the machine's speed: the same work in each run.
CALIBRATION = "calibration_ns"

#: The number of lines of a failed process's output that are shown.
_LAST_LINES = 25

#: The seconds in which a process that has taken too long can print its tracebacks.
_LAST_WORDS = 5.0


@dataclass(frozen=True)
class Run:
    """One fresh process and its result."""

    case: str
    client: str
    #: From 1; zero and below: a warm-up that does not count.
    round: int
    measures: Measures = field(default_factory=dict)
    failure: str | None = None
    #: The cores that neither the client nor the broker used; None if unknown.
    other_cores: float | None = None

    @property
    def name(self) -> str:
        return f"round {self.round}" if self.round > 0 else "warm-up round"


class Session:
    """One call of ``python -m benchmarks``: the clients, the cluster, and all runs so far."""

    def __init__(self, clients: Sequence[str], rounds: int, cluster: KafkaCluster) -> None:
        self.clients = clients
        self.rounds = rounds
        #: Started by the benchmarks that need it: ``with session.cluster``.
        self.cluster = cluster
        self.runs: list[Run] = []

    def alternate(
        self, case: str, measure: Callable[[str], Measures], *, warm_up_rounds: int = 0
    ) -> None:
        """Run *measure(client)* for all clients, in turn, round by round."""
        for number in range(1 - warm_up_rounds, self.rounds + 1):
            for client in self.clients if number % 2 else reversed(self.clients):
                run = self._run(case, client, number, measure)
                self.runs.append(run)
                print(_describe(run), file=sys.stderr)

    def _run(self, case: str, client: str, number: int, measure: Callable[[str], Measures]) -> Run:
        measures: Measures = {}
        failure = None
        watch = Watch(self._broker_processes())
        try:
            measures = measure(client)
        except RunFailed as error:
            failure = str(error)
        return Run(case, client, number, measures, failure, watch.other_cores())

    def _broker_processes(self) -> list[int]:
        from pykaproducer.testing import ClusterError

        try:
            return [broker.pid for broker in self.cluster.brokers]
        except ClusterError:
            # This benchmark needs no broker.
            return []


def in_fresh_process(
    module: str,
    job: Mapping[str, Any],
    *,
    limit: float,
    at: Mapping[str, Callable[[], object]] | None = None,
) -> Measures:
    """Call ``module.measure(job, parent)`` in a new process; :class:`RunFailed` if it fails.

    *at* maps each point that the measurement reaches (``parent.reach(name)``) to an action here.
    A process that takes longer than *limit* seconds ends with the tracebacks of its threads.
    """
    text = json.dumps({**job, "limit": limit})
    # -P and this path: the child imports exactly what this process would, wherever it runs.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", "benchmarks.child", module, text]
    return _measured(command, environment, at or {}, limit, _LAST_WORDS)


def in_program(
    command: Sequence[str], *, limit: float, environment: Mapping[str, str] = os.environ
) -> Measures:
    """Run a program that is not Python and uses the protocol of :mod:`benchmarks.child`."""
    return calibrated(lambda: _measured(command, environment, {}, limit, 0.0))


def calibrated(run: Callable[[], Measures]) -> Measures:
    """Measure the machine's speed around a *run* of a program that cannot do so itself."""
    before = calibrate()
    measures = run()
    return {**measures, CALIBRATION: (before + calibrate()) / 2}


def _measured(
    command: Sequence[str],
    environment: Mapping[str, str],
    at: Mapping[str, Callable[[], object]],
    limit: float,
    patience: float,
) -> Measures:
    """Run the command; it gets *patience* seconds after *limit* to end with its own message."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with watched(process, limit + patience) as overdue:
            answer = _attend(process, at)
        errors.seek(0)
        if "failed" in answer:
            raise RunFailed(answer["failed"])
        if "measures" not in answer or process.returncode != 0:
            text = errors.read()
            raise RunFailed(_reason(process.returncode, text, limit, overdue.is_set()))
    measures: Measures = answer["measures"]
    return measures


@contextmanager
def watched(process: subprocess.Popen[str], limit: float) -> Iterator[threading.Event]:
    """End *process* after *limit* seconds, or at the end of the block.

    The event is set if the time was exceeded. The process then gets SIGQUIT, to which Go and Java
    respond with a thread dump, before it is killed.
    """
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        process.send_signal(signal.SIGQUIT)
        try:
            process.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            process.kill()

    timer = threading.Timer(limit, end)
    timer.start()
    try:
        with process:
            try:
                yield overdue
                process.wait()
            finally:
                process.kill()
    finally:
        timer.cancel()
        timer.join()


def _attend(
    process: subprocess.Popen[str], at: Mapping[str, Callable[[], object]]
) -> Mapping[str, Any]:
    """Answer the child until it has ended, and return its last object."""
    commands, answers = _pipe(process.stdin), _pipe(process.stdout)
    answer: Mapping[str, Any] = {}
    for line in answers:
        answer = json.loads(line)
        if "at" in answer:
            at[answer["at"]]()
            commands.write("\n")
            commands.flush()
    return answer


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _reason(status: int | None, errors: str, limit: float, overdue: bool) -> str:
    lines = errors.strip().splitlines()
    if overdue or any(line.startswith("Timeout (") for line in lines):
        return f"no end within {limit:.0f} s; tracebacks of its threads:\n{errors}"
    expected = "benchmarks.child.RunFailed: "
    if lines and lines[-1].startswith(expected):
        return lines[-1].removeprefix(expected)
    return f"the process ended with status {status}:\n{last_of(errors)}"


def last_of(text: str) -> str:
    """Return the end of a process's output, which contains the reason of the failure."""
    lines = text.strip().splitlines()
    return "\n".join(["...", *lines[-_LAST_LINES:]] if len(lines) > _LAST_LINES else lines)


def _describe(run: Run) -> str:
    """Return a line that shows the progress."""
    if run.failure is not None:
        return f"{run.case}, {run.name}, {run.client}: FAILED: {run.failure}"
    figures = (
        f"{name} {value:.4g}"
        for name, value in run.measures.items()
        if isinstance(value, (int, float))
    )
    return f"{run.case}, {run.name}, {run.client}: {', '.join(figures)}"

"""Fresh processes, taken in turns.

A :class:`Session` runs every client in every round, each run in a process of its own, and turns
the order round from one round to the next: whatever drifts (a broker that warms up, a neighbour
on the machine) meets both. Ratios are taken within a round, between runs that are neighbours.

The fresh process imports this module too, with the benchmark that it runs. So nothing here, nor in
a benchmark, imports pykaproducer at the top: a peer must not carry our memory and our import time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from benchmarks.child import RunFailed
from benchmarks.neighbours import Watch

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

#: What a measurement returns; numbers are summed up, text is kept as it is.
Measures = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One fresh process and what came of it."""

    case: str
    client: str
    #: From 1; zero and below: a warm-up that does not count.
    round: int
    measures: Measures = field(default_factory=dict)
    failure: str | None = None
    #: Cores that neither the client nor the broker kept busy meanwhile; None if nobody knows.
    other_cores: float | None = None

    @property
    def name(self) -> str:
        return f"round {self.round}" if self.round > 0 else "warm-up round"


class Session:
    """One call of ``python -m benchmarks``: the clients, the cluster, and all runs so far."""

    def __init__(self, clients: Sequence[str], rounds: int, cluster: KafkaCluster) -> None:
        self.clients = clients
        self.rounds = rounds
        #: Started by those who need it: ``with session.cluster``.
        self.cluster = cluster
        self.runs: list[Run] = []

    def alternate(
        self, case: str, measure: Callable[[str], Measures], *, warm_up_rounds: int = 0
    ) -> None:
        """Run *measure(client)* for all clients, in turns, round by round."""
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

    *at* says what to do here when the measurement has reached a point (``parent.reach(name)``).
    A process that takes longer than *limit* seconds ends with the tracebacks of its threads.
    """
    text = json.dumps({**job, "limit": limit})
    # -P and this path: the child imports exactly what this process would, wherever it runs.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchmarks.child", module, text],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with process:
            try:
                measures = _attend(process, at or {})
                process.wait()
            finally:
                process.kill()
        errors.seek(0)
        if measures is None or process.returncode != 0:
            raise RunFailed(_reason(process.returncode, errors.read(), limit))
    return measures


def _attend(
    process: subprocess.Popen[str], at: Mapping[str, Callable[[], object]]
) -> Measures | None:
    """Answer the child until it has ended; its measures, if it gave any."""
    commands, answers = _pipe(process.stdin), _pipe(process.stdout)
    measures: Measures | None = None
    for line in answers:
        answer = json.loads(line)
        if "at" in answer:
            at[answer["at"]]()
            commands.write("\n")
            commands.flush()
        else:
            measures = answer["measures"]
    return measures


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _reason(status: int | None, errors: str, limit: float) -> str:
    lines = errors.strip().splitlines()
    if any(line.startswith("Timeout (") for line in lines):
        return f"no end within {limit:.0f} s; its threads stood here:\n{errors}"
    expected = "benchmarks.child.RunFailed: "
    if lines and lines[-1].startswith(expected):
        return lines[-1].removeprefix(expected)
    return f"the process ended with status {status}:\n{errors}"


def _describe(run: Run) -> str:
    """One line that shows how it goes on."""
    if run.failure is not None:
        return f"{run.case}, {run.name}, {run.client}: FAILED: {run.failure}"
    figures = (
        f"{name} {value:.4g}"
        for name, value in run.measures.items()
        if isinstance(value, (int, float))
    )
    return f"{run.case}, {run.name}, {run.client}: {', '.join(figures)}"

"""An act with messages that are independent of each other."""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.child import RunFailed
from benchmarks.runner import Measures, in_fresh_process
from chaos import ledger, load
from chaos.acts import HAPPENED, Act
from chaos.audit import Defect, audit
from chaos.faults import KINDS, Faults
from chaos.producers import Settings
from chaos.readback import LogUnreadable, read
from chaos.stage import TOPIC, Stage, raised, wait_for

#: How long one fault, including recovery, may take before the run is considered hung (seconds).
_SLOWEST_FAULT = 180
#: How long connections may outlive the process that made them (seconds).
_DRAIN = 30.0


def play(act: Act, arguments: argparse.Namespace, count: int | None, seconds: float | None) -> None:
    """Play *act* until *count* faults had an effect, or for so many *seconds*."""
    until = None if seconds is None else time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name, raised(TOPIC, arguments.partitions) as stage:
        directory = Path(name)
        with ledger.watching(directory, stage.partitions) as counters:
            faults = Faults(stage, counters, act.seed)

            def strike() -> None:
                kinds = arguments.only or KINDS
                act.strike(faults, kinds, count=count, until=until, stuck_as=Defect.STUCK)

            try:
                job = _job(arguments, stage, directory)
                limit = 60 + (seconds or 0) + (count or 1) * _SLOWEST_FAULT
                measures = in_fresh_process(
                    "chaos.load", job, limit=limit, at={load.UNDER_LOAD: strike}
                )
                act.tables["transitions of the ordering machines"] = measures.pop("transitions")
                act.tables["exercised"] = measures.pop("exercised") | {
                    "most requests seen unanswered at a broker": faults.deepest
                }
                act.tables[HAPPENED] = measures
                _check_what_is_left(act, measures, stage)
                logs = read(stage)
            except (RunFailed, LogUnreadable) as error:
                act.findings.add(Defect.FAILED, str(error))
            else:
                measures["messages in the log"] = sum(map(len, logs.values()))
                messages = ledger.messages(directory, faults.stopped)
                act.findings |= audit(messages, logs, job["settings"]["delivery_timeout"])


def _job(arguments: argparse.Namespace, stage: Stage, directory: Path) -> dict[str, Any]:
    settings = Settings(
        bootstrap_servers=stage.cluster.proxied_servers,
        topic=stage.topic,
        delivery_timeout=8.0,
        request_timeout=3.0,
        acks=arguments.acks,
        idempotence=not arguments.no_idempotence,
        in_flight=arguments.in_flight,
        stage_threads=arguments.stage_threads,
        waiting=arguments.waiting,
    )
    return {
        "client": arguments.producer,
        "settings": asdict(settings),
        "directory": str(directory),
        "rate": arguments.rate,
        "size": arguments.size,
        "partitions": stage.partitions,
        "producers": arguments.producers,
    }


def _check_what_is_left(act: Act, measures: Measures, stage: Stage) -> None:
    """Check after close() that no thread or socket is left, and wait for the proxies to drain."""
    for defect, key in (
        (Defect.THREAD_LEFT, "threads left"),
        (Defect.SOCKET_LEFT, "sockets left"),
    ):
        if measures[key]:
            act.findings.add(defect, f"{measures[key]} after close()", measures[key])
    # Data that a client has given up may still be in a proxy: the log is read after it has passed.
    wait_for(lambda: not any(proxy.connections for proxy in stage.proxies), _DRAIN)
    stage.wait_until_in_sync()


def allowed(arguments: argparse.Namespace) -> set[Defect]:
    """Return the defects that the settings allow: they are printed, but do not count."""
    found = set()
    if arguments.no_idempotence:
        # A batch whose answer was lost is retried, and the broker cannot recognise it.
        found.add(Defect.DOUBLED)
    if arguments.acks == "1":
        # Only the leader has confirmed it; the next leader may never have received it.
        found.add(Defect.LOST)
    return found

"""An act with messages that are independent of each other."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.child import RunFailed
from benchmarks.runner import Measures, in_fresh_process
from chaos import altered, ledger, load, secured
from chaos.acts import HAPPENED, Act
from chaos.audit import Defect, audit
from chaos.faults import KINDS, Faults
from chaos.producers import REFUSED, Settings
from chaos.readback import LogUnreadable, read
from chaos.secured import SecuredProxy
from chaos.stage import TOPIC, Stage, raised, wait_for
from pykaproducer.testing import FaultProxy

#: How long one fault, including recovery, may take before the run is considered hung (seconds).
_SLOWEST_FAULT = 180
#: How long connections may outlive the process that made them (seconds).
_DRAIN = 30.0


def play(act: Act, arguments: argparse.Namespace, count: int | None, seconds: float | None) -> None:
    """Play *act* until *count* faults had an effect, or for so many *seconds*."""
    until = None if seconds is None else time.monotonic() + seconds
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tls: dict[str, str] = {}
        proxy: Callable[[], FaultProxy] = FaultProxy
        if arguments.tls:
            context, files = secured.issue(directory)
            tls, proxy = secured.write(directory, files), partial(SecuredProxy, context)
        stage = stack.enter_context(raised(TOPIC, arguments.partitions, proxy=proxy))
        if arguments.refused_topic:
            stage.cluster.create_topic(REFUSED, stage.partitions + 1)
            for each in stage.proxies:
                each.alter(altered.PRODUCE, altered.refused(REFUSED))
        numbers = stage.partitions + arguments.refused_topic
        with ledger.watching(directory, numbers) as counters:
            faults = Faults(stage, counters, act.seed, directory)

            def strike() -> None:
                kinds = arguments.only or kinds_for(arguments)
                act.strike(faults, kinds, count=count, until=until, stuck_as=Defect.STUCK)

            try:
                job = _job(arguments, stage, directory) | {"partitions": numbers}
                job["settings"]["tls"] = tls
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


def kinds_for(arguments: argparse.Namespace) -> list[str]:
    """Return the kinds of faults that can happen with these options."""
    absent = set()
    if not arguments.tls:
        absent.add("renewed files")
    if arguments.producer != "pykaproducer" or arguments.waiting or find_spec("_testcapi") is None:
        absent.add("no memory")
    return [kind for kind in KINDS if kind not in absent]


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
        partitions=stage.partitions,
    )
    return {
        "client": arguments.producer,
        "settings": asdict(settings),
        "directory": str(directory),
        "rate": arguments.rate,
        "size": arguments.size,
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

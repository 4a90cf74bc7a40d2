"""An act with transactions, and the options that only they have."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.options import positive
from chaos.acts import HAPPENED, Act
from chaos.readback import LogUnreadable
from chaos.stage import BROKERS, Stage, raised, wait_for
from chaos.transactions.audit import (
    Entry,
    Evidence,
    Log,
    Stop,
    TransactionDefect,
    audit,
    running_time,
)
from chaos.transactions.clients import CLIENTS, TransactionSettings
from chaos.transactions.faults import TransactionFaults, kinds_for
from chaos.transactions.history import Instance, Reported, instances
from chaos.transactions.instances import Line
from chaos.transactions.readback import committed_offsets, read
from chaos.transactions.skipped import skipped_markers
from chaos.transactions.watch import WatchedProxy
from pykaproducer.testing import ClusterError

#: The directory of the brokers' logs.
_LOGS = "brokers"
TOPIC, INPUTS, GROUP = "chaos", "chaos-inputs", "chaos-group"
PARTITIONS = 8

_TRANSACTION_TIMEOUT, _DELIVERY_TIMEOUT = 5.0, 4.0
_REQUEST_TIMEOUT, _MAX_BLOCK = 1.5, 3.0
#: How long a transaction may stay open after all timeouts (seconds).
_HANGING = 30.0
_DRAIN = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("transactions")
    group.add_argument(
        "--transactions", action="store_true", help="a load of transactions, and their faults"
    )
    group.add_argument(
        "--tv1", action="store_true", help="the protocol of transactions before KIP-890"
    )
    group.add_argument(
        "--group", action="store_true", help="commit offsets of a group in each transaction"
    )
    group.add_argument(
        "--instances",
        type=positive,
        default=1,
        metavar="N",
        help="transactional ids, with a process each; default: %(default)s",
    )
    group.add_argument(
        "--brokers",
        type=int,
        choices=(1, BROKERS),
        default=BROKERS,
        help="1: without the faults that need several, and faster; default: %(default)s",
    )
    group.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep what the processes under load have written"
    )


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Reject arguments that argparse cannot check."""
    if not arguments.transactions:
        for name in ("tv1", "group", "keep"):
            if getattr(arguments, name):
                parser.error(f"--{name} needs --transactions")
        if arguments.instances != 1 or arguments.brokers != BROKERS:
            parser.error("--instances and --brokers need --transactions")
        return
    if arguments.producer not in CLIENTS:
        parser.error(f"--transactions supports {', '.join(CLIENTS)}, not {arguments.producer}")
    if arguments.group and arguments.instances > 1:
        parser.error("--group needs --instances 1: two processes would read the same inputs")
    possible = _kinds(arguments)
    for kind in arguments.only or ():
        if kind not in possible:
            parser.error(f"--only {kind!r} cannot happen with these options")


def _kinds(arguments: argparse.Namespace) -> list[str]:
    return kinds_for(
        arguments.producer, brokers=arguments.brokers, tv1=arguments.tv1, group=arguments.group
    )


def allowed(arguments: argparse.Namespace) -> set[TransactionDefect]:
    """Return the defects that are not held against the client."""
    return {TransactionDefect.BROKERS}


def play(act: Act, arguments: argparse.Namespace, count: int | None, seconds: float | None) -> None:
    """Play *act* until *count* faults had an effect, or for so many *seconds*."""
    begin = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if arguments.keep is not None:
            directory = arguments.keep / f"seed-{act.seed}"
            directory.mkdir(parents=True)
        properties = {
            # The coordinator looks often for transactions that have timed out.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            "transaction.state.log.min.isr": str(min(2, arguments.brokers)),
        }
        features = {"transaction.version": 0} if arguments.tv1 else {}
        stage = stack.enter_context(
            raised(
                TOPIC,
                PARTITIONS,
                brokers=arguments.brokers,
                proxy=WatchedProxy,
                properties=properties,
                features=features,
                log_dir=directory / _LOGS,
            )
        )
        stage.cluster.create_topic(INPUTS, PARTITIONS)
        until = None if seconds is None else time.monotonic() + seconds
        _perform(act, arguments, stage, directory, count, until, begin)


def _perform(
    act: Act,
    arguments: argparse.Namespace,
    stage: Stage,
    directory: Path,
    count: int | None,
    until: float | None,
    begin: float,
) -> None:
    lines: list[Line] = []
    ended = False
    try:
        for i in range(arguments.instances):
            job = _job(arguments, act.seed, stage, directory, f"chaos-{i}")
            lines.append(Line(job, directory))
        faults = TransactionFaults(
            stage,
            lines,
            act.seed,
            client=arguments.producer,
            tv1=arguments.tv1,
            group=GROUP if arguments.group else None,
            timeout=_TRANSACTION_TIMEOUT,
        )
        kinds = arguments.only or _kinds(arguments)
        act.strike(faults, kinds, count=count, until=until, stuck_as=TransactionDefect.STUCK)
        for line in lines:
            line.end()
        ended = True
        act.tables["killed at"] = Counter(sorted(faults.deaths))
        wait_for(lambda: not any(proxy.connections for proxy in stage.proxies), _DRAIN)
        stage.wait_until_in_sync()
        for line in lines:
            for running in line.processes:
                if running.failure is not None:
                    act.findings.add(TransactionDefect.FAILED, running.failure)
        _audit(act, arguments, stage, directory, faults, begin)
    except (LogUnreadable, ClusterError) as error:
        act.findings.add(TransactionDefect.FAILED, str(error))
    finally:
        if not ended:
            for line in lines:
                line.kill_all()


def _job(
    arguments: argparse.Namespace, seed: int, stage: Stage, directory: Path, name: str
) -> dict[str, Any]:
    settings = TransactionSettings(
        bootstrap_servers=stage.cluster.proxied_servers,
        transactional_id=name,
        topic=TOPIC,
        input_topic=INPUTS,
        group=GROUP,
        transaction_timeout=_TRANSACTION_TIMEOUT,
        delivery_timeout=_DELIVERY_TIMEOUT,
        request_timeout=_REQUEST_TIMEOUT,
        max_block=_MAX_BLOCK,
    )
    return {
        "client": arguments.producer,
        "settings": asdict(settings),
        "directory": str(directory),
        "seed": seed,
        "rate": arguments.rate,
        "size": arguments.size,
        "partitions": PARTITIONS,
        "group": arguments.group,
        "ports": [broker.port for broker in stage.cluster.brokers],
    }


def _audit(
    act: Act,
    arguments: argparse.Namespace,
    stage: Stage,
    directory: Path,
    faults: TransactionFaults,
    begin: float,
) -> None:
    found = instances(directory)
    logs = read(stage, _TRANSACTION_TIMEOUT + _HANGING)
    if arguments.keep is not None:
        _dump(logs, directory)
    offsets = {}
    if arguments.group:
        ports = [broker.port for broker in stage.cluster.brokers]
        offsets = committed_offsets(ports, GROUP, INPUTS, PARTITIONS)
    ours = arguments.producer == "pykaproducer"
    evidence = Evidence(
        found,
        logs,
        offsets,
        group=arguments.group,
        delivery_timeout=_DELIVERY_TIMEOUT if ours else None,
        has_status=ours,
        stopped=faults.stops,
        silent=[
            *faults.silent,
            *(window for proxy in stage.proxies for window in proxy.silent),  # type: ignore[attr-defined]
        ],
        skipped=skipped_markers((directory / _LOGS).glob("*.log"), TOPIC, begin),
    )
    act.findings |= audit(evidence)
    happened = act.tables[HAPPENED] = _happened(found)
    happened["markers skipped by brokers"] = len(evidence.skipped)
    happened["messages in the log"] = sum(
        isinstance(each, Entry) for log in logs.values() for each in log.raw
    )
    happened["messages readable"] = sum(len(log.readable) for log in logs.values())
    act.tables["calls (s), without the time in which the process was stopped"] = _longest(
        found, faults.stops
    )


def _dump(logs: Mapping[int, Log], directory: Path) -> None:
    for partition, log in logs.items():
        lines = [*map(str, log.raw), f"stable {log.stable}, end {log.end}", ""]
        (directory / f"log-{partition}").write_text("\n".join(lines))


def _happened(found: Sequence[Instance]) -> Counter[str]:
    measures = Counter({"instances": len(found)})
    for instance in found:
        for call in instance.calls:
            measures[f"{call.what}: {call.error or 'done'}"] += 1
        for transaction in instance.transactions.values():
            measures["transactions"] += 1
            reported = transaction.reported
            if transaction.requested == "abort":
                measures["abort requested"] += 1
            elif reported is None:
                measures["reported nothing"] += 1
            else:
                measures[f"reported as {reported.value}"] += 1
            measures["messages sent"] += len(transaction.outcomes or ())
    for reported in Reported:
        measures[f"reported as {reported.value}"] += 0
    return measures


def _longest(found: Iterable[Instance], stopped: Sequence[Stop]) -> dict[str, float]:
    """Return how long the longest call of each kind took (seconds)."""
    longest: dict[str, float] = {}
    for instance in found:
        for call in instance.calls:
            took = running_time(stopped, instance, call.at, call.at + call.took)
            name = f"longest {call.what}()"
            longest[name] = max(longest.get(name, 0.0), took)
    return longest

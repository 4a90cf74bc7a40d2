"""``python -m chaos --transactions``: it runs the acts and prints the results."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.options import positive
from chaos.readback import LogUnreadable
from chaos.stage import BROKERS, Stage, raised, wait_for
from chaos.transactions.audit import (
    Entry,
    Evidence,
    Log,
    TransactionDefect,
    audit,
)
from chaos.transactions.clients import CLIENTS, TransactionSettings
from chaos.transactions.faults import (
    TransactionFaults,
    kinds_for,
)
from chaos.transactions.history import instances
from chaos.transactions.instances import Line
from chaos.transactions.readback import committed_offsets, read
from chaos.transactions.results import (
    TransactionAct,
    earlier,
    longest_calls,
    measure,
    one_line,
    report,
    write_json,
)
from chaos.transactions.skipped import skipped_markers
from chaos.transactions.watch import WatchedProxy
from pykaproducer.testing import ClusterError

#: The directory of the brokers' logs.
_LOGS = "brokers"
TOPIC, INPUTS, GROUP = "chaos", "chaos-inputs", "chaos-group"
PARTITIONS = 8

#: One act per this many faults, unless seeds are given.
_FAULTS_PER_ACT = 100
_TRANSACTION_TIMEOUT, _DELIVERY_TIMEOUT = 5.0, 4.0
_REQUEST_TIMEOUT, _MAX_BLOCK = 1.5, 3.0
#: How often a fault that has affected nothing is repeated.
_TRIES = 2
#: How long a transaction may stay open after all timeouts (seconds).
_HANGING = 30.0
_DRAIN = 30.0

_log = logging.getLogger("chaos")


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
        "--resume", action="store_true", help="skip the seeds that the file of --json has"
    )
    group.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep what the processes under load have written"
    )


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Reject arguments that argparse cannot check."""
    if not arguments.transactions:
        for name in ("tv1", "group", "resume", "keep"):
            if getattr(arguments, name):
                parser.error(f"--{name} needs --transactions")
        if arguments.instances != 1 or arguments.brokers != BROKERS:
            parser.error("--instances and --brokers need --transactions")
        return
    if arguments.producer not in CLIENTS:
        parser.error(f"--transactions supports {', '.join(CLIENTS)}, not {arguments.producer}")
    if arguments.group and arguments.instances > 1:
        parser.error("--group needs --instances 1: two processes would read the same inputs")
    if arguments.resume and arguments.json is None:
        parser.error("--resume needs --json")
    possible = _kinds(arguments)
    for kind in arguments.only or ():
        if kind not in possible:
            parser.error(f"--only {kind!r} cannot happen with these options")


def _kinds(arguments: argparse.Namespace) -> list[str]:
    return kinds_for(
        arguments.producer, brokers=arguments.brokers, tv1=arguments.tv1, group=arguments.group
    )


def run(arguments: argparse.Namespace, words: list[str]) -> int:
    """Run all acts, print the findings, and return the exit status."""
    seeds = arguments.seed or list(range(1, 1 + -(-(arguments.faults or 1) // _FAULTS_PER_ACT)))
    acts = earlier(arguments.json, seeds) if arguments.resume else []
    done = {act.seed for act in acts}
    for i, seed in enumerate(seeds):
        if seed in done:
            continue
        act = TransactionAct(seed)
        share = None
        if arguments.faults is not None:
            share = arguments.faults * (i + 1) // len(seeds) - arguments.faults * i // len(seeds)
        limit = None if arguments.seconds is None else arguments.seconds / len(seeds)
        _play(act, arguments, share, limit)
        acts.append(act)
        print(one_line(act), file=sys.stderr)
        if arguments.json is not None:
            write_json(arguments, words, acts)
    print(report(" ".join(["python", "-m", "chaos", *words]), acts))
    return 1 if any(act.judged.total() for act in acts) else 0


# One act ------------------------------------------------------------------------------------------


def _play(
    act: TransactionAct, arguments: argparse.Namespace, faults: int | None, seconds: float | None
) -> None:
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
        _perform(act, arguments, stage, directory, faults, until)
    act.seconds = time.monotonic() - act.begun_at


def _perform(
    act: TransactionAct,
    arguments: argparse.Namespace,
    stage: Stage,
    directory: Path,
    count: int | None,
    until: float | None,
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
        _strike(act, faults, arguments.only or _kinds(arguments), count, until)
        for line in lines:
            line.end()
        ended = True
        act.deaths.update(faults.deaths)
        wait_for(lambda: not any(proxy.connections for proxy in stage.proxies), _DRAIN)
        stage.wait_until_in_sync()
        for line in lines:
            for running in line.processes:
                if running.failure is not None:
                    act.findings.add(TransactionDefect.FAILED, running.failure)
        _audit(act, arguments, stage, directory, faults)
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


def _strike(
    act: TransactionAct,
    faults: TransactionFaults,
    kinds: list[str],
    count: int | None,
    until: float | None,
) -> None:
    """Inject faults until enough have had an effect, or the time is over."""
    stuck = faults.stuck_lines("")
    for kind in faults.rounds(kinds):
        for _ in range(_TRIES):
            if stuck:
                act.findings.add(TransactionDefect.STUCK, f"{stuck}, before {kind}")
                return
            if (count is not None and act.struck.total() >= count) or (
                until is not None and time.monotonic() > until
            ):
                return
            begin = time.monotonic()
            requests = faults.strike(kind)
            healed = time.monotonic()
            struck = act.struck if requests else act.missed
            struck[kind] += 1
            stuck = faults.stuck_lines(kind)
            _log.info(
                "seed %d, fault %d: %s affected %d, %.1f s, recovery %.1f s",
                act.seed,
                act.struck.total(),
                kind,
                requests,
                healed - begin,
                time.monotonic() - healed,
            )
            if requests:
                break


def _audit(
    act: TransactionAct,
    arguments: argparse.Namespace,
    stage: Stage,
    directory: Path,
    faults: TransactionFaults,
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
        skipped=skipped_markers((directory / _LOGS).glob("*.log"), TOPIC, act.begun_at),
    )
    act.findings |= audit(evidence)
    measure(act.measures, found)
    act.measures["markers skipped by brokers"] = len(evidence.skipped)
    act.longest = longest_calls(found, faults.stops)
    act.measures["messages in the log"] = sum(
        isinstance(each, Entry) for log in logs.values() for each in log.raw
    )
    act.measures["messages readable"] = sum(len(log.readable) for log in logs.values())


def _dump(logs: Mapping[int, Log], directory: Path) -> None:
    for partition, log in logs.items():
        lines = [*map(str, log.raw), f"stable {log.stable}, end {log.end}", ""]
        (directory / f"log-{partition}").write_text("\n".join(lines))

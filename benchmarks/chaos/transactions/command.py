"""``python -m benchmarks chaos --transactions``: it runs the acts and prints the results."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.chaos.audit import Findings
from benchmarks.chaos.readback import LogUnreadable
from benchmarks.chaos.stage import BROKERS, Stage, raised, wait_for
from benchmarks.chaos.transactions.audit import Entry, Evidence, TransactionDefect, audit
from benchmarks.chaos.transactions.clients import CLIENTS, TransactionSettings
from benchmarks.chaos.transactions.faults import (
    TRANSACTION_KINDS,
    TransactionFaults,
    kinds_for,
)
from benchmarks.chaos.transactions.history import Instance, Told, instances
from benchmarks.chaos.transactions.instances import Line
from benchmarks.chaos.transactions.readback import committed_offsets, read
from benchmarks.chaos.transactions.watch import WatchedProxy
from benchmarks.options import positive
from pykaproducer.testing import ClusterError

TOPIC, INPUTS, GROUP = "chaos", "chaos-inputs", "chaos-group"
PARTITIONS = 8

#: One act per this many faults, unless seeds are given.
_FAULTS_PER_ACT = 50
_TRANSACTION_TIMEOUT, _DELIVERY_TIMEOUT = 5.0, 4.0
_REQUEST_TIMEOUT, _MAX_BLOCK = 1.5, 3.0
#: How often a fault that has affected nothing is repeated.
_TRIES = 2
#: How long a transaction may stay open behind all timeouts (seconds).
_HANGING = 30.0
_DRAIN = 30.0

_log = logging.getLogger("benchmarks.chaos")


@dataclass
class TransactionAct:
    """One seed: a cluster, processes under load, faults, and the findings."""

    seed: int
    #: Faults that affected requests in flight, or the process; and others; by kind.
    struck: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    #: The points at which a process was killed.
    deaths: Counter[str] = field(default_factory=Counter)
    #: Instances, transactions by what was told, messages, calls and notes.
    measures: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    findings: Findings = field(default_factory=Findings)


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
    return kinds_for(brokers=arguments.brokers, tv1=arguments.tv1, group=arguments.group)


def run(arguments: argparse.Namespace, words: list[str]) -> int:
    """Run all acts, print the findings, and return the exit status."""
    seeds = arguments.seed or list(range(1, 1 + -(-(arguments.faults or 1) // _FAULTS_PER_ACT)))
    acts = _earlier(arguments.json, seeds) if arguments.resume else []
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
        print(_one_line(act), file=sys.stderr)
        if arguments.json is not None:
            _write_json(arguments, words, acts)
    print(_report(" ".join(["python", "-m", "benchmarks", *words]), acts))
    return 1 if any(act.findings.counts.total() for act in acts) else 0


# One act ------------------------------------------------------------------------------------------


def _play(
    act: TransactionAct, arguments: argparse.Namespace, faults: int | None, seconds: float | None
) -> None:
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
            )
        )
        stage.cluster.create_topic(INPUTS, PARTITIONS)
        until = None if seconds is None else time.monotonic() + seconds
        _perform(act, arguments, stage, directory, faults, until)
    act.seconds = time.monotonic() - begin


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
        _audit(act, arguments, stage, faults, instances(directory))
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
    faults: TransactionFaults,
    found: list[Instance],
) -> None:
    logs = read(stage, _TRANSACTION_TIMEOUT + _HANGING)
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
        stopped=faults.stopped,
        silent=[
            *faults.silent,
            *(window for proxy in stage.proxies for window in proxy.silent),  # type: ignore[attr-defined]
        ],
    )
    act.findings |= audit(evidence)
    _measure(act.measures, found)
    act.measures["messages in the log"] = sum(
        isinstance(each, Entry) for log in logs.values() for each in log.raw
    )
    act.measures["messages readable"] = sum(len(log.readable) for log in logs.values())


def _measure(measures: Counter[str], found: list[Instance]) -> None:
    measures["instances"] = len(found)
    for instance in found:
        for call in instance.calls:
            measures[f"{call.what}: {call.error or 'done'}"] += 1
        for transaction in instance.transactions.values():
            measures["transactions"] += 1
            told = transaction.told
            if transaction.asked == "abort":
                measures["asked to abort"] += 1
            elif told is None:
                measures["told nothing"] += 1
            else:
                measures[f"told {told.value}"] += 1
            measures["messages sent"] += len(transaction.outcomes or ())
    for told in Told:
        measures[f"told {told.value}"] += 0


# Output -------------------------------------------------------------------------------------------


def _one_line(act: TransactionAct) -> str:
    return (
        f"seed {act.seed}: {act.struck.total()} faults in {act.seconds:.0f} s, "
        f"{act.measures['transactions']} transactions, {act.findings.counts.total()} findings"
    )


def _report(command: str, acts: list[TransactionAct]) -> str:
    struck: Counter[str] = sum((act.struck for act in acts), Counter())
    missed: Counter[str] = sum((act.missed for act in acts), Counter())
    deaths: Counter[str] = sum((act.deaths for act in acts), Counter())
    found: Counter[Any] = sum((act.findings.counts for act in acts), Counter())
    measures: Counter[str] = Counter()
    for act in acts:
        measures.update(act.measures)
    lines = [command, "", f"seeds {', '.join(str(act.seed) for act in acts)}, "]
    lines[-1] += f"{sum(act.seconds for act in acts):.0f} s"
    lines += ["", "faults with an effect"]
    for kind in TRANSACTION_KINDS:
        if struck[kind] or missed[kind]:
            without = f"   ({missed[kind]} more without effect)" if missed[kind] else ""
            lines.append(f"  {kind:<26}{struck[kind]:>6}{without}")
    lines += [f"  {'total':<26}{struck.total():>6}", "", "killed at"]
    lines += [f"  {times:>9}  {point}" for point, times in sorted(deaths.items())]
    lines += ["", "what happened"]
    lines += [f"  {times:>9}  {name}" for name, times in sorted(measures.items())]
    lines += ["", "found"]
    lines += [f"  {found[each]:>6}  {each.name}: {each.value}" for each in TransactionDefect]
    for act in acts:
        for defect, examples in act.findings.examples.items():
            lines += [f"seed {act.seed}, {defect.name}: {example}" for example in examples]
    return "\n".join(lines)


def _write_json(
    arguments: argparse.Namespace, words: list[str], acts: list[TransactionAct]
) -> None:
    """Write the acts so far, so that ``--resume`` can continue behind them."""
    description = machine.describe(["python", "-m", "benchmarks", *words], [arguments.producer])
    content = {
        **description,
        "acts": [
            {
                **{name: getattr(act, name) for name in _PLAIN},
                "found": {each.name: act.findings.counts[each] for each in TransactionDefect},
                "examples": {
                    defect.name: examples for defect, examples in act.findings.examples.items()
                },
            }
            for act in acts
        ],
    }
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


_PLAIN = ("seed", "seconds", "struck", "missed", "deaths", "measures")


def _earlier(path: Path, seeds: list[int]) -> list[TransactionAct]:
    """Return the acts in the file of an earlier run."""
    if not path.exists():
        return []
    acts = []
    for entry in json.loads(path.read_text())["acts"]:
        if entry["seed"] in seeds:
            act = TransactionAct(entry["seed"], seconds=entry["seconds"])
            for name in ("struck", "missed", "deaths", "measures"):
                setattr(act, name, Counter(entry[name]))
            for name, count in entry["found"].items():
                if count:
                    defect = TransactionDefect[name]
                    act.findings.counts[defect] = count
                    act.findings.examples[defect] = entry["examples"].get(name, [])
            acts.append(act)
    return acts

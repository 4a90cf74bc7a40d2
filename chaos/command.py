"""The command: it runs the acts and prints the results."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import math
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.child import RunFailed
from benchmarks.options import positive
from benchmarks.runner import Measures, in_fresh_process
from chaos import ledger, load
from chaos.audit import LATENESS, Defect, Findings, audit
from chaos.faults import KINDS, TRIES, Faults
from chaos.producers import CLIENTS, Settings
from chaos.readback import LogUnreadable, read
from chaos.stage import TOPIC, Stage, raised, wait_for
from chaos.transactions import command as transactions
from chaos.transactions.faults import TRANSACTION_KINDS

HELP = "faults on three brokers, and an audit of each message's reported outcome"

#: One act per this many faults, unless seeds are given.
_FAULTS_PER_ACT = 100
#: How long one fault, including recovery, may take before the run is considered hung (seconds).
_SLOWEST_FAULT = 180
#: Kafka's limit for an idempotent producer.
_MOST_IN_FLIGHT = 5
#: How long connections may outlive the process that made them (seconds).
_DRAIN = 30.0

_log = logging.getLogger("chaos")


@dataclass
class Act:
    """One seed: a cluster, a process under load, faults, and the findings."""

    seed: int
    #: Faults that affected in-flight batches, by kind.
    struck: Counter[str] = field(default_factory=Counter)
    #: In-flight Produce requests that were affected, by kind.
    requests: Counter[str] = field(default_factory=Counter)
    #: Faults that affected nothing, by kind.
    missed: Counter[str] = field(default_factory=Counter)
    #: How often each transition of the producer's ordering machine was taken.
    transitions: Counter[str] = field(default_factory=Counter)
    #: The producer's counters of the code paths that the faults exercise.
    exercised: Counter[str] = field(default_factory=Counter)
    #: When the process under load was stopped, and when it continued (monotonic seconds).
    stopped: list[tuple[float, float]] = field(default_factory=list)
    measures: Measures = field(default_factory=dict)
    records: int = 0
    seconds: float = 0.0
    findings: Findings = field(default_factory=Findings)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--faults",
        type=positive,
        metavar="N",
        help="total number of faults that affect in-flight batches",
    )
    parser.add_argument(
        "--seconds", type=positive, help="time after which no new fault begins; default: 60"
    )
    parser.add_argument(
        "--hours",
        type=float,
        metavar="H",
        help="the same in hours, for a long run; 0.5 is half an hour",
    )
    parser.add_argument(
        "--seed",
        type=int,
        action="append",
        help="run one act for each seed; default: 1, 2 ... as needed",
    )
    parser.add_argument("--producer", choices=list(CLIENTS), default="pykaproducer")
    parser.add_argument("--no-idempotence", action="store_true")
    parser.add_argument("--acks", choices=("1", "all"), default="all")
    parser.add_argument(
        "--in-flight",
        type=positive,
        default=5,
        metavar="N",
        help="limit of in-flight requests per broker; default: %(default)s",
    )
    parser.add_argument(
        "--stage-threads",
        choices=("shared", "own"),
        default="shared",
        help="the producer's setting of this name; default: %(default)s",
    )
    parser.add_argument(
        "--waiting",
        action="store_true",
        help="pykaproducer: wait for most messages before the next is sent",
    )
    parser.add_argument(
        "--producers",
        type=positive,
        default=1,
        metavar="N",
        help="producers in the process; default: %(default)s",
    )
    parser.add_argument(
        "--rate", type=positive, default=2000, help="messages/s; default: %(default)s"
    )
    parser.add_argument("--partitions", type=positive, default=6, help="%(default)s")
    parser.add_argument("--size", type=positive, default=100, help="bytes; default: %(default)s")
    parser.add_argument(
        "--only",
        action="append",
        choices=TRANSACTION_KINDS,
        metavar="KIND",
        help=f"run only this kind of fault (repeatable): {', '.join(TRANSACTION_KINDS)}",
    )
    parser.add_argument("--verbose", action="store_true", help="print a line for each fault")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to this file")
    transactions.add_arguments(parser)


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Reject arguments that argparse cannot check."""
    transactions.check(parser, arguments)
    for kind in () if arguments.transactions else arguments.only or ():
        if kind not in KINDS:
            parser.error(f"--only {kind!r} needs --transactions")
    peer = arguments.producer.replace("-", "_").replace("kafka_python", "kafka")
    if importlib.util.find_spec(peer) is None:
        parser.error(f"{peer} is not installed: pip install -r benchmarks/requirements.txt")
    if arguments.acks == "1" and not arguments.no_idempotence:
        parser.error("--acks 1 needs --no-idempotence")
    if arguments.hours is not None:
        if arguments.seconds is not None:
            parser.error("--hours and --seconds cannot be combined: leave one of them out")
        if not arguments.hours > 0:
            parser.error(f"--hours must be more than 0, not {arguments.hours:g}")
        arguments.seconds = math.ceil(arguments.hours * 3600)
    if arguments.in_flight > _MOST_IN_FLIGHT and not arguments.no_idempotence:
        parser.error(f"--in-flight is at most {_MOST_IN_FLIGHT} with idempotence")
    if arguments.partitions < arguments.producers:
        parser.error("--producers is at most --partitions: each sends to its own")


def run(arguments: argparse.Namespace, words: list[str]) -> int:
    """Run all acts, print the findings, and return the exit status."""
    if arguments.verbose:
        _log.setLevel(logging.INFO)
    if arguments.faults is None and arguments.seconds is None:
        arguments.seconds = 60
    if arguments.transactions:
        return transactions.run(arguments, words)
    seeds = arguments.seed or _default_seeds(arguments)
    acts = []
    for i, seed in enumerate(seeds):
        act = Act(seed)
        acts.append(act)
        share = None if arguments.faults is None else _share(arguments.faults, len(seeds), i)
        time_left = None if arguments.seconds is None else arguments.seconds / len(seeds)
        _play(act, arguments, share, time_left)
        print(_one_line(act), file=sys.stderr)
    command = " ".join(["python", "-m", "chaos", *words])
    found = sum((act.findings.counts for act in acts), Counter())
    counted = {defect: found[defect] for defect in Defect if defect not in _allowed(arguments)}
    print(_report(command, arguments, acts, found))
    if arguments.json is not None:
        _write_json(arguments, words, acts)
    return 1 if any(counted.values()) else 0


def _default_seeds(arguments: argparse.Namespace) -> list[int]:
    faults = arguments.faults or 1
    return list(range(1, 1 + -(-faults // _FAULTS_PER_ACT)))


def _share(total: int, parts: int, i: int) -> int:
    return total * (i + 1) // parts - total * i // parts


def _allowed(arguments: argparse.Namespace) -> set[Defect]:
    """Return the defects that the settings allow: they are printed, but do not count."""
    allowed = set()
    if arguments.no_idempotence:
        # A batch whose answer was lost is retried, and the broker cannot recognise it.
        allowed.add(Defect.DOUBLED)
    if arguments.acks == "1":
        # Only the leader has confirmed it; the next leader may never have received it.
        allowed.add(Defect.LOST)
    return allowed


# One act ------------------------------------------------------------------------------------------


def _play(
    act: Act, arguments: argparse.Namespace, faults: int | None, seconds: float | None
) -> None:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name, raised(TOPIC, arguments.partitions) as stage:
        directory = Path(name)
        with ledger.watching(directory, stage.partitions) as counters:
            until = None if seconds is None else begin + seconds

            def strike() -> None:
                making = Faults(stage, counters, act.seed)
                _strike(act, making, arguments.only, faults, until)
                act.stopped = making.stopped
                act.exercised["most requests seen unanswered at a broker"] = making.deepest

            try:
                job = _job(arguments, stage, directory)
                limit = 60 + (seconds or 0) + (faults or 1) * _SLOWEST_FAULT
                act.measures = in_fresh_process(
                    "chaos.load", job, limit=limit, at={load.UNDER_LOAD: strike}
                )
                # A Counter's update(), unlike its +, keeps transitions that were never taken.
                act.transitions.update(act.measures.pop("transitions"))
                act.exercised.update(act.measures.pop("exercised"))
                _check_what_is_left(act, stage)
                logs = read(stage)
            except (RunFailed, LogUnreadable) as error:
                act.findings.add(Defect.FAILED, str(error))
            else:
                act.records = sum(map(len, logs.values()))
                act.findings |= audit(
                    ledger.messages(directory, act.stopped),
                    logs,
                    job["settings"]["delivery_timeout"],
                )
    act.seconds = time.monotonic() - begin


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


def _strike(
    act: Act, faults: Faults, only: list[str] | None, count: int | None, until: float | None
) -> None:
    """Inject faults until enough have had an effect, or the time is over."""
    if stuck := faults.stuck():
        act.findings.add(Defect.STUCK, f"partitions {stuck}, before the first fault")
        return
    for kind in faults.kinds_in_turn(only or KINDS):
        for _ in range(TRIES):
            if (count is not None and act.struck.total() >= count) or (
                until is not None and time.monotonic() > until
            ):
                return
            begin = time.monotonic()
            requests = faults.strike(kind)
            healed = time.monotonic()
            struck = act.struck if requests else act.missed
            struck[kind] += 1
            act.requests[kind] += requests
            stuck = faults.stuck()
            _log.info(
                "seed %d, fault %d: %s affected %d in-flight requests, %.1f s, recovery %.1f s; "
                "%d failed so far",
                act.seed,
                act.struck.total(),
                kind,
                requests,
                healed - begin,
                time.monotonic() - healed,
                faults.failed,
            )
            for partition in stuck:
                act.findings.add(
                    Defect.STUCK, f"partition {partition} after {kind}, fault {act.struck.total()}"
                )
            if stuck:
                # Every further fault would meet an inactive producer.
                return
            if requests:
                break


def _check_what_is_left(act: Act, stage: Stage) -> None:
    """Check after close() that no thread or socket is left, and wait for the proxies to drain."""
    for defect, key in (
        (Defect.THREAD_LEFT, "threads_left"),
        (Defect.SOCKET_LEFT, "sockets_left"),
    ):
        if act.measures[key]:
            act.findings.add(defect, f"{act.measures[key]} after close()", act.measures[key])
    # Data that a client has given up may still be in a proxy: the log is read after it has passed.
    wait_for(lambda: not any(proxy.connections for proxy in stage.proxies), _DRAIN)
    stage.wait_until_in_sync()


# Output -------------------------------------------------------------------------------------------


def _one_line(act: Act) -> str:
    found = sum(act.findings.counts.values())
    return (
        f"seed {act.seed}: {act.struck.total()} faults in {act.seconds:.0f} s, "
        f"{act.measures.get('sent', 0)} messages, {found} findings"
    )


def _report(
    command: str, arguments: argparse.Namespace, acts: list[Act], found: Counter[Defect]
) -> str:
    lines = [command, "", _what_ran(arguments, acts), "", "faults that affected in-flight batches"]
    struck: Counter[str] = sum((act.struck for act in acts), Counter())
    requests: Counter[str] = sum((act.requests for act in acts), Counter())
    missed: Counter[str] = sum((act.missed for act in acts), Counter())
    for kind in sorted(struck | missed):
        lines.append(
            f"  {kind:<18}{struck[kind]:>6}   {requests[kind]:>6} requests"
            + (f"   ({missed[kind]} more without effect)" if missed[kind] else "")
        )
    lines += [f"  {'total':<18}{struck.total():>6}", ""]
    transitions: Counter[str] = Counter()
    for act in acts:
        transitions.update(act.transitions)
    if transitions:
        lines.append("transitions of the ordering machines")
        lines += [f"  {times:>9}  {name}" for name, times in transitions.items()]
        lines.append("")
    lines.append("exercised")
    for name in dict.fromkeys(name for act in acts for name in act.exercised):
        counts = [act.exercised[name] for act in acts]
        lines.append(f"  {max(counts) if name.startswith('most') else sum(counts):>9}  {name}")
    lines += ["", "found"]
    allowed = _allowed(arguments)
    for defect in Defect:
        note = "   (these settings allow it)" if defect in allowed and found[defect] else ""
        lines.append(f"  {found[defect]:>6}  {defect.value}{note}")
    for act in acts:
        for defect, examples in act.findings.examples.items():
            lines += [f"seed {act.seed}, {defect.name}: {example}" for example in examples]
    return "\n".join(lines)


def _what_ran(arguments: argparse.Namespace, acts: list[Act]) -> str:
    def total(key: str) -> int:
        return sum(act.measures.get(key, 0) for act in acts)

    def worst(key: str) -> float:
        return max((act.measures.get(key, 0.0) for act in acts), default=0.0)

    return (
        f"{arguments.producer}, acks={arguments.acks}, idempotence "
        f"{'off' if arguments.no_idempotence else 'on'}; seeds "
        f"{', '.join(str(act.seed) for act in acts)}; {sum(act.seconds for act in acts):.0f} s\n"
        f"{arguments.producers} {'producer' if arguments.producers == 1 else 'producers'}, at most "
        f"{arguments.in_flight} requests in flight per broker\n"
        f"{total('sent')} messages sent, {total('delivered')} delivered, "
        f"{total('settled') - total('delivered')} failed, {total('refused')} not accepted; "
        f"{sum(act.records for act in acts)} in the log\n"
        f"longest send() {worst('longest_send_s'):.3f} s, flush() {worst('flush_s'):.2f} s, "
        f"close() {worst('close_s'):.2f} s; late means after the deadline + {LATENESS:g} s"
    )


def _write_json(arguments: argparse.Namespace, words: list[str], acts: list[Act]) -> None:
    description = machine.describe(["python", "-m", "chaos", *words], [arguments.producer])
    content = {
        **description,
        "acts": [
            {
                "seed": act.seed,
                "seconds": act.seconds,
                "struck": act.struck,
                "requests": act.requests,
                "missed": act.missed,
                "transitions": act.transitions,
                "exercised": act.exercised,
                "measures": act.measures,
                "records": act.records,
                "found": {defect.name: act.findings.counts[defect] for defect in Defect},
                "examples": {
                    defect.name: examples for defect, examples in act.findings.examples.items()
                },
            }
            for act in acts
        ],
    }
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")

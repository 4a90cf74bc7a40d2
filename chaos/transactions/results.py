"""The results of an act, what is printed of them, and the file to which a run can be resumed."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from chaos.audit import Findings
from chaos.transactions.audit import Stop, TransactionDefect, running_time
from chaos.transactions.faults import TRANSACTION_KINDS
from chaos.transactions.history import Instance, Reported


@dataclass
class TransactionAct:
    """One seed: a cluster, processes under load, faults, and the findings."""

    seed: int
    #: Faults that affected requests in flight, or the process; and others; by kind.
    struck: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    #: The points at which a process was killed.
    deaths: Counter[str] = field(default_factory=Counter)
    #: Instances, transactions by the reported outcome, messages, calls and notes.
    measures: Counter[str] = field(default_factory=Counter)
    #: The longest control call of each kind (seconds).
    longest: dict[str, float] = field(default_factory=dict)
    #: Monotonic seconds.
    begun_at: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    findings: Findings = field(default_factory=Findings)

    @property
    def judged(self) -> Counter[Any]:
        """Return how many defects the client has, by kind."""
        counts: Counter[Any] = Counter(self.findings.counts)
        del counts[TransactionDefect.BROKERS]
        return counts


def measure(measures: Counter[str], found: Sequence[Instance]) -> None:
    measures["instances"] = len(found)
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


def longest_calls(found: Iterable[Instance], stopped: Sequence[Stop]) -> dict[str, float]:
    """Return how long the longest call of each kind took (seconds)."""
    longest: dict[str, float] = {}
    for instance in found:
        for call in instance.calls:
            took = running_time(stopped, instance, call.at, call.at + call.took)
            longest[call.what] = max(longest.get(call.what, 0.0), took)
    return longest


def _longest(acts: Iterable[TransactionAct]) -> dict[str, float]:
    longest: dict[str, float] = {}
    for act in acts:
        for what, seconds in act.longest.items():
            longest[what] = max(longest.get(what, 0.0), seconds)
    return dict(sorted(longest.items()))


def one_line(act: TransactionAct) -> str:
    return (
        f"seed {act.seed}: {act.struck.total()} faults in {act.seconds:.0f} s, "
        f"{act.measures['transactions']} transactions, {act.judged.total()} findings"
    )


def report(command: str, acts: list[TransactionAct]) -> str:
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
    lines += ["", "the longest calls (s), without the time in which the process was stopped"]
    lines += [f"  {seconds:>9.2f}  {what}" for what, seconds in _longest(acts).items()]
    lines += ["", "found"]
    lines += [f"  {found[each]:>6}  {each.name}: {each.value}" for each in TransactionDefect]
    for act in acts:
        for defect, examples in act.findings.examples.items():
            lines += [f"seed {act.seed}, {defect.name}: {example}" for example in examples]
    return "\n".join(lines)


def write_json(arguments: argparse.Namespace, words: list[str], acts: list[TransactionAct]) -> None:
    """Write the acts so far, so that ``--resume`` can continue after them."""
    description = machine.describe(["python", "-m", "chaos", *words], [arguments.producer])
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


_COUNTERS = ("struck", "missed", "deaths", "measures")
_PLAIN = ("seed", "seconds", "longest", *_COUNTERS)


def earlier(path: Path, seeds: list[int]) -> list[TransactionAct]:
    """Return the acts in the file of an earlier run."""
    if not path.exists():
        return []
    acts = []
    for entry in json.loads(path.read_text())["acts"]:
        if entry["seed"] in seeds:
            act = TransactionAct(entry["seed"], seconds=entry["seconds"])
            act.longest = entry["longest"]
            for name in _COUNTERS:
                setattr(act, name, Counter(entry[name]))
            for name, count in entry["found"].items():
                if count:
                    defect = TransactionDefect[name]
                    act.findings.counts[defect] = count
                    act.findings.examples[defect] = entry["examples"].get(name, [])
            acts.append(act)
    return acts

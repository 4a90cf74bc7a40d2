"""An act: one seed, its faults and its findings; and the report and the file of several acts."""

from __future__ import annotations

import argparse
import enum
import json
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine
from chaos.audit import Findings
from chaos.faults import Faults

#: How often a fault that had no effect is repeated.
_TRIES = 3
#: The table that each act has.
HAPPENED = "what happened"

_log = logging.getLogger("chaos")


@dataclass
class Act:
    """One seed: a cluster, a process under load, faults, and the findings."""

    seed: int
    #: Faults that had an effect on requests in flight or on the process, and others, by kind.
    struck: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    #: In-flight requests that were affected, by kind.
    requests: Counter[str] = field(default_factory=Counter)
    #: What was counted and measured, by title and name. Of several acts these are added, except
    #: for those whose names begin with "most" or "longest".
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    findings: Findings = field(default_factory=Findings)

    @property
    def found(self) -> Counter[enum.Enum]:
        """Return how many defects there are, by kind."""
        return self.findings.counts

    def strike(
        self,
        faults: Faults,
        kinds: Sequence[str],
        *,
        count: int | None,
        until: float | None,
        stuck_as: enum.Enum,
    ) -> None:
        """Inject faults until *count* had an effect, or until the monotonic time *until*."""
        stuck, last = faults.stuck(""), "the start"
        for kind in faults.kinds_in_turn(kinds):
            for _ in range(_TRIES):
                if stuck:
                    # Every further fault would meet an inactive producer.
                    self.findings.add(stuck_as, f"{stuck}, after {last}")
                    return
                if (count is not None and self.struck.total() >= count) or (
                    until is not None and time.monotonic() > until
                ):
                    return
                begin = time.monotonic()
                requests = faults.strike(kind)
                healed = time.monotonic()
                (self.struck if requests else self.missed)[kind] += 1
                self.requests[kind] += requests
                stuck, last = faults.stuck(kind), kind
                _log.info(
                    "seed %d, fault %d: %s affected %d, %.1f s, recovery %.1f s",
                    self.seed,
                    self.struck.total(),
                    kind,
                    requests,
                    healed - begin,
                    time.monotonic() - healed,
                )
                if requests:
                    break

    def __str__(self) -> str:
        sent = self.tables.get(HAPPENED, {}).get("messages sent", 0)
        return (
            f"seed {self.seed}: {self.struck.total()} faults in {self.seconds:.0f} s, "
            f"{sent} messages, {self.findings.counts.total()} findings"
        )


def report(
    headline: str, acts: Sequence[Act], defects: Iterable[enum.Enum], allowed: Collection[enum.Enum]
) -> str:
    """Return what is printed; *allowed*: the defects that are not held against the client."""
    seeds = ", ".join(str(act.seed) for act in acts)
    lines = [headline, f"seeds {seeds}; {sum(act.seconds for act in acts):.0f} s", ""]
    struck, missed, requests, found = (
        sum((getattr(act, name) for act in acts), Counter())
        for name in ("struck", "missed", "requests", "found")
    )
    lines.append("faults with an effect")
    for kind in sorted(struck | missed):
        without = f"   ({missed[kind]} more without effect)" if missed[kind] else ""
        lines.append(f"  {kind:<26}{struck[kind]:>6}   {requests[kind]:>6} requests{without}")
    lines.append(f"  {'total':<26}{struck.total():>6}")
    for title in dict.fromkeys(title for act in acts for title in act.tables):
        lines += ["", title]
        merged = _merged(act.tables.get(title, {}) for act in acts)
        lines += [
            f"  {value:>9.2f}  {name}" if isinstance(value, float) else f"  {value:>9}  {name}"
            for name, value in merged.items()
        ]
    lines += ["", "found"]
    for defect in defects:
        note = "   (not held against the client)" if defect in allowed and found[defect] else ""
        lines.append(f"  {found[defect]:>6}  {defect.name}: {defect.value}{note}")
    for act in acts:
        for defect, examples in act.findings.examples.items():
            lines += [f"seed {act.seed}, {defect.name}: {example}" for example in examples]
    return "\n".join(lines)


def _merged(tables: Iterable[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for table in tables:
        for name, value in table.items():
            greatest = name.startswith(("most", "longest"))
            found[name] = max(found.get(name, 0), value) if greatest else found.get(name, 0) + value
    return found


def write_json(arguments: argparse.Namespace, command: Sequence[str], acts: Sequence[Act]) -> None:
    """Write the acts so far, so that ``--resume`` can continue after them."""
    content = machine.describe(command, [arguments.producer])
    content["acts"] = [
        {
            **{name: value for name, value in vars(act).items() if name != "findings"},
            "found": {each.name: count for each, count in act.findings.counts.items()},
            "examples": {each.name: texts for each, texts in act.findings.examples.items()},
        }
        for act in acts
    ]
    arguments.json.write_text(json.dumps(content, indent=1) + "\n")


def earlier(path: Path, seeds: Collection[int], defects: type[enum.Enum]) -> list[Act]:
    """Return the acts in the file of an earlier run."""
    if not path.exists():
        return []
    acts = []
    for entry in json.loads(path.read_text())["acts"]:
        if entry["seed"] in seeds:
            found, examples = entry.pop("found"), entry.pop("examples")
            findings = Findings(
                Counter({defects[name]: count for name, count in found.items()}),
                {defects[name]: texts for name, texts in examples.items()},
            )
            for name in ("struck", "missed", "requests"):
                entry[name] = Counter(entry[name])
            acts.append(Act(**entry, findings=findings))
    return acts

"""From runs to medians with their ranges: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.runner import CALIBRATION, Run

#: From here on the machine counts as disturbed: cores used by others in the median run, and the
#: slowest calibration against the fastest.
_DISTURBED_CORES, _DISTURBED_SPEED = 0.1, 1.25


@dataclass(frozen=True)
class Column:
    """One measure and how a table shows it."""

    key: str
    title: str
    #: How to format a value: a format specification.
    form: str = ".3g"
    #: What one unit of the title is in units of the measure.
    unit: float = 1.0
    #: Whether a ratio of two clients says anything.
    compared: bool = True


@dataclass(frozen=True)
class Spread:
    """The median of some values, and the least and the greatest of them."""

    median: float
    low: float
    high: float
    #: How many values there were.
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        return cls(median(values), min(values), max(values), len(values))

    def show(self, form: str, unit: float = 1.0) -> str:
        middle, low, high = (
            format(value / unit, form) for value in (self.median, self.low, self.high)
        )
        return f"{middle} [{low} .. {high}]"


def values(runs: Iterable[Run], case: str, client: str, key: str) -> dict[int, float]:
    """The valid values of one measure, by round."""
    return {
        run.round: run.measures[key]
        for run in runs
        if run.round > 0 and (run.case, run.client) == (case, client)
        if run.measures.get(key) is not None
    }


def ratios(runs: Sequence[Run], case: str, client: str, peer: str, key: str) -> list[float]:
    """*client* divided by *peer*, round by round, for rounds in which both runs were valid."""
    mine, theirs = values(runs, case, client, key), values(runs, case, peer, key)
    return [mine[i] / theirs[i] for i in sorted(mine.keys() & theirs.keys()) if theirs[i]]


def tables(runs: Sequence[Run], clients: Sequence[str], columns: Sequence[Column]) -> str:
    """A table for each case: a line for each client, then the first one's ratio to each other."""
    parts = []
    for case in _cases(runs):
        rows = [["", *(column.title for column in columns)]]
        rows += [_line(client, columns, _valid(runs, case, client)) for client in clients]
        for peer in clients[1:]:
            title = f"{clients[0]} / {peer}"
            rows.append(_line(title, columns, _compared(runs, case, clients[0], peer)))
        parts.append(f"{case}\n{_aligned(rows)}")
    parts += [
        f"FAILED: {run.case}, {run.name}, {run.client}: {run.failure}"
        for run in runs
        if run.failure is not None
    ]
    return "\n\n".join(parts)


def quietness(runs: Sequence[Run]) -> str:
    """How far the machine was quiet: what to know before believing the figures."""
    counted = [run for run in runs if run.round > 0]
    others = Spread.of([run.other_cores for run in counted if run.other_cores is not None])
    found = (run.measures.get(CALIBRATION) for run in counted)
    speed = Spread.of([value for value in found if value is not None])
    texts = []
    if others is not None:
        texts.append(f"other processes used {others.show('.2f')} cores during the runs")
    if speed is not None:
        texts.append(f"a fixed loop took {speed.show('.0f')} ns a step beside them")
    text = "; ".join(texts) or "how quiet the machine was is not known"
    busy = others is not None and others.median > _DISTURBED_CORES
    unsteady = speed is not None and speed.high > _DISTURBED_SPEED * speed.low
    if busy or unsteady:
        return f"DISTURBED: {text}. Do not quote these figures: repeat on a quiet machine."
    return f"Quiet: {text}."


def summary(
    runs: Sequence[Run], clients: Sequence[str], columns: Sequence[Column]
) -> list[dict[str, Any]]:
    """What the tables show, for programs."""
    found = []
    for case in _cases(runs):
        for client in clients:
            valid = _valid(runs, case, client)
            spreads = {column.key: valid(column)[0] for column in columns}
            found.append({"case": case, "client": client, "measures": _plain(spreads)})
        for peer in clients[1:]:
            compared = _compared(runs, case, clients[0], peer)
            spreads = {column.key: compared(column)[0] for column in columns}
            found.append(
                {"case": case, "client": clients[0], "peer": peer, "ratios": _plain(spreads)}
            )
    return found


def write_json(
    path: Path,
    description: Mapping[str, Any],
    runs: Sequence[Run],
    clients: Sequence[str],
    columns: Sequence[Column],
) -> None:
    """Everything: command, machine and versions, the summary, each single run."""
    content = {
        **description,
        "quietness": quietness(runs),
        "columns": [asdict(column) for column in columns],
        "summary": summary(runs, clients, columns),
        "runs": [asdict(run) for run in runs],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


#: What stands in a line at a column: the values' spread, how to show it.
_Cell = Callable[[Column], tuple[Spread | None, str, float]]


def _valid(runs: Sequence[Run], case: str, client: str) -> _Cell:
    def cell(column: Column) -> tuple[Spread | None, str, float]:
        found = values(runs, case, client, column.key)
        return Spread.of(list(found.values())), column.form, column.unit

    return cell


def _compared(runs: Sequence[Run], case: str, client: str, peer: str) -> _Cell:
    def cell(column: Column) -> tuple[Spread | None, str, float]:
        if not column.compared:
            return None, "", 1.0
        return Spread.of(ratios(runs, case, client, peer, column.key)), ".2f", 1.0

    return cell


def _line(title: str, columns: Sequence[Column], cell: _Cell) -> list[str]:
    line = [title]
    for column in columns:
        spread, form, unit = cell(column)
        line.append("-" if spread is None else spread.show(form, unit))
    return line


def _plain(spreads: Mapping[str, Spread | None]) -> dict[str, Any]:
    return {key: asdict(spread) for key, spread in spreads.items() if spread is not None}


def _cases(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(run.case for run in runs))


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(f"  {line.rstrip()}" for line in lines)

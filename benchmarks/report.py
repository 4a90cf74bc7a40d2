"""Medians with their ranges from runs: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.runner import CALIBRATION, Run

#: From here on the machine is considered disturbed: cores used by others in the median run, and the
#: ratio of the slowest to the fastest calibration.
_DISTURBED_CORES, _DISTURBED_SPEED = 0.1, 1.25


@dataclass(frozen=True)
class Column:
    """One measure and its presentation in a table."""

    key: str
    title: str
    #: A format specification.
    form: str = ".3g"
    #: One unit of the title, in units of the measure.
    unit: float = 1.0
    #: Whether a ratio of two clients is meaningful.
    compared: bool = True


@dataclass(frozen=True)
class Spread:
    """The median of some values, the least and the greatest."""

    median: float
    low: float
    high: float
    #: The number of values.
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
    """Return the valid values of one measure, by round."""
    return {
        run.round: run.measures[key]
        for run in runs
        if run.round > 0 and (run.case, run.client) == (case, client)
        if run.measures.get(key) is not None
    }


def ratios(runs: Sequence[Run], case: str, client: str, peer: str, key: str) -> list[float]:
    """Return *client* divided by *peer*, for each round in which both runs were valid."""
    mine, theirs = values(runs, case, client, key), values(runs, case, peer, key)
    return [mine[i] / theirs[i] for i in sorted(mine.keys() & theirs.keys()) if theirs[i]]


def tables(runs: Sequence[Run], clients: Sequence[str], columns: Sequence[Column]) -> str:
    """Return a table per case: a line per client, then the first one's ratio to each other."""
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
    """Return how quiet the machine was, which determines the value of the figures."""
    counted = [run for run in runs if run.round > 0]
    others = Spread.of([run.other_cores for run in counted if run.other_cores is not None])
    found = (run.measures.get(CALIBRATION) for run in counted)
    speed = Spread.of([value for value in found if value is not None])
    texts = []
    if others is not None:
        texts.append(f"other processes used {others.show('.2f')} cores during the runs")
    if speed is not None:
        texts.append(f"a fixed loop took {speed.show('.0f')} ns per step")
    text = "; ".join(texts) or "it is unknown how busy the machine was"
    busy = others is not None and others.median > _DISTURBED_CORES
    unsteady = speed is not None and speed.high > _DISTURBED_SPEED * speed.low
    if busy or unsteady:
        return f"DISTURBED: {text}. Do not quote these figures: repeat on a quiet machine."
    return f"Quiet: {text}."


def summary(
    runs: Sequence[Run], clients: Sequence[str], columns: Sequence[Column]
) -> list[dict[str, Any]]:
    """Return the contents of the tables, for programs."""
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
    """Write everything: command, machine and versions, the summary, each single run."""
    content = {
        **description,
        "quietness": quietness(runs),
        "columns": [asdict(column) for column in columns],
        "summary": summary(runs, clients, columns),
        "runs": [asdict(run) for run in runs],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


#: The contents of a cell: the values' spread, and how to show it.
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

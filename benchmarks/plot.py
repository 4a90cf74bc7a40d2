"""Figures of results: ``python -m benchmarks plot FILE.json ... -o DIR``, as SVG and as PNG.

There is one figure for each file written with ``--json``, with a panel for each column: bars are
medians, and whiskers show the range of the runs. The command and the machine are printed below;
figures of a disturbed machine are marked.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import peers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HELP = "draw figures of files written with --json"

#: Colours that remain distinct with colour blindness (Okabe and Ito); each client has the same one
#: in every figure, ours first.
_COLOURS = dict(
    zip(
        peers.NAMES,
        ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"),
        strict=True,
    )
)

#: Inches.
_PANEL, _BAR, _MARGIN, _EDGE, _HEAD, _AXIS, _LINE = 3.4, 0.24, 2.1, 0.15, 0.65, 0.65, 0.15
#: A name in the legend, a row of them, and the narrowest figure (inches).
_NAME, _ROW, _NARROWEST = 1.3, 0.2, 8.5
#: Letters of the notes per inch.
_LETTERS = 14.5
_PANELS_IN_A_ROW = 3
#: The gap between two cases, in bars.
_GAP = 0.9


@dataclass(frozen=True)
class Results:
    """The contents of a file."""

    content: Mapping[str, Any]
    clients: Sequence[str]
    cases: Sequence[str]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file; raise ``ValueError`` if it has another format."""
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or "columns" not in content:
            raise ValueError(
                "not a file of python -m benchmarks ... --json, or one of an old version"
            )
        cases = dict.fromkeys(entry["case"] for entry in content["summary"])
        return cls(content, list(content["clients"]), list(cases))

    def spread(self, case: str, client: str, key: str) -> Mapping[str, float] | None:
        """Return median, low and high of a measure, None if there was no valid run."""
        for entry in self.content["summary"]:
            if (entry["case"], entry["client"]) == (case, client) and "measures" in entry:
                found: Mapping[str, float] | None = entry["measures"].get(key)
                return found
        return None

    def columns(self) -> list[Mapping[str, Any]]:
        """Return the columns that have figures."""
        return [
            column
            for column in self.content["columns"]
            if any(
                self.spread(case, client, column["key"])
                for case in self.cases
                for client in self.clients
            )
        ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.json")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--columns", nargs="+", default=[], metavar="KEY", help="measures; default: all"
    )


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("matplotlib is not installed: pip install -r benchmarks/requirements.txt")
    for path in arguments.files:
        try:
            known = [column["key"] for column in Results.read(path).columns()]
        except (OSError, ValueError) as error:
            parser.error(f"{path}: {error}")
        for key in arguments.columns:
            if key not in known:
                parser.error(f"{path} has no figures of {key}: {', '.join(known)}")


def run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Draw all figures, and return the exit status."""
    import matplotlib

    # The same results give the same file; text stays text, so the command can be copied.
    matplotlib.rcParams.update(
        {"svg.hashsalt": "pykaproducer", "svg.fonttype": "none", "font.size": 9}
    )
    arguments.output.mkdir(parents=True, exist_ok=True)
    for path in arguments.files:
        figure = draw(Results.read(path), arguments.columns)
        for kind in ("svg", "png"):
            target = arguments.output / f"{path.stem}.{kind}"
            metadata = {"Date": None} if kind == "svg" else {}
            figure.savefig(target, dpi=150, metadata=metadata)
            print(target)
    return 0


def draw(results: Results, keys: Sequence[str] = ()) -> Figure:
    """Draw all panels of one file, or those of *keys*."""
    from matplotlib.figure import Figure

    columns = [column for column in results.columns() if not keys or column["key"] in keys]
    # Four look better as two and two.
    across = 2 if len(columns) == 4 else min(len(columns), _PANELS_IN_A_ROW)
    down = -(-len(columns) // across)
    panel = max(1.0, len(results.cases) * (len(results.clients) + _GAP) * _BAR)
    width = max(_NARROWEST, _MARGIN + across * _PANEL)
    named = int((width - 2 * _EDGE) / _NAME)
    head = _HEAD + _ROW * (-(-len(results.clients) // named) - 1)
    notes, warning = _notes(results.content, int(_LETTERS * (width - 2 * _EDGE)))
    foot = _LINE * (len(notes) + len(warning)) + _EDGE
    height = head + down * (panel + _AXIS) + foot
    figure = Figure(figsize=(width, height))
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(columns) :]:
        axes.remove()
    for i, column in enumerate(columns):
        _panel(grid.flat[i], results, column, named=i % across == 0)
    figure.subplots_adjust(
        left=_MARGIN / width,
        right=1 - _EDGE / width,
        top=1 - head / height,
        bottom=(foot + _AXIS) / height,
        wspace=0.12,
        hspace=_AXIS / panel,
    )
    _legend(figure, results, width, height, named)
    below: dict[str, Any] = {
        "fontsize": 7.5,
        "family": "monospace",
        "va": "top",
        "linespacing": 1.3,
    }
    figure.text(_EDGE / width, foot / height, "\n".join(notes), **below)
    top = (foot - _LINE * len(notes)) / height
    figure.text(_EDGE / width, top, "\n".join(warning), color="#B00000", **below)
    return figure


def _panel(axes: Axes, results: Results, column: Mapping[str, Any], *, named: bool) -> None:
    """Draw one measure: a group of bars for each case."""
    step = len(results.clients) + _GAP
    highest = 0.0
    for i, case in enumerate(results.cases):
        for j, client in enumerate(results.clients):
            spread = results.spread(case, client, column["key"])
            if spread is None:
                continue
            middle, low, high = (spread[key] / column["unit"] for key in ("median", "low", "high"))
            highest = max(highest, high)
            at = i * step + j
            axes.barh(at, middle, height=0.82, color=_COLOURS[client])
            if spread["count"] > 1:
                reach = [[middle - low], [high - middle]]
                axes.errorbar(middle, at, xerr=reach, color="black", capsize=2, lw=1)
            axes.annotate(
                format(middle, column["form"]),
                (high, at),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    middles = [i * step + (len(results.clients) - 1) / 2 for i in range(len(results.cases))]
    axes.set_yticks(middles, results.cases if named else [""] * len(middles))
    axes.tick_params(axis="y", length=0)
    # The first case at the top, and space for the number after the longest bar.
    axes.set_ylim(len(results.cases) * step - _GAP / 2 - 0.5, -_GAP / 2 - 0.5)
    axes.set_xlim(0, highest * 1.22 or 1)
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel(column["title"])
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _legend(figure: Figure, results: Results, width: float, height: float, columns: int) -> None:
    """Draw the title, and the legend of the clients."""
    from matplotlib.patches import Patch

    figure.text(_EDGE / width, 1 - 0.1 / height, results.content["title"], fontsize=11, va="top")
    handles = [Patch(color=_COLOURS[client], label=client) for client in results.clients]
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(_EDGE / width, 1 - 0.3 / height),
        borderaxespad=0.2,
        borderpad=0.2,
        ncols=min(columns, len(handles)),
        columnspacing=1.2,
        handlelength=1.4,
        frameon=False,
    )


def _notes(content: Mapping[str, Any], letters: int) -> tuple[list[str], list[str]]:
    """Return the notes: the command and the machine; and a warning, if needed."""
    machine = content["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in content["clients"].items())
    paragraphs = [
        f"$ {content['command']}",
        f"{versions}; Python {content['python'].split()[0]}; one broker, Apache Kafka "
        f"{content['kafka']}, on the same machine; commit {content['commit'] or 'unknown'}",
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory'] / 2**30:.0f} GiB, "
        f"{machine['system']}; {content['date']}",
    ]
    # A name must not be cut in two.
    wrap = partial(textwrap.wrap, width=letters, break_on_hyphens=False)
    quietness = wrap(content["quietness"])
    lines = [line for text in paragraphs for line in wrap(text)]
    if content["quietness"].startswith("Quiet"):
        return lines + quietness, []
    return lines, quietness

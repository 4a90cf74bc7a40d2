"""The latency plot of ``perf``, drawn with matplotlib (the extra ``plot``)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from pykaproducer.cli._histogram import Histogram
from pykaproducer.cli._perf_run import Interval
from pykaproducer.cli.common import CommandError, UserError

_SUFFIXES = (".png", ".svg")
_MARKS = {"50 %": 0.5, "99 %": 0.99, "99.9 %": 0.999}


def check_plot(name: str | None) -> None:
    """Check before the measurement that the plot can be drawn afterwards."""
    if name is None:
        return
    if not name.lower().endswith(_SUFFIXES):
        raise UserError(f"--plot {name}: the file name must end in .png or .svg")
    directory = os.path.dirname(name) or "."
    if not os.path.isdir(directory):
        raise UserError(f"--plot {name}: directory {directory} does not exist")
    if not os.access(name if os.path.exists(name) else directory, os.W_OK):
        raise UserError(f"--plot {name}: not writable")
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--plot needs matplotlib: pip install 'pykaproducer[plot]'")


def plot(name: str, title: str, intervals: Sequence[Interval]) -> None:
    """Plot the latencies over time and by percentile."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), layout="constrained")
    figure.suptitle(title)
    over_time, by_share = figure.subplots(2, 1)
    _over_time(over_time, [each for each in intervals if each.latencies.count])
    _by_share(by_share, Histogram.of(each.latencies for each in intervals))
    try:
        figure.savefig(name, dpi=120)
    except OSError as error:
        raise CommandError(f"--plot {name}: {error.strerror or error}") from None


def _over_time(axes: Any, intervals: Sequence[Interval]) -> None:
    middles = [each.start + each.width / 2 for each in intervals]
    found = [each.latencies.percentiles(*_MARKS.values()) for each in intervals]
    for place, label in enumerate(_MARKS):
        axes.plot(middles, [each[place] * 1000 for each in found], marker=".", label=label)
    longest = [each.latencies.most * 1000 for each in intervals]
    # Below the percentiles, which would be hidden where they are equal to the maximum.
    axes.plot(middles, longest, label="maximum", color="0.6", linewidth=4, alpha=0.5, zorder=1)
    axes.set(xlabel="time (s)", ylabel="latency (ms)", yscale="log")
    _plain_numbers(axes.yaxis)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)
    axes.grid(alpha=0.3)
    rate = axes.twinx()
    rates = [each.latencies.count / each.width for each in intervals]
    rate.fill_between(middles, rates, step="mid", alpha=0.1, color="C0")
    rate.set(ylabel="messages/s (area)", ylim=(0, None))


def _by_share(axes: Any, latencies: Histogram) -> None:
    """Plot up to the share of a single message, so that the worst latencies are visible."""
    shares = latencies.shares()
    axes.plot(
        [1 / max(1 - share, 0.5 / latencies.count) for _, share in shares],
        [latency * 1000 for latency, _ in shares],
        drawstyle="steps-pre",
    )
    ticks = [1, 2, 10, 100, 1_000, 10_000, 100_000, 1_000_000]
    ticks = [tick for tick in ticks if tick <= 2 * latencies.count]
    axes.set(xscale="log", xlabel="percentile", ylabel="latency (ms)", yscale="log")
    _plain_numbers(axes.yaxis)
    axes.set_xticks(ticks, [f"{100 - 100 / tick:.6g} %" for tick in ticks])
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.grid(alpha=0.3)


def _plain_numbers(axis: Any) -> None:
    """Label a logarithmic axis as 20, 50, 100 instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())

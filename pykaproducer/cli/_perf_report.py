"""The output of ``perf``: text in the format of Kafka's tool, JSON, or a plot."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from pykaproducer.cli._histogram import Histogram
from pykaproducer.cli._perf_plot import plot
from pykaproducer.cli._perf_run import Interval, PerfLoad, Run
from pykaproducer.cli.common import notify

_MB = 1 << 20
_SHARES = {"50th": 0.5, "95th": 0.95, "99th": 0.99, "99.9th": 0.999}


def progress_line(intervals: Sequence[Interval], load: PerfLoad, what: str) -> str:
    """Format the last intervals as a line. MB are 1048576 bytes, and only values are counted."""
    latencies = Histogram.of(each.latencies for each in intervals)
    seconds = sum(each.width for each in intervals)
    rate = latencies.count / seconds if seconds else 0.0
    size = sum(map(len, load.payloads)) / len(load.payloads)
    return (
        f"{latencies.count} {what}, {rate:.1f} records/sec ({rate * size / _MB:.2f} MB/sec), "
        f"{latencies.mean * 1000:.1f} ms avg latency, {latencies.most * 1000:.1f} ms max latency."
    )


def print_results(options: argparse.Namespace, measured: Run, metrics: Any, servers: str) -> None:
    """Print the results, and draw the plot if requested."""
    latencies = measured.latencies
    if options.json:
        print(json.dumps(_figures(options, measured, latencies, metrics, servers), indent=2))
    else:
        print(_last_line(measured, latencies))
        for line in _metric_lines(metrics):
            print(line)
    failed = [f"  {count:,} failed: {text}" for text, count in measured.failures.by_kind()]
    if measured.unaccounted:
        failed.append(f"  {measured.unaccounted:,} with unknown outcome")
    if failed:
        gone = measured.sent - measured.delivered
        notify("\n".join([f"{gone:,} of {measured.sent:,} messages were not delivered", *failed]))
    if options.plot is not None:
        if latencies.count:
            plot(options.plot, _last_line(measured, latencies, "\n"), measured.intervals)
        else:
            notify(f"--plot {options.plot}: not drawn, because no message was delivered")


def _rates(measured: Run) -> tuple[float, float]:
    """Return messages and megabytes per second."""
    seconds = measured.seconds or 1.0
    return measured.delivered / seconds, measured.delivered_size / seconds / _MB


def _last_line(measured: Run, latencies: Histogram, after: str = " ") -> str:
    rate, megabytes = _rates(measured)
    found = latencies.percentiles(*_SHARES.values())
    marks = (f"{each * 1000:.1f} ms {name}" for name, each in zip(_SHARES, found, strict=True))
    return (
        f"{measured.delivered} records sent, {rate:.1f} records/sec ({megabytes:.2f} MB/sec), "
        f"{latencies.mean * 1000:.2f} ms avg latency,{after}"
        f"{latencies.most * 1000:.2f} ms max latency, {', '.join(marks)}."
    )


def _figures(
    options: argparse.Namespace, measured: Run, latencies: Histogram, metrics: Any, servers: str
) -> dict[str, Any]:
    rate, megabytes = _rates(measured)
    figures = {
        "topic": options.topic,
        "bootstrap_servers": servers,
        "throughput_wanted": options.throughput,
        "warmup": options.warmup,
        "records": {
            "sent": measured.sent,
            "delivered": measured.delivered,
            "failed": measured.failures.total,
            "without_outcome": measured.unaccounted,
        },
        "bytes": measured.delivered_size,
        "seconds": round(measured.seconds, 6),
        "records_per_second": round(rate, 1),
        "mb_per_second": round(megabytes, 3),
        "latency_ms": _latency_figures(latencies),
        "failures": [
            {"reason": text, "count": count} for text, count in measured.failures.by_kind()
        ],
        "intervals": [
            {
                "start": round(each.start, 3),
                "seconds": round(each.width, 3),
                "records": each.latencies.count,
                "latency_ms": _latency_figures(each.latencies),
            }
            for each in measured.intervals
        ],
    }
    return figures if metrics is None else {**figures, "metrics": metrics}


def _latency_figures(latencies: Histogram) -> dict[str, float | None]:
    """Return the figures in milliseconds; all are None if there are no latencies."""
    named = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
    found = [latencies.mean, *latencies.percentiles(*named.values()), latencies.most]
    there = latencies.count > 0
    return {
        name: round(each * 1000, 3) if there else None
        for name, each in zip(("mean", *named, "max"), found, strict=True)
    }


def _metric_lines(metrics: Any) -> Iterator[str]:
    """Yield ``group:name : value``, one line each, as Kafka's tool prints them."""
    rows = [
        (f"{group}:{name}", value)
        for group, values in sorted((metrics or {}).items())
        for name, value in sorted(values.items())
    ]
    width = max((len(name) for name, _ in rows), default=0)
    if rows:
        yield f"\n{'Metric Name':<{width}}   Value"
    for name, value in rows:
        shown = f"{value:.3f}" if isinstance(value, float) else str(value)
        yield f"{name:<{width}} : {shown}"

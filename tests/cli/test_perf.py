"""``perf``: its figures match what was sent, in the format of Kafka's own tool."""

from __future__ import annotations

import json
import pathlib
import random
import re
import signal
import subprocess
import sys

import pytest
from matplotlib.figure import Figure

from pykaproducer.cli import main
from pykaproducer.cli._histogram import Histogram
from pykaproducer.cli._pace import _SHORTEST
from pykaproducer.cli._perf_plot import _plain_numbers
from pykaproducer.cli._perf_run import Interval, PerfLoad, Run
from pykaproducer.cli._signals import Signals
from pykaproducer.testing import KafkaCluster
from tests._support.consumer import consume

from .helper import NOWHERE, PATIENCE, command, end_of, run, status_of

LAST = re.compile(
    r"(\d+) records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, "
    r"[\d.]+ ms max latency, [\d.]+ ms 50th, [\d.]+ ms 95th, [\d.]+ ms 99th, [\d.]+ ms 99\.9th\."
)


def test_the_words_of_kafka_s_own_tool(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    arguments = ["--num-records", "3000", "--record-size", "20", "--keys", "3"]
    done = run("perf", "-t", topic, "--bootstrap-servers", servers, *arguments, "--header", "a=1")
    assert done.returncode == 0, done.stderr.decode()
    (line,) = done.stdout.decode().splitlines()
    found = LAST.fullmatch(line)
    assert found is not None, line
    assert found[1] == "3000"
    assert done.stderr == b""
    assert end_of(servers, topic) == 3000
    records = consume(servers, topic, 6)
    assert [record.key for record in records] == [b"key-0", b"key-1", b"key-2"] * 2
    assert {len(record.value) for record in records} == {20}
    assert len({record.value for record in records}) == 6
    assert records[0].headers == [("a", b"1")]


def test_the_figures_as_json(cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path) -> None:
    """At a given rate: the rate is kept, and the figures are consistent."""
    cluster.create_topic(topic)
    picture = tmp_path / "picture.svg"
    done = run(
        *("perf", "-t", topic, "--bootstrap-servers", cluster.bootstrap_servers, "--json"),
        *("--num-records", "3000", "--throughput", "1500", "--warmup", "100", "--print-metrics"),
        *("--plot", str(picture)),
    )
    assert done.returncode == 0, done.stderr.decode()
    figures = json.loads(done.stdout)
    assert figures["records"] == {
        "sent": 3000,
        "delivered": 3000,
        "failed": 0,
        "without_outcome": 0,
    }
    assert figures["bytes"] == 300_000
    assert figures["seconds"] >= 2999 / 1500 - _SHORTEST  # a message may be sent that much early
    latency = figures["latency_ms"]
    ordered = [latency[name] for name in ("p50", "p95", "p99", "p99_9", "max")]
    assert ordered == sorted(ordered)
    assert 0 < latency["mean"] <= latency["max"]
    assert sum(each["records"] for each in figures["intervals"]) == 3000
    assert figures["metrics"]["producer-metrics"]["record-send-total"] == 3100
    assert end_of(cluster.bootstrap_servers, topic) == 3100
    assert picture.read_text().rstrip().endswith("</svg>")


def test_values_from_a_file(cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    source = tmp_path / "values"
    source.write_bytes(b"one||two||\xff\xfe||")
    arguments = ["--payload-file", str(source), "--payload-delimiter", "||", "--num-records", "5"]
    done = run("perf", "-t", topic, "--bootstrap-servers", servers, *arguments, "--json")
    assert done.returncode == 0, done.stderr.decode()
    values = [record.value for record in consume(servers, topic, 5)]
    assert values == [b"one", b"two", b"\xff\xfe", b"one", b"two"]
    assert json.loads(done.stdout)["bytes"] == sum(map(len, values))


def test_metrics_as_lines(
    cluster: KafkaCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create_topic(topic)
    servers = ["--bootstrap-servers", cluster.bootstrap_servers]
    assert main(["perf", "-t", topic, *servers, "--num-records", "7", "--print-metrics"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert LAST.fullmatch(lines[0]) is not None
    assert [line.split() for line in lines if "producer-metrics:record-send-total" in line] == [
        ["producer-metrics:record-send-total", ":", "7.000"]
    ]


def test_failures_are_counted_by_reason(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, config={"max.message.bytes": "1000"})
    done = run(
        *("perf", "-t", topic, "--bootstrap-servers", cluster.bootstrap_servers),
        *("--num-records", "30", "--record-size", "2000", "-X", "batch_size=0", "--json"),
    )
    assert done.returncode == 1
    figures = json.loads(done.stdout)
    assert figures["records"]["failed"] == 30
    assert figures["latency_ms"]["p50"] is None
    ((reason, count),) = [each.values() for each in figures["failures"]]
    assert "MESSAGE_SIZE_TOO_LARGE" in reason
    assert count == 30
    assert b"30 of 30 messages were not delivered" in done.stderr


def test_nobody_there() -> None:
    done = run(
        *("perf", "-t", "t", "--bootstrap-servers", NOWHERE, "--num-records", "20"),
        *("-X", "delivery_timeout_ms=3000"),
    )
    assert done.returncode == 1
    assert done.stdout.startswith(b"0 records sent")
    assert b"20 failed: topic 't': not delivered within" in done.stderr
    assert NOWHERE.encode() in done.stderr


def test_a_full_buffer_is_waited_for(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    done = run(
        *("perf", "-t", topic, "--bootstrap-servers", servers, "--num-records", "5000"),
        *("--record-size", "1000", "-X", "buffer_memory=50000", "--json"),
    )
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["records"]["delivered"] == 5000


def test_control_c_ends_it_with_the_figures(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    with subprocess.Popen(
        command(
            *("perf", "-t", topic, "--bootstrap-servers", cluster.bootstrap_servers),
            *("--num-records", "1000000", "--throughput", "200"),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        consume(cluster.bootstrap_servers, topic, 20)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    found = LAST.fullmatch(out.splitlines()[-1])
    assert found is not None, out
    assert int(found[1]) == end_of(cluster.bootstrap_servers, topic)
    assert err.splitlines()[-1] == "pykaproducer: interrupted by SIGINT"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--plot", "picture.gif"], "must end in .png or .svg"),
        (["--plot", "/no/such/directory/p.svg"], "directory /no/such/directory does not exist"),
        (["--throughput", "0"], "'0' is neither a rate in messages/s nor -1"),
        (["--throughput", "nan"], "'nan' is neither a rate in messages/s nor -1"),
        (["--payload-file", "/no/such/file"], "/no/such/file: No such file or directory"),
        (["--payload-file", "/dev/null"], "the file is empty"),
        (["--payload-file", "x", "--record-size", "5"], "not allowed with argument"),
        (["--payload-file", "/dev/null", "--payload-delimiter", ""], "must not be empty"),
        (["-t", "no topic"], "is not a topic name"),
        (["--num-records", "0"], "'0' is not an integer >= 1"),
    ],
)
def test_what_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["perf", "-t", "t", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_refused_before_anything_is_sent() -> None:
    code = (
        "import sys, importlib.util as u; f = u.find_spec; "
        "u.find_spec = lambda name, *more: None if name == 'matplotlib' else f(name, *more);"
        "from pykaproducer.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "perf", "-t", "t", "--plot", "p.svg"],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        b"pykaproducer: --plot needs matplotlib: pip install 'pykaproducer[plot]'\n"
    )


# Unit tests of its parts --------------------------------------------------------------------------


def test_percentiles_are_off_by_less_than_a_percent() -> None:
    rng = random.Random(1)
    latencies = sorted(rng.lognormvariate(-5, 2) for _ in range(20_000))
    histogram = Histogram()
    for latency in latencies:
        histogram.add(latency)
    assert histogram.count == 20_000
    assert histogram.mean == pytest.approx(sum(latencies) / 20_000)
    assert histogram.most == latencies[-1]
    for share in (0.01, 0.5, 0.95, 0.999):
        (found,) = histogram.percentiles(share)
        assert found == pytest.approx(latencies[int(share * 20_000) - 1], rel=0.01, abs=2e-6)
    parts = [Histogram() for _ in range(3)]
    for place, latency in enumerate(latencies):
        parts[place % 3].add(latency)
    assert Histogram.of(parts).percentiles(0.5, 0.99) == histogram.percentiles(0.5, 0.99)


def test_no_latency_at_all() -> None:
    assert Histogram().percentiles(0.5, 0.99) == [0.0, 0.0]
    assert Histogram().mean == 0.0


def test_the_course_of_a_long_time_takes_bounded_memory() -> None:
    """Two intervals are merged into one; no count is lost."""
    measured = Run(PerfLoad("t", 0, None, [b""]), *[None] * 4)  # type: ignore[arg-type]
    measured.intervals = []
    for second in range(2000):
        interval = Interval(float(second), 1.0)
        interval.latencies.add(0.001 * (second % 7))
        measured.intervals.append(interval)
        measured._join_intervals()
    assert len(measured.intervals) <= 602
    assert measured.latencies.count == 2000
    assert sum(each.width for each in measured.intervals) == 2000
    starts = [each.start for each in measured.intervals]
    assert starts == sorted(starts)


def test_signals_end_a_wait() -> None:
    from pykaproducer.cli._pace import Pace
    from pykaproducer.testing import FakeClock

    clock, signals = FakeClock(), Signals()
    pace = Pace(10.0, signals, clock)
    assert pace.wait_for(0, lambda: None)
    clock.jump(0.3)
    looks = []

    def look() -> None:
        looks.append(clock.monotonic())
        signals.count += 1

    clock.jump(0.0)
    assert pace.wait_for(3, look)
    signals.count = 1
    assert not pace.wait_for(4, look)
    assert not looks


def test_a_plot_labels_latencies_with_plain_numbers() -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], [30, 300])
    axes.set(yscale="log")
    _plain_numbers(axes.yaxis)
    figure.canvas.draw()
    labels = [label.get_text() for label in axes.get_yticklabels(which="both")]
    assert {"50", "100", "200"} <= set(labels)
    assert not any("10^" in label for label in labels)

"""The benchmark suite runs, and tells a bad run from a good one. No test looks at a speed."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pykaproducer.testing import KafkaCluster

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite lies beside the package; an installed pykaproducer goes before the tree's."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


def peers() -> list[str]:
    """confluent-kafka if it is there: it is no dependency of the tests."""
    return ["confluent-kafka"] if importlib.util.find_spec("confluent_kafka") else []


def call(cluster: KafkaCluster | None, *words: str) -> int:
    status = importlib.import_module("benchmarks.__main__").main(words, cluster=cluster)
    assert isinstance(status, int)
    return status


def versus() -> list[str]:
    return ["--vs", *peers()] if peers() else []


@pytest.fixture
def lent(cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> KafkaCluster:
    """The tests' cluster, which a benchmark must not stop at its end."""
    monkeypatch.setattr(cluster, "stop", lambda: None)
    return cluster


def results(path: Path) -> Any:
    return json.loads(path.read_text())


def test_send_measures_every_client_in_turns(
    lent: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    size = ["--messages", "2000", "--partitions", "1", "3", "--rounds", "2"]
    assert call(lent, "send", *size, *versus(), "--json", str(path)) == 0
    found = results(path)
    assert found["command"].startswith("python -m benchmarks send --messages 2000")
    names = ["pykaproducer", *peers()]
    counted = [run for run in found["runs"] if run["round"] > 0]
    for case in ("1 partition", "3 partitions"):
        order = [run["client"] for run in counted if run["case"] == case]
        assert order == [*names, *reversed(names)]
    assert all(run["failure"] is None for run in found["runs"])
    assert all(run["measures"]["messages_per_s"] > 0 for run in counted)
    text = capsys.readouterr().out
    assert found["command"] in text
    for peer in peers():
        assert f"pykaproducer / {peer}" in text


@pytest.mark.parametrize(
    "options",
    [
        ["--acks", "all", "--idempotence", "--keyed"],
        ["--handles"],
        ["--no-callback", "--compression", "lz4"],
        ["--defaults"],
    ],
    ids=" ".join,
)
def test_send_with_options(lent: KafkaCluster, options: list[str]) -> None:
    size = ["--messages", "500", "--partitions", "2", "--rounds", "1", "--warm-up-rounds", "0"]
    assert call(lent, "send", *size, *options, *versus()) == 0


def test_a_run_whose_messages_fail_is_no_figure(
    lent: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    words = ["send", "--size", "2000000", "--messages", "5", "--partitions", "1", "--rounds", "1"]
    assert call(lent, *words, "--warm-up-rounds", "0", "--json", str(path)) == 1
    (run,) = results(path)["runs"]
    assert "max_request_size" in run["failure"]
    assert run["measures"] == {}
    assert "FAILED: 1 partition, round 1, pykaproducer" in capsys.readouterr().out


def test_memory_stops_the_broker_and_lets_it_go_on(lent: KafkaCluster, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    words = ["memory", "--size", "1000", "--buffer-memory", "1", "--max-block-ms", "50"]
    assert call(lent, *words, "--rounds", "1", "--json", str(path)) == 0
    (run,) = results(path)["runs"]
    assert run["measures"]["accepted"] > 0
    assert run["measures"]["blocked_ms"] >= 50
    assert lent.brokers[0].running


def test_idle(lent: KafkaCluster) -> None:
    assert call(lent, "idle", "--seconds", "0.1", "--rounds", "1") == 0


def test_topics(lent: KafkaCluster) -> None:
    assert call(lent, "topics", "--rounds", "1", "--unknown", "50", "--partitions", "20") == 0


def test_startup_needs_no_broker() -> None:
    assert call(None, "startup", "--rounds", "1") == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["send", "--idempotence"], "--idempotence needs --acks all"),
        (["send", "--messages", "0"], "at least 1"),
        (["send", "--vs", "sarama"], "sarama"),
        (["memory", "--vs", "kafka-python"], "bounds nothing"),
        (["topics", "--vs", "kafka-python"], "alone"),
    ],
)
def test_a_wrong_option_is_refused(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(None, *words)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_a_run_that_hangs_ends_and_shows_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import threading\ndef measure(job, parent):\n    threading.Event().wait()\n"
    (tmp_path / "hanging.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    runner = importlib.import_module("benchmarks.runner")
    failure = importlib.import_module("benchmarks.child").RunFailed
    with pytest.raises(failure, match=r"no end within(.|\n)*in measure"):
        runner.in_fresh_process("hanging", {}, limit=1.0)


def test_the_process_of_a_peer_carries_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else our memory would be counted as the peer's, and our import as nothing."""
    source = (
        "import sys\n"
        "from benchmarks import idle, memory, send, startup\n"
        "def measure(job, parent):\n"
        "    return {name: name in sys.modules for name in ('pykaproducer', 'kafka', 'socket')}\n"
    )
    (tmp_path / "looking.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    runner = importlib.import_module("benchmarks.runner")
    found = runner.in_fresh_process("looking", {}, limit=30.0)
    assert found == {"pykaproducer": False, "kafka": False, "socket": True}


def test_ratios_are_taken_within_a_round_and_from_valid_runs_only() -> None:
    report = importlib.import_module("benchmarks.report")
    made = importlib.import_module("benchmarks.runner").Run
    runs = [
        made("c", "ours", 0, {"speed": 1000.0}),
        made("c", "theirs", 0, {"speed": 1.0}),
        made("c", "ours", 1, {"speed": 20.0}),
        made("c", "theirs", 1, {"speed": 10.0}),
        made("c", "ours", 2, failure="lost one"),
        made("c", "theirs", 2, {"speed": 1.0}),
        made("c", "ours", 3, {"speed": 30.0}),
        made("c", "theirs", 3, {"speed": 10.0}),
    ]
    assert report.ratios(runs, "c", "ours", "theirs", "speed") == [2.0, 3.0]
    column = report.Column("speed", "speed", ".0f")
    text = report.tables(runs, ["ours", "theirs"], [column])
    assert "2.50 [2.00 .. 3.00]" in text
    assert "25 [20 .. 30]" in text
    assert "FAILED: c, round 2, ours: lost one" in text


@pytest.mark.parametrize(
    ("speeds", "other_cores", "verdict"),
    [
        ([15.0, 16.0], 0.02, "Quiet: "),
        ([15.0, 40.0], 0.02, "DISTURBED: "),
        ([15.0, 16.0], 0.8, "DISTURBED: "),
    ],
)
def test_figures_from_a_disturbed_machine_are_marked(
    speeds: list[float], other_cores: float, verdict: str
) -> None:
    report = importlib.import_module("benchmarks.report")
    made = importlib.import_module("benchmarks.runner").Run
    runs = [
        made("c", "ours", i + 1, {report.CALIBRATION: speed}, other_cores=other_cores)
        for i, speed in enumerate(speeds)
    ]
    assert report.quietness(runs).startswith(verdict)

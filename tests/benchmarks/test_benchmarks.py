"""A benchmark runs, figures are compared, and invalid runs rejected. No test depends on speed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kafka.record import MemoryRecords

from benchmarks import door, options, report
from benchmarks.runner import Run
from pykaproducer._util.compression import CODECS
from pykaproducer.testing import KafkaCluster
from tests.benchmarks.helper import call, peers, results, versus


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
    ("words", "text"),
    [
        (["send", "--idempotence"], "--idempotence needs --acks all"),
        (["send", "--messages", "0"], "at least 1"),
        (["send", "--vs", "nobody"], "nobody"),
        (["sync", "--vs", "java"], "sync does not support java"),
        (["send", "--vs", "java", "--keyed"], "java does not support keys"),
        (
            ["send", "--vs", "kafka-python", "--level", "3", "--compression", "lz4"],
            "does not support compression",
        ),
        (["send", "--level", "3"], "--level needs one of the codecs"),
        (["partitions", "--vs", "raw"], "raw does not support several topics"),
        (["sync", "--messages", "99"], "at least 100"),
        (["memory", "--vs", "kafka-python"], "no buffer limit"),
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


def test_without_go_an_error_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for peer in ("franz-go", "sarama"):
        with pytest.raises(SystemExit):
            call(None, "send", "--vs", peer)
        assert f"{peer} is built with Go" in capsys.readouterr().err


def test_a_prebuilt_batch_is_as_large_as_it_may_be() -> None:
    rows = [(b"value-%05d" % i, b"key" if i % 2 else None) for i in range(50_000)]
    batch, count = door.record_batch(iter(rows), 100_000)
    assert 50_000 < len(batch) <= 100_000
    records = MemoryRecords(batch).next_batch()
    assert records.validate_crc()
    assert [(record.value, record.key) for record in records] == rows[:count]
    # Less than a batch, and more than the kernel puts into one chunk.
    assert door.record_batch(iter(rows[:3]), 100_000)[1] == 3
    assert door.record_batch(iter(rows), 10_000_000)[1] == 50_000


def test_ratios_are_taken_within_a_round_and_from_valid_runs_only() -> None:
    runs = [
        Run("c", "ours", 0, {"speed": 1000.0}),
        Run("c", "theirs", 0, {"speed": 1.0}),
        Run("c", "ours", 1, {"speed": 20.0}),
        Run("c", "theirs", 1, {"speed": 10.0}),
        Run("c", "ours", 2, failure="lost one"),
        Run("c", "theirs", 2, {"speed": 1.0}),
        Run("c", "ours", 3, {"speed": 30.0}),
        Run("c", "theirs", 3, {"speed": 10.0}),
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
    runs = [
        Run("c", "ours", i + 1, {report.CALIBRATION: speed}, other_cores=other_cores)
        for i, speed in enumerate(speeds)
    ]
    assert report.quietness(runs).startswith(verdict)


def test_the_benchmarks_know_every_codec() -> None:
    assert tuple(CODECS) == options.CODECS
    assert {name for name, codec in CODECS.items() if codec.levels} == options.WITH_LEVELS

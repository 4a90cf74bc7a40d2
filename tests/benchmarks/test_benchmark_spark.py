"""The benchmark of the Spark sinks: its requirements, its measurements, and that it runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as main
from benchmarks import spark
from benchmarks.peers import spark_jars, spark_usage
from benchmarks.peers.spark_usage import used
from benchmarks.runner import Run
from benchmarks.spark import difference, measures
from pykaproducer.testing import KafkaCluster
from tests._support.fixtures.spark import spark_environment
from tests.benchmarks.helper import call


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--rows", "0"], "at least 1"),
        (["--set", "linger.ms=5"], "must be kafka.NAME=VALUE, not linger.ms=5"),
        (["--set", "kafka.linger.ms"], "must be kafka.NAME=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_run_is_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(None, "spark", *words)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_without_java_an_error_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SystemExit):
        call(None, "spark", "--no-jvm")
    assert "found no Java on PATH. Spark runs on Java 17 or newer" in capsys.readouterr().err


def test_jars_come_from_the_cache_if_all_of_them_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is downloaded: the cache has a listing, and a changed jar invalidates it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jar = tmp_path / "spark-sql-kafka-0-10_2.13-4.0.0.jar"
    jar.write_bytes(b"classes")
    listing = tmp_path / "pykaproducer" / f"spark-sql-kafka-{spark_jars.CLIENTS}.json"
    listing.parent.mkdir()
    listing.write_text(json.dumps({"versions": spark_jars.VERSIONS, "jars": {str(jar): 7}}))
    assert spark_jars.jars() == [jar]
    assert spark_jars.version([jar]) == f"4.0.0 (kafka-clients {spark_jars.CLIENTS})"
    jar.write_bytes(b"cla")
    assert spark_jars.ready() is False


DAEMON = ("python", "-m", "pyspark.daemon")
WORKER = (*DAEMON, "pyspark.worker")
PLANNER = (*DAEMON, "pyspark.sql.worker.write_into_data_source")


def process(pid: int, parent: int, command: tuple[str, ...], cpu: float) -> Any:
    return spark_usage.Process(pid, parent, command, cpu)


def test_processor_time_is_of_the_right_process() -> None:
    others = [
        process(1, 0, ("python", "-m", "benchmarks"), 100.0),
        process(2, 1, ("python", "-m", "benchmarks.peers.spark_app"), 50.0),
        # A process of another application, under another JVM.
        process(30, 1, ("java",), 70.0),
    ]
    before = [
        *others,
        process(31, 30, WORKER, 1.0),
        process(3, 2, ("java",), 10.0),
        process(4, 3, WORKER, 0.1),
        process(5, 4, WORKER, 3.0),
        process(7, 3, PLANNER, 0.2),
        # Planners that have ended do not reduce the total.
        process(10, 3, (*DAEMON, "pyspark.sql.worker.lookup_data_sources"), 0.4),
    ]
    after = [
        *others,
        process(31, 30, WORKER, 2.0),
        process(3, 2, ("java",), 12.0),
        process(4, 3, WORKER, 0.1),
        process(5, 4, WORKER, 3.5),
        process(6, 4, WORKER, 0.25),
        process(7, 3, PLANNER, 0.25),
        process(9, 3, (*DAEMON, "pyspark.sql.worker.commit_data_source_write"), 0.5),
    ]
    spent = used(3, before, after)
    assert spent.jvm == pytest.approx(2.0)
    assert spent.workers == pytest.approx(0.5 + 0.25)
    assert spent.planners == pytest.approx(0.05 + 0.5)


def test_the_time_of_a_worker_that_ended_is_not_known() -> None:
    """PySpark's daemon does not wait for its children, so their times are not accumulated."""
    before = [process(3, 2, ("java",), 1.0), process(4, 3, WORKER, 0.1), process(5, 4, WORKER, 3.0)]
    spent = used(3, before, before[:2])
    assert spent.workers is None
    found = {"wall": 1.0, "broker": 0.0, "other_cores": None, "calibration_ns": 15.0}
    assert measures(1, {**found, **vars(spent)})["worker_us"] is None


def test_measures_are_for_each_row() -> None:
    found = {"wall": 2.0, "jvm": 3.0, "workers": 0.5, "planners": 0.1, "broker": 1.4}
    assert spark.measures(
        1_000_000, found | {"other_cores": 0.5, "calibration_ns": 15.0}, counted=0.2
    ) == pytest.approx(
        {
            "rows_per_s": 500_000,
            "wall_ms": 2_000.0,
            "worker_us": 0.5,
            "sink_us": 0.3,
            "jvm_us": 3.0,
            "broker_us": 1.4,
            "all_us": 5.0,
            "planner_ms": 100.0,
            "other_cores": 0.5,
            "calibration_ns": 15.0,
        }
    )


def test_each_round_has_its_line_and_its_ratio() -> None:
    runs = [
        Run("c", "ours", 0, {"rows_per_s": 9e9}),
        Run("c", "theirs", 0, {"rows_per_s": 1.0}),
        Run("c", "ours", 1, {"rows_per_s": 900_000.0}),
        Run("c", "theirs", 1, {"rows_per_s": 600_000.0}),
        Run("c", "theirs", 2, {"rows_per_s": 500_000.0}),
        Run("c", "ours", 2, failure="2 rows were sent and the log holds 3"),
    ]
    lines = [line.split() for line in spark.rounds(runs, ["ours", "theirs"]).splitlines()]
    assert lines[1:] == [["round", "1", "900", "600", "1.50"], ["round", "2", "-", "500", "-"]]
    alone = spark.rounds(runs[2:3], ["ours"]).splitlines()
    assert [line.split() for line in alone[1:]] == [["round", "1", "900"]]


def test_a_key_that_is_elsewhere_is_named() -> None:
    theirs = {b"": {1}, b"a": {0}, b"b": {2}}
    assert difference(theirs, theirs) is None
    said = difference({b"": {1}, b"a": {0, 3}}, theirs)
    assert said.startswith("2 of 3 keys are elsewhere; 61 is in [0, 3] and with ")
    assert said.endswith(" in [0]")
    assert "(empty) is in [2]" in difference(theirs | {b"": {2}}, theirs)


@pytest.mark.full
def test_the_sinks_take_turns(
    cluster: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Spark's own sink takes part only if its jars are cached: a test downloads nothing."""
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cluster, "stop", lambda: None)
    alone = not spark_jars.ready()
    path = tmp_path / "results.json"
    words = ["spark", "--rows", "3000", "--partitions", "3", "2", "--rounds", "2", "--tasks", "2"]
    words += ["--warm-up-rounds", "1", "--memory", "1g", "--json", str(path)]
    parsed = main._parser().parse_args([*words, *(["--no-jvm"] * alone)])
    spark.check(main._parser(), parsed)
    assert spark.run(parsed, words, cluster) == 0
    text = capsys.readouterr().out
    found = json.loads(path.read_text())
    sinks = ["pykaproducer"] if alone else ["pykaproducer", "spark-sql-kafka"]
    for case in ("3,000 rows, 2 tasks, 3 partitions", "3,000 rows, 2 tasks, 2 partitions"):
        counted = [run for run in found["runs"] if run["case"] == case and run["round"] > 0]
        assert [run["client"] for run in counted] == [*sinks, *reversed(sinks)]
        for run in counted:
            assert run["failure"] is None
            assert run["measures"]["rows_per_s"] > 0
            assert run["other_cores"] is not None
            assert run["measures"]["worker_us"] == 0 or run["client"] == "pykaproducer"
    assert alone or "Each key is in the same partition with both." in text

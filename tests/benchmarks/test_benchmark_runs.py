"""Each benchmark runs, with each client that is there. No test depends on speed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import everyday, kernel, machine, report, runner, send, sync
from benchmarks.child import RunFailed
from benchmarks.runner import Run
from pykaproducer import Producer
from pykaproducer.testing import KafkaCluster
from tests.benchmarks.helper import call, every_peer, is_there, results, versus

pytestmark = pytest.mark.full


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


@pytest.mark.parametrize(
    ("benchmark", "options"),
    [
        ("send", ["--partitions", "2", "--acks", "all", "--idempotence"]),
        ("overlap", ["--partitions", "1", "--keyed"]),
        ("compression", ["--codecs", "gzip", "--partitions", "2"]),
        ("partitions", ["--partitions", "20", "--topics"]),
        ("sync", []),
    ],
)
def test_every_client_takes_part(
    lent: KafkaCluster, tmp_path: Path, benchmark: str, options: list[str]
) -> None:
    path = tmp_path / "results.json"
    names = every_peer(benchmark)
    words = [benchmark, *options, "--messages", "300", "--rounds", "1", "--warm-up-rounds", "0"]
    assert call(lent, *words, "--vs", *names, "--json", str(path)) == 0
    found = results(path)
    assert [run["client"] for run in found["runs"]] == ["pykaproducer", *names]
    shown = [column["key"] for column in found["columns"]]
    ours = found["runs"][0]["measures"]
    assert all(ours[key] is not None for key in shown)
    assert all(run["measures"]["calibration_ns"] > 0 for run in found["runs"])


def test_topics_take_turns(lent: KafkaCluster, tmp_path: Path) -> None:
    """Each topic has the right number of messages: the log is checked as a whole."""
    path = tmp_path / "results.json"
    words = ["partitions", "--partitions", "1", "--topics", "7", "--messages", "350"]
    words += ["--rounds", "1", "--warm-up-rounds", "0"]
    assert call(lent, *words, *versus(), "--json", str(path)) == 0
    cases = {run["case"] for run in results(path)["runs"]}
    assert cases == {"1 partition", "7 topics of 1 partition"}


def test_each_everyday_load_is_paced_and_counted(lent: KafkaCluster, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    cases = [name for name, case in everyday.CASES.items() if case.brokers == 1 and not case.tls]
    words = ["everyday", "--messages", "100", "--rounds", "1", "--warm-up-rounds", "0"]
    assert call(lent, *words, "--cases", *cases, *versus(), "--json", str(path)) == 0
    runs = results(path)["runs"]
    assert {run["case"] for run in runs} == set(cases)
    measures = [run["measures"] for run in runs]
    assert all(0 < each["p50_us"] <= each["p99_us"] for each in measures)
    assert all(0 < each["batches"] <= 1 for each in measures if each["batches"] is not None)
    assert all(("in_log_ms" in run["measures"]) == (run["case"] == "computing") for run in runs)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("case", "options"), [("tls", []), ("await", ["--delay", "20"])], ids=["over TLS", "far away"]
)
def test_everyday_loads_have_their_own_cluster(
    tmp_path: Path, case: str, options: list[str]
) -> None:
    path = tmp_path / "results.json"
    words = ["everyday", "--cases", case, *options, "--messages", "100", "--rounds", "1"]
    assert call(None, *words, "--warm-up-rounds", "0", "--json", str(path)) == 0
    (run,) = results(path)["runs"]
    assert run["measures"]["p50_us"] > (40_000 if options else 0)


@pytest.mark.kafka
def test_a_distant_cluster_is_as_far_away_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    words = ["distant", "--delays", "30", "--partitions", "1", "2", "--in-flight", "1", "5"]
    words += ["--messages", "300", "--rounds", "1", "--warm-up-rounds", "0"]
    assert call(None, *words, "--json", str(path)) == 0
    runs = results(path)["runs"]
    kinds = ("1 in flight", "5 in flight", "defaults")
    partitions = ("1 partition", "2 partitions")
    assert [run["case"] for run in runs] == [
        f"30 ms, {count}, {kind}" for count in partitions for kind in kinds
    ]
    # All of them are delivered after one round trip at the earliest.
    assert all(run["measures"]["messages_per_s"] < 300 / 0.06 for run in runs)


@pytest.mark.parametrize("options", [["--vs", "raw"], ["--tls", "--vs", "kafka-python"]])
def test_sizes(lent: KafkaCluster, options: list[str], tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    words = ["sizes", *options, "--sizes", "10000", "900000", "--megabytes", "2", "--rounds", "1"]
    assert call(lent, *words, "--json", str(path)) == 0
    for run in results(path)["runs"]:
        size = 10_000 if run["case"].startswith("10,000 bytes") else 900_000
        measures = run["measures"]
        assert measures["bytes_per_s"] == pytest.approx(measures["messages_per_s"] * size)
        assert measures["cpu_s_a_byte"] == pytest.approx(measures["cpu_us"] / 1e6 / size)


def test_no_hop_takes_longer_than_the_whole(lent: KafkaCluster, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert call(lent, "hops", "--messages", "50", "--rounds", "1", "--json", str(path)) == 0
    (run,) = results(path)["runs"]
    hops = {key: value for key, value in run["measures"].items() if key.startswith("to_")}
    assert len(hops) == 5
    assert all(0 < value < run["measures"]["whole"] for value in hops.values())


@pytest.mark.kafka
def test_each_caller_that_waits(lent: KafkaCluster, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    words = ["sync", "--messages", "104", "--rounds", "1", "--warm-up-rounds", "0", "--cases"]
    assert call(lent, *words, *sync.CASES, "--json", str(path)) == 0
    runs = results(path)["runs"]
    assert all(run["measures"]["p50_us"] > 0 for run in runs)
    assert {run["case"] for run in runs if run["measures"]["beside"]} == {"1 partition, beside"}


@pytest.mark.parametrize("name", ["threads", "linger"])
def test_others_wait_alike(lent: KafkaCluster, name: str) -> None:
    words = ["sync", "--messages", "104", "--rounds", "1", "--warm-up-rounds", "0"]
    assert call(lent, *words, "--cases", name, "--vs", "as-kafka-python", *versus()[1:]) == 0


def test_sync_has_percentiles(lent: KafkaCluster, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    words = ["sync", "--messages", "200", "--rounds", "1", "--warm-up-rounds", "0"]
    assert call(lent, *words, "--json", str(path)) == 0
    (run,) = results(path)["runs"]
    measures = run["measures"]
    assert 0 < measures["p50_us"] <= measures["p99_us"] <= measures["most_us"]


@pytest.mark.parametrize(
    ("benchmark", "method", "needs"),
    [("bulk", "send_many", "sys"), ("arrow", "send_arrow", "pyarrow")],
)
def test_blocks(
    lent: KafkaCluster,
    capsys: pytest.CaptureFixture[str],
    benchmark: str,
    method: str,
    needs: str,
) -> None:
    words = [benchmark, "--messages", "1000", "--block", "300", "--partitions", "2", "--keyed"]
    words += ["--rounds", "1", "--warm-up-rounds", "0", "--vs", "raw"]
    if is_there(needs) and hasattr(Producer, method):
        assert call(lent, *words) == 0
        return
    with pytest.raises(SystemExit):
        call(lent, *words)
    error = capsys.readouterr().err
    assert needs in error or method in error


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


def test_a_batch_that_the_broker_refuses_is_no_figure(
    lent: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    words = ["send", "--size", "100000", "--messages", "30", "--partitions", "1", "--rounds", "1"]
    words += ["--warm-up-rounds", "0", "--batch-size", "3000000", "--vs", "raw"]
    assert call(lent, *words, "--json", str(path)) == 1
    (run,) = (run for run in results(path)["runs"] if run["client"] == "raw")
    assert "MESSAGE_SIZE_TOO_LARGE" in run["failure"]


def test_memory_stops_the_broker_and_lets_it_go_on(
    own_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(own_cluster, "stop", lambda: None)
    path = tmp_path / "results.json"
    words = ["memory", "--size", "1000", "--buffer-memory", "1", "--max-block-ms", "50"]
    assert call(own_cluster, *words, "--rounds", "1", "--json", str(path)) == 0
    (run,) = results(path)["runs"]
    assert run["measures"]["accepted"] > 0
    assert run["measures"]["blocked_ms"] >= 50
    assert own_cluster.brokers[0].running


def test_idle(lent: KafkaCluster) -> None:
    assert call(lent, "idle", "--seconds", "0.1", "--rounds", "1") == 0


def test_topics(lent: KafkaCluster) -> None:
    assert call(lent, "topics", "--rounds", "1", "--unknown", "50", "--partitions", "20") == 0


@pytest.mark.kafka
def test_an_outage_is_measured_from_its_beginning_to_the_recovery(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    words = ["--only", "outage", "--outage-seconds", "2", "--rate", "100", "--rounds", "1"]
    assert call(None, "faults", *words, "--json", str(path)) == 0
    (run,) = results(path)["runs"]
    assert run["failure"] is None
    assert run["measures"]["delivered"] > 0
    assert run["measures"]["seconds"] >= 2


@pytest.mark.kafka
@pytest.mark.full
def test_brokers_are_restarted_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert call(None, "restart", "--rounds", "1", "--json", str(path)) == 0
    (run,) = results(path)["runs"]
    measures = run["measures"]
    assert measures["failed"] == 0
    assert measures["sent"] > 0
    assert measures["longest_ms"] >= measures["p99_ms"]


def test_produce(lent: KafkaCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(lent, "produce", "--lines", "2000", "--rounds", "1") == 0
    assert capsys.readouterr().out.count("pykaproducer ") == 3


@pytest.mark.parametrize("case", ["jsonl", "parquet 50"])
def test_load(lent: KafkaCluster, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed")
    assert call(lent, "load", "--megabytes", "1", "--rounds", "1", "--cases", case) == 0
    assert capsys.readouterr().out.count(f"\n{case} ") == 2


def test_startup_needs_no_broker() -> None:
    assert call(None, "startup", "--rounds", "1") == 0


def test_a_run_that_hangs_ends_and_shows_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import threading\ndef measure(job, parent):\n    threading.Event().wait()\n"
    (tmp_path / "hanging.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(RunFailed, match=r"no end within(.|\n)*in measure"):
        runner.in_fresh_process("hanging", {}, limit=1.0)


def program(tmp_path: Path, source: str) -> list[str]:
    """Return a command that is not a module of the suite, like the peers in other languages."""
    path = tmp_path / "program.py"
    path.write_text(source)
    return [sys.executable, str(path)]


def test_a_program_in_another_language_answers_with_its_measures(tmp_path: Path) -> None:
    words = program(tmp_path, """print('{"measures": {"messages_per_s": 7.0}}')""")
    found = runner.in_program(words, limit=30.0)
    assert found["messages_per_s"] == 7.0
    assert found["calibration_ns"] > 0


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("""print('{"failed": "of 5 messages 3 failed"}')""", "^of 5 messages 3 failed$"),
        ("raise SystemExit('no such setting')", "ended with status 1:\nno such setting"),
        ("pass", "ended with status 0"),
        ("""print('{"measures": {}}'); raise SystemExit(2)""", "ended with status 2"),
        ("for i in range(99): print(i, file=__import__('sys').stderr)", r"\n\.\.\.\n74\n"),
    ],
)
def test_a_program_that_fails_says_why(tmp_path: Path, source: str, text: str) -> None:
    with pytest.raises(RunFailed, match=text):
        runner.in_program(program(tmp_path, source), limit=30.0)


@pytest.mark.parametrize("deaf", [False, True], ids=["it says where", "it has to be killed"])
def test_a_program_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    """Go and Java programs print the stacks of their threads on SIGQUIT."""
    monkeypatch.setattr(runner, "_LAST_WORDS", 0.2 if deaf else 30.0)
    source = "import faulthandler, signal, threading\n"
    source += (
        "signal.signal(signal.SIGQUIT, signal.SIG_IGN)\n"
        if deaf
        else "faulthandler.register(signal.SIGQUIT, chain=True)\n"  # which then ends it
    )
    source += "def stuck():\n    threading.Event().wait()\nstuck()\n"
    said = "no end within 5 s" if deaf else r"no end within 5 s(.|\n)*in stuck"
    with pytest.raises(RunFailed, match=said):
        runner.in_program(program(tmp_path, source), limit=5.0)


def test_the_process_of_a_peer_carries_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise our memory would be counted as the peer's, and our import time as zero."""
    source = (
        "import sys\n"
        "from benchmarks import arrow, bulk, compression, idle, memory, overlap, partitions\n"
        "from benchmarks import send, startup, sync, transactions\n"
        "def measure(job, parent):\n"
        "    return {name: name in sys.modules for name in ('pykaproducer', 'kafka', 'socket')}\n"
    )
    (tmp_path / "looking.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    found = runner.in_fresh_process("looking", {}, limit=30.0)
    assert found == {"pykaproducer": False, "kafka": False, "socket": True}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Write the ``--json`` output of three runs."""
    runs = [
        Run("1 partition", client, 1, {"messages_per_s": 2e6, report.CALIBRATION: speed})
        for client, speed in (("pykaproducer", 15.0), ("raw", 45.0))
    ]
    names = ["pykaproducer", "raw"]
    description = machine.describe(["python", "-m", "benchmarks", "send", "--vs", "raw"], names)
    path = tmp_path / "send.json"
    report.write_json(path, {"title": "send: it", **description}, runs, names, send.COLUMNS)
    return path


def test_a_figure_has_its_recipe_and_its_warning_beneath(written: Path, tmp_path: Path) -> None:
    if not is_there("matplotlib"):
        # Not a dependency of the tests.
        return
    assert call(None, "plot", str(written), "-o", str(tmp_path / "figures")) == 0
    drawn = (tmp_path / "figures" / "send.svg").read_text()
    for text in ("$ python -m benchmarks send --vs raw", "M messages/s", "raw", "DISTURBED: "):
        assert text in drawn
    assert (tmp_path / "figures" / "send.png").read_bytes().startswith(b"\x89PNG")


def test_plot_refuses_what_it_cannot_draw(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text("[]")
    for words, text in (
        ([str(tmp_path / "other.json")], "other.json: not a file of python -m benchmarks"),
        ([str(tmp_path / "none.json")], "none.json"),
        ([str(written), "--columns", "height"], "no figures of height: messages_per_s"),
    ):
        with pytest.raises(SystemExit):
            call(None, "plot", *words, "-o", str(tmp_path))
        assert text in capsys.readouterr().err or not is_there("matplotlib")


def test_the_benchmarks_of_the_kernel_run() -> None:
    if is_there("pyperf"):
        assert call(None, "kernel", "--once") == 0
    # Without pyperf: each of them runs once, so that they stay compatible with the kernel.
    for timed in kernel._all().values():
        assert timed(1) > 0

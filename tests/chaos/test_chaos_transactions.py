"""A short run of ``python -m benchmarks chaos --transactions``: real brokers, no defects.

``tox -e nightly`` runs it for longer.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pykaproducer.testing import ClusterError
from pykaproducer.testing._jars import java, kafka_jars
from tests._support.effort import NIGHTLY
from tests._support.fixtures.seeds import SEED

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("patient_audit")


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the suite importable from the tree; an installed pykaproducer takes precedence."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


@pytest.fixture
def _kafka() -> None:
    try:
        java()
        kafka_jars()
    except ClusterError as error:
        pytest.skip(f"no Kafka to test with: {error}")


def call(*words: str) -> int:
    main = importlib.import_module("benchmarks.__main__").main
    status = main(("chaos", "--transactions", *words))
    assert isinstance(status, int)
    return status


#: A short run has one of them, which its seed decides.
MODES = [[], ["--tv1"], ["--group"], ["--group", "--tv1"], ["--instances", "2"]]


@pytest.mark.usefixtures("_kafka")
@pytest.mark.parametrize("mode", MODES if NIGHTLY else [MODES[SEED % len(MODES)]])
def test_faults_of_every_kind(
    mode: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = 100 if NIGHTLY else 4
    words = [*mode, "--faults", str(faults), "--seed", str(SEED)]
    if not NIGHTLY:  # without those of brokers, which take long
        quick = ("EndTxn after", "client kill -9", "second instance", "reset", "EndTxn before")
        words += [word for kind in quick for word in ("--only", kind)]
    path = tmp_path / "chaos.json"
    status = call(*words, "--json", str(path))
    (act,) = json.loads(path.read_text())["acts"]
    assert status == 0, (act["found"], act["examples"])
    assert sum(act["struck"].values()) == faults
    measures = act["measures"]
    assert 0 < measures["reported as COMMITTED"] <= measures["transactions"]
    assert 0 < measures["messages readable"] <= measures["messages in the log"]
    assert act["longest"]["commit_transaction"] > 0
    text = capsys.readouterr().out
    for kind, count in act["struck"].items():
        assert f"{kind:<26}{count:>6}" in text
    # What is in the file is not run again.
    assert call(*words, "--json", str(path), "--resume") == 0
    assert json.loads(path.read_text())["acts"] == [act]
    again: list[Any] = [line for line in capsys.readouterr().out.splitlines()[1:] if line]
    assert again == [line for line in text.splitlines()[1:] if line]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--producer", "kafka-python"], "--transactions supports pykaproducer, confluent-kafka"),
        (["--group", "--instances", "2"], "--group needs --instances 1"),
        (["--resume"], "--resume needs --json"),
        (["--only", "AddPartitionsToTxn after"], "cannot happen with these options"),
        (["--only", "group coordinator moved"], "cannot happen with these options"),
        (["--brokers", "1", "--only", "leader election"], "cannot happen with these options"),
        (["--brokers", "2"], "--brokers"),
    ],
)
def test_a_wrong_option_is_refused(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(*words)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--tv1"], ["--group"], ["--instances", "2"]])
def test_an_option_of_transactions_needs_them(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("benchmarks.__main__").main(("chaos", *option))
    assert ended.value.code == 2
    assert "need --transactions" in capsys.readouterr().err.replace("needs", "need")

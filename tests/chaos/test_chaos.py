"""A short run of ``python -m benchmarks chaos``: real brokers, real faults, no defects.

``tox -e nightly`` runs it for longer, ``python -m benchmarks chaos --faults 1000`` for hours.
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
    status = importlib.import_module("benchmarks.__main__").main(("chaos", *words))
    assert isinstance(status, int)
    return status


def play(path: Path, *words: str) -> dict[str, Any]:
    """Run the command, which must find nothing, and return its only act."""
    status = call(*words, "--json", str(path))
    (act,) = json.loads(path.read_text())["acts"]
    assert status == 0, (act["found"], act["examples"])
    assert act["measures"]["settled"] == act["measures"]["sent"] > 0
    assert act["records"] >= act["measures"]["delivered"] > 0
    assert isinstance(act, dict)
    return act


#: The modes of ``stage_threads``; a short run takes the one that its seed decides.
MODES = ["shared", "own"] if NIGHTLY else [("shared", "own")[SEED % 2]]


@pytest.mark.usefixtures("_kafka")
@pytest.mark.parametrize("mode", MODES)
def test_faults_of_every_kind(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing lost, duplicated, reordered, denied, unsettled, settled twice, late or left over."""
    words = ["--faults", "100" if NIGHTLY else "3", "--seed", str(SEED), "--producers", "2"]
    words += ["--stage-threads", mode]
    act = play(tmp_path / "chaos.json", *words)
    assert not any(act["found"].values())
    assert act["struck"]
    text = capsys.readouterr().out
    for kind, count in act["struck"].items():
        assert f"{kind:<18}{count:>6}" in text
        assert act["requests"][kind] >= count
    assert act["exercised"]["Produce requests"] > 0
    for name in act["exercised"]:
        assert name in text


@pytest.mark.usefixtures("_kafka")
def test_callers_that_send_their_messages_themselves(tmp_path: Path) -> None:
    only = ["--only", "cut before", "--only", "cut within", "--only", "cut after"]
    words = ["--waiting", "--faults", "60" if NIGHTLY else "2", "--seed", str(SEED)]
    act = play(tmp_path / "chaos.json", *words, *only)
    assert not any(act["found"].values())


@pytest.mark.usefixtures("_kafka")
def test_without_idempotence_a_retry_may_double_and_nothing_else(tmp_path: Path) -> None:
    only = ["--only", "cut before", "--only", "cut within", "--only", "cut after"]
    words = ["--no-idempotence", "--faults", "6", "--seed", "7", *only]
    act = play(tmp_path / "chaos.json", *words)
    del act["found"]["DOUBLED"]
    assert not any(act["found"].values())
    assert act["seed"] == 7
    assert sum(act["struck"].values()) == 6


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--faults", "0"], "at least 1"),
        (["--acks", "1"], "--acks 1 needs --no-idempotence"),
        (["--producer", "sarama"], "sarama"),
        (["--only", "meteorite"], "meteorite"),
        (["--hours", "0"], "--hours must be more than 0"),
        (["--hours", "1", "--seconds", "60"], "leave one of them out"),
        (["--in-flight", "6"], "at most 5 with idempotence"),
        (["--producers", "7"], "at most --partitions"),
    ],
)
def test_a_wrong_option_is_refused(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(*words)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err

"""Short runs of ``python -m chaos``: real brokers, real faults, no defects.

``tox -e nightly`` runs it for longer, ``python -m chaos --faults 1000`` for hours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chaos.__main__ import main
from tests._support.effort import NIGHTLY
from tests._support.fixtures.seeds import SEED

full = pytest.mark.full

#: Messages a second. Where brokers answer few requests a second, twice as many batches as they
#: write would let every message expire, although nothing is wrong.
RATE = 300

CUTS = ("cut before", "cut within", "cut after")
SHORT = ("no memory", "old metadata", "metadata holes", "all throttled", "renewed files")
#: Faults of transactions that end soon: no broker has to start again.
QUICK = ("EndTxn after", "client kill -9", "second instance", "reset", "EndTxn before")


def only(*kinds: str) -> list[str]:
    return [word for kind in kinds for word in ("--only", kind)]


def play(path: Path, *words: str) -> dict[str, Any]:
    """Run the command, which must find nothing, and return its only act."""
    status = main([*words, "--seed", str(SEED), "--json", str(path)])
    (act,) = json.loads(path.read_text())["acts"]
    assert status == 0, (act["found"], act["examples"])
    assert isinstance(act, dict)
    return act


def faults(few: int, many: int) -> list[str]:
    return ["--faults", str(many if NIGHTLY else few)]


#: By name: the options, and the findings that they allow.
RUNS: dict[str, tuple[list[str], set[str]]] = {
    "a broker and connections": (
        [*faults(3, 30), "--producers", "2", *only("kill -9", "reset", "cut after")],
        set(),
    ),
    "any fault": ([*faults(3, 100), "--producers", "2"], set()),
    "own threads": ([*faults(2, 100), "--stage-threads", "own"], set()),
    "callers that send themselves": ([*faults(2, 60), "--waiting", *only(*CUTS)], set()),
    "views, TLS and memory": (
        [*faults(5, 60), "--tls", "--refused-topic", *only(*SHORT)],
        set(),
    ),
    "without idempotence": ([*faults(6, 6), "--no-idempotence", *only(*CUTS)], {"DOUBLED"}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=full if i else ()) for i, name in enumerate(RUNS)]
)
@pytest.mark.kafka
@pytest.mark.usefixtures("patient_audit")
def test_messages(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing lost, duplicated, reordered, denied, unsettled, settled twice, late or left over."""
    words, allowed = RUNS[name]
    act = play(tmp_path / "chaos.json", *words, "--rate", str(RATE))
    assert set(act["found"]) <= allowed
    happened = act["tables"]["what happened"]
    assert happened["messages settled"] == happened["messages sent"] > 0
    assert happened["messages in the log"] >= happened["messages delivered"] > 0
    assert sum(act["struck"].values()) == int(words[1])
    text = capsys.readouterr().out
    for kind, count in act["struck"].items():
        assert f"{kind:<26}{count:>6}" in text
        assert act["requests"][kind] >= count
    exercised = act["tables"]["exercised"]
    assert exercised["Produce requests"] > 0
    assert all(counter in text for counter in exercised)


@full
@pytest.mark.parametrize(
    "mode",
    [[], ["--tv1"], ["--group"], ["--group", "--tv1"], ["--instances", "2"]],
    ids=" ".join,
)
@pytest.mark.kafka
@pytest.mark.usefixtures("patient_audit")
def test_transactions(mode: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--transactions", *mode, *faults(4, 100), *(() if NIGHTLY else only(*QUICK))]
    path = tmp_path / "chaos.json"
    act = play(path, *words)
    assert sum(act["struck"].values()) == int(words[len(mode) + 2])
    measures = act["tables"]["what happened"]
    assert 0 < measures["reported as COMMITTED"] <= measures["transactions"]
    assert 0 < measures["messages readable"] <= measures["messages in the log"]
    (calls,) = (table for title, table in act["tables"].items() if title.startswith("calls"))
    assert calls["longest commit_transaction()"] > 0
    text = capsys.readouterr().out
    assert all(f"{kind:<26}{count:>6}" in text for kind, count in act["struck"].items())
    # What is in the file is not run again.
    assert play(path, *words, "--resume") == act
    assert capsys.readouterr().out.splitlines()[1:] == text.splitlines()[1:]


TRANSACTIONS = "--transactions"


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
        (["--only", "renewed files"], "cannot happen with these options"),
        (["--waiting", "--only", "no memory"], "cannot happen with these options"),
        (["--tls", TRANSACTIONS], "need pykaproducer and no --transactions"),
        (["--refused-topic", "--producer", "aiokafka"], "--refused-topic need pykaproducer"),
        (["--tv1"], "needs --transactions"),
        (["--group"], "needs --transactions"),
        (["--instances", "2"], "need --transactions"),
        ([TRANSACTIONS, "--producer", "kafka-python"], "supports pykaproducer, confluent-kafka"),
        ([TRANSACTIONS, "--group", "--instances", "2"], "--group needs --instances 1"),
        ([TRANSACTIONS, "--resume"], "--resume needs --json"),
        ([TRANSACTIONS, "--only", "AddPartitionsToTxn after"], "cannot happen with these options"),
        ([TRANSACTIONS, "--only", "group coordinator moved"], "cannot happen with these options"),
        ([TRANSACTIONS, "--brokers", "1", "--only", "leader election"], "cannot happen with these"),
        ([TRANSACTIONS, "--brokers", "2"], "--brokers"),
    ],
)
def test_a_wrong_option_is_refused(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err

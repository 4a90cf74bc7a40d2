"""What ``chaos --transactions`` does not hold against the client: markers that brokers skipped."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos._world import World

ROOT = Path(__file__).parents[2]

_LINE = (
    "{time} [TxnMarkerSenderThread-0] INFO kafka.coordinator.transaction."
    "TransactionMarkerChannelManager - [Transaction Marker Channel Manager 0]: Couldn't find "
    "leader endpoint for partitions {places} while trying to send transaction markers for {id}, "
    "these partitions are likely deleted already and hence can be skipped\n"
)


@pytest.fixture(autouse=True)
def _benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the suite importable from the tree; an installed pykaproducer takes precedence."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])


@pytest.fixture
def world() -> Iterator[World]:
    return World()


@pytest.fixture
def skipped() -> Any:
    return importlib.import_module("benchmarks.chaos.transactions.skipped")


def test_a_transaction_without_its_markers_is_not_judged(world: World, skipped: Any) -> None:
    world.show(world.aborted, 1)
    world.logs[1].stable = 1
    assert world.found() == {"GHOST": 1, "HANGING": 1}
    lost = skipped.Skipped("id", frozenset({1}), offsets=False, at=33.0)
    assert world.found(skipped=[lost]) == {"BROKERS": 2}


def test_a_torn_or_lost_commit_without_its_markers_is_not_judged(
    world: World, skipped: Any
) -> None:
    lost = skipped.Skipped("id", frozenset({0, 1}), offsets=False, at=23.0)
    world.hide(world.committed, 0)
    assert world.found(skipped=[lost], group=False) == {"BROKERS": 1}
    # With what was computed from two inputs.
    assert world.found(skipped=[lost]) == {"BROKERS": 1 + 2}
    world.hide(world.committed, 1)
    assert world.found(skipped=[lost], group=False) == {"BROKERS": 1}


@pytest.mark.parametrize(
    "lost",
    [
        {"transactional_id": "another", "at": 33.0},
        {"at": 29.0},
        {"partitions": frozenset({5}), "at": 33.0},
        {"at": 130.0},
    ],
)
def test_other_transactions_are_judged(world: World, skipped: Any, lost: dict[str, Any]) -> None:
    """Of another id, or begun later, elsewhere, or ended long before."""
    world.show(world.aborted, 1)
    given = {"transactional_id": "id", "partitions": frozenset({1}), "offsets": False, **lost}
    assert world.found(skipped=[skipped.Skipped(**given)]) == {"GHOST": 1}


def test_offsets_without_their_marker_are_not_judged(world: World, skipped: Any) -> None:
    wrong = {"offsets": {7: world.inputs - 1}}
    assert world.found(**wrong) == {"OFFSETS_APART": 1}
    lost = skipped.Skipped("id", frozenset(), offsets=True, at=120.0)
    assert world.found(**wrong, skipped=[lost]) == {"BROKERS": 1}


def test_a_broker_says_which_markers_it_has_skipped(tmp_path: Path, skipped: Any) -> None:
    now, wall = time.monotonic(), time.time()

    def stamp(seconds: float) -> str:
        moment = wall + seconds
        return time.strftime("%H:%M:%S", time.localtime(moment)) + f".{int(moment % 1 * 1000):03}"

    (tmp_path / "broker-0.log").write_text(
        "23:59:59.000 [main] INFO kafka.utils - nothing\n"
        + _LINE.format(time=stamp(2), places="Set(chaos-3)", id="chaos-0")
        + _LINE.format(time=stamp(4), places="HashSet(chaos-5, chaos-10, chaos-in-1)", id="other")
    )
    (tmp_path / "broker-1.log").write_text(
        _LINE.format(time=stamp(86_000), places="Set(__consumer_offsets-0)", id="chaos-0")
    )
    paths = sorted(tmp_path.glob("*.log"))
    found = skipped.skipped_markers(paths, "chaos", now)
    assert [each._replace(at=0.0) for each in found] == [
        ("chaos-0", {3}, False, 0.0),
        ("other", {5, 10}, True, 0.0),
        ("chaos-0", set(), True, 0.0),
    ]
    assert [each.at - now for each in found] == pytest.approx([2, 4, 86_000], abs=0.1)

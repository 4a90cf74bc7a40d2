"""Ctrl-C while a producer is closed: it can be closed again, and each message is reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pykaproducer.testing import ScriptedCluster
from tests._support.interrupts import (
    CLOSE,
    LINGER,
    Operation,
    Scene,
    interrupt_everywhere,
    nothing_is_lost,
)

ABORT = Operation(Scene.pend, lambda scene: scene.producer.abort(), LINGER, answered=False)


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        yield cluster


def test_ctrl_c_anywhere_in_close_loses_nothing(scripted: ScriptedCluster) -> None:
    interrupt_everywhere(scripted, CLOSE, nothing_is_lost)


def each_has_one_outcome(scene: Scene, error: BaseException | None) -> None:
    assert isinstance(error, KeyboardInterrupt)
    scene.check_it_can_be_closed()
    scene.cluster.join_connections()  # batches that were in flight are in the log now, or never
    scene.check_each_has_one_outcome()


def test_ctrl_c_anywhere_in_abort_leaves_no_message_without_outcome(
    scripted: ScriptedCluster,
) -> None:
    interrupt_everywhere(scripted, ABORT, each_has_one_outcome)

"""Ctrl-C in a user's thread: nothing is lost, nothing doubled, nothing broken, wherever it strikes.

The end of a producer has a file of its own: ``test_interrupts_close.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pykaproducer.testing import ScriptedCluster

from .interrupts import (
    OPERATIONS,
    PACKAGE,
    Operation,
    Place,
    Scene,
    interrupt_everywhere,
    nothing_is_lost,
)


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_ctrl_c_anywhere_loses_nothing(scripted: ScriptedCluster, operation: Operation) -> None:
    interrupt_everywhere(scripted, operation, nothing_is_lost)


def test_what_is_sent_after_an_interrupted_flush_lingers(scripted: ScriptedCluster) -> None:
    """Nobody flushes any more: neither are messages hurried, nor is anything kept for it."""

    def check(scene: Scene, error: BaseException | None) -> None:
        assert isinstance(error, KeyboardInterrupt)
        error.__traceback__ = None  # it refers to all that the flush had at hand
        pipeline = scene.producer._pipeline
        assert pipeline is not None
        assert not pipeline.is_flushing()
        assert not pipeline._marks
        assert not pipeline.inflight._marks

    interrupt_everywhere(scripted, OPERATIONS["flush(0)"], check)


def waits_for_a_thread(place: Place) -> bool:
    """In what ``Thread.start`` waits with; not where Condition itself loses its lock."""
    names = [code.co_qualname for code, _ in place]
    return "Event.wait" in names and names[0] in ("Event.wait", "Condition.wait")


@pytest.mark.parametrize("name", ["the first send()", "the first partitions_for()"])
def test_ctrl_c_while_a_thread_starts(scripted: ScriptedCluster, name: str) -> None:
    """The one moment in which a first use waits: for the new thread to say that it is there."""

    def check(scene: Scene, error: BaseException | None) -> None:
        if isinstance(error, KeyboardInterrupt):  # threading may make another error of it
            scene.check_nothing_is_lost()

    interrupt_everywhere(
        scripted,
        OPERATIONS[name],
        check,
        files=(PACKAGE, threading.__file__),
        spared=lambda place: not waits_for_a_thread(place),
    )

"""Ctrl-C in a user thread: nothing is lost, duplicated or broken, wherever it strikes.

The end of a producer has a separate file: ``test_interrupts_close.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pykaproducer.testing import ScriptedCluster
from tests._support.interrupts import (
    OPERATIONS,
    PACKAGE,
    Operation,
    Place,
    Scene,
    interrupt_everywhere,
    nothing_is_lost,
)
from tests.pipeline.helper import until


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedCluster]:
    with ScriptedCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_ctrl_c_anywhere_loses_nothing(scripted: ScriptedCluster, operation: Operation) -> None:
    interrupt_everywhere(scripted, operation, nothing_is_lost)


def test_what_is_sent_after_an_interrupted_flush_lingers(scripted: ScriptedCluster) -> None:
    """No flush is running any more: messages linger again, and no barrier is left."""

    def check(scene: Scene, error: BaseException | None) -> None:
        assert isinstance(error, KeyboardInterrupt)
        error.__traceback__ = None  # it refers to all objects that the flush used
        pipeline = scene.producer._pipeline
        assert pipeline is not None
        assert not pipeline.is_flushing()
        assert not pipeline._barriers
        # A stage may refer to one for a moment.
        barriers = pipeline.incomplete._barriers
        until(lambda: not any(barrier() for barrier in list(barriers.values())))

    interrupt_everywhere(scripted, OPERATIONS["flush(0)"], check)


def waits_for_a_thread(place: Place) -> bool:
    """Return whether *place* is in the wait of ``Thread.start``, with Condition's lock held."""
    names = [code.co_qualname for code, _ in place]
    return "Event.wait" in names and names[0] in ("Event.wait", "Condition.wait")


@pytest.mark.parametrize("name", ["the first send()", "the first partitions_for()"])
def test_ctrl_c_while_a_thread_starts(scripted: ScriptedCluster, name: str) -> None:
    """A first use waits at one point only: for the new thread to report that it runs."""

    def check(scene: Scene, error: BaseException | None) -> None:
        if isinstance(error, KeyboardInterrupt):  # threading may raise another error because of it
            scene.check_nothing_is_lost()

    interrupt_everywhere(
        scripted,
        OPERATIONS[name],
        check,
        files=(PACKAGE, threading.__file__),
        spared=lambda place: not waits_for_a_thread(place),
    )

"""A stage: its inbox and its deadline."""

from __future__ import annotations

import threading
from typing import Any

from pykaproducer._pipeline.worker import Worker
from pykaproducer.testing import FakeClock

from .helper import SOON, stage_context


class _Busy(Worker):
    """A worker whose first item waits for many others; one of them brings a deadline."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__("busy", stage_context(clock))
        self.all_are_there, self.on_time_came = threading.Event(), threading.Event()
        self.steps = 0
        self.due: float | None = None
        self.on_time_after: int | None = None

    def handle(self, item: Any) -> None:
        self.all_are_there.wait(SOON)
        self.steps += 1
        if self.steps == 10:
            self.due = self.clock.monotonic()

    def deadline(self) -> float | None:
        return self.due

    def on_time(self, now: float) -> None:
        self.on_time_after, self.due = self.steps, None
        self.on_time_came.set()


def test_a_deadline_does_not_wait_for_all_that_is_in_the_inbox() -> None:
    """A partition with a deep backlog must not make the messages of the others expire late."""
    stage = _Busy(FakeClock())
    for number in range(10_000):
        stage.put(number)
    stage.all_are_there.set()
    assert stage.on_time_came.wait(SOON)
    stage.stop()
    assert stage.join(stage.clock.monotonic() + SOON)
    assert stage.on_time_after is not None
    assert stage.on_time_after <= 10 + 2 * 64
    assert stage.steps == 10_000

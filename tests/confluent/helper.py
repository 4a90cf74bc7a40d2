"""Shared helpers of the tests of the drop-in replacement."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pykaproducer.confluent import Producer
from pykaproducer.testing import FakeClock, ScriptedCluster

#: How long an operation may take (seconds): tests wait for the event, not for the clock.
SOON = 30


class Calls(list[Any]):
    """A callback that records its arguments."""

    def __call__(self, *given: Any) -> None:
        self.append(given[0] if len(given) == 1 else given)


def on(scripted: ScriptedCluster, clock: FakeClock | None = None, **settings: Any) -> Producer:
    """Return the drop-in, connected to an in-process cluster; setting names have underscores."""
    with scripted.producer(clock=clock) as model:
        kind = type(model)

    class OnScript(Producer):
        _core_type = kind

    given = {name.replace("__", "."): value for name, value in settings.items()}
    return OnScript({"bootstrap.servers": scripted.bootstrap_servers, "linger.ms": 0, **given})


def poll_until(producer: Any, done: Callable[[], object]) -> None:
    """Poll until *done()* is true."""
    end = time.monotonic() + SOON
    while not done():
        assert time.monotonic() < end, "the condition did not become true"
        producer.poll(0.05)

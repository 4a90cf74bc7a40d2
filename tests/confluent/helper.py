"""Shared helpers of the tests of the drop-in replacement."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pykaproducer.confluent import KafkaError, KafkaException, Producer
from pykaproducer.testing import FakeClock, ScriptedCluster

#: A code, and whether it is fatal, retriable, and requires an abort.
Flags = tuple[int, bool, bool, bool]

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


def outcome(call: Callable[[], object], error: type[Any], exception: type[Any]) -> Any:
    """Return the result of a call in a form that is comparable between two libraries.

    That is the kind of exception, and its code if it has one, or "fine" without an exception.
    """
    try:
        call()
    except exception as raised:
        found = raised.args[0]
        return ("KafkaException", found.code()) if isinstance(found, error) else "KafkaException"
    except Exception as raised:
        return type(raised).__name__
    return "fine"


def flags_of(call: Callable[[], object], kind: type[Exception] = KafkaException) -> Flags | None:
    """Return the code and the flags of the error that *call* raises, or None."""
    try:
        call()
    except kind as raised:
        error = raised.args[0]
        return (error.code(), error.fatal(), error.retriable(), error.txn_requires_abort())
    return None


def our_outcome(call: Callable[[], object]) -> Any:
    """Return the outcome of a call to the drop-in."""
    return outcome(call, KafkaError, KafkaException)

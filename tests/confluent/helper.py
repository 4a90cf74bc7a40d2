"""What the tests of the drop-in share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pykaproducer.confluent import KafkaError, KafkaException, Producer
from pykaproducer.testing import ScriptedCluster

#: How long anything may take (seconds): tests wait for it, not for the clock.
SOON = 30


class Calls(list[Any]):
    """A callback that remembers what it was given."""

    def __call__(self, *given: Any) -> None:
        self.append(given[0] if len(given) == 1 else given)


def on(scripted: ScriptedCluster, **settings: Any) -> Producer:
    """The drop-in, on a cluster in this process. Settings by their names, with underscores."""
    with scripted.producer() as model:
        kind = type(model)

    class OnScript(Producer):
        _core_type = kind

    given = {name.replace("__", "."): value for name, value in settings.items()}
    return OnScript({"bootstrap.servers": scripted.bootstrap_servers, "linger.ms": 0, **given})


def poll_until(producer: Any, done: Callable[[], object]) -> None:
    """Poll until it is so."""
    end = time.monotonic() + SOON
    while not done():
        assert time.monotonic() < end, "it did not come about"
        producer.poll(0.05)


def outcome(call: Callable[[], object], error: type[Any], exception: type[Any]) -> Any:
    """What a call does, so that two libraries' can be compared: the kind of exception, and its
    code if it has one; "fine" if there is none."""
    try:
        call()
    except exception as raised:
        found = raised.args[0]
        return ("KafkaException", found.code()) if isinstance(found, error) else "KafkaException"
    except Exception as raised:
        return type(raised).__name__
    return "fine"


def our_outcome(call: Callable[[], object]) -> Any:
    """Of a call to the drop-in."""
    return outcome(call, KafkaError, KafkaException)

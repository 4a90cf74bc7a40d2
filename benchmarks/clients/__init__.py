"""One interface over the clients that are compared; a module for each of them.

Each client's own loop is written as a good user of that client would write it: no call of ours
stands between the loop and the client's ``send``.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: The clients, by the names that they are installed by; ours first.
NAMES = ("pykaproducer", "confluent-kafka", "kafka-python")

#: Called once for each message: the error or None, and the client's own report.
OnDelivery = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Settings:
    """What the clients are told; None leaves a setting at the client's own default."""

    bootstrap_servers: str
    acks: str | None = None
    idempotence: bool | None = None
    compression: str | None = None
    linger_ms: float | None = None
    #: Bytes of a batch.
    batch_size: int | None = None
    #: Bytes of messages that wait for their outcome.
    buffer_memory: int | None = None
    max_block_ms: int | None = None
    #: Clients that run callbacks when they are polled only: messages between two polls.
    poll_every: int = 1000


@dataclass(frozen=True)
class Load:
    """Messages to send: the payloads are made before, and taken in turn."""

    topic: str
    count: int
    values: Sequence[bytes]
    keys: Sequence[bytes] | None = None

    def rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Value and key of each message."""
        keys = itertools.repeat(None) if self.keys is None else itertools.cycle(self.keys)
        return itertools.islice(zip(itertools.cycle(self.values), keys), self.count)


class Client(Protocol):
    """What is measured."""

    #: What a send() raises when there is no room.
    buffer_full: type[BaseException]

    def send(self, topic: str, value: bytes, on_delivery: OnDelivery | None = None) -> None:
        """One message."""

    def send_all(self, load: Load, on_delivery: OnDelivery | None) -> None:
        """The send loop, with a callback for each message or with none."""

    def send_keeping_handles(self, load: Load) -> Callable[[], int]:
        """The send loop; keep what send() returns. The result counts the delivered ones."""

    def flush(self, timeout: float) -> None:
        """Return when every message has its outcome; raise if some have none by then."""

    def abandon(self) -> None:
        """End, whatever becomes of the messages."""


def factory(name: str) -> Callable[[Settings], Client]:
    """The class of a client, its library imported."""
    module = importlib.import_module(f"benchmarks.clients.{name.replace('-', '_')}")
    made: Callable[[Settings], Client] = module.Client
    return made


def given(**settings: object) -> dict[str, Any]:
    """Those settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}

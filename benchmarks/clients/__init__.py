"""One interface over the clients that run in Python; a module for each of them.

Each client's own loop is written as a good user of that client would write it: no call of ours
stands between the loop and the client's ``send``. :mod:`benchmarks.peers` says which clients
there are, those in other languages too.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: Called once for each message: the error or None, and the client's own report.
OnDelivery = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Settings:
    """What the clients are told; None leaves a setting at the client's own default."""

    bootstrap_servers: str
    acks: str | None = None
    idempotence: bool | None = None
    compression: str | None = None
    compression_level: int | None = None
    linger_ms: float | None = None
    #: Bytes of a batch.
    batch_size: int | None = None
    #: Bytes of messages that wait for their outcome.
    buffer_memory: int | None = None
    max_block_ms: int | None = None
    #: Clients that would have one request in flight by default: this many, as the others have.
    in_flight: int | None = None
    #: Clients that run callbacks when they are polled only: messages between two polls.
    poll_every: int = 1000


@dataclass(frozen=True)
class Load:
    """Messages to send: the payloads are made before, and taken in turn."""

    topic: str
    count: int
    values: Sequence[bytes]
    keys: Sequence[bytes] | None = None
    #: Several topics that take turns, instead of the one.
    topics: Sequence[str] = ()
    #: Rows of a block, for those who send blocks.
    block: int = 0

    def rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Value and key of each message."""
        keys = itertools.repeat(None) if self.keys is None else itertools.cycle(self.keys)
        return itertools.islice(zip(itertools.cycle(self.values), keys), self.count)

    def addressed(self) -> Iterator[tuple[str, bytes, bytes | None]]:
        """Topic, value and key of each message, for several topics."""
        turns = zip(itertools.cycle(self.topics), self.rows(), strict=False)
        return ((topic, value, key) for topic, (value, key) in turns)

    def blocks(self) -> Iterator[tuple[list[bytes], list[bytes] | None]]:
        """Values and keys, a block at a time."""
        rows = self.rows()
        while block := list(itertools.islice(rows, self.block)):
            values = [value for value, _ in block]
            keys = None if self.keys is None else [key for _, key in block if key is not None]
            yield values, keys


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

    def send_one_by_one(self, load: Load) -> list[int]:
        """Send a message, wait until it is delivered, send the next: nanoseconds of each."""

    def flush(self, timeout: float) -> None:
        """Return when every message has its outcome; raise if some have none by then."""

    def abandon(self) -> None:
        """End, whatever becomes of the messages."""


class BlockClient(Client, Protocol):
    """A client that takes many messages at once.

    What can be made of a load before the clock starts is made by ``prepare_...``; ``send_...``
    sends that, and its result counts the delivered messages once all have been flushed.
    """

    def prepare_bulk(self, load: Load) -> Any:
        """The load as lists of Python objects."""

    def send_bulk(self, load: Load, blocks: Any) -> Callable[[], int]: ...

    def prepare_arrow(self, load: Load) -> Any:
        """The load as Arrow's record batches."""

    def send_arrow(self, load: Load, blocks: Any) -> Callable[[], int]: ...


def factory(name: str) -> Callable[[Settings], Any]:
    """The class of a client, its library imported."""
    module = importlib.import_module(f"benchmarks.clients.{name.replace('-', '_')}")
    made: Callable[[Settings], Any] = module.Client
    return made


def given(**settings: object) -> dict[str, Any]:
    """Those settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}

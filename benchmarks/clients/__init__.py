"""One interface for the clients that run in Python, with a module for each of them.

Each client's loop is written as an experienced user of that client would write it: there is no
wrapper between the loop and the client's ``send``. :mod:`benchmarks.peers` lists all clients,
including those in other languages.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

#: Called once for each message: the error or None, and the client's own report.
OnDelivery = Callable[[Any, Any], None]


@dataclass(frozen=True)
class Settings:
    """The settings of the clients; None keeps a client's own default."""

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
    #: For clients with one request in flight by default: the limit to use instead, as others have.
    in_flight: int | None = None
    #: For clients with several by default: another limit.
    max_in_flight: int | None = None
    #: For clients that run callbacks only when polled: the number of messages between two polls.
    poll_every: int = 1000
    transactional_id: str | None = None
    #: Of an encrypted or authenticated listener: kafka-python's settings, by its names.
    security: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Load:
    """The messages to send: the payloads are built in advance, and used in turn."""

    topic: str
    count: int
    values: Sequence[bytes]
    keys: Sequence[bytes] | None = None
    #: Several topics that are used in turn, instead of the one.
    topics: Sequence[str] = ()
    #: Rows of a block, for clients that send blocks.
    block: int = 0
    #: Whether each message that is awaited has a callback as well, where the client has both.
    callback: bool = False

    def rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield value and key of each message."""
        keys = itertools.repeat(None) if self.keys is None else itertools.cycle(self.keys)
        return itertools.islice(zip(itertools.cycle(self.values), keys), self.count)

    def addressed(self) -> Iterator[tuple[str, bytes, bytes | None]]:
        """Yield topic, value and key of each message, for several topics."""
        turns = zip(itertools.cycle(self.topics), self.rows(), strict=False)
        return ((topic, value, key) for topic, (value, key) in turns)

    def blocks(self) -> Iterator[tuple[list[bytes], list[bytes] | None]]:
        """Yield values and keys, a block at a time."""
        rows = self.rows()
        while block := list(itertools.islice(rows, self.block)):
            values = [value for value, _ in block]
            keys = None if self.keys is None else [key for _, key in block if key is not None]
            yield values, keys


class Client(Protocol):
    """A measured client."""

    #: The exception of send() when the buffer is full.
    buffer_full: type[BaseException]

    def send(
        self,
        topic: str,
        value: bytes,
        on_delivery: OnDelivery | None = None,
        key: bytes | None = None,
    ) -> None:
        """Send one message."""

    def send_all(self, load: Load, on_delivery: OnDelivery | None) -> None:
        """Run the send loop, with a callback for each message or with none."""

    def send_keeping_handles(self, load: Load) -> Callable[[], int]:
        """Run the send loop and keep the handles; the result counts the delivered ones."""

    def send_one_by_one(self, load: Load) -> list[int]:
        """Send messages one at a time, waiting for each; return the nanoseconds of each."""

    def flush(self, timeout: float) -> None:
        """Return when every message has its outcome; raise on timeout."""

    def abandon(self) -> None:
        """Close without waiting for the messages."""


class EverydayClient(Client, Protocol):
    """A client that is measured at a steady rate."""

    def served(self) -> AbstractContextManager[None]:
        """Run what the client needs beside the caller's threads, if anything."""

    def append_time(self, report: Any) -> float:
        """Return the time of a message's report, in milliseconds since the epoch."""


class AsyncClient(EverydayClient, Protocol):
    """A client for asyncio."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run *coroutine* in the client's event loop."""

    def awaitable(self) -> Callable[[str, bytes, bytes | None], Awaitable[Any]]:
        """Return the function that sends, and whose result is awaited until the outcome."""


class TransactionalClient(Client, Protocol):
    """A client with transactions."""

    #: Whether commit() waits; if not, there are no single transactions to be measured.
    waits: bool

    def init_transactions(self, timeout: float) -> None: ...

    def begin(self) -> None: ...

    def offset_sender(self, group: str, topic: str) -> Callable[[int], None]:
        """Return a function that adds an offset of partition 0 to the open transaction."""

    def commit(self, timeout: float) -> None:
        """Commit what was sent since begin()."""


class BlockClient(Client, Protocol):
    """A client that sends many messages per call.

    ``prepare_...`` builds everything that can be built before the clock starts. ``send_...`` sends
    it, and its result counts the delivered messages once all have been flushed.
    """

    def prepare_bulk(self, load: Load) -> Any:
        """Return the load as lists of Python objects."""

    def send_bulk(self, load: Load, blocks: Any) -> Callable[[], int]: ...

    def prepare_arrow(self, load: Load) -> Any:
        """Return the load as Arrow's record batches."""

    def send_arrow(self, load: Load, blocks: Any) -> Callable[[], int]: ...


def factory(name: str) -> Callable[[Settings], Any]:
    """Return the class of a client, after importing its library."""
    module = importlib.import_module(f"benchmarks.clients.{name.replace('-', '_')}")
    made: Callable[[Settings], Any] = module.Client
    return made


def given(**settings: object) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}

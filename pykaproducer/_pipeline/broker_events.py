"""The items in the inbox of a BrokerWorker, besides the events of its Bridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from pykaproducer._kernel import Slice
from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._pipeline.bridge import BridgeEvent, ResponseReceived
from pykaproducer._pipeline.metadata_events import ViewChanged
from pykaproducer._pipeline.producer_id import NoProducerId, ProducerIdCame
from pykaproducer.config import Config

if TYPE_CHECKING:
    from pykaproducer._pipeline.worker import AnyWorker


class Enqueue(NamedTuple):
    """A partition's worker adds *item* to its *buffer*."""

    buffer: PartitionBuffer
    item: Slice | Batch | Backlog | Chaser | Sweep


class EnqueueNew(NamedTuple):
    """A topic's worker adds new messages to several buffers, a slice of one chunk to each."""

    items: list[tuple[PartitionBuffer, Slice]]

    @property
    def nbytes(self) -> int:
        """Bytes of the messages."""
        return sum([part.nbytes for _, part in self.items])


class FlushStarted:
    """A flush has begun, or buffer_memory is full: pending messages must not linger."""


class Shutdown:
    """The producer closes and every message has its outcome: do not wait for responses."""


class Unused:
    """The last PartitionWorker has released this worker."""


class TransactionChanged:
    """Partitions were added to the transaction."""


class Drain(NamedTuple):
    """Call *report* with the worker when it has no batch in flight."""

    report: Callable[[AnyWorker], None]


#: An unused worker ends after connections_max_idle_ms, but not before this (seconds).
_UNUSED_LEAST: Final = 30.0
#: An unused worker ends after this if idle connections are never closed (seconds).
_UNUSED_WITHOUT_LIMIT: Final = 540.0


def unused_time(config: Config) -> float:
    """Return after how long an unused worker ends (seconds)."""
    idle = config.connections_max_idle_ms / 1000
    return max(idle, _UNUSED_LEAST) if idle > 0 else _UNUSED_WITHOUT_LIMIT


Event = (
    Enqueue
    | EnqueueNew
    | BridgeEvent
    | ViewChanged
    | ProducerIdCame
    | NoProducerId
    | FlushStarted
    | Unused
    | Shutdown
    | TransactionChanged
    | Drain
)


#: More slices than this take longer than a few milliseconds to encode, however short they are.
_FEW_SLICES: Final = 128


def is_small(event: object, limit: int) -> bool:
    """Return whether *event* brings at most *limit* bytes to encode. A batch is encoded already.

    The stage that brings it may be the dispatcher, which must not be late for a deadline.
    """
    match event:
        case EnqueueNew():
            return len(event.items) <= _FEW_SLICES and event.nbytes <= limit
        case Enqueue(item=Slice() | Backlog() as messages):
            return messages.nbytes <= limit
        case Enqueue() | ResponseReceived():
            return True
    return False

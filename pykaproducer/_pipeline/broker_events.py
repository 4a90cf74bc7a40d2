"""The items in the inbox of a BrokerWorker, besides the events of its Bridge."""

from __future__ import annotations

from dataclasses import dataclass

from pykaproducer._kernel import Slice
from pykaproducer._machines.backlog import Backlog, Sweep
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._pipeline.bridge import BridgeEvent
from pykaproducer._pipeline.metadata import ViewChanged
from pykaproducer._pipeline.producer_id import NoProducerId, ProducerIdCame


@dataclass(frozen=True, slots=True)
class Enqueue:
    """A partition's worker adds *item* to its *buffer*."""

    buffer: PartitionBuffer
    item: Slice | Batch | Backlog | Chaser | Sweep


@dataclass(frozen=True, slots=True)
class FlushStarted:
    """A flush has begun, or buffer_memory is full: pending messages must not linger."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """The producer closes and every message has its outcome: do not wait for responses."""


@dataclass(frozen=True, slots=True)
class Unused:
    """The last PartitionWorker has released this worker."""


Event = (
    Enqueue
    | BridgeEvent
    | ViewChanged
    | ProducerIdCame
    | NoProducerId
    | FlushStarted
    | Unused
    | Shutdown
)

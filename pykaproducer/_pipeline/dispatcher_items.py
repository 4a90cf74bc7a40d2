"""The items in the inbox of Dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pykaproducer._kernel import Chunk, TopicSlot
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._pipeline.incomplete import FlushBarrier
from pykaproducer._pipeline.metadata_events import ViewChanged
from pykaproducer.errors import DeliveryError, Status


class FlushMark(NamedTuple):
    """flush() has been called: *barrier* covers all chunks that were taken before this item."""

    barrier: FlushBarrier


class TakeHeld:
    """A broker can take messages again, or messages must not linger any more."""


class CallersChunk(NamedTuple):
    """A caller has taken *chunk* and sent it, and has handed its request over to the stages."""

    chunk: Chunk


class TopicAtRest(NamedTuple):
    """Reply to the *round*-th :class:`Rest` of a topic: nothing of it is in progress."""

    topic: str
    round: int


class Forgotten(NamedTuple):
    """The view of the cluster no longer has *topic*."""

    topic: str


class FailAll(NamedTuple):
    """Fail all rows that were accepted and have no outcome, and then call *done*."""

    make_error: Callable[[str, Status], DeliveryError]
    done: Callable[[], None]


Item = (
    TopicSlot
    | list[TopicSlot]
    | Batch
    | Backlog
    | Chaser
    | FlushMark
    | TakeHeld
    | CallersChunk
    | ViewChanged
    | TopicAtRest
    | Forgotten
    | FailAll
)

"""The other objects that a Bridge uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pykaproducer._kernel import Chunk, ReportsInbox, Slice, TopicSlot
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer.config import Config

if TYPE_CHECKING:
    from pykaproducer._pipeline.bridge import BridgeEvent


@dataclass(frozen=True, slots=True)
class CallerHooks:
    """Functions with which the Bridge passes a caller's messages to the other stages."""

    #: Makes a chunk, which a caller has taken, known to the stages.
    enter: Callable[[Chunk], None]
    #: Announces a slot with messages, which no caller could send.
    announce: Callable[[TopicSlot], object]
    #: Adds a chunk to those for which a flush waits.
    track: Callable[[Chunk], None]
    #: Reports what was settled of a request; see ``Settler``.
    report_settled: Callable[[Iterator[Slice | None], Sequence[Chunk | None]], None]
    #: Reports what is settled while the Bridge waits.
    inbox: ReportsInbox


@dataclass(frozen=True, slots=True)
class BridgeCollaborators:
    """The other objects that the stage uses."""

    config: Config
    network: Network
    metadata: Metadata
    #: Puts an event into the inbox of the BrokerWorker.
    report: Callable[[BridgeEvent], None]
    callers: CallerHooks

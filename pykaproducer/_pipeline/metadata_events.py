"""The items that other stages put into the inbox of Metadata, and that it puts into theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pykaproducer._machines.cluster import LeaderHint
from pykaproducer._pipeline.worker import Worker
from pykaproducer._wire.messages import BrokerAddress

if TYPE_CHECKING:
    from pykaproducer._pipeline.producer_id import NoProducerId, ProducerIdCame
    from pykaproducer._wire.transactions import CoordinatorKind


class ViewChanged(NamedTuple):
    """There is a new view of the cluster."""

    #: Partitions whose leader has changed, for stages that serve many partitions.
    moved: frozenset[tuple[str, int]] = frozenset()
    #: Why the connections to the brokers of the old view must be closed, for example because of a
    #: rebootstrap (KIP-1102); empty: they need not.
    give_up: str = ""


class RefreshRequest(NamedTuple):
    """Refresh the view: of *topics*, for which messages wait, or else of all known topics.

    *waiter* is notified of the next view. *anew*: the current view of the topics is wrong.
    *server*: the one to ask.
    """

    topics: tuple[str, ...] = ()
    waiter: Worker[ViewChanged] | None = None
    anew: bool = False
    server: tuple[str, int] | None = None


class LeaderRejected(NamedTuple):
    """The leader of a partition, according to the view, has rejected a batch."""

    topic: str
    partition: int


class Forget(NamedTuple):
    """Forget *topic*, which has long been unused; *tell* is called when that is done."""

    topic: str
    tell: Callable[[str], None]


class Hints(NamedTuple):
    """Partition leaders that a broker has named in error responses (KIP-951)."""

    hints: tuple[LeaderHint, ...]


class WantProducerId(NamedTuple):
    """Notify *waiter* when there is a producer id, which it needs to seal a batch."""

    waiter: Worker[ProducerIdCame | NoProducerId]
    #: A producer id that *waiter* cannot use any more.
    instead_of: int | None


class WantCoordinator(NamedTuple):
    """Notify *waiter*, once, which broker is the coordinator of *key*."""

    kind: CoordinatorKind
    key: str
    waiter: Worker[CoordinatorCame]
    #: Whether the last result was of no use: the broker was not the coordinator, or not reachable.
    again: bool = False


class CoordinatorCame(NamedTuple):
    """The coordinator of *key*: its address, or the error code of the lookup."""

    key: str
    address: BrokerAddress | None
    code: int = 0


MetadataItem = RefreshRequest | LeaderRejected | Forget | Hints | WantProducerId | WantCoordinator

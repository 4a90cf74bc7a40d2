"""Whether the servers are still those of the same cluster: pure.

The same addresses may stand for another cluster: after a migration, which servers announce with
REBOOTSTRAP_REQUIRED (KIP-1102), or because a test environment was created again, which nothing
announces. Then the id of the cluster (KIP-78) is another one.
"""

from __future__ import annotations

import enum


class Arrival(enum.Enum):
    """What the cluster id of a response means."""

    SAME = enum.auto()
    #: Another cluster, or perhaps another one, after a rebootstrap.
    OTHER = enum.auto()
    #: Another cluster, without a rebootstrap.
    UNANNOUNCED = enum.auto()


class ClusterIdentity:
    """The id of the cluster, as of the last response."""

    def __init__(self) -> None:
        #: None: there was no response, or none with an id.
        self.id: str | None = None
        self._announced = False

    def rebootstrapped(self) -> None:
        """Record that a server has required a rebootstrap."""
        self._announced = True

    def answered(self, cluster_id: str | None) -> Arrival:
        """Handle the id in a response; None: the server sends no ids."""
        known, announced = self.id, self._announced
        self._announced = False
        if announced:
            self.id = cluster_id
            return Arrival.SAME if cluster_id == known else Arrival.OTHER
        if cluster_id is None or cluster_id == known:
            return Arrival.SAME
        self.id = cluster_id
        return Arrival.SAME if known is None else Arrival.UNANNOUNCED

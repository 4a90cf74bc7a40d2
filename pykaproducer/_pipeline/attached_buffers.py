"""The partition buffers attached to one broker, and the changes of their leaders.

Part of BrokerWorker. Many changes of the view are checked together, and only for the partitions
whose leader has changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykaproducer._machines.cluster import ClusterView
from pykaproducer._machines.partition_buffer import PartitionBuffer


class AttachedBuffers:
    """The buffers of the partitions that a broker leads, or has led until recently."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._buffers: dict[tuple[str, int], PartitionBuffer] = {}
        # Partitions whose leader moved_away() looks up in the view.
        self._to_check: set[tuple[str, int]] = set()
        # Buffers of partitions with another leader now, which still wait for a response here.
        self._moved: set[PartitionBuffer] = set()
        #: Whether a leader may have changed since the last check.
        self.to_check = False

    def all(self) -> list[PartitionBuffer]:
        """Return a copy of the buffers. May be called from any thread."""
        return list(self._buffers.values())

    def attach(self, buffer: PartitionBuffer) -> None:
        """Add *buffer*, unless it is attached already."""
        place = buffer.topic, buffer.partition
        if self._buffers.get(place) is not buffer:
            # No later view reports a change of leader in this case:
            # 1. the buffer is created for the leader in one view; 2. the next view has another
            # leader; 3. the buffer's first item arrives here.
            self._buffers[place] = buffer
            self._check(buffer)

    def detach(self, buffer: PartitionBuffer) -> None:
        """Remove *buffer*, which has ended."""
        self._buffers.pop((buffer.topic, buffer.partition), None)
        self._moved.discard(buffer)

    def view_changed(self, moved: Iterable[tuple[str, int]]) -> None:
        """Record that there is a new view, in which the partitions in *moved* changed leaders."""
        self._to_check.update(moved)
        self.to_check = True

    def check_moved(self) -> None:
        """React to the loss of the connection, after which no response arrives here.

        A buffer may have no batch in flight, but only batches that were sealed ahead:

        1. partition 0 has a batch in flight, and partitions 0 and 1 have one sealed ahead;
        2. the broker dies, and the view names another leader for both, which now wait for their
           batches;
        3. the connection is lost, and the batches sealed ahead are pending again. The loss of the
           request moves partition 0. No response and no later change of the view would move 1.
        """
        for buffer in list(self._moved):
            self.answered(buffer)

    def answered(self, buffer: PartitionBuffer) -> None:
        """React to a response for *buffer*: it may have been the last one it waited for.

        Also called when a batch of it that was sealed ahead is dropped.
        """
        if buffer in self._moved and not buffer.unanswered:
            self._moved.discard(buffer)
            self._check(buffer)

    def moved_away(self, view: ClusterView) -> list[PartitionBuffer]:
        """Return the buffers to release, because *view* names another leader.

        One check for all views since the last call. A buffer with a batch in flight is returned
        once that is answered.
        """
        places, self._to_check = self._to_check, set()
        self.to_check = False
        found: list[PartitionBuffer] = []
        for place in places:
            buffer = self._buffers.get(place)
            leader = view.leader(*place)
            if buffer is None or leader is None or leader == self._broker_id:
                continue
            if buffer.unanswered:
                self._moved.add(buffer)
            else:
                found.append(buffer)
        return found

    def without_leader(self, view: ClusterView) -> set[str]:
        """Return the topics of waiting partitions for which *view* names no leader."""
        return {
            buffer.topic
            for buffer in self._buffers.values()
            if buffer.pending and view.leader(buffer.topic, buffer.partition) is None
        }

    def _check(self, buffer: PartitionBuffer) -> None:
        self._to_check.add((buffer.topic, buffer.partition))
        self.to_check = True

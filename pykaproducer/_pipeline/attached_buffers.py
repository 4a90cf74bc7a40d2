"""The partition buffers attached to one broker, and the changes of their leaders.

Part of BrokerWorker. Many changes of the view are checked together, and only for the partitions
whose leader has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pykaproducer._machines.cluster import ClusterView
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._util.deques import copied_items


class AttachedBuffers:
    """The buffers of the partitions that a broker leads, or has led until recently.

    *cluster* returns the ordinal of the cluster to which the broker belongs now.
    """

    def __init__(self, broker_id: int, cluster: Callable[[], int]) -> None:
        self._broker_id = broker_id
        self._cluster = cluster
        self._last_cluster = cluster()
        self._buffers: dict[tuple[str, int], PartitionBuffer] = {}
        # Partitions whose leader moved_away() looks up in the view.
        self._to_check: set[tuple[str, int]] = set()
        #: Buffers of partitions with another leader now, which have a batch in flight here.
        #: Never replaced, as the RequestSettler keeps it.
        self.moved: set[PartitionBuffer] = set()
        #: Whether a leader may have changed since the last check.
        self.to_check = False

    def all(self) -> list[PartitionBuffer]:
        """Return a copy of the buffers. May be called from any thread."""
        return list(self._buffers.values())

    def pending_items(self) -> list[object]:
        """Return the pending items of all buffers. May be called from any thread."""
        return [item for buffer in self.all() for item in copied_items(buffer.pending)]

    def attach(self, buffer: PartitionBuffer) -> None:
        """Add *buffer*, unless it is attached already."""
        place = buffer.topic, buffer.partition
        if self._buffers.get(place) is not buffer:
            # No later view reports a change of leader in this case:
            # 1. the buffer is created for the leader in one view; 2. the next view has another
            # leader; 3. the buffer's first item arrives here.
            self._buffers[place] = buffer
            buffer.attached = True
            # Nothing of the partition is in flight: its former buffer has returned everything.
            buffer.sequencer.enter(self._cluster())
            self._check_later(buffer)

    def detach(self, buffer: PartitionBuffer) -> None:
        """Remove *buffer*, which has ended."""
        self._buffers.pop((buffer.topic, buffer.partition), None)
        buffer.attached = False
        self.moved.discard(buffer)

    def view_changed(self, moved: Iterable[tuple[str, int]]) -> None:
        """Record that there is a new view, in which the partitions in *moved* changed leaders."""
        self._to_check.update(moved)
        self.to_check = True
        if self._last_cluster != (cluster := self._cluster()):
            self._last_cluster = cluster
            self._to_check.update(self._buffers)

    def answered(self, buffer: PartitionBuffer) -> None:
        """React to a response for *buffer*: it may have been the last one it waited for.

        Also called when a batch of it that was sealed ahead is dropped.
        """
        if buffer in self.moved:
            self.moved.discard(buffer)
            self._check_later(buffer)

    def moved_away(
        self, view: ClusterView, ahead: Mapping[PartitionBuffer, int]
    ) -> list[PartitionBuffer]:
        """Return the buffers to release, because *view* names another leader.

        Or because the broker belongs to another cluster: the partition enters it with a new buffer.

        One check for all views since the last call. A buffer with a batch in flight is returned
        once that is answered. *ahead* is the number of batches of each buffer that are only sealed
        ahead. The buffer does not wait for these:

        1. partition 0 has a batch in flight, and partitions 0 and 1 have one sealed ahead in one
           request, which is sent after the response;
        2. partition 1 gets another leader, and the broker does not answer;
        3. partition 1 would be idle until the request of partition 0 times out.
        """
        places, self._to_check = self._to_check, set()
        self.to_check = False
        found: list[PartitionBuffer] = []
        for place in places:
            buffer = self._buffers.get(place)
            leader = view.leader(*place)
            if buffer is None:
                continue
            is_here = buffer.sequencer.cluster == self._cluster()
            if is_here and (leader is None or leader == self._broker_id):
                continue
            if len(buffer.unanswered) > ahead.get(buffer, 0):
                self.moved.add(buffer)
            else:
                found.append(buffer)
        return found

    def waiting_topics(self) -> set[str]:
        """Return the topics of the partitions with batches or pending items."""
        return {
            buffer.topic for buffer in self._buffers.values() if buffer.pending or buffer.unanswered
        }

    def without_leader(self, view: ClusterView) -> set[str]:
        """Return the topics of waiting partitions for which *view* names no leader."""
        return {
            buffer.topic
            for buffer in self._buffers.values()
            if buffer.pending and view.leader(buffer.topic, buffer.partition) is None
        }

    def _check_later(self, buffer: PartitionBuffer) -> None:
        self._to_check.add((buffer.topic, buffer.partition))
        self.to_check = True

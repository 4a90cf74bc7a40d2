"""Requests that are sealed and not yet sent. Part of BrokerWorker.

Without sequence numbers a partition has one batch in flight. The next one is sealed ahead, and sent
only after the response has been handled, because an error may affect it. With sequence numbers a
request is sent at once, unless the window is full.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator

from pykaproducer._machines.batch import Batch
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._util.deques import copied_items


class SealedAhead:
    """The requests of one broker that are sealed and not yet sent, each a list of batches.

    *one_at_a_time*: a partition may have only one batch in flight.
    """

    def __init__(self, *, one_at_a_time: bool) -> None:
        self._one_at_a_time = one_at_a_time
        #: The requests, oldest first. None of them is empty.
        self.requests: deque[list[Batch]] = deque()
        # Whether they all wait for a response. Looking at a thousand batches for each item that
        # comes would cost more than everything else.
        self._all_wait = False
        self._in_flight: set[tuple[str, int]] = set()

    def add(self, batches: list[Batch]) -> None:
        """Add a request, just sealed."""
        self.requests.append(batches)
        self._all_wait = False

    def batches(self) -> Iterator[Batch]:
        """Iterate over a copy of all batches, oldest first."""
        return (batch for batches in copied_items(self.requests) for batch in list(batches))

    def counts(self) -> Counter[PartitionBuffer]:
        """Return the number of batches of each buffer.

        Excludes those returned by :meth:`next`, which are about to be in flight.
        """
        return Counter(batch.in_buffer for batch in self.batches())

    def next(self) -> list[Batch] | None:
        """Remove and return the oldest request that may be sent; None if all wait for a response.

        A request waits if one of its partitions has a batch in flight, or in an older request that
        waits.
        """
        if not self._one_at_a_time:
            return self.requests.popleft() if self.requests else None
        if self._all_wait:
            return None
        waiting: set[tuple[str, int]] = set()
        for batches in self.requests:
            partitions = _partitions_of(batches)
            if partitions.isdisjoint(self._in_flight) and partitions.isdisjoint(waiting):
                self.requests.remove(batches)
                return batches
            waiting |= partitions
        self._all_wait = True
        return None

    def put_back(self, batches: list[Batch]) -> None:
        """Add *batches*, returned by :meth:`next`, again."""
        self.requests.appendleft(batches)

    def sent(self, batches: list[Batch]) -> None:
        """Record that *batches*, returned by :meth:`next`, are in flight."""
        if self._one_at_a_time:
            self._in_flight |= _partitions_of(batches)

    def reported(self, batches: list[Batch]) -> None:
        """Record that *batches* are no longer in flight."""
        if self._one_at_a_time:
            self._in_flight -= _partitions_of(batches)
            self._all_wait = False

    def drop_expired(self, buffer: PartitionBuffer) -> None:
        """Drop the batches of *buffer* that have expired and are not needed."""
        for batches in self.requests:
            drop_expired(batches, only=buffer)
        self._tidy()

    def withdraw(self, buffers: Collection[PartitionBuffer]) -> None:
        """Move the batches of *buffers* back to pending, in order.

        Pass a set if there may be many.
        """
        if not (self.requests and buffers):
            return
        for batches in reversed(self.requests):
            for batch in batches:
                if batch.in_buffer in buffers:
                    batch.in_buffer.put_back(batch)
            batches[:] = [batch for batch in batches if batch.in_buffer not in buffers]
        self._tidy()

    def _tidy(self) -> None:
        self.requests = deque(batches for batches in self.requests if batches)
        self._all_wait = False  # perhaps for a partition that is no longer in it


def drop_expired(
    batches: list[Batch], *, only: PartitionBuffer | None = None
) -> list[PartitionBuffer]:
    """Remove the expired batches from *batches* that are not needed; return their buffers.

    *only*: those of one buffer.
    """
    changed: list[PartitionBuffer] = []
    for batch in list(batches):
        buffer = batch.in_buffer
        if (only is None or only is buffer) and buffer.drop_ahead(batch):
            batches.remove(batch)
            changed.append(buffer)
    return changed


def _partitions_of(batches: list[Batch]) -> set[tuple[str, int]]:
    return {(batch.topic, batch.partition) for batch in batches}

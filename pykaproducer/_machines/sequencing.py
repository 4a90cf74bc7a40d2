"""Producer id, epoch and sequence numbers of one partition (KIP-98).

The state is kept per partition, so that an error in one partition never renumbers the batches of
another. A number is assigned when a batch is sealed and does not change with its retries: the
broker recognises a batch that it already has by producer id, epoch and first sequence.

Only the broker's worker to which the partition is attached may use a sequencer. It changes hands
with the partition buffer: the old worker seals nothing more once its buffer has failed, and the new
worker gets its first item only after that.
"""

from __future__ import annotations

from typing import NamedTuple

from pykaproducer._kernel import SequencerState

#: Epochs are 16-bit integers; the broker rejects the last one.
LAST_EPOCH = (1 << 15) - 2


class ProducerId(NamedTuple):
    """A producer id and epoch, as returned by InitProducerId."""

    producer_id: int
    epoch: int


class Sequencer(SequencerState):
    """The next sequence number of one partition, with its producer id and epoch.

    *known*: a broker has confirmed a batch with this id and epoch. Until then one batch is sent at
    a time, because a broker that does not know the producer accepts any first number:

    1. Batches 0 and 1 are in flight.
    2. 0 is rejected: the broker is not yet ready to lead the partition.
    3. 1 is appended.
    4. 0 is retried and is out of order forever.
    """

    __slots__ = ("_missing", "cluster", "transactional")

    producer: ProducerId | None

    def __init__(
        self, producer: ProducerId | None = None, *, next_sequence: int = 0, known: bool = False
    ) -> None:
        super().__init__(producer, next_sequence, known)
        #: The cluster in which the numbers count; see :meth:`enter`.
        self.cluster = 0
        #: Its batches belong to transactions.
        self.transactional = False
        # Ordinals of older batches that are known to be missing.
        self._missing: set[int] = set()

    def has_left(self, producer_id: int, epoch: int) -> bool:
        """Return whether the partition now uses another id or epoch."""
        return self.producer != ProducerId(producer_id, epoch)

    def is_needed(self, number: int, producer_id: int, epoch: int) -> bool:
        """Return whether a batch must be written even if all its rows have an outcome.

        It must if a younger batch of the same epoch may be in the log or has no outcome yet:
        the broker would reject that one if this one were missing. Otherwise writing the batch would
        only store messages that were reported as failed, so it is dropped (:meth:`drop`).

        In a transaction none is needed: it is aborted if a row has failed.
        """
        if self.transactional:
            return False
        return not self.has_left(producer_id, epoch) and number < self.youngest_expected

    def missing(self, number: int, producer_id: int, epoch: int) -> None:
        """Record that the *number*-th batch is not, and will not be, in the log in this epoch."""
        if self.has_left(producer_id, epoch):
            return
        self._missing.add(number)
        while self.youngest_expected in self._missing:
            self._missing.discard(self.youngest_expected)
            self.youngest_expected -= 1

    def drop(self, number: int, producer_id: int, epoch: int) -> None:
        """Drop the *number*-th batch: the next one is sealed with a new epoch.

        An earlier attempt of it may still reach the broker. It is the youngest of its epoch, so the
        broker either appends it before the first batch of the new epoch, or rejects it because of
        its old epoch.
        """
        assert not self.is_needed(number, producer_id, epoch), "a younger batch needs it"
        self.missing(number, producer_id, epoch)
        if not self.has_left(producer_id, epoch):
            self.invalidate_sequences()

    def invalidate_sequences(self, *, id_too: bool = False) -> None:
        """Record a gap: a batch will never be in the log. *id_too*: the broker rejects the id."""
        assert self.producer is not None, "sealed without a producer id"
        self.stale = True
        if id_too:
            self.spent_id = self.producer.producer_id

    def enter(self, cluster: int) -> None:
        """Give up the producer id if *cluster*, an ordinal, is another than before.

        Another producer may have the same id in that cluster. Its broker would take a batch for a
        duplicate, which would be reported as delivered and be in no log. Call this only while none
        of the partition's batches is in flight. Those that were sealed before have an id that the
        partition has left.
        """
        if cluster == self.cluster:
            return
        self.cluster = cluster
        if self.producer is not None:
            self.invalidate_sequences(id_too=True)
            self.renew()

    def renew(self) -> bool:
        """Bump the epoch if the numbers are stale; return whether they were.

        In the new epoch, a gap in the old numbers is no error. Call this only while none of the
        partition's written batches is in flight: a late one of the old epoch would be rejected, or
        worse, appended later. The epoch is bumped locally, as in the Java client for a producer
        without transactions (KIP-360). After the last epoch of an id the partition waits for a new
        id.
        """
        if not self.stale:
            return False
        assert self.producer is not None, "stale numbers imply a producer id"
        if self.producer.epoch >= LAST_EPOCH:
            self.spent_id = self.producer.producer_id
        if self.producer.producer_id == self.spent_id:
            self.producer = None
        else:
            self.producer = ProducerId(self.producer.producer_id, self.producer.epoch + 1)
        self.stale = self.known = False
        self.next_sequence = 0
        self._missing.clear()
        return True

    def adopt(self, given: ProducerId | None) -> bool:
        """Use the id *given* by the cluster, if needed and usable; return whether there is one."""
        if self.producer is None and given is not None and given.producer_id != self.spent_id:
            self.producer = given
        return self.producer is not None

    def adopt_transaction(self, producer: ProducerId) -> bool:
        """Use the id and epoch of a transaction; return whether they have changed.

        Each id and epoch begins with sequence number 0. Within one the numbers continue from one
        transaction to the next. Call this only while none of the partition's batches is in flight.

        ``known`` outlives an epoch of the same id. Otherwise each transaction would begin with one
        batch at a time in each partition. A broker keeps the state of a producer for a day
        (``producer.id.expiration.ms``), so that it rejects a first number other than 0. If it has
        forgotten the producer, its error makes the transaction abortable, so there is no gap.
        """
        self.transactional = True
        if self.producer == producer:
            return False
        # After another id, no broker knows this one.
        self.known &= self.producer is not None and (
            self.producer.producer_id == producer.producer_id
        )
        self.producer = producer
        self.stale = False
        self.next_sequence = 0
        self._missing.clear()
        return True

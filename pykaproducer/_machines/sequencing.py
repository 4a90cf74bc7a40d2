"""Producer id, epoch and sequence numbers of one partition (KIP-98).

Held per partition, so that trouble in one never re-stamps the batches of another. A number is
taken when a batch is sealed and never changes with its retries: the broker knows a batch that it
has by its producer id, epoch and first sequence.

Who may touch it: the broker's worker to which the partition is attached. It changes hands with
the lane: the old worker seals nothing any more once its lane has failed, and the new one gets its
first item only after that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

#: Sequence numbers are positive 32 bit integers and start again from 0 after the last.
SEQUENCE_LIMIT = 1 << 31
#: How many batches of a producer id a broker remembers in each partition.
REMEMBERED = 5
#: Epochs are 16 bit integers; the broker refuses the last.
LAST_EPOCH = (1 << 15) - 2


@dataclass(frozen=True, slots=True)
class ProducerId:
    """What InitProducerId has given to this producer."""

    producer_id: int
    epoch: int


@dataclass(slots=True, eq=False)
class Sequencer:
    """The next sequence number of one partition, and the producer id that it counts under."""

    producer: ProducerId | None = None
    next_sequence: int = 0
    #: The numbers behind those that are still under way are void: before the next batch is sealed
    #: the partition needs a new epoch.
    stale: bool = False
    #: A producer id that must not be used again: the next comes from the cluster.
    spent_id: int | None = None
    #: A broker has confirmed a batch under this id and epoch. Until then one is sent at a time: a
    #: broker that knows nothing of a producer takes any number for the first.
    #:
    #: 1. Batches 0 and 1 are under way.
    #: 2. 0 is refused: the broker is not yet ready to lead the partition.
    #: 3. 1 is appended.
    #: 4. 0 comes again and is out of order for ever.
    known: bool = False

    #: How many batches have been sealed, and the youngest that was delivered (counted so).
    sealed: int = 0
    youngest_delivered: int = 0
    #: The youngest batch under the present numbers that may be in the log or has no outcome yet.
    youngest_expected: int = 0
    # Older ones that are known to be missing.
    _missing: set[int] = field(default_factory=set)

    def take(self, count: int) -> int:
        """The first of *count* sequence numbers."""
        self.sealed += 1
        self.youngest_expected = self.sealed
        first = self.next_sequence
        self.next_sequence = (first + count) % SEQUENCE_LIMIT
        return first

    def delivered(self, number: int) -> None:
        """A broker has confirmed the batch that was sealed as the *number*-th."""
        self.known = True
        self.youngest_delivered = max(self.youngest_delivered, number)

    def has_left(self, producer_id: int, epoch: int) -> bool:
        """Whether the partition counts under another id or epoch by now."""
        return self.producer != ProducerId(producer_id, epoch)

    def is_needed(self, number: int, producer_id: int, epoch: int) -> bool:
        """Return whether a batch must be written although all its rows have their outcome.

        A younger batch under the same numbers needs it, if that one may be in the log or has no
        outcome yet: without it the broker would refuse the younger one. Otherwise writing it would
        only write what has been reported as failed, so it is dropped (:meth:`drop`).
        """
        return not self.has_left(producer_id, epoch) and number < self.youngest_expected

    def missing(self, number: int, producer_id: int, epoch: int) -> None:
        """Record that the *number*-th batch is not in the log under these numbers, nor will be."""
        if self.has_left(producer_id, epoch):
            return
        self._missing.add(number)
        while self.youngest_expected in self._missing:
            self._missing.discard(self.youngest_expected)
            self.youngest_expected -= 1

    def drop(self, number: int, producer_id: int, epoch: int) -> None:
        """Give up the *number*-th batch: the next one is sealed under a new epoch.

        Its earlier attempts may still arrive. It is the youngest under its numbers, so the broker
        appends it before the first batch of the new epoch, or refuses it for its old one.
        """
        assert not self.is_needed(number, producer_id, epoch), "a younger batch needs it"
        self.missing(number, producer_id, epoch)
        if not self.has_left(producer_id, epoch):
            self.spoil()

    def spoil(self, *, id_too: bool = False) -> None:
        """A batch is missing in the log and will not come; *id_too*: the broker refuses the id."""
        assert self.producer is not None, "sealed without a producer id"
        self.stale = True
        if id_too:
            self.spent_id = self.producer.producer_id

    def renew(self) -> bool:
        """Count anew if the numbers are stale, so that a gap in the old ones is no error; whether
        they were.

        Only when none of the partition's written batches is unanswered: a late one of the old
        epoch would be refused, or worse, appended behind. The epoch is raised locally, as the
        Java client does for a producer without transactions (KIP-360). After the last epoch of an
        id the partition waits for a new id.
        """
        if not self.stale:
            return False
        assert self.producer is not None, "stale numbers are some id's"
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
        """Take the id that the cluster has *given*, if it will do; whether there is one now."""
        if self.producer is None and given is not None and given.producer_id != self.spent_id:
            self.producer = given
        return self.producer is not None

"""The coordinator of a transactional id in the simulated cluster.

It follows ``TransactionCoordinator`` and ``TransactionMetadata`` of Kafka 4.3: which states there
are, who is fenced, what is answered to a repeated request, and when the epoch is bumped. It writes
each decision to its log before it answers, so another broker that takes over continues with the
same state; therefore the model has one object, whichever broker is the coordinator.

Simplifications: epochs are never exhausted, and the id does not expire.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from pykaproducer._errors.codes import ErrorCode

#: What a transaction has written to: a partition, or the offsets of a group.
Place = int | str


class State(enum.Enum):
    """The state of the transactional id."""

    EMPTY = enum.auto()
    ONGOING = enum.auto()
    #: The end is decided, and not all markers are written.
    PREPARE_COMMIT = enum.auto()
    PREPARE_ABORT = enum.auto()
    COMPLETE_COMMIT = enum.auto()
    COMPLETE_ABORT = enum.auto()


class Marker(NamedTuple):
    """What is written to each place of a transaction at its end."""

    producer_id: int
    epoch: int
    commits: bool


class Answer(NamedTuple):
    """An error code, and the producer id and epoch that are to be used from now on."""

    code: int = ErrorCode.NONE
    producer_id: int = -1
    epoch: int = -1


_PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
_COMPLETE = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
_BUSY = Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
_FENCED = Answer(ErrorCode.PRODUCER_FENCED)
_INVALID = Answer(ErrorCode.INVALID_TXN_STATE)


class TransactionCoordinator:
    """The state of one transactional id.

    *level*: of the feature ``transaction.version``; from 2 on clients use the second protocol
    (KIP-890), whose requests bump the epoch at the end of a transaction.
    """

    def __init__(self, level: int) -> None:
        self.level = level
        self.state = State.EMPTY
        self.producer_id = -1
        self.epoch = -1
        #: A request with this epoch is the repetition of the one that has bumped it.
        self.last_epoch = -1
        #: The places of the transaction without its marker, in the order in which they came.
        self.places: dict[Place, None] = {}

    # Requests ------------------------------------------------------------------------------------

    def init(self, producer_id: int, epoch: int) -> Answer:
        """Handle InitProducerId; a new instance has -1 and -1."""
        if self.producer_id < 0:
            self.producer_id, self.epoch, self.last_epoch = 1000, 0, -1
            return Answer(0, self.producer_id, self.epoch)
        if epoch >= 0 and producer_id != self.producer_id:
            return _FENCED
        if self.state in _PREPARED:
            return _BUSY
        if self.state is State.ONGOING:
            self._fence()
            return _BUSY
        repeats = epoch >= 0 and epoch == self.last_epoch
        if epoch >= 0 and epoch != self.epoch and not repeats:
            return _FENCED
        if not repeats:
            # A new instance could not repeat its request, as it does not know the epoch.
            self.last_epoch = self.epoch if epoch >= 0 else -1
            self.epoch += 1
        self.state = State.EMPTY
        return Answer(0, self.producer_id, self.epoch)

    def _refusal(self, producer_id: int, epoch: int) -> Answer | None:
        if producer_id != self.producer_id:
            return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if epoch != self.epoch:
            return _FENCED
        return _BUSY if self.state in _PREPARED else None

    def add(self, producer_id: int, epoch: int, places: list[Place]) -> Answer:
        """Handle AddPartitionsToTxn and AddOffsetsToTxn, of a client or of a leader."""
        if refusal := self._refusal(producer_id, epoch):
            return refusal
        self.state = State.ONGOING
        self.places |= dict.fromkeys(places)
        return Answer()

    def verify(self, producer_id: int, epoch: int, place: Place) -> Answer:
        """Handle the question of a leader whether *place* is part of the transaction."""
        if refusal := self._refusal(producer_id, epoch):
            return refusal
        return Answer() if place in self.places else Answer(ErrorCode.TRANSACTION_ABORTABLE)

    def end(self, producer_id: int, epoch: int, *, commits: bool, bumps: bool) -> Answer:
        """Handle EndTxn; *bumps*: in a version of the second protocol."""
        if producer_id != self.producer_id:
            return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if self.state in _PREPARED and (bumps or epoch == self.epoch):
            return _BUSY
        return self._end_and_bump(epoch, commits) if bumps else self._end(epoch, commits)

    def _end(self, epoch: int, commits: bool) -> Answer:
        if epoch != self.epoch:
            return _FENCED
        if self.state is State.ONGOING:
            self._prepare(commits)
            return Answer()
        return self._repeated(commits)

    def _end_and_bump(self, epoch: int, commits: bool) -> Answer:
        repeats = epoch == self.epoch - 1 and self.state in _COMPLETE
        if epoch != self.epoch and not repeats:
            return _FENCED
        if repeats:
            return self._repeated(commits)
        if self.state is not State.ONGOING and commits:
            return _INVALID
        self.last_epoch, self.epoch = self.epoch, self.epoch + 1
        self._prepare(commits)
        return Answer(0, self.producer_id, self.epoch)

    def _repeated(self, commits: bool) -> Answer:
        """Return the answer to an EndTxn that has been carried out, or does not fit."""
        done = State.COMPLETE_COMMIT if commits else State.COMPLETE_ABORT
        return Answer(0, self.producer_id, self.epoch) if self.state is done else _INVALID

    # What happens without a request --------------------------------------------------------------

    def time_out(self) -> bool:
        """Abort a transaction that has been open for too long; return whether one was open."""
        if self.state is not State.ONGOING:
            return False
        self._fence()
        return True

    def _fence(self) -> None:
        # With the second protocol InitProducerId of the fenced instance counts as a repetition.
        self.last_epoch = self.epoch if self.level >= 2 else -1
        self.epoch += 1
        self._prepare(commits=False)

    def _prepare(self, commits: bool) -> None:
        self.state = State.PREPARE_COMMIT if commits else State.PREPARE_ABORT
        self._complete_if_written()

    @property
    def marker(self) -> Marker | None:
        """The marker that is being written to :attr:`places`, if any."""
        if self.state not in _PREPARED:
            return None
        return Marker(self.producer_id, self.epoch, self.state is State.PREPARE_COMMIT)

    def written(self, place: Place) -> None:
        """Record that *place* has the marker."""
        del self.places[place]
        self._complete_if_written()

    def _complete_if_written(self) -> None:
        if not self.places:
            commits = self.state is State.PREPARE_COMMIT
            self.state = State.COMPLETE_COMMIT if commits else State.COMPLETE_ABORT

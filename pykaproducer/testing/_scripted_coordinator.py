"""Transactions and offsets of groups, as the coordinators of a scripted cluster keep them.

The answers are those of Kafka 4.3 (``TransactionCoordinator``, ``GroupCoordinatorService``) for
both transaction protocols. Deviations that may be relevant for tests:

* Markers are written at once. CONCURRENT_TRANSACTIONS is only returned to an InitProducerId that
  aborts an open transaction.
* Transactions time out when a test says so (:meth:`Coordinators.time_out`). Ids never expire.
* Groups have no members: offsets with a generation are rejected.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pykaproducer._errors.codes import ErrorCode

#: The epoch after which a producer gets another id.
_LAST_EPOCH = 2**15 - 2
#: The defaults of ``transaction.max.timeout.ms`` and ``offset.metadata.max.bytes``.
_MAX_TIMEOUT_MS = 900_000
_MAX_METADATA = 4096

#: A topic and the number of a partition.
Placed = tuple[str, int]


class StoredOffset(NamedTuple):
    """A committed offset of a group."""

    offset: int
    leader_epoch: int
    metadata: str


class TransactionalBatch(NamedTuple):
    """The producer and the partition of a batch."""

    transactional_id: str | None
    producer_id: int
    epoch: int
    place: Placed


class Marked(Protocol):
    """The log of a partition, to which markers are written."""

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Append the marker of a transaction."""


@dataclass(slots=True)
class _Transactional:
    """The state of a transactional id, with Kafka's names of the states."""

    producer_id: int
    epoch: int = -1
    last_epoch: int = -1
    previous_id: int = -1
    timeout_ms: int = 0
    state: str = "Empty"
    start_ms: int = -1
    places: set[Placed] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        return self.state.startswith("Complete")


@dataclass(slots=True)
class _Group:
    offsets: dict[Placed, StoredOffset] = field(default_factory=dict)
    #: Producer id -> the offsets of its open transaction.
    pending: dict[int, dict[Placed, StoredOffset]] = field(default_factory=dict)


class Coordinators:
    """All transactional ids and groups. Guarded by the cluster's lock."""

    def __init__(
        self, producer_ids: itertools.count[int], find_log: Callable[[Placed], Marked]
    ) -> None:
        self.ids: dict[str, _Transactional] = {}
        self.groups: dict[str, _Group] = {}
        #: The level of ``transaction.version``.
        self.level = 2
        self._producer_ids = producer_ids
        self._find_log = find_log

    # Transactions ------------------------------------------------------------------------------

    def initialize(
        self, name: str, timeout_ms: int, expected: tuple[int, int]
    ) -> tuple[int, int, int]:
        """Return an error code, and the producer id and epoch from now on.

        *expected*: the producer id and epoch of the client, -1 if it has none (KIP-360).
        """
        refused = (-1, -1)
        if not name:
            return (ErrorCode.INVALID_REQUEST, *refused)
        if not 0 < timeout_ms <= _MAX_TIMEOUT_MS:
            return (ErrorCode.INVALID_TRANSACTION_TIMEOUT, *refused)
        found = self.ids.get(name)
        if found is None:
            found = self.ids[name] = _Transactional(next(self._producer_ids))
        known = expected != (-1, -1)
        if known and found.epoch >= 0 and not _is_of(found, *expected):
            return (ErrorCode.PRODUCER_FENCED, *refused)
        if found.state == "Ongoing":
            self._fence(found)
            return (ErrorCode.CONCURRENT_TRANSACTIONS, *refused)
        if not known or found.epoch in (-1, expected[1]):
            self._bump(found, remember=known)
        elif expected[1] != found.last_epoch:
            return (ErrorCode.PRODUCER_FENCED, *refused)
        found.timeout_ms, found.state = timeout_ms, "Empty"
        return 0, found.producer_id, found.epoch

    def check(self, name: str | None, producer_id: int, epoch: int) -> int:
        """Return the error code for a request of this producer within a transaction."""
        if not name:
            return ErrorCode.INVALID_REQUEST
        found = self.ids.get(name)
        if found is None or found.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return 0 if found.epoch == epoch else ErrorCode.PRODUCER_FENCED

    def add(self, name: str, places: Iterable[Placed], groups: Iterable[str] = ()) -> None:
        """Add partitions and groups to a transaction, whose producer has been checked."""
        found = self.ids[name]
        if found.state != "Ongoing":
            found.state, found.start_ms = "Ongoing", int(time.time() * 1000)
        found.places.update(places)
        found.groups.update(groups)

    def may_write(self, batch: TransactionalBatch, version: int) -> int:
        """Return the error code for a batch in a Produce request of *version* (KIP-890)."""
        if code := self.check(batch.transactional_id, batch.producer_id, batch.epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED else code
        assert batch.transactional_id is not None
        if version >= 12:
            self.add(batch.transactional_id, [batch.place])
        found = self.ids[batch.transactional_id]
        if found.state == "Ongoing" and batch.place in found.places:
            return 0
        return ErrorCode.TRANSACTION_ABORTABLE if version >= 11 else ErrorCode.INVALID_TXN_STATE

    def end(
        self, version: int, name: str, producer_id: int, epoch: int, *, commit: bool
    ) -> tuple[int, int, int]:
        """Return an error code for EndTxn, and the producer id and epoch from now on."""
        found = self.ids.get(name)
        if not name:
            code = int(ErrorCode.INVALID_REQUEST)
        elif found is None:
            code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        elif version >= 5:
            code = self._end(found, producer_id, epoch, commit)
        else:
            code = self._end_unbumped(found, producer_id, epoch, commit)
        if code or found is None:
            return code, -1, -1
        return 0, found.producer_id, found.epoch

    def _end(self, found: _Transactional, producer_id: int, epoch: int, commit: bool) -> int:
        overflowed = (producer_id, epoch) == (found.previous_id, _LAST_EPOCH) and found.epoch == 0
        if found.producer_id != producer_id and not overflowed:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        is_repeated = found.is_complete and (overflowed or epoch == found.epoch - 1)
        if epoch != found.epoch and not is_repeated:
            return ErrorCode.PRODUCER_FENCED
        if is_repeated:
            return 0 if found.state == _completed(commit) else ErrorCode.INVALID_TXN_STATE
        if found.state != "Ongoing" and commit:
            return ErrorCode.INVALID_TXN_STATE
        self._finish(found, epoch + 1, commit)
        self._bump(found, remember=True)
        return 0

    def _end_unbumped(
        self, found: _Transactional, producer_id: int, epoch: int, commit: bool
    ) -> int:
        if found.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if found.epoch != epoch:
            return ErrorCode.PRODUCER_FENCED
        if found.state == "Ongoing":
            self._finish(found, epoch, commit)
            return 0
        return 0 if found.state == _completed(commit) else ErrorCode.INVALID_TXN_STATE

    def time_out(self, name: str) -> None:
        """Abort the open transaction of *name*, as if its timeout had passed."""
        found = self.ids[name]
        if found.state != "Ongoing":
            raise ValueError(f"{name} has no open transaction; its state is {found.state}")
        self._fence(found)

    def _fence(self, found: _Transactional) -> None:
        self._finish(found, found.epoch + 1, commit=False)
        found.last_epoch = found.epoch if self.level >= 2 else -1
        found.epoch += 1

    def _finish(self, found: _Transactional, marker_epoch: int, commit: bool) -> None:
        for place in sorted(found.places):
            self._find_log(place).end_transaction(found.producer_id, marker_epoch, commit=commit)
        for name in found.groups:
            group = self.groups[name] if name in self.groups else _Group()
            pending = group.pending.pop(found.producer_id, {})
            if commit:
                group.offsets |= pending
        found.places, found.groups = set(), set()
        found.state, found.start_ms = _completed(commit), -1

    def _bump(self, found: _Transactional, *, remember: bool) -> None:
        """Give the producer the next epoch. *remember*: a repeated request gets the same one."""
        last, found.epoch = found.epoch, found.epoch + 1
        if last >= _LAST_EPOCH:
            found.previous_id, found.producer_id = found.producer_id, next(self._producer_ids)
            found.epoch = 0
        found.last_epoch = last if remember else -1

    # Offsets -----------------------------------------------------------------------------------

    def commit_offset(
        self, group: str, producer_id: int, generation: int, place: Placed, offset: StoredOffset
    ) -> int:
        """Keep an offset until the end of the transaction, and return an error code."""
        if generation >= 0:
            known = group in self.groups
            return ErrorCode.UNKNOWN_MEMBER_ID if known else ErrorCode.ILLEGAL_GENERATION
        if len(offset.metadata) > _MAX_METADATA:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        pending = self.groups.setdefault(group, _Group()).pending
        pending.setdefault(producer_id, {})[place] = offset
        return 0

    def may_commit_offsets(
        self, version: int, name: str, producer_id: int, epoch: int, group: str
    ) -> int:
        """Return the error code for TxnOffsetCommit of *version* (KIP-890)."""
        if code := self.check(name, producer_id, epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH if code == ErrorCode.PRODUCER_FENCED else code
        if version >= 5:
            self.add(name, (), [group])
        found = self.ids[name]
        if found.state == "Ongoing" and group in found.groups:
            return 0
        return ErrorCode.TRANSACTION_ABORTABLE if version == 4 else ErrorCode.INVALID_TXN_STATE

    def stored(self, group: str) -> dict[Placed, StoredOffset]:
        """Return the committed offsets of *group*."""
        return dict(self.groups.get(group, _Group()).offsets)

    def unstable(self, group: str) -> Collection[Placed]:
        """Return the partitions whose offset is part of an open transaction."""
        pending = self.groups.get(group, _Group()).pending
        return {place for offsets in pending.values() for place in offsets}


def _completed(commit: bool) -> str:
    return "CompleteCommit" if commit else "CompleteAbort"


def _is_of(found: _Transactional, producer_id: int, epoch: int) -> bool:
    if producer_id == found.producer_id:
        return True
    return producer_id == found.previous_id and epoch >= _LAST_EPOCH

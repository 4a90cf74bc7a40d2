"""Logs with control records, the offsets of groups, and the cluster that has both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.coordination import TV1, TV2

from .cluster import Cluster, Fate, Kind, Log, Logged, Read, _Producer, read
from .coordinator import Answer, Marker, Place, TransactionCoordinator
from .promises import check

#: From this version on Produce adds its partitions to the transaction (KIP-890).
ADDS_PARTITIONS = 12
#: The same of TxnOffsetCommit and its group.
ADDS_GROUP = 5

#: What leaders tell clients instead of the answers of the coordinator (ReplicaManager).
_TOLD = {ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH}
_TOLD_BEFORE = {**_TOLD, ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS}

#: Codes that have a cause in this model, and are not answered without it: another one is answered.
_HAVE_A_CAUSE = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_PRODUCER_ID: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.PRODUCER_FENCED: ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ErrorCode.CONCURRENT_TRANSACTIONS,
}


class TransactionalLog(Log):
    """The records of one partition. A control record has a negative number."""

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Return whether a transaction of this producer has records here, and no marker."""
        known = self._producers.get(producer_id)
        return known is not None and known.epoch == epoch and known.open_since is not None

    def mark(self, marker: Marker) -> None:
        """Append *marker*, replicated at once with everything before it."""
        number = -1 - sum(logged.batch.commits is not None for logged in self._batches)
        control = Read(marker.producer_id, marker.epoch, -1, [number], True, marker.commits)
        self._batches.append(Logged(len(self.records), control))
        self.records.append(number)
        self.committed = len(self.records)
        self._remember(self._batches[-1])

    def forget_producers(self, *, strict: bool) -> None:
        # A broker does not forget the producer of an open transaction.
        if not self.open_since:
            super().forget_producers(strict=strict)

    @property
    def open_since(self) -> list[int]:
        """The offsets of the first record of each open transaction."""
        found = (known.open_since for known in self._producers.values())
        return [offset for offset in found if offset is not None]

    def ended(self) -> Iterator[tuple[list[int], bool | None]]:
        """Yield the records of each transaction, and whether it is committed; None: it is open."""
        open_ones: dict[int, list[int]] = {}
        for logged in self._batches:
            batch = logged.batch
            numbers = open_ones.setdefault(batch.producer_id, [])
            if batch.commits is None:
                numbers += batch.numbers
            else:
                yield open_ones.pop(batch.producer_id), batch.commits
        for numbers in open_ones.values():
            yield numbers, None

    def readable(self) -> list[int]:
        """Return what ``read_committed`` consumers get, in order."""
        committed = {number for numbers, commits in self.ended() if commits for number in numbers}
        end = min(self.open_since, default=len(self.records))
        return [number for number in self.records[:end] if number in committed]

    def _remember(self, logged: Logged) -> None:
        batch = logged.batch
        known = self._producers.get(batch.producer_id)
        since = None if known is None else known.open_since
        if batch.commits is None:
            super()._remember(logged)
            known = self._producers[batch.producer_id]
            known.open_since = logged.base_offset if since is None else since
        else:
            if known is None or known.epoch != batch.epoch:
                known = self._producers[batch.producer_id] = _Producer(batch.epoch)
            known.open_since = None


@dataclass(slots=True)
class Group:
    """The committed offsets of a consumer group, by partition."""

    committed: dict[int, int] = field(default_factory=dict)
    #: Every one that was ever committed: (partition, offset).
    history: list[tuple[int, int]] = field(default_factory=list)
    #: Those of an open transaction, by producer id.
    pending: dict[int, dict[int, int]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def commit(self, producer_id: int, epoch: int, offsets: dict[int, int]) -> int:
        """Handle the offsets of a transaction; return the error code."""
        if epoch < self.epochs.get(producer_id, -1):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        self.epochs[producer_id] = epoch
        self.pending.setdefault(producer_id, {}).update(offsets)
        return ErrorCode.NONE

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Return whether a transaction of this producer has offsets here, and no marker."""
        return producer_id in self.pending and self.epochs[producer_id] == epoch

    def mark(self, marker: Marker) -> None:
        """Apply or drop the offsets of the transaction that *marker* ends."""
        self.epochs[marker.producer_id] = marker.epoch
        offsets = self.pending.pop(marker.producer_id, {})
        if marker.commits:
            self.committed.update(offsets)
            self.history += offsets.items()


class TransactionalCluster(Cluster):
    """The cluster, with the coordinators of one transactional id and of the groups."""

    logs: list[TransactionalLog]  # type: ignore[assignment]

    def __init__(self, brokers: int, leaders: list[int], level: int) -> None:
        super().__init__(brokers, leaders)
        self.logs = [TransactionalLog() for _ in leaders]
        self.groups: dict[str, Group] = {}
        self.coordinator = TransactionCoordinator(level)
        #: The broker of the coordinator and of all groups, and what lookups name.
        self.coordinating = self.named = 0
        #: What was readable when another instance had taken the transactional id over.
        self.taken_over: list[Any] | None = None
        #: It has left the second protocol at some time.
        self.has_left = False
        #: A commit was refused, which may have been carried out before.
        self.has_refused_a_commit = False
        #: EndTxn of the second protocol was carried out, its answer was lost, and the cluster has
        #: left that protocol, in which it could be repeated.
        self.has_left_the_protocol = False
        self._ended: set[tuple[int, int]] = set()
        # The protocol in which the requests of each producer id and epoch are sent.
        self._protocols: dict[tuple[int, int], int] = {}

    # Partitions ----------------------------------------------------------------------------------

    def produce(self, broker: int, batch: Batch, fate: Fate, version: int) -> tuple[int, int]:
        if self.leaders[batch.partition] != broker:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        contents = read(bytes(batch.payload))
        check(contents.transactional, "T", f"{batch} is not marked as part of a transaction")
        log, adds = self.logs[batch.partition], version >= ADDS_PARTITIONS
        self.check_protocol(contents.producer_id, contents.epoch, TV2 if adds else TV1)
        if not log.is_open(contents.producer_id, contents.epoch):
            code = self._enter(batch.partition, contents.producer_id, contents.epoch, adds)
            if code:
                return code, -1
        if fate.kind is Kind.REFUSE:
            fate = Fate(Kind.REFUSE, _HAVE_A_CAUSE.get(fate.code, fate.code))
        return super().produce(broker, batch, fate, version)

    def _enter(self, place: Place, producer_id: int, epoch: int, adds: bool) -> int:
        """Have the coordinator add *place* to the transaction, or verify it; return the code."""
        if adds:
            code = self.coordinator.add(producer_id, epoch, [place]).code
        else:
            code = self.coordinator.verify(producer_id, epoch, place).code
        return (_TOLD if adds else _TOLD_BEFORE).get(code, code)

    # Groups --------------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """Return the group, a new one if it has no offsets."""
        return self.groups.setdefault(name, Group())

    def commit_offsets(
        self, name: str, producer_id: int, epoch: int, offsets: dict[int, int], version: int
    ) -> int:
        """Handle TxnOffsetCommit; return the error code."""
        group, adds = self.group(name), version >= ADDS_GROUP
        self.check_protocol(producer_id, epoch, TV2 if adds else TV1)
        if not group.is_open(producer_id, epoch):
            code = self._enter(name, producer_id, epoch, adds)
            if code == ErrorCode.NOT_ENOUGH_REPLICAS:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            if code:
                return code
        return group.commit(producer_id, epoch, offsets)

    # Transactions --------------------------------------------------------------------------------

    def write_marker(self, which: int = 0) -> bool:
        """Write the marker of a decided end to one place; return whether there was one."""
        marker, places = self.coordinator.marker, [*self.coordinator.places]
        if marker is None:
            return False
        place = places[which % len(places)]
        (self.logs[place] if isinstance(place, int) else self.group(place)).mark(marker)
        self.coordinator.written(place)
        return True

    def init(self, producer_id: int, epoch: int) -> tuple[int, int, int]:
        """Handle InitProducerId of the producer."""
        answer = self.coordinator.init(producer_id, epoch)
        if not answer.code and epoch < 0:
            self.taken_over = None  # the producer has taken it back
        return answer

    def end(self, producer_id: int, epoch: int, *, commits: bool, bumps: bool) -> Answer:
        """Handle EndTxn; *bumps*: in a version of the second protocol.

        If the cluster has left that protocol, its transactions are ended in a version of the first.
        If it has returned since, such an end may be repeated.
        """
        if bumps or not self.has_left:
            self.check_protocol(producer_id, epoch, TV2 if bumps else TV1)
        answer = self.coordinator.end(producer_id, epoch, commits=commits, bumps=bumps)
        if bumps and not answer.code:
            self._ended.add((producer_id, epoch))
        elif answer.code and (producer_id, epoch) in self._ended:
            self.has_left_the_protocol = True
        return answer

    def take_over(self) -> bool:
        """Handle InitProducerId of another instance; return whether it succeeded."""
        if self.coordinator.init(-1, -1).code:
            return False
        self.taken_over = self.visible()
        return True

    def visible(self) -> list[Any]:
        """Return what ``read_committed`` consumers get, and the offsets of all groups."""
        groups = [(name, [*group.history]) for name, group in sorted(self.groups.items())]
        return [*(log.readable() for log in self.logs), [each for each in groups if each[1]]]

    def check_protocol(self, producer_id: int, epoch: int, protocol: int) -> None:
        """Check that all requests of an epoch are of one protocol."""
        known = self._protocols.setdefault((producer_id, epoch), protocol)
        text = f"a request of protocol {protocol} in epoch {epoch}, after one of {known}"
        check(known == protocol, "one protocol", text)

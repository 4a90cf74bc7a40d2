"""The requests of a ``TransactionControl``: those that end, begin and describe transactions."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from pykaproducer._control.control_request import Address, ControlRequest, RequestHeader
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_partition
from pykaproducer._machines.coordination import (
    TV1,
    TV2,
    CommitOutcome,
    Coordination,
    Ending,
    Reaction,
    coordinate,
    coordinate_all,
)
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._util.group_offsets import GroupMetadata, GroupOffset
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import (
    ApiKey,
    BrokerAddress,
    decode_init_producer_id,
    decode_metadata,
    init_producer_id_request,
    metadata_request,
)
from pykaproducer._wire.transaction_queries import (
    CommittedOffset,
    ListedTransaction,
    TransactionDescription,
    decode_describe_transactions,
    decode_list_transactions,
    decode_offset_fetch,
    describe_transactions_request,
    list_transactions_request,
    offset_fetch_request,
)
from pykaproducer._wire.transactions import (
    CoordinatorKind,
    add_offsets_to_txn_request,
    decode_add_offsets_to_txn,
    decode_end_txn,
    decode_txn_offset_commit,
    end_txn_request,
    txn_offset_commit_request,
)

#: How often a fence is retried while markers are written: for about a second.
_FENCE_ATTEMPTS = 50


def _about(transactional_id: str) -> str:
    return f"transactional id {transactional_id!r}"


class TransactionRequest(ControlRequest):
    """A request about one transactional id, to its coordinator."""

    def __init__(self, transactional_id: str) -> None:
        super().__init__(_about(transactional_id), (CoordinatorKind.TRANSACTION, transactional_id))
        self.transactional_id = transactional_id


class EndRequest(TransactionRequest):
    """EndTxn, in a version of the transaction's protocol."""

    api_key = ApiKey.END_TXN

    def __init__(
        self, transactional_id: str, producer: ProducerId, protocol: int, commit: bool
    ) -> None:
        super().__init__(transactional_id)
        self._producer, self._protocol, self.commit = producer, protocol, commit
        self._unconfirmed = False
        # The version in which it was sent last; it is only asked whether it was committed before.
        self._version = 0
        self._is_check = False

    def versions(self, protocol: int) -> tuple[int, int]:
        # A cluster that has left the second protocol ends its transactions with version 4 only.
        first = self._is_check or not self._protocol == protocol == TV2
        return (0, 4) if first else (5, self.at_most)

    def encode(self, requests: Sequence[ControlRequest], header: RequestHeader) -> bytes:
        self._version = header.version
        return end_txn_request(
            *header,
            self.transactional_id,
            self._producer.producer_id,
            self._producer.epoch,
            commit=self.commit,
        )

    def decode(
        self, requests: Sequence[ControlRequest], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        return [decode_end_txn(version, payload).error_code]

    def judge(self, code: int | None, *, written: bool) -> Coordination:
        ending = Ending(self.commit, self._protocol, self._unconfirmed)
        times = self.times.get(code, 0)
        found = coordinate(self.api_key, code, ending=ending, times=times, written=written)
        self._unconfirmed |= found.unconfirmed
        if self.commit and code == ErrorCode.INVALID_TXN_STATE and self._version >= 5:
            # 1. The cluster leaves the second protocol, and version 4 commits the transaction.
            # 2. The cluster returns to it.
            # 3. Only version 4 still tells that the transaction is committed.
            self._is_check = True
            return Coordination(Reaction.SOON, self.api_key, code)
        return found

    @property
    def outcome(self) -> CommitOutcome:
        """The outcome of the transaction, as far as it is known."""
        found = self.found
        if found is None or found.api_key != self.api_key:
            return CommitOutcome.POSSIBLY_COMMITTED
        if found.code == ErrorCode.NONE:
            return CommitOutcome.COMMITTED if self.commit else CommitOutcome.NOT_COMMITTED
        if self._is_check or (self.commit and found.code == ErrorCode.INVALID_TXN_STATE):
            # The coordinator has aborted it because of its timeout, or nothing was written in it.
            return CommitOutcome.NOT_COMMITTED
        # Another producer has the id: with it, the transaction may have been committed before.
        return CommitOutcome.POSSIBLY_COMMITTED


class InitRequest(TransactionRequest):
    """InitProducerId of a new instance: fences the others, and ends what they have left."""

    api_key = ApiKey.INIT_PRODUCER_ID
    at_least = 3

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        super().__init__(transactional_id)
        self._timeout_ms = timeout_ms
        #: The results.
        self.producer = ProducerId(-1, -1)
        self.protocol = TV1

    def encode(self, requests: Sequence[ControlRequest], header: RequestHeader) -> bytes:
        return init_producer_id_request(*header, self.transactional_id, self._timeout_ms)

    def decode(
        self, requests: Sequence[ControlRequest], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        answer = decode_init_producer_id(version, payload)
        self.producer = ProducerId(answer.producer_id, answer.producer_epoch)
        self.protocol = protocol
        return [answer.error_code]


class FenceRequest(InitRequest):
    """InitProducerId only for its effects on an open transaction and its producer.

    The first answer is CONCURRENT_TRANSACTIONS: the transaction is being aborted, or the program
    itself is ending it. Only with the answer that follows its markers the producer is fenced for
    good. Before, the coordinator treats it as after a timeout (KIP-890): it may abort, and go on.
    """

    def judge(self, code: int | None, *, written: bool) -> Coordination:
        concurrent = code == ErrorCode.CONCURRENT_TRANSACTIONS
        if concurrent and self.times.get(code, 0) >= _FENCE_ATTEMPTS:
            # The markers cannot be written, perhaps because a partition has no leader. The end of
            # the transaction is decided all the same.
            return Coordination(Reaction.DONE, self.api_key, code)
        return super().judge(code, written=written)


class AddGroupRequest(TransactionRequest):
    """AddOffsetsToTxn, which TV1 needs before the offsets of a group."""

    api_key = ApiKey.ADD_OFFSETS_TO_TXN

    def __init__(self, transactional_id: str, producer: ProducerId, group: str) -> None:
        super().__init__(transactional_id)
        self._producer, self._group = producer, group

    def encode(self, requests: Sequence[ControlRequest], header: RequestHeader) -> bytes:
        return add_offsets_to_txn_request(
            *header,
            self.transactional_id,
            self._producer.producer_id,
            self._producer.epoch,
            self._group,
        )

    def decode(
        self, requests: Sequence[ControlRequest], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        return [decode_add_offsets_to_txn(version, payload).error_code]

    def judge(self, code: int | None, *, written: bool) -> Coordination:
        return coordinate(self.api_key, code)


class CommitRequest(ControlRequest):
    """TxnOffsetCommit, to the coordinator of the group."""

    api_key = ApiKey.TXN_OFFSET_COMMIT

    def __init__(
        self,
        transactional_id: str,
        producer: ProducerId,
        protocol: int,
        group: GroupMetadata,
        offsets: Sequence[GroupOffset],
    ) -> None:
        super().__init__(
            f"{_about(transactional_id)}: group {group.group_id!r}",
            (CoordinatorKind.GROUP, group.group_id),
        )
        # From version 5 on it adds the group to the transaction (KIP-890); from 3 on it has the
        # member and the generation (KIP-447).
        if protocol == TV2:
            self.at_least = 5
        else:
            self.at_least, self.at_most = 3, 4
        self.transactional_id, self._producer = transactional_id, producer
        self._group, self._offsets = group, offsets

    def encode(self, requests: Sequence[ControlRequest], header: RequestHeader) -> bytes:
        return txn_offset_commit_request(
            *header,
            self.transactional_id,
            self._producer.producer_id,
            self._producer.epoch,
            self._group,
            self._offsets,
        )

    def decode(
        self, requests: Sequence[ControlRequest], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        codes = decode_txn_offset_commit(version, payload).of(self._offsets).values()
        worst = coordinate_all(self.api_key, codes)
        return [worst.code or 0]

    def judge(self, code: int | None, *, written: bool) -> Coordination:
        return coordinate(self.api_key, code)


class DescribeRequest(TransactionRequest):
    """DescribeTransactions, for one id."""

    api_key = ApiKey.DESCRIBE_TRANSACTIONS
    shared = True

    def __init__(self, transactional_id: str) -> None:
        super().__init__(transactional_id)
        #: The result.
        self.description: TransactionDescription | None = None

    def encode(self, requests: Sequence[ControlRequest], header: RequestHeader) -> bytes:
        names = [
            request.transactional_id for request in requests if isinstance(request, DescribeRequest)
        ]
        return describe_transactions_request(*header, names)

    def decode(
        self, requests: Sequence[ControlRequest], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        answer = decode_describe_transactions(version, payload).transactions
        found = {each.transactional_id: each for each in answer}
        codes = []
        for request in requests:
            assert isinstance(request, DescribeRequest), "only such requests are sent as one"
            request.description = found.get(request.transactional_id)
            if request.description is None:
                raise WireError(f"a response lacks {request.about}")
            codes.append(request.description.error_code)
        return codes


class BrokersRequest(ControlRequest):
    """Metadata, for the addresses of all brokers."""

    api_key = ApiKey.METADATA

    def __init__(self) -> None:
        super().__init__("the brokers of the cluster")
        #: The result.
        self.brokers: Sequence[BrokerAddress] = ()

    def encode(self, requests: Sequence[ControlRequest], header: RequestHeader) -> bytes:
        return metadata_request(*header, [], False)

    def decode(
        self, requests: Sequence[ControlRequest], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        answer = decode_metadata(version, payload)
        self.brokers = answer.brokers
        return [answer.error_code]


class ListRequest(ControlRequest):
    """ListTransactions, to one broker."""

    api_key = ApiKey.LIST_TRANSACTIONS

    def __init__(self, address: Address, prefix: str, states: Collection[str]) -> None:
        super().__init__("broker at {}:{}".format(*address), address=address)
        self._prefix, self._states = prefix, states
        #: The results.
        self.transactions: Sequence[ListedTransaction] = ()
        self.unknown_states: Sequence[str] = ()

    def encode(self, requests: Sequence[ControlRequest], header: RequestHeader) -> bytes:
        # The answer is filtered again: older brokers have no patterns.
        pattern = f"(?s){_quoted(self._prefix)}.*" if header.version >= 2 and self._prefix else None
        return list_transactions_request(*header, states=self._states, pattern=pattern)

    def decode(
        self, requests: Sequence[ControlRequest], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        answer = decode_list_transactions(version, payload)
        self.unknown_states = answer.unknown_states
        self.transactions = [
            each for each in answer.transactions if each.transactional_id.startswith(self._prefix)
        ]
        return [answer.error_code]


def _quoted(text: str) -> str:
    """Return a regular expression of RE2 for *text*, which quotes ASCII punctuation only."""
    return re.sub(r"[!-/:-@\[-`{-~]", r"\\\g<0>", text)


class FetchRequest(ControlRequest):
    """OffsetFetch, for one group."""

    api_key = ApiKey.OFFSET_FETCH
    shared = True

    def __init__(
        self,
        group: str,
        topics: Collection[str] | None,
        places: Collection[tuple[str, int]] | None,
        *,
        stable: bool,
    ) -> None:
        """*topics*: keep only offsets of these; *places*: request only these; None: all."""
        super().__init__(f"group {group!r}", (CoordinatorKind.GROUP, group))
        self.group = group
        self._topics, self._places, self._stable = topics, places, stable
        #: The result: (topic, partition) -> offset
        self.offsets: dict[tuple[str, int], CommittedOffset] = {}

    def most(self, version: int) -> int:
        return super().most(version) if version >= 8 else 1

    def encode(self, requests: Sequence[ControlRequest], header: RequestHeader) -> bytes:
        groups = {
            request.group: request._places
            for request in requests
            if isinstance(request, FetchRequest)
        }
        return offset_fetch_request(*header, groups, require_stable=self._stable)

    def decode(
        self, requests: Sequence[ControlRequest], version: int, payload: bytes, protocol: int
    ) -> Sequence[int]:
        fetched = [request for request in requests if isinstance(request, FetchRequest)]
        answer = decode_offset_fetch(version, payload, [request.group for request in fetched])
        codes = []
        for request in fetched:
            found = answer.groups[request.group]
            for place in () if found.error_code else request._places or ():
                if place not in found.offsets:
                    raise WireError(f"a response lacks {format_partition(*place)}")
            request.offsets = {
                place: each
                for place, each in found.offsets.items()
                if request._topics is None or place[0] in request._topics
            }
            errors = {each.error_code for each in request.offsets.values()} - {ErrorCode.NONE}
            final = errors - {ErrorCode.UNSTABLE_OFFSET_COMMIT}
            codes.append(found.error_code or min(final or errors, default=0))
        return codes

"""The effects of the machine of a transactional producer. Data only.

:mod:`pykaproducer._machines.transactions` has the machine. Its stage performs them in their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pykaproducer._machines.coordination import CommitOutcome
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.transaction_record import TransactionView
from pykaproducer._machines.transaction_states import Place, TransactionFailure
from pykaproducer._wire.messages import ApiKey


@dataclass(frozen=True, slots=True)
class Preparation:
    """A prepared transaction, with everything that another process needs to end it."""

    transactional_id: str
    producer: ProducerId
    protocol: int
    #: Nothing was written, so there is nothing to end.
    empty: bool


# Effects: requests to the transaction coordinator, at most one at a time -------------------------


@dataclass(frozen=True, slots=True)
class SendFindCoordinator:
    """Find the coordinator of *transactional_id*, and connect to it."""

    transactional_id: str
    api_key: ClassVar[int] = ApiKey.FIND_COORDINATOR


@dataclass(frozen=True, slots=True)
class SendInitProducerId:
    """Send InitProducerId. *producer*: None for a new instance, else its next epoch (KIP-360)."""

    transactional_id: str
    #: Seconds.
    timeout: float
    producer: ProducerId | None
    api_key: ClassVar[int] = ApiKey.INIT_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class SendAddPartitions:
    """Send AddPartitionsToTxn, with all *partitions* wanted so far."""

    transactional_id: str
    producer: ProducerId
    partitions: tuple[Place, ...]
    api_key: ClassVar[int] = ApiKey.ADD_PARTITIONS_TO_TXN


@dataclass(frozen=True, slots=True)
class SendAddOffsets:
    """Send AddOffsetsToTxn for *group*."""

    transactional_id: str
    producer: ProducerId
    group: str
    api_key: ClassVar[int] = ApiKey.ADD_OFFSETS_TO_TXN


@dataclass(frozen=True, slots=True)
class SendEndTxn:
    """Send EndTxn, in a version of *protocol*: at most 4 for ``TV1``, 5 for ``TV2``."""

    transactional_id: str
    producer: ProducerId
    commit: bool
    protocol: int
    api_key: ClassVar[int] = ApiKey.END_TXN


@dataclass(frozen=True, slots=True)
class SendDescribeTransactions:
    """Ask whether the last transaction of *transactional_id* has been ended on the brokers."""

    transactional_id: str
    api_key: ClassVar[int] = ApiKey.DESCRIBE_TRANSACTIONS


@dataclass(frozen=True, slots=True)
class LeaveCoordinator:
    """Close the connection to the coordinator. The answer to a request under way is ignored."""


# Effects: other stages ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishView:
    """Notify the stages that write records: ``machine.view`` has been replaced by *view*."""

    view: TransactionView


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """Wake the stages that wait for *partitions*; ``machine.view`` has them."""

    partitions: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class EndHold:
    """Wake the stages that wait for ``not_before``; ``machine.view`` has an earlier one."""


@dataclass(frozen=True, slots=True)
class OpenAdmission:
    """Accept records from now on."""


@dataclass(frozen=True, slots=True)
class ShutAdmission:
    """Accept no records from now on: ``send()`` raises *failure*."""

    failure: TransactionFailure


@dataclass(frozen=True, slots=True)
class WatchRows:
    """Report ``all_settled(serial)`` when each row accepted so far has its outcome."""

    serial: int


@dataclass(frozen=True, slots=True)
class WatchReports:
    """Report ``all_reported(serial)`` when the callbacks of all rows accepted so far have run."""

    serial: int


@dataclass(frozen=True, slots=True)
class FailRows:
    """Fail all rows without outcome because of *failure*, including those that wait for a retry."""

    serial: int
    failure: TransactionFailure


@dataclass(frozen=True, slots=True)
class DrainBatches:
    """Report ``drained(serial, ...)`` when no batch of a partition is in flight."""

    serial: int


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Give *offsets* to the stage of *group*, which reports ``offsets_answered()``."""

    serial: int
    number: int
    transactional_id: str
    group: str
    offsets: Any
    producer: ProducerId
    protocol: int
    #: When to stop waiting for an unknown partition (monotonic seconds).
    deadline: float


@dataclass(frozen=True, slots=True)
class GiveUpOffsets:
    """Let the stages of the groups forget the offsets of transaction *serial*."""

    serial: int


@dataclass(frozen=True, slots=True)
class AnswerCaller:
    """End a call: it returns, or raises the error described by *failure*."""

    caller: Any
    failure: TransactionFailure | None = None
    #: ``close()``: of the transaction which it has ended or waited for, if any.
    outcome: CommitOutcome | None = None
    #: ``prepare_transaction()``: the result.
    prepared: Preparation | None = None


Request = (
    SendFindCoordinator
    | SendInitProducerId
    | SendAddPartitions
    | SendAddOffsets
    | SendEndTxn
    | SendDescribeTransactions
)
Effect = (
    Request
    | LeaveCoordinator
    | PublishView
    | PartitionsAdded
    | EndHold
    | OpenAdmission
    | ShutAdmission
    | WatchRows
    | WatchReports
    | FailRows
    | DrainBatches
    | CommitOffsets
    | GiveUpOffsets
    | AnswerCaller
)

"""The items that other stages and callers put into the inbox of Coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pykaproducer._util.clock import held_lock

if TYPE_CHECKING:
    from pykaproducer._machines.transaction_effects import AnswerCaller
    from pykaproducer._machines.transaction_states import TransactionCall
    from pykaproducer._pipeline.worker import AnyWorker
    from pykaproducer._util.group_offsets import GroupMetadata, GroupOffset


@dataclass(frozen=True, slots=True)
class OffsetsToSend:
    """The arguments of one ``send_offsets_to_transaction()``."""

    group: GroupMetadata
    offsets: tuple[GroupOffset, ...]


class ControlCaller:
    """A thread that waits for the result of a control call."""

    #: It was interrupted or has given up, and does not read the result.
    left = False
    #: The stage has reacted to :class:`CallerWaits`.
    seen = False

    def __init__(self) -> None:
        # The result under a fixed key. If two threads set it at once, setdefault() keeps one.
        self._results: dict[str, AnswerCaller] = {}
        # A raw lock, so that a signal can interrupt the wait.
        self.done = held_lock()

    @property
    def result(self) -> AnswerCaller | None:
        """The result; None while the call is under way."""
        return self._results.get("result")

    def tell(self, result: AnswerCaller) -> None:
        """End the wait. From any thread; only the first result counts."""
        if self._results.setdefault("result", result) is result:
            self.done.release()


@dataclass(frozen=True, slots=True)
class Control:
    """A control call of the program."""

    call: TransactionCall
    caller: ControlCaller
    #: When the caller gives up (monotonic seconds); None: as the machine decides.
    deadline: float | None = None
    #: init_transactions(): the id from now on; None: as it is.
    transactional_id: str | None = None
    #: send_offsets_to_transaction(): its arguments.
    asked: OffsetsToSend | None = None
    #: send_offsets_to_transaction(): whether the caller waits for the result.
    waits: bool = True


@dataclass(frozen=True, slots=True)
class CallerLeft:
    """A caller no longer waits."""

    caller: ControlCaller


@dataclass(frozen=True, slots=True)
class CallerWaits:
    """A caller without a timeout asks whether the stage is blocked."""

    caller: ControlCaller


@dataclass(frozen=True, slots=True)
class WantPartition:
    """TV1: a batch is to be sealed for a partition that is not in the transaction yet."""

    serial: int
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class LeaderWithoutTv2:
    """A leader does not support the requests of TV2, unlike the coordinator."""


@dataclass(frozen=True, slots=True)
class RowFailed:
    """A row of a transaction failed. Put before the row counts as settled."""

    serial: int
    error: BaseException
    code: int | None = None
    #: The producer cannot be used any more; *fenced*: because of another producer.
    fatal: bool = False
    fenced: bool = False


@dataclass(frozen=True, slots=True)
class AllSettled:
    """All rows that were accepted in a transaction have their outcome."""

    serial: int


@dataclass(frozen=True, slots=True)
class AllReported:
    """The callbacks of all rows that were accepted in a transaction have run."""

    serial: int


@dataclass(frozen=True, slots=True)
class RowsFailed:
    """All rows without outcome have been failed."""

    serial: int


@dataclass(frozen=True, slots=True)
class BrokerDrained:
    """A BrokerWorker has no batch in flight."""

    serial: int
    worker: AnyWorker

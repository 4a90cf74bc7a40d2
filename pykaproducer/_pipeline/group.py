"""GroupCoordinator: commits the offsets of consumer groups within transactions.

One per group whose offsets a producer has sent, up to a number; further groups share them, because
a producer may have thousands. Owns: a connection to the broker that coordinates the present group,
which need not be the one that coordinates the transactional id.

Guarantees: each ``CommitOffsets`` gets one ``OffsetsAnswered``, unless it is given up. Offsets are
committed in the order in which they were sent, one request at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.coordination import TV2, Coordination
from pykaproducer._machines.group_offsets import (
    GroupEffect,
    GroupOffsets,
    LeaveGroup,
    ReportOffsets,
    SendFindGroup,
    SendTxnOffsetCommit,
)
from pykaproducer._machines.transaction_effects import CommitOffsets, GiveUpOffsets
from pykaproducer._net.connection import Answered
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.broker_events import unused_time
from pykaproducer._pipeline.coordinator_connection import CoordinatorConnection
from pykaproducer._pipeline.coordinator_items import OffsetsToSend
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.metadata_events import CoordinatorCame
from pykaproducer._pipeline.worker import AnyWorker, StageContext
from pykaproducer._util.clock import earlier
from pykaproducer._util.group_offsets import GroupOffset
from pykaproducer._util.randomness import system_random
from pykaproducer._wire.messages import ApiKey
from pykaproducer._wire.transactions import (
    CoordinatorKind,
    decode_txn_offset_commit,
    txn_offset_commit_request,
)
from pykaproducer.config import Config

#: The first version that has the member and the generation (KIP-447).
_HAS_MEMBER = 3
#: The first version that adds the group to the transaction (KIP-890).
_ADDS_GROUP = 5


@dataclass(frozen=True, slots=True)
class OffsetsAnswered:
    """The result of offset request *number* of transaction *serial*."""

    serial: int
    number: int
    found: Coordination


@dataclass(frozen=True, slots=True)
class GroupUnused:
    """*stage* has had no offsets for a long time."""

    stage: AnyWorker


GroupItem = CommitOffsets | GiveUpOffsets | CoordinatorCame


class GroupCoordinator(CoordinatorConnection[GroupItem]):
    """The stage of one group, or of several in turn."""

    def __init__(
        self,
        context: StageContext,
        config: Config,
        network: Network,
        metadata: Metadata,
        report: Callable[[OffsetsAnswered | GroupUnused], None],
        group: str,
        number: int,
    ) -> None:
        name = f"group-{number}"
        super().__init__(name, context, config, network, metadata, CoordinatorKind.GROUP)
        self._report = report
        self._machine = GroupOffsets(
            group,
            backoff_first=config.retry_backoff_ms / 1000,
            backoff_most=config.retry_backoff_max_ms / 1000,
            random=system_random.random,
        )
        # Those of the last request.
        self._asked: tuple[GroupOffset, ...] = ()
        self._unused_time = unused_time(config)
        # When to report that it is not used any more.
        self._unused_at: float | None = None

    def handle(self, item: GroupItem) -> None:
        now = self.clock.monotonic()
        match item:
            case CommitOffsets():
                self._perform(self._machine.commit(item, now))
            case GiveUpOffsets():
                self._perform(self._machine.give_up(item.serial, now))
            case CoordinatorCame():
                self.coordinator_came(item, now)

    def deadline(self) -> float | None:
        due = self._machine.next_due()
        return due if self._unused_at is None else earlier(due, self._unused_at)

    def on_time(self, now: float) -> None:
        due = self._machine.next_due()
        if due is not None and due <= now:
            self._perform(self._machine.time_passed(now))
        if self._unused_at is not None and self._unused_at <= now:
            # Again later, if the coordinator's stage does not end this one.
            self._unused_at = now + self._unused_time
            self._report(GroupUnused(self))

    def on_inbox_drained(self) -> None:
        if not self._machine.is_idle:
            self._unused_at = None
        elif self._unused_at is None:
            self._unused_at = self.clock.monotonic() + self._unused_time

    def found(self, now: float) -> None:
        self._perform(self._machine.coordinator_found(now))

    def not_found(self, code: int | None, now: float) -> None:
        self._perform(self._machine.coordinator_not_found(code, now))

    def lost(self, now: float, *, written: bool) -> None:
        self._perform(self._machine.connection_lost(now))

    def unsupported(self, api_key: int, now: float) -> None:
        self._perform(self._machine.answered([ErrorCode.UNSUPPORTED_VERSION], now))

    def _perform(self, effects: list[GroupEffect]) -> None:
        for effect in effects:
            match effect:
                case SendFindGroup():
                    self.look_up(effect.group, again=self._machine.retries)
                case SendTxnOffsetCommit():
                    self._commit(effect.ask)
                case LeaveGroup():
                    self.disconnect("the offsets were given up")
                case ReportOffsets():
                    self._report(OffsetsAnswered(effect.serial, effect.number, effect.found))

    def _commit(self, ask: CommitOffsets) -> None:
        asked: OffsetsToSend = ask.offsets
        self._asked = asked.offsets

        def encode(version: int, correlation_id: int, client_id: str | None) -> bytes:
            return txn_offset_commit_request(
                version,
                correlation_id,
                client_id,
                ask.transactional_id,
                ask.producer.producer_id,
                ask.producer.epoch,
                asked.group,
                asked.offsets,
            )

        if ask.protocol == TV2:
            self.send(ApiKey.TXN_OFFSET_COMMIT, encode, at_least=_ADDS_GROUP)
        else:
            self.send(
                ApiKey.TXN_OFFSET_COMMIT, encode, at_least=_HAS_MEMBER, at_most=_ADDS_GROUP - 1
            )

    def on_answer(self, event: Answered) -> None:
        with self.not_answered():
            answer = decode_txn_offset_commit(event.request.version, event.payload)
            errors = answer.of(self._asked)
            now = self.clock.monotonic()
            self._perform(self._machine.answered(errors.values(), now, errors))

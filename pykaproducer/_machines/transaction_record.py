"""The data of one transaction: the machine's record, and the view for stages that write.

:mod:`pykaproducer._machines.transactions` has the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pykaproducer._machines.coordination import TV1, TV2
from pykaproducer._machines.introduction_turn import IntroductionTurn
from pykaproducer._machines.sequencing import ProducerId
from pykaproducer._machines.transaction_states import Place


class Touch:
    """When the first record or offset of a transaction may have been written, None: none yet.

    The stages that write set it. Nothing ever clears it.
    """

    __slots__ = ("_is_claimed", "at", "took")

    def __init__(self) -> None:
        self.at: float | None = None
        self._is_claimed = False
        #: ``TV2``: how long the answer to the first Produce took (seconds). Set before rows of that
        #: request are settled, by the stage that has sent it.
        self.took: float | None = None

    def set(self, now: float) -> None:
        """Record a write at *now*. Call this before the connection gets the request."""
        if self.at is None:
            self.at = now

    def claim_produce(self) -> bool:
        """Return whether the next Produce is the first one, also if offsets have been written.

        If two stages call it at the same time, both may get True. Then the later response counts.
        """
        is_first, self._is_claimed = not self._is_claimed, True
        return is_first


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transaction as seen by the stages that write records. Immutable, replaced as a whole."""

    #: Ordinal of the transaction, that of the last one if none is open.
    serial: int = 0
    #: Whether records may be sealed and written.
    is_open: bool = False
    #: The same object throughout a transaction, and another one in the next.
    producer: ProducerId | None = None
    protocol: int = TV1
    #: ``TV1``: the partitions that the coordinator has added.
    added: frozenset[Place] = frozenset()
    #: Records must not be written before this time (monotonic seconds).
    not_before: float = 0.0
    touch: Touch = field(default_factory=Touch, compare=False)
    transactional_id: str | None = None
    #: ``TV2``: whose Produce may add partitions.
    turn: IntroductionTurn = field(default_factory=IntroductionTurn, compare=False)


@dataclass(slots=True)
class PendingOffsets:
    """Offsets of one ``send_offsets_to_transaction()``. Times are monotonic seconds."""

    group: str
    offsets: Any
    #: When to stop waiting for an unknown partition.
    deadline: float
    #: It was given to the stage of the group.
    given: bool = False
    #: When the program made the call.
    asked_at: float = 0.0


@dataclass(slots=True)
class TransactionRecord:
    """The progress of the transaction that is open, or was the last one."""

    begun_at: float = 0.0
    touch: Touch = field(default_factory=Touch)
    turn: IntroductionTurn = field(default_factory=IntroductionTurn)
    #: ``TV1``: partitions in the order in which they were wanted.
    wanted: dict[Place, None] = field(default_factory=dict)
    #: ``TV1``: the partitions and groups that the coordinator has added.
    added: frozenset[Place] = frozenset()
    added_groups: set[str] = field(default_factory=set)
    #: Number -> offsets without a result.
    pending_offsets: dict[int, PendingOffsets] = field(default_factory=dict)
    #: The number of those for which a call waits.
    waited_for: int | None = None
    number_of_offsets: int = 0
    #: All groups, in the order of their first offsets.
    groups: dict[str, None] = field(default_factory=dict)
    preparing: bool = False
    settled: bool = False
    #: Its callbacks have run.
    reported: bool = False
    #: Its end is known, but the callbacks had not run by then.
    has_ended: bool = False
    drained: bool = False
    #: EndTxn(commit) was written without an answer that decides.
    unconfirmed: bool = False
    #: The greatest protocol of EndTxn: that of the one without such an answer.
    ends_as: int = TV2
    #: ``TV1``: a request of this epoch may still arrive, so an abort is followed by a new epoch.
    spent: bool = False
    #: When the request under way was sent.
    asked_at: float = 0.0

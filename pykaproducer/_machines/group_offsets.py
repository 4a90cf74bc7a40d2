"""The offsets of groups: TxnOffsetCommit requests to the coordinator of one group after the other.

One request is under way at a time, and the offsets are committed in the order in which they were
given. The stage of the groups owns the machine, gives it the events, and performs the effects:
``SendFindGroup`` and ``SendTxnOffsetCommit``, of which one is under way at a time, ``LeaveGroup``,
which ends that one, and ``ReportOffsets``, of which there is one for each ``CommitOffsets`` that
was not given up. ``TransactionMachine.offsets_answered`` handles it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from pykaproducer._machines.coordination import (
    NO_ANSWER,
    Coordination,
    Delays,
    Reaction,
    coordinate,
    coordinate_all,
)
from pykaproducer._machines.transaction_effects import CommitOffsets
from pykaproducer._machines.transaction_states import IllegalTransactionMove, Place
from pykaproducer._wire.messages import ApiKey


@dataclass(frozen=True, slots=True)
class SendFindGroup:
    """Find the coordinator of *group*, and connect to it."""

    group: str
    api_key: ClassVar[int] = ApiKey.FIND_COORDINATOR


@dataclass(frozen=True, slots=True)
class SendTxnOffsetCommit:
    """Send TxnOffsetCommit, in a version of the protocol of *ask*: 3 or 4 for TV1, 5 for TV2."""

    ask: CommitOffsets
    api_key: ClassVar[int] = ApiKey.TXN_OFFSET_COMMIT


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """End the request under way, of offsets that were given up, and close the connection."""


@dataclass(frozen=True, slots=True)
class ReportOffsets:
    """Report the result of ``CommitOffsets`` *number* to the coordinator's stage."""

    serial: int
    number: int
    found: Coordination


GroupEffect = SendFindGroup | SendTxnOffsetCommit | LeaveGroup | ReportOffsets


class GroupOffsets:
    """Decides what is sent to the coordinators of groups, of which one is connected at a time."""

    def __init__(
        self,
        group: str,
        *,
        backoff_first: float,
        backoff_most: float,
        random: Callable[[], float],
    ) -> None:
        """Begin without a coordinator. Times are in seconds; *random* returns numbers in [0, 1)."""
        #: The one whose coordinator is connected, or looked up. It changes with the offsets.
        self.group = group
        self._random = random
        self._asks: deque[CommitOffsets] = deque()
        self._delays = Delays(backoff_first, backoff_most)
        self._connected = False
        self._request: SendFindGroup | SendTxnOffsetCommit | None = None
        self._retry_at: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to commit, and no request under way."""
        return not self._asks and self._request is None

    @property
    def retries(self) -> bool:
        """Whether the next request repeats one that has failed."""
        return self._delays.are_retries

    def commit(self, ask: CommitOffsets, now: float) -> list[GroupEffect]:
        """Commit the offsets of *ask*, after those given before."""
        self._asks.append(ask)
        return self._run(now)

    def give_up(self, serial: int, now: float) -> list[GroupEffect]:
        """Forget the offsets of transaction *serial*. A request under way stays under way."""
        self._asks = deque(ask for ask in self._asks if ask.serial != serial)
        return self._run(now)

    def coordinator_found(self, now: float) -> list[GroupEffect]:
        """Handle a new connection to the coordinator."""
        self._connected = True
        if isinstance(self._request, SendFindGroup):
            self._request = None
        return self._run(now)

    def coordinator_not_found(self, code: int | None, now: float) -> list[GroupEffect]:
        """Handle a FindCoordinator response with an error, None: no response or no connection."""
        if not isinstance(self._request, SendFindGroup):
            raise IllegalTransactionMove(f"no coordinator, after {self._request}")
        self._request = None
        found = coordinate(ApiKey.FIND_COORDINATOR, code)._replace(group=self.group)
        return self._handle(None, found, now)

    def answered(
        self, codes: Iterable[int], now: float, places: Iterable[Place] = ()
    ) -> list[GroupEffect]:
        """Handle the answer to TxnOffsetCommit, with a code for each partition of *places*."""
        request, self._request = self._request, None
        if not isinstance(request, SendTxnOffsetCommit):
            self._request = request
            raise IllegalTransactionMove(f"an answer to TxnOffsetCommit, not to {request}")
        late = now >= request.ask.deadline
        found = coordinate_all(
            ApiKey.TXN_OFFSET_COMMIT, codes, late=late, places=places, group=self.group
        )
        return self._handle(request.ask, found, now)

    def connection_lost(self, now: float) -> list[GroupEffect]:
        """Handle the loss of the connection. A TxnOffsetCommit may be sent twice."""
        self._connected = False
        request = self._request
        if not isinstance(request, SendTxnOffsetCommit):
            return self._run(now)
        self._request = None
        return self._handle(request.ask, coordinate(request.api_key, NO_ANSWER), now)

    def next_due(self) -> float | None:
        """Return when to call :meth:`time_passed`, None: never."""
        return self._retry_at if self._request is None and self._asks else None

    def time_passed(self, now: float) -> list[GroupEffect]:
        """Send what is due at *now*."""
        return self._run(now)

    def _handle(
        self, ask: CommitOffsets | None, found: Coordination, now: float
    ) -> list[GroupEffect]:
        """Handle an answer about *ask*, None: about the coordinator, and so about all of its."""
        effects: list[GroupEffect] = []
        if found.reaction is Reaction.FIND:
            self._connected = False
        if found.again:
            self._retry_at = now + self._delays.after(found.reaction, self._random())
        else:
            self._delays.reset()
            about = [
                each
                for each in self._asks
                if each is ask or (ask is None and each.group == self.group)
            ]
            for each in about:
                self._asks.remove(each)
                effects.append(ReportOffsets(each.serial, each.number, found))
        return effects + self._run(now)

    def _run(self, now: float) -> list[GroupEffect]:
        effects = self._change_group()
        if self._request is not None or not self._asks:
            return effects
        if self._retry_at is not None and now < self._retry_at:
            return effects
        self._retry_at = None
        self._request = (
            SendTxnOffsetCommit(self._asks[0]) if self._connected else SendFindGroup(self.group)
        )
        return [*effects, self._request]

    def _change_group(self) -> list[GroupEffect]:
        """Turn to the group of the next offsets.

        If a request is under way, it is of offsets that were given up, and must not hold up those
        of another group: its broker may never answer.
        """
        if not self._asks or self._asks[0].group == self.group:
            return []
        self.group = self._asks[0].group
        request, self._request = self._request, None
        self._connected, self._retry_at = False, None
        self._delays.reset()
        return [] if request is None else [LeaveGroup()]

"""The part of the machine of a transactional producer that asks whether a transaction has ended.

EndTxn is answered before the brokers have written the markers of the transaction. See
:mod:`pykaproducer._machines.introduction_hold`. The answer decides nothing but when the first
Produce request of the next transaction is written, and no other request depends on it.
"""

from __future__ import annotations

from typing import Final

from pykaproducer._machines.transaction_base import TransactionBase
from pykaproducer._machines.transaction_effects import (
    EndHold,
    LeaveCoordinator,
    SendDescribeTransactions,
)
from pykaproducer._machines.transaction_states import OPEN, TransactionState

_ASKS: Final = OPEN | {TransactionState.READY}


class TransactionCompletion(TransactionBase):
    """Asks the coordinator, if ``hold`` has found that to be the fastest."""

    def _end_for_hold(self, now: float) -> None:
        """Decide when the first Produce of the next transaction may be written."""
        touch = self._transaction.touch
        if touch.took is not None:
            self.hold.observed(touch.took)
        if touch.at is not None:
            self.hold.ended(now)

    def _may_ask(self) -> bool:
        """Return whether to ask at ``hold.ask_at``. A connection is not made for that."""
        return self._connected and self.state in _ASKS and self.hold.ask_at is not None

    def _question(self, now: float) -> SendDescribeTransactions | None:
        ask_at = self.hold.ask_at
        if ask_at is None or now < ask_at or not self._may_ask():
            return None
        self.hold.asks()
        return SendDescribeTransactions(self.transactional_id)

    def _forget_last(self, now: float) -> None:
        """Forget the last transaction, because of another id, which must not wait for its end.

        A question about it may be under way. Its connection is of no more use.
        """
        self.hold.forget(now)
        if isinstance(self._request, SendDescribeTransactions):
            self._request = None
            self._effects.append(LeaveCoordinator())

    def _publish_hold(self) -> None:
        """Publish when the first Produce may be written, after an answer or its loss."""
        before = self.view.not_before
        self._publish()
        if self.hold.not_before < before and self.state in OPEN:
            self._effects.append(EndHold())

"""The delay of the first Produce request of a ``TV2`` transaction."""

from __future__ import annotations


class IntroductionHold:
    """How long the first Produce of a ``TV2`` transaction waits after the last EndTxn answer.

    The leader adds the partition to the transaction (KIP-890). If the coordinator is still writing
    the markers of the last transaction then, the leader retries after 20 ms. A Produce that comes
    a little later is much faster.
    """

    # All in seconds. A first Produce that takes this long has met the retry of the leader.
    _SLOW = 0.018
    # The first delay, and the range of delays.
    _FIRST = 0.001
    _MOST = 0.02
    _LEAST = 0.00025

    def __init__(self) -> None:
        self.seconds = 0.0

    def observed(self, took: float) -> None:
        """Adapt to a first Produce that *took* this long (seconds)."""
        if took >= self._SLOW:
            self.seconds = min(self._MOST, max(self._FIRST, 2 * self.seconds))
        else:
            self.seconds *= 0.9
            if self.seconds < self._LEAST:
                self.seconds = 0.0

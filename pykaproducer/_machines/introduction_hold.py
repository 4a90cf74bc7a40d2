"""When the first Produce request of a ``TV2`` transaction may be written.

The leader that gets it adds its partitions to the transaction (KIP-890). While the coordinator is
still ending the last transaction, that is refused, and the leader repeats it every 20 ms. A Produce
that comes a little later is much faster. How much later is found out in two ways:

* A guess. If a first Produce took so long that it must have met such a repetition, the next one
  waits for 1 ms, then 2 and 4. That suffices with one broker, which writes the markers at once.
* A question, if guesses do not help: DescribeTransactions returns whether the coordinator has ended
  the transaction (KIP-664). With several replicas that takes as long as the slowest of them.

A question also brings the end about, as was measured with Kafka 4.3: without one, the transaction
had not ended after 30 ms. It seems that the coordinator writes the last record of a transaction
outside of its request threads, and that the followers get it when the next request has been handled
(``ReplicaManager.tryCompleteActions()``). On a cluster without other traffic that request would be
the one that adds the partitions, and is refused.
"""

from __future__ import annotations


class IntroductionHold:
    """How long the first Produce of a ``TV2`` transaction waits after the last EndTxn answer.

    All times are in seconds.
    """

    #: A first Produce that takes this much longer than usual has met the retry of the leader.
    _SLOW = 0.018
    #: The first guess and the range of guesses. A longer one is replaced by questions.
    _FIRST = 0.001
    _LEAST = 0.00025
    _MOST_GUESSED = 0.004
    #: How long a Produce waits for one response, and for all responses together.
    _MOST = 0.02
    _MOST_ASKED = 0.1
    #: The least time before the first query, and between a response and the next query.
    _GAP = 0.001
    #: Guess again after this many consecutive transactions that the first query found complete.
    _NEEDLESS = 8
    #: After so many without an answer in time, do neither for a number of transactions.
    _IN_VAIN = 5
    _REST = 100

    def __init__(self) -> None:
        #: The guess.
        self.seconds = 0.0
        #: When the first Produce may be written (monotonic seconds).
        self.not_before = 0.0
        #: When to ask the coordinator (monotonic seconds), None: do not.
        self.ask_at: float | None = None
        #: Whether to guess, rather than to ask.
        self.guesses = True
        self._ended_at = 0.0
        #: The number of questions about the last transaction; whether the answer came in time.
        self._asked = 0
        self._is_known = False
        #: The time of a Produce that has met no retry.
        self._usual = 0.0
        self._needless = self._in_vain = self._rest = 0

    def ended(self, now: float) -> None:
        """Handle the answer to EndTxn."""
        self._ended_at, self._asked, self._is_known = now, 0, False
        self.ask_at = None if self.guesses else now + self._GAP
        self.not_before = now + (self.seconds if self.guesses else self._MOST)

    def asks(self) -> None:
        """Record that the question is being asked."""
        self._asked += 1
        self.ask_at = None

    def answered(self, now: float, *, complete: bool) -> None:
        """Handle the answer. If it is in time, ``not_before`` changes."""
        since = now - self._ended_at
        if now >= self.not_before:
            return  # the Produce may have been written
        if not complete:
            self.ask_at = now + max(self._GAP, since / 4)
            self.not_before = min(now + self._MOST, self._ended_at + self._MOST_ASKED)
            return
        self.not_before = now
        self._is_known, self._in_vain = True, 0
        self._needless = self._needless + 1 if self._asked == 1 else 0
        self.guesses = self._needless >= self._NEEDLESS

    def lost(self, now: float) -> None:
        """Handle the loss of the question or of the answer."""
        self.not_before = min(self.not_before, now)

    def refused(self, now: float) -> None:
        """Handle an error as the answer."""
        self.not_before = min(self.not_before, now)
        self._stop()

    def forget(self, now: float) -> None:
        """Forget the last transaction: the next one has another transactional id."""
        self.not_before = min(self.not_before, now)
        self.ask_at, self._asked, self._is_known = None, 0, False

    def observed(self, took: float) -> None:
        """Adapt to a transaction whose first Produce *took* this long."""
        if self._rest:
            self._rest -= 1
        elif self._is_known:
            # It follows the fastest ones, as other things can make a Produce slow, too.
            self._usual = min(took, self._usual + 0.1 * (took - self._usual))
        elif self._asked:
            self._in_vain += 1
            if self._in_vain >= self._IN_VAIN:
                self._stop()
        elif took < self._usual + self._SLOW:
            self.seconds *= 0.9
            if self.seconds < self._LEAST:
                self.seconds = 0.0
        else:
            self.seconds = max(self._FIRST, 2 * self.seconds)
            if self.seconds > self._MOST_GUESSED:
                self.seconds, self.guesses, self._needless = 0.0, False, 0

    def _stop(self) -> None:
        self.seconds, self.guesses, self.ask_at = 0.0, True, None
        self._in_vain, self._rest = 0, self._REST

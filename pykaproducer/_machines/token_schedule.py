"""When to request a token: pure; the caller supplies the time and the randomness.

As in the Java client, a token is renewed after 80 to 85 % of its lifetime. After a failure the next
request waits with an exponential backoff, and the old token is used until it expires. After an
error that the token endpoint calls permanent (a wrong secret), the request is repeated at the
longest backoff only: the credentials may be corrected while a program runs, but a client that asks
often may be locked out.

A token that a broker rejects is renewed early. Until then it stays, because the other brokers may
accept it: the rejecting one may have a wrong configuration, or not know the issuer's new key yet.
"""

from __future__ import annotations

import math
from typing import Final

from pykaproducer._machines.cluster import Backoff

#: The part of its lifetime after which a token is renewed, and the random addition to it.
_RENEW_AFTER: Final = 0.8
_JITTER: Final = 0.05
#: Maximum number of doublings of the pause before the next token, if each one is rejected.
_MOST_DOUBLINGS: Final = 5
#: Least time between two requests (seconds), however short-lived the tokens are.
_LEAST_PAUSE: Final = 1.0


class TokenSchedule:
    """The validity of the current token, and the time of the next request for one.

    *first* and *most*, which is not less, are the limits of the backoff in seconds.
    """

    def __init__(self, first: float, most: float) -> None:
        self._backoff = Backoff(first, most)
        self._most = most
        #: When to request a token. Times are those of a monotonic clock (seconds).
        self.fetch_at = -math.inf
        self._expires_at = -math.inf
        self._fetched_at = -math.inf
        # Whether a broker has rejected the current token, and how many tokens in a row were.
        self._is_rejected = False
        self._rejections = 0

    def is_valid(self, now: float) -> bool:
        """Return whether there is a token that has not expired."""
        return now < self._expires_at

    @property
    def expires_at(self) -> float:
        """Return when the current token expires; in the past if there is none."""
        return self._expires_at

    def fetched(self, lifetime: float, now: float, random: float) -> None:
        """Handle a new token, which is valid for *lifetime* seconds."""
        self._backoff.reset()
        if not self._is_rejected:
            self._rejections = 0
        self._is_rejected = False
        self._fetched_at = now
        self._expires_at = now + lifetime
        self.fetch_at = now + max(_LEAST_PAUSE, lifetime * (_RENEW_AFTER + _JITTER * random))

    def failed(self, now: float, random: float, *, permanent: bool) -> None:
        """Handle a failed request."""
        pause = self._backoff.next(random)
        self.fetch_at = now + (self._most if permanent else pause)

    def rejected(self, now: float) -> None:
        """Handle a broker's rejection of the current token: request another one, once.

        The token stays valid. One that has just been fetched is replaced only after the longest
        backoff, because the next one will hardly be better. The pause doubles with each token in a
        row that is rejected.
        """
        if self._is_rejected:
            return  # it is to be renewed already, and a failed request has its backoff
        self._is_rejected = True
        pause = self._most * 2 ** min(self._rejections, _MOST_DOUBLINGS)
        self._rejections += 1
        self.fetch_at = min(self.fetch_at, max(now, self._fetched_at + pause))

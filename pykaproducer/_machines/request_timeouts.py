"""When the requests of a connection time out.

The timeout of a request starts when its turn comes, not when it is submitted. On a slow line this
makes a difference:

1. five requests of 1 MB are submitted at once, and the line takes 1 MB in ten seconds;
2. if the timeout started here, the fourth would be late after 30 s, although every request was
   written as fast as the line allows;
3. the connection would be considered lost, and all unanswered requests would be written again.

While a request is being written, its timeout therefore starts at the last byte that the socket
took, and once it is written, at its last byte. Each response restarts both, because the broker
answers in order, and later requests could not have been answered before. The connection to a
silent broker is lost after the timeout of the request, because nothing restarts it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pykaproducer._machines.session import Request

NEVER = float("inf")


class RequestTimeouts:
    """The timeouts of one connection attempt. All times are monotonic seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self._answered_at = self._taken_at = now

    @property
    def used_at(self) -> float:
        """When the socket took bytes, or a response arrived, whichever was later."""
        return max(self._taken_at, self._answered_at)

    def answered(self, now: float) -> None:
        """Record that a response arrived at *now*, which may be in the past."""
        self._answered_at = max(self._answered_at, now)

    def taken(self, now: float) -> None:
        """Record that the socket took bytes at *now*, which may be in the past."""
        self._taken_at = max(self._taken_at, now)

    def earliest(
        self, unanswered: Iterable[Request], leaving: Request | None, queued: Iterable[Request]
    ) -> float:
        """Return when the first request times out; :data:`NEVER` if there is none.

        *unanswered*: encoded requests that expect a response, oldest first. *leaving*: the request
        that is being written. *queued*: requests that are not encoded.
        """
        earliest, answered = NEVER, self._answered_at
        for request in unanswered:
            if request.written is None:
                break  # later ones are not written either
            earliest = min(earliest, max(request.written, answered) + request.timeout)
        # A request that expects no response is not among the unanswered ones.
        if leaving is not None:
            began = leaving.deadline - leaving.timeout
            return min(earliest, max(began, self._taken_at, answered) + leaving.timeout)
        if earliest == NEVER:
            return min((request.deadline for request in queued), default=NEVER)
        return earliest

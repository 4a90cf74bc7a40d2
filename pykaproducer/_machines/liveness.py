"""When a connection is stale, and when its peer counts as gone.

A firewall, a NAT or a load balancer may drop a connection silently. Nothing that is written to it
arrives, and nothing comes back. Without a further rule that costs ``request_timeout_ms``. Two
rules make it cheaper:

- Before a connection that was unused for ``connections_check_idle_ms`` is used again, it is checked
  with an ApiVersions request, which the broker has to answer within :data:`CHECK_TIMEOUT` (not with
  ``acks=0``). This also finds a connection whose peer is a proxy that acknowledges everything and
  passes nothing on.
- If a request is unanswered, and the broker's host has acknowledged nothing for
  ``tcp_user_timeout_ms``, the connection is lost. With ``acks=0`` no request is unanswered, so this
  counts from the first look that finds something to be transmitted again.

A broker that does not answer is not enough: it may wait for its replicas for as long as
``request_timeout_ms``, and it reads nothing until then.

The machine is pure. All times are monotonic seconds.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

#: How long a broker may take to answer a connection check (seconds). No other request is in flight
#: then, so the time does not depend on how much the broker has to do for this client.
CHECK_TIMEOUT: Final = 2.0
#: Interval between looks at what the broker's host has acknowledged (seconds).
_LOOK_INTERVAL: Final = 1.0


class LivenessSettings(Protocol):
    """The configuration settings of these rules. 0 turns a rule off."""

    @property
    def connections_check_idle_ms(self) -> float: ...

    @property
    def tcp_user_timeout_ms(self) -> float: ...


class Liveness:
    """The state of the peer of one connection.

    *used_at* is always when bytes were last sent or received.
    """

    def __init__(self, settings: LivenessSettings) -> None:
        self._check_after = settings.connections_check_idle_ms / 1000 or math.inf
        self._limit = settings.tcp_user_timeout_ms / 1000 or math.inf
        self._looked_at = -math.inf
        # The first of the looks in a row that found something unacknowledged.
        self._silent_since = math.inf
        #: Whether the system tells what the broker's host has acknowledged.
        self.can_look = False
        #: Whether a check was answered, and nothing was written since then.
        self.just_checked = False
        #: Whether requests are written that get no response (``acks=0``). The broker may still have
        #: to handle them, and a busy one would not answer a check in time. With another connection,
        #: later messages could overtake those.
        self.is_one_way = False

    def stale_at(self, used_at: float) -> float:
        """Return from when on the connection is checked before the next use."""
        return math.inf if self.just_checked or self.is_one_way else used_at + self._check_after

    def next_look_at(self, used_at: float) -> float:
        """Return when to look at what was acknowledged, if something may be in flight."""
        if not self.can_look:
            return math.inf
        if self.is_one_way:
            # Each write is a use, so the last one shows nothing. After it, there are looks until a
            # retransmission would have been seen.
            is_over = self._looked_at > used_at + self._limit and self._silent_since == math.inf
            is_off = self._limit == math.inf
            return math.inf if is_over or is_off else self._looked_at + _LOOK_INTERVAL
        return max(used_at + self._limit, self._looked_at + _LOOK_INTERVAL)

    def failure(self, unacknowledged: float | None, used_at: float, now: float) -> str | None:
        """Return why the peer counts as gone, or None if it does not.

        *unacknowledged*: for how long the system has been waiting for an acknowledgement. It may
        include time before the last use.
        """
        self._looked_at = now
        self._silent_since = min(self._silent_since, now) if unacknowledged else math.inf
        since = self._silent_since if self.is_one_way else used_at
        if unacknowledged is None or min(unacknowledged, now - since) < self._limit:
            return None
        return (
            f"the broker's host acknowledged nothing that was sent in the last {self._limit:g} s "
            "(tcp_user_timeout_ms)"
        )

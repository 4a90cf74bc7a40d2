"""When a connection is stale, and when its peer counts as gone.

A firewall, a NAT or a load balancer may drop a connection without a word. Nothing that is written
to it arrives, and nothing comes back. Without a further rule that costs ``request_timeout_ms``. Two
rules make it cheaper:

- A connection that was unused for ``connections_check_idle_ms`` is asked for a sign of life before
  it is used again (not with ``acks=0``), and gets :data:`CHECK_TIMEOUT` for it. This finds also a
  connection whose peer is a proxy that acknowledges everything and passes nothing on.
- If a request is unanswered, and the broker's host has acknowledged nothing for
  ``tcp_user_timeout_ms``, the connection is lost.

A silent broker is not a sign of that: it may wait for its replicas for as long as
``request_timeout_ms``, and it reads nothing from the connection meanwhile.

The machine is pure. All times are monotonic seconds.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

#: How long a broker may take for a sign of life (seconds). It is asked for nothing else meanwhile,
#: so the time does not depend on how much it has to do for this client.
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
    """What is known about the peer of one connection.

    *used_at* is always when bytes were last sent or received.
    """

    def __init__(self, settings: LivenessSettings) -> None:
        self._check_after = settings.connections_check_idle_ms / 1000 or math.inf
        self._limit = settings.tcp_user_timeout_ms / 1000 or math.inf
        self._looked_at = -math.inf
        #: Whether the system tells what the broker's host has acknowledged.
        self.can_look = False
        #: Whether a sign of life has come, and nothing was written since then.
        self.vouched = False
        #: Whether requests are written that get no response (``acks=0``). The broker may
        #: still have to handle them, and a busy one would give no sign of life in time. With
        #: another connection, later messages could overtake those.
        self.is_one_way = False

    def stale_at(self, used_at: float) -> float:
        """Return when to ask for a sign of life before the next use."""
        return math.inf if self.vouched or self.is_one_way else used_at + self._check_after

    def look_at(self, used_at: float) -> float:
        """Return when to look at what was acknowledged, if something is in flight."""
        if not self.can_look:
            return math.inf
        return max(used_at + self._limit, self._looked_at + _LOOK_INTERVAL)

    def gone(self, unacknowledged: float | None, used_at: float, now: float) -> str | None:
        """Return why the peer counts as gone, or None if it does not.

        *unacknowledged*: for how long the system has been waiting for an acknowledgement. It may
        include time before the last use.
        """
        self._looked_at = now
        if unacknowledged is None or min(unacknowledged, now - used_at) < self._limit:
            return None
        return (
            f"the broker's host acknowledged nothing that was sent in the last {self._limit:g} s "
            "(tcp_user_timeout_ms)"
        )

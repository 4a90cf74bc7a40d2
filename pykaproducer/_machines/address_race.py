"""Which of a host's addresses to try next, and when: happy eyeballs (RFC 8305).

The addresses of both families are tried alternately. Each attempt starts a moment after the one
before it, or at once if that has failed. The first that connects wins, and the others are given up.
So an address that does not answer costs a quarter of a second.

The next steps (a proxy, TLS) happen on the winner only. If it fails there, the race
goes on, with the addresses that were given up first.

The machine is pure: it takes ``now``, and the sockets are in ``_net.approach``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from pykaproducer._machines.cluster import backoff

#: The "Connection Attempt Delay" that RFC 8305 recommends (seconds).
ATTEMPT_DELAY: Final = 0.25


class Address(Protocol):
    """An address of a host."""

    @property
    def family(self) -> int: ...


A = TypeVar("A", bound=Address)


def interleaved(addresses: Iterable[A], first: int | None = None) -> list[A]:
    """Return *addresses* with their families alternating, otherwise in their order.

    *first*: the family to begin with. If there is none of it, or it is None, the family of the
    first address, which the system prefers.
    """
    families: dict[int, deque[A]] = {}
    for address in addresses:
        families.setdefault(address.family, deque()).append(address)
    if first in families:
        families = {first: families.pop(first), **families}
    found = []
    while families:
        for family in list(families):
            found.append(families[family].popleft())
            if not families[family]:
                del families[family]
    return found


class AddressRace:
    """The attempts to reach one host until *deadline*. All times are monotonic seconds."""

    def __init__(self, count: int, now: float, deadline: float) -> None:
        #: Indexes of the addresses that have not been tried, or whose attempt was given up.
        self._waiting = deque(range(count))
        self._under_way = 0
        self._deadline = deadline
        self._next_at = now
        # When the winner's handshake must have ended; None: there is no winner.
        self._winner_until: float | None = None

    def is_over(self, now: float) -> bool:
        """Return whether nothing is under way, and nothing is left to try or there is no time."""
        return not self._under_way and (not self._waiting or now >= self._deadline)

    @property
    def deadline(self) -> float:
        """When to call :meth:`late`, or to :meth:`start` another attempt."""
        if self._winner_until is not None:
            return self._winner_until
        return min(self._next_at, self._deadline) if self._waiting else self._deadline

    def start(self, now: float) -> int | None:
        """Return the index of the address to try now; None: wait."""
        if not self._waiting or self._winner_until is not None:
            return None
        if not self._next_at <= now < self._deadline:
            return None
        self._next_at = now + ATTEMPT_DELAY
        self._under_way += 1
        return self._waiting.popleft()

    def failed(self, now: float) -> None:
        """Record that an attempt has failed: the next one may start at once."""
        self._under_way -= 1
        self._winner_until = None
        self._next_at = now

    def won(self, others: list[int], now: float) -> None:
        """Record that one attempt has connected, and that *others* are given up.

        It leaves time for the others, should its handshake not end.
        """
        self._under_way -= len(others)
        self._waiting.extendleft(reversed(others))
        share = (self._deadline - now) / (len(self._waiting) + 1)
        self._winner_until = now + max(0.0, share)

    def late(self, now: float) -> bool:
        """Return whether every attempt under way takes too long, and must be failed."""
        return now >= (self._deadline if self._winner_until is None else self._winner_until)


class SetupTimeouts:
    """How long setting up a connection may take, by host (KIP-601). Times are seconds."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        # Failed attempts in a row; hosts that were reached are not in it.
        self._failures: dict[tuple[str, int], int] = {}

    def timeout(self, host: tuple[str, int], random: float) -> float:
        """Return the timeout of the next attempt; *random* is from 0 to 1."""
        failures = self._failures.get(host, 0)
        if not failures:
            return self._first
        return min(self._most, backoff(self._first, self._most, failures, random))

    def failed(self, host: tuple[str, int]) -> None:
        """Record a failed attempt."""
        self._failures[host] = self._failures.get(host, 0) + 1

    def succeeded(self, host: tuple[str, int]) -> None:
        """Record that the host was reached."""
        self._failures.pop(host, None)

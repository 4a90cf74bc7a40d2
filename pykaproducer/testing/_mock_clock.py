"""The clock of a :class:`~pykaproducer.testing.MockProducer`."""

from __future__ import annotations

import weakref
from typing import Protocol

from pykaproducer._util.clock import Clock, Waitable, earlier


class Expiring(Protocol):
    """The parts of a mock that its clock uses."""

    def _next_deadline(self) -> float | None: ...

    def _expire(self) -> None: ...


class ExpiringClock(Clock):
    """The system clock; a thread that waits for an outcome expires the messages in the meantime."""

    def __init__(self, producer: Expiring) -> None:
        self._producer = weakref.ref(producer)

    def acquire(self, lock: Waitable, deadline: float | None) -> bool:
        producer = self._producer()
        if producer is None:
            return super().acquire(lock, deadline)
        if super().acquire(lock, earlier(deadline, producer._next_deadline())):
            return True
        producer._expire()
        return False

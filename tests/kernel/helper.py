"""The kernel's entry point without a producer, and with the simplest possible hooks."""

from __future__ import annotations

import _thread
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeVar

import crc32c
from kafka.record import MemoryRecords

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import Chunk, Slice
from pykaproducer.delivery import ProducerRef
from pykaproducer.testing import FakeClock

TOPIC = "events"

T = TypeVar("T")


class NoSpaceError(Exception):
    """A substitute for the producer's BufferFullError."""


class ClosedError(Exception):
    """A substitute for the producer's ProducerClosedError."""


class Door(_kernel.BlockAdmission):
    """An admission that hands chunks to the test as the dispatcher would get them."""

    def __init__(
        self,
        *,
        limit: int = 1 << 30,
        delivery_timeout: float = 120.0,
        max_request_size: int = 1 << 21,
        unconfirmed: bool = False,
        serializers: tuple[Any, Any] | None = None,
        clock: FakeClock | None = None,
        patience: dict[str, int] | None = None,
    ) -> None:
        self._patience = patience or {}
        self.clock = FakeClock() if clock is None else clock
        self.home = ProducerRef(self.clock)
        self.told: deque[_kernel.TopicSlot] = deque()
        self.starts = 0
        self.closed = False
        self.serializers = serializers
        self._limit = limit
        self._settings: dict[str, Any] = {
            "delivery_timeout": delivery_timeout,
            "max_request_size": max_request_size,
            "serializing": serializers is not None,
            "unconfirmed": unconfirmed,
            "fake_clock": self.clock,
        }
        self.open()

    def open(self) -> None:
        """Start empty, with a separate budget: at construction, and in the child of a fork."""
        self.budget = _kernel.Budget(self._limit, **self._patience)
        self._open(self.budget, self._announce, self.home, **self._settings)

    # Hooks that the kernel calls --------------------------------------------------------------

    def _start(self) -> None:
        if self.closed:
            raise ClosedError
        self.starts += 1
        self._admit()

    def _announce(self, slots: _kernel.TopicSlot | list[_kernel.TopicSlot]) -> None:
        self.told.extend(slots if isinstance(slots, list) else [slots])

    def _check_topic(self, topic: object) -> None:
        if not isinstance(topic, str):
            raise TypeError(f"topic must be str, not {type(topic).__name__}")
        if not topic:
            raise ValueError("topic '' is not a topic name")

    def _too_large(self, topic: str, size: int, row: int | None = None) -> None:
        raise ValueError(f"{size} bytes are more than max_request_size")

    def _may_wait(self, amount: int) -> _thread.LockType | None:
        lock = _thread.allocate_lock()
        lock.acquire()
        return lock

    def _wait_for_space(self, turn: _kernel.Turn) -> None:
        raise NoSpaceError

    def _serialize(self, topic: str, key: Any, value: Any, headers: Any) -> tuple[Any, Any]:
        assert self.serializers is not None
        return self.serializers[0](key), self.serializers[1](value)

    # Methods for tests -------------------------------------------------------------------------

    def chunks(self) -> list[Chunk]:
        """Return everything accepted and not yet taken, as the dispatcher would take it."""
        chunks = []
        for _ in range(len(self.told)):
            chunks += self._take(self.told.popleft())
        return chunks

    def chunk(self) -> Chunk:
        """Return the only chunk that has been filled."""
        (chunk,) = self.chunks()
        return chunk


def pack(partitions: Sequence[int]) -> bytes:
    """Return partition numbers in the form that ``split`` takes."""
    return struct.pack(f"{len(partitions)}i", *partitions)


def split(
    chunk: Chunk, partitions: int, partitioner: _kernel.Partitioner | None = None
) -> dict[int, Slice]:
    """Return the chunk's slices by partition; no row may have an invalid partition."""
    slices, unknown = chunk.split(partitioner, partitions, pack(range(partitions)))
    assert unknown is None
    return {part.partition: part for part in slices}


def claim(part: Slice, room: int = 1 << 30, most: int = 1 << 30) -> Slice:
    """Return rows of *part* for a batch; there must be some."""
    return some(part.claim(room, most))


def encode(*parts: Slice, **how: Any) -> bytes:
    """Return one record batch of claimed slices."""
    batch, count = _kernel.encode_batch(list(parts), crc32c.crc32c, **how)
    assert count == sum(part.count for part in parts)
    return bytes(batch)


def read(batch: bytes) -> Any:
    """Return kafka-python's view of exactly one record batch, its checksum verified."""
    records = MemoryRecords(batch)
    found = records.next_batch()
    assert not records.has_next()
    assert found.size_in_bytes == len(batch)
    assert found.validate_crc()
    return found


def some(found: T | None) -> T:
    """Return *found*, which must not be None."""
    assert found is not None
    return found


def seal(part: Slice, **how: Any) -> Slice:
    """Claim all of *part*, encode it as a broker's worker does, and return the claimed slice."""
    claimed = claim(part)
    encode(claimed, **how)
    return claimed


def no_error_expected(callback: object, error: BaseException) -> None:
    """Fail the test, as the argument of ``report`` where no callback may raise."""
    raise AssertionError(f"{callback!r} raised {error!r}")


def report(settled: Slice | None) -> bool:
    """Run the callbacks; return True if these were the chunk's last rows."""
    return settled is not None and settled.report(no_error_expected)


def deliver(part: Slice, base_offset: int = 0) -> bool:
    """Deliver and report; return True if these were the chunk's last rows."""
    return report(part.deliver(base_offset))


def fail(part: Slice) -> bool:
    """Fail and report; return True if these were the chunk's last rows."""
    return report(part.fail(LookupError("never written"), TimeoutError("perhaps written")))

"""The fuzzer's own stages: accepted messages are taken, split, written, settled and reported.

Everything that the kernel writes is read by kafka-python and compared with the arguments.
"""

from __future__ import annotations

import _thread
import random
from typing import Any

import crc32c

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import Chunk, Slice

from .helper import Door, NoSpaceError, pack, read
from .odd import ANY

PARTITIONS = 4


class TooLargeError(ValueError):
    """A substitute for the producer's MessageTooLargeError."""


class MisjudgedError(Exception):
    """The kernel has rejected a valid call, accepted an invalid one, or changed a message."""


class FuzzedDoor(Door):
    """A door with little buffer space, whose hooks call back."""

    def __init__(self, stages: Stages) -> None:
        self.stages = stages
        super().__init__(limit=2 << 20)

    def _announce(self, slot: _kernel.TopicSlot) -> None:
        super()._announce(slot)
        self.stages.interfere()

    def _check_topic(self, topic: object) -> None:
        self.stages.interfere()
        super()._check_topic(topic)

    def _too_large(self, topic: str, size: int, row: int | None = None) -> None:
        raise TooLargeError

    def _may_wait(self, amount: int) -> _thread.LockType | None:
        self.stages.interfere()
        return super()._may_wait(amount) if self.stages.chance.random() < 0.7 else None

    def _buffer_is_full(self, amount: int) -> None:
        raise NoSpaceError

    def _wait_for_space(self, turn: _kernel.Turn) -> None:
        self.stages.settle_all()
        if not turn.granted:
            raise NoSpaceError


class Callback:
    """An ``on_delivery`` that calls back, and may raise."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self.calls = 0

    def __call__(self, *outcome: Any) -> None:
        self.calls += 1
        self._stages.interfere()
        for each in outcome:
            repr(each)
        if self._stages.chance.random() < 0.2:
            raise LookupError("a callback raised")

    def __del__(self) -> None:
        self._stages.interfere()


class Stages:
    """A door, and the stages that process everything accepted there."""

    def __init__(self, number: int) -> None:
        self.chance = random.Random(number)
        #: The nesting depth of special methods and callbacks, which is limited.
        self.depth = 0
        self.door = FuzzedDoor(self)
        self.partitioner = _kernel.Partitioner(_kernel.MURMUR2, _kernel.STICKY, sticky_bytes=500)
        #: The expected content by chunk and row: key, value, headers, partition, timestamp. A row
        #: may be written before the call that sends it has returned.
        self.accepted: dict[tuple[Any, int], tuple[Any, ...]] = {}
        self.written: dict[tuple[Any, int], tuple[Any, ...]] = {}
        #: Callbacks that must be called, once each.
        self.due: set[Callback] = set()
        #: Handles and blocks that their caller has kept.
        self.kept: list[Any] = []
        self.taken: list[Chunk] = []

    def interfere(self) -> None:
        """Call back into the kernel."""

    def note(self, chunk: Chunk, row: int, content: tuple[Any, ...]) -> None:
        """Record that a row was accepted, with *content* as the expected content."""
        place = (chunk.serial, row)
        if place in self.written:
            self._compare(content, self.written.pop(place))
        else:
            self.accepted[place] = content

    def _wrote(self, chunk: Chunk, row: int, content: tuple[Any, ...]) -> None:
        place = (chunk.serial, row)
        if place in self.accepted:
            self._compare(self.accepted.pop(place), content)
        else:
            self.written[place] = content

    def _compare(self, expected: tuple[Any, ...], found: tuple[Any, ...]) -> None:
        for name, wanted, got in zip(
            ("key", "value", "headers", "partition", "timestamp"), expected, found, strict=True
        ):
            # A partition or timestamp that was not given is chosen by the kernel.
            if wanted is ANY or (wanted is None and name in ("partition", "timestamp")):
                continue
            if wanted != got:
                raise MisjudgedError(f"{name}: {got!r} was written, and {wanted!r} was passed")

    # Taken, written, settled ----------------------------------------------------------------------

    def settle_some(self) -> None:
        """Take new chunks, and finish one chunk."""
        self.taken += self.door._take_all()
        if self.taken:
            self._settle(self.taken.pop(self.chance.randrange(len(self.taken))))

    def settle_all(self) -> None:
        """Finish every accepted message."""
        while True:
            self.taken += self.door._take_all()
            if not self.taken:
                return
            self._settle(self.taken.pop())

    def _settle(self, chunk: Chunk) -> None:
        """Split a chunk, write its rows, and settle and report every row."""
        slices, unknown = chunk.split(self.partitioner, PARTITIONS, pack([0, 1, 3]))
        for part in [*slices, *([] if unknown is None else [unknown])]:
            if self.chance.random() < 0.2:
                part.detach_payload()
            while len(part):
                claimed = part.claim(self.chance.choice([100, 10_000, 1 << 30]), 50, True)
                if claimed is None:
                    break
                self._write(claimed)
                if self.chance.random() < 0.1:
                    claimed.mark_ambiguous()
                self._report(self._outcome(claimed))

    def _write(self, claimed: Slice) -> None:
        """Encode a batch, read it, and compare each of its rows."""
        batch, count = _kernel.encode_batch([claimed], crc32c.crc32c)
        rows = claimed.row_numbers()
        records = list(read(bytes(batch)))
        assert len(records) == count == len(rows)
        for row, record in zip(rows, records, strict=True):
            content = (
                record.key,
                record.value,
                record.headers,
                claimed.chunk.partition_of(row),
                record.timestamp,
            )
            self._wrote(claimed.chunk, row, content)

    def _outcome(self, claimed: Slice) -> Slice | None:
        how = self.chance.random()
        if how < 0.6:
            return claimed.deliver(self.chance.choice([-1, 0, 1 << 40]))
        if how < 0.8:
            claimed.unclaim()
        return claimed.fail(LookupError("never written"), TimeoutError("perhaps written"))

    def _report(self, settled: Slice | None) -> None:
        if settled is None:
            return
        if self.chance.random() < 0.2:
            settled.wake_waiters()
        settled.report(lambda callback, error: None)

    # The end --------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """Check that nothing is in use, nothing was lost, and each callback has run once."""
        used = self.door.budget.used
        if used:
            raise MisjudgedError(f"{used} bytes are in use at the end")
        if self.accepted:
            raise MisjudgedError(f"never written: {self.accepted}")
        if any(callback.calls != 1 for callback in self.due):
            raise MisjudgedError("a callback has not run, or has run twice")

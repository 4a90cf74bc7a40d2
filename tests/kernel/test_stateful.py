"""The kernel under any interleaving of the stages' calls.

The rules are the stages' steps, in any order: send, take, split, claim, encode, deliver part of a
batch, lose a batch and seal it again, expire, fail, report late. A plain model in Python computes
the expected result for each message.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pykaproducer._kernel import MURMUR2, STICKY, Chunk, Delivery, Partitioner, Slice

from .helper import TOPIC, Door, NoSpaceError, encode, no_error_expected, pack, read

PARTITIONS = 3
LIMIT = 3 << 20
SIZES = st.sampled_from([0, 1, 60, 500, 513, 4_000, 300_000, 1_000_000])


@dataclass(eq=False)
class Message:
    """The model's state of one message."""

    number: int
    value: bytes | None
    key: bytes | None
    deadline: float
    handle: Delivery | None
    chunk: int = 0
    row: int = 0
    with_callback: bool = False
    written: bool = False
    outcome: Any = None  # an offset, or an error
    told: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Sealed:
    """A batch that has been encoded: slices of one partition."""

    parts: list[Slice]


class Stages(RuleBasedStateMachine):
    """The model, and the objects held by the stages."""

    def __init__(self) -> None:
        super().__init__()
        self.door = Door(limit=LIMIT)
        self.partitioner = Partitioner(MURMUR2, STICKY, sticky_bytes=5000)
        self.messages: dict[tuple[int, int], Message] = {}
        self.open: list[Message] = []
        self.taken: list[Chunk] = []
        self.live: list[Chunk] = []
        self.buffers: dict[int, list[Slice]] = {p: [] for p in range(PARTITIONS)}
        self.sealed: list[Sealed] = []
        self.settled: list[Slice] = []
        self.reported = 0
        self.finished: set[int] = set()
        self.offset = 0
        self.failures = itertools.count()

    # The steps --------------------------------------------------------------------------------

    @rule(
        size=st.none() | SIZES,
        key=st.none() | st.binary(max_size=3),
        partition=st.none() | st.integers(0, PARTITIONS - 1),
        seconds=st.sampled_from([1, 2, 5, 120]),
        with_callback=st.booleans(),
        keep=st.booleans(),
        times=st.sampled_from([1, 1, 3, 30]),
    )
    def send(
        self,
        size: int | None,
        key: bytes | None,
        partition: int | None,
        seconds: int,
        with_callback: bool,
        keep: bool,
        times: int,
    ) -> None:
        for _ in range(times):
            number = self.door.accepted
            value = None if size is None else (b"%07d" % number * (size // 7 + 1))[:size]
            message = Message(
                number,
                value,
                key,
                self.door.clock.monotonic() + seconds,
                None,
                with_callback=with_callback,
            )
            before = self.door.budget.used
            try:
                handle = self.door.send(
                    TOPIC,
                    value,
                    key,
                    partition=partition,
                    on_delivery=self.callback(message) if with_callback else None,
                    delivery_timeout_ms=seconds * 1000,
                )
            except NoSpaceError:
                assert self.door.budget.used == before
                return
            assert not handle.done()
            message.handle = handle if keep else None
            self.open.append(message)

    def callback(self, message: Message) -> Any:
        def told(error: BaseException | None, handle: Delivery) -> None:
            message.told.append(handle.offset if error is None else error)
            assert (handle.key, handle.value) == (message.key, message.value)

        return told

    @rule()
    def take(self) -> None:
        for chunk in self.door.chunks():
            for row in range(len(chunk)):
                message = self.open.pop(0)
                message.chunk, message.row = chunk.serial, row
                self.messages[chunk.serial, row] = message
            self.taken.append(chunk)
            self.live.append(chunk)
        assert not self.open

    @precondition(lambda self: self.taken)
    @rule(leaders=st.sets(st.integers(0, PARTITIONS - 1)))
    def split(self, leaders: set[int]) -> None:
        chunk = self.taken.pop(0)
        slices, unknown = chunk.split(self.partitioner, PARTITIONS, pack(sorted(leaders)))
        assert unknown is None
        for part in slices:
            self.buffers[part.partition].append(part)

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        room=st.sampled_from([200, 5_000, 1 << 20]),
        most=st.sampled_from([1, 10, 1000]),
        look=st.booleans(),
    )
    def seal(self, partition: int, room: int, most: int, look: bool) -> None:
        buffer = self.buffers[partition]
        parts: list[Slice] = []
        while buffer and most > 0:
            part = buffer[0].claim(room, most, not parts)
            if part is not None:
                parts.append(part)
                room -= part.nbytes + 16 * part.count
                most -= part.count
            if buffer[0].count:
                break
            buffer.pop(0)
        if not parts:
            return
        expected = [self.messages[p.chunk.serial, row] for p in parts for row in p.row_numbers()]
        for message in expected:
            message.written = True  # from the claim on
        if look:
            self.expire()  # while the encoder holds its claim
        batch = read(encode(*parts))
        assert [(r.key, r.value) for r in batch] == [(m.key, m.value) for m in expected]
        numbers = [message.number for message in expected]
        assert numbers == sorted(numbers)
        self.sealed.append(Sealed(parts))

    @rule(partition=st.integers(0, PARTITIONS - 1), sealed=st.booleans())
    def wait(self, partition: int, sealed: bool) -> None:
        waiting = [part for batch in self.sealed for part in batch.parts]
        for part in waiting if sealed else self.buffers[partition]:
            part.detach_payload()

    @precondition(lambda self: self.sealed)
    @rule(which=st.integers(0, 100), known=st.booleans())
    def deliver(self, which: int, known: bool) -> None:
        batch = self.sealed.pop(which % len(self.sealed))
        offset = self.offset if known else -1
        for part in batch.parts:
            self.note(part.deliver(offset), part, offset)
            if known:
                offset += part.count
        self.offset += 1000

    def note(self, settled: Slice | None, part: Slice, offset: int) -> None:
        if settled is None:
            return
        place = {row: i for i, row in enumerate(part.row_numbers())}
        for row in settled.row_numbers():
            message = self.messages[part.chunk.serial, row]
            assert message.outcome is None
            message.outcome = offset + place[row] if offset >= 0 else -1
        self.settled.append(settled)

    @precondition(lambda self: self.sealed)
    @rule(which=st.integers(0, 100))
    def never_written(self, which: int) -> None:
        """Retry a partition's newest batch: its rows are sealed again."""
        partition = self.sealed[which % len(self.sealed)].parts[0].partition
        batch = [b for b in self.sealed if b.parts[0].partition == partition][-1]
        self.sealed.remove(batch)
        for part in batch.parts:
            part.unclaim()
            for row in part.row_numbers():
                self.messages[part.chunk.serial, row].written = False
        self.buffers[batch.parts[0].partition][:0] = batch.parts

    @rule(seconds=st.sampled_from([0.5, 1.5, 4]))
    def time_passes(self, seconds: float) -> None:
        self.door.clock.jump(seconds)

    @rule()
    def expire(self) -> None:
        now = self.door.clock.monotonic()
        for chunk in self.live:
            alive = [
                m for m in self.messages.values() if m.chunk == chunk.serial and m.outcome is None
            ]
            late = {m.row for m in alive if m.deadline <= now}
            found = chunk.expired(now)
            assert {row for part in found for row in part.row_numbers()} == late
            left = [m.deadline for m in alive if m.deadline > now]
            if left:
                assert chunk.next_deadline <= min(left) + 1e-6
            for part in found:
                self.fail_all(part)

    def fail_all(self, part: Slice) -> None:
        number = next(self.failures)
        never, perhaps = LookupError(number), TimeoutError(number)
        settled = part.fail(never, perhaps)
        if settled is None:
            return
        for row in settled.row_numbers():
            message = self.messages[part.chunk.serial, row]
            assert message.outcome is None
            message.outcome = perhaps if message.written else never
        self.settled.append(settled)

    @precondition(lambda self: self.sealed)
    @rule(which=st.integers(0, 100))
    def refuse(self, which: int) -> None:
        for part in self.sealed.pop(which % len(self.sealed)).parts:
            self.fail_all(part)

    @precondition(lambda self: self.settled)
    @rule(which=st.integers(0, 100))
    def report(self, which: int) -> None:
        settled = self.settled.pop(which % len(self.settled))
        last = settled.report(no_error_expected) if settled.wants_report else settled.finish()
        self.reported += settled.count
        if last:
            assert settled.chunk.serial not in self.finished
            assert settled.chunk.unsettled == 0
            self.finished.add(settled.chunk.serial)
            self.live.remove(settled.chunk)

    @rule()
    def drop_handles(self) -> None:
        for message in self.messages.values():
            if message.number % 3 == 0:
                message.handle = None

    # Invariants ---------------------------------------------------------------------------------

    @invariant()
    def budget(self) -> None:
        assert 0 <= self.door.budget.used <= LIMIT
        if self.reported == self.door.accepted:
            assert self.door.budget.used == 0
            assert not self.live

    @invariant()
    def handles(self) -> None:
        reported = {(part.chunk.serial, row) for part in self.settled for row in part.row_numbers()}
        for place, message in self.messages.items():
            outcome = message.outcome
            if outcome is None or place in reported:
                assert message.told == []
            elif message.with_callback:
                assert repr(message.told) == repr([outcome])  # callers get copies
            handle = message.handle
            if handle is None:
                continue
            assert handle.done() == (outcome is not None)
            failed = isinstance(outcome, BaseException)
            assert repr(handle.error) == repr(outcome if failed else None)
            assert handle.offset == (None if failed else outcome)
            assert handle.serialized_value_size == (
                -1 if message.value is None else len(message.value)
            )
            if failed or outcome is None or place in reported:
                assert (handle.key, handle.value) == (message.key, message.value)

    def teardown(self) -> None:
        """Fail and report the remaining rows: nothing may remain reserved."""
        self.take()
        for chunk in [*self.live]:
            self.fail_all(chunk.whole())
        while self.settled:
            self.report(0)
        assert self.door.budget.used == 0
        assert self.reported == self.door.accepted
        # Stages that still hold a slice find it settled.
        for chunk in self.taken:
            assert chunk.split(self.partitioner, PARTITIONS, b"") == ([], None)
        for part in (part for buffer in self.buffers.values() for part in buffer):
            assert part.claim(1 << 30, 1 << 30) is None
        for batch in self.sealed:
            assert all(part.deliver(0) is None for part in batch.parts)
        self.handles()


TestStages = Stages.TestCase
TestStages.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

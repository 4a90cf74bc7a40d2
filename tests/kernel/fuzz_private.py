"""The private calls of the fuzzer: parts of the kernel that only the package uses."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import crc32c

import pykaproducer._kernel as _kernel

from .helper import ClosedError, Door, NoSpaceError, pack
from .odd import BoomError, Hostile

if TYPE_CHECKING:
    from .fuzz_calls import Calls

#: Exceptions for arguments of a wrong kind. OverflowError: a number that fits no C type.
REFUSED = (
    TypeError,
    ValueError,
    BufferError,
    OverflowError,
    IndexError,
    AttributeError,
    OSError,
    MemoryError,
    KeyError,
    LookupError,
    BoomError,
    NoSpaceError,
    ClosedError,
    RuntimeError,
)

CLASSES: tuple[Any, ...] = (
    _kernel.Budget,
    _kernel.Chunk,
    _kernel.Slice,
    _kernel.RecordBatch,
    _kernel.Partitioner,
    _kernel.Delivery,
    _kernel.Columns,
    _kernel.SentBlock,
    _kernel.TopicSlot,
    _kernel.Turn,
    _kernel.SampledStat,
    _kernel.Intercepted,
    _kernel.Admission,
    _kernel.BlockAdmission,
    _kernel.DeliveryReport,
    _kernel.ReportTo,
    _kernel.EventQueue,
    _kernel.PolledOutcomes,
    _kernel.PolledAdmission,
)
#: Not called on objects made by force, because they would disable the fuzzer's own methods.
SPARED = {"__class__", "__init_subclass__", "__subclasshook__", "__new__", "__reduce__"}


#: How often a report was used.
USED: list[int] = []


class PrivateCalls:
    """Single calls, each with a separate object."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.chance = calls.chance
        self.ways: tuple[Callable[[], None], ...] = (
            self.made_by_force,
            self.chunk,
            self.slice,
            self.handle,
            self.stat,
            self.partitioner,
            self.budget,
            self.batch,
            self.sockets,
            self.block,
            self.hooks,
            self.settings,
            self.polled,
        )

    def call(self) -> None:
        """Make one call."""
        try:
            self.chance.choice(self.ways)()
        except REFUSED:
            return

    # Arguments ------------------------------------------------------------------------------------

    def any(self) -> Any:
        """Return an object of any type."""
        draw = self.chance.random()
        if draw < 0.35:
            return self.integer()
        if draw < 0.5:
            return self.chance.choice([0.0, -1.0, 1e300, float("inf"), float("nan"), 2.5])
        if draw < 0.6:
            return self.calls.odd.payload()[0]
        if draw < 0.7:
            return [self.integer() for _ in range(self.chance.choice([0, 1, 3]))]
        if draw < 0.75:
            return None
        return self.calls.odd.nonsense()

    def integer(self) -> int:
        """Return a number around the limits of C's types."""
        power = self.chance.choice([0, 1, 2, 8, 15, 16, 31, 32, 62, 63, 64])
        return self.chance.choice([1, -1]) * (1 << power) + self.chance.choice([-1, 0, 1])

    def small(self) -> int:
        """Return a number that may be a row number or slightly out of range."""
        return self.chance.choice([0, 1, 2, 3, 4, -1, 50, (1 << 32) - 1])

    def door(self) -> Door:
        """Return a door with a few messages."""
        door = Door()
        for number in range(self.chance.choice([1, 3, 40])):
            data = None if number % 3 else self.calls.odd.raw()
            door.send("t", data, b"%d" % number, on_delivery=self.chance.choice([None, print_no]))
        return door

    # Classes --------------------------------------------------------------------------------------

    def made_by_force(self) -> None:
        """Make an object without its constructor, or with arbitrary arguments, and use it."""
        kind = self.chance.choice(CLASSES)
        made = kind.__new__(kind) if self.chance.random() < 0.5 else kind(self.integer_or_any())
        for name in self.chance.sample(dir(made), 6):
            if name in SPARED:
                continue
            try:
                found = getattr(made, name)
                if callable(found):
                    found(*[self.any() for _ in range(self.chance.choice([0, 1, 1, 2, 3]))])
            except REFUSED:
                continue
        repr(made)

    def integer_or_any(self) -> Any:
        """Return an argument that does not allocate huge objects."""
        return self.chance.choice([0, 1, 100, -1, None, "x", 1 << 40, Hostile(self.calls.odd)])

    def chunk(self) -> None:
        """Call methods of a chunk with any row numbers, before and after its end."""
        chunk = self.door().chunk()
        for _ in range(5):
            ways: tuple[Callable[[], Any], ...] = (
                lambda: chunk.key(self.small()),
                lambda: chunk.value(self.small()),
                lambda: chunk.partition_of(self.small()),
                lambda: chunk.assign(self.small(), self.small()),
                lambda: chunk.pick(self.chance.choice([[0, 1], [self.small()], self.any()])),
                lambda: chunk.expired(self.any()),
                chunk.accepted,
                chunk.unassigned,
                chunk.whole,
                lambda: len(chunk),
                lambda: self.split(chunk),
            )
            try:
                self.chance.choice(ways)()
            except REFUSED:
                continue
        self.end(chunk)

    def split(self, chunk: _kernel.Chunk) -> None:
        """Split a chunk among any partitions."""
        available = self.chance.choice([b"", b"\1", bytes(4), pack([0, 1]), pack([7, -3])])
        partitions = self.chance.choice([0, 1, 2, 5, -1, -(1 << 31), self.any()])
        chunk.split(self.chance.choice([None, self.any_partitioner()]), partitions, available)

    def end(self, chunk: _kernel.Chunk) -> None:
        """End a chunk, possibly twice."""
        whole = chunk.whole()
        settled = whole.fail(LookupError(), TimeoutError())
        if settled is not None:
            settled.report(lambda callback, error: None)
        for row in range(3):
            chunk.key(row)
            chunk.partition_of(row)
        assert chunk.whole().deliver(5) is None

    def slice(self) -> None:
        """Call methods of a slice with any arguments."""
        chunk = self.door().chunk()
        part = chunk.whole()
        for _ in range(4):
            ways: tuple[Callable[[], Any], ...] = (
                lambda: part.claim(self.integer(), self.integer(), self.any()),
                lambda: setattr(part, "most", self.any()),
                lambda: setattr(part, "level", self.any()),
                part.detach_payload,
                part.mark_ambiguous,
                part.unclaim,
                part.waiting,
                part.oldest_deadline,
                part.row_numbers,
                part.first_error,
                part.unreported_failures,
                part.wake_waiters,
            )
            try:
                found = self.chance.choice(ways)()
            except REFUSED:
                continue
            if isinstance(found, _kernel.Slice):
                self.encode([found])
                settled = found.deliver(
                    self.small(), self.small(), latency=_kernel.SampledStat(1.0, 3, True), now=2.5
                )
                if settled is not None:
                    settled.report(lambda callback, error: None)
        self.end(chunk)

    def encode(self, parts: list[Any]) -> None:
        """Encode a batch with any compression and any checksum."""

        def compress(buffer: memoryview) -> Any:
            self.calls.odd.disturb()
            return self.chance.choice([bytes(buffer), b"", 5, bytearray(3)])

        def checksum(buffer: memoryview) -> Any:
            self.calls.odd.disturb()
            return self.chance.choice([crc32c.crc32c(buffer), -1, 1 << 70, "x", None])

        try:
            _kernel.encode_batch(
                parts, checksum, compress=self.chance.choice([None, compress]), attributes=1
            )
        except REFUSED:
            return

    def batch(self) -> None:
        """Encode objects that are not lists of slices, and slices that have no rows left."""
        chunk = self.door().chunk()
        part = chunk.whole()
        claimed = part.claim(1 << 30, 1 << 30)
        assert claimed is not None
        self.encode([claimed])
        self.end(chunk)
        self.encode(self.chance.choice([[], [self.any()], self.any(), [part]]))

    def handle(self) -> None:
        """Call methods of a handle with any arguments, before and after the outcome."""
        door = Door()
        handle = door.send("t", b"value", b"key")
        (chunk,) = door.chunks()
        odd = Hostile(self.calls.odd)
        ways: tuple[Callable[[], Any], ...] = (
            lambda: handle.watch(odd),
            lambda: handle.watch(self.any()),
            lambda: handle.unwatch(odd),
            lambda: handle.unwatch(self.any()),
            lambda: handle.when_settled(odd),
            lambda: handle.add_done_callback(odd),
            lambda: handle.add_done_callback(self.any()),
            lambda: handle.add_callback(odd, self.any()),
            lambda: handle.add_errback(odd, self.any()),
            lambda: handle.add_both(self.any()),
            lambda: handle.result(0),
            lambda: handle.exception(self.chance.choice([0, -1, "x", odd])),
            lambda: handle.__eq__(self.any()),
            lambda: {handle: 1, odd: 2},
            lambda: [getattr(handle, name) for name in ("key", "value", "status", "offset")],
            lambda: handle.__reduce__(),
            lambda: iter(handle.__await__()),
            lambda: repr(handle),
        )
        for at in range(8):
            if at == 5:
                self.end(chunk)
            try:
                self.chance.choice(ways)()
            except REFUSED:
                continue

    def stat(self) -> None:
        """Use a SampledStat with any settings and numbers."""
        windows = [1.0, 0.0, -1.0, 1e-300, float("nan"), self.any()]
        counts = [1, 3, 0, -1, 1 << 31, self.any()]
        stat = _kernel.SampledStat(
            self.chance.choice(windows), self.chance.choice(counts), self.any() is None
        )
        for _ in range(5):
            try:
                stat.add(self.any(), self.any(), self.chance.choice([1, 0, -1, 1000]))
                stat.recent(self.any())
                stat.percentiles(self.any(), 0.5, self.any())
                stat.histogram(self.chance.choice([[0.1, 2], [], self.any()]))
            except REFUSED:
                continue

    def any_partitioner(self) -> _kernel.Partitioner:
        """Return a partitioner with any settings."""
        made = _kernel.Partitioner(
            self.chance.choice([0, 1, 2, 3, 9, -1]),
            self.chance.choice([0, 1, 2, 3, 9]),
            empty_is_keyless=self.chance.random() < 0.5,
            sticky_bytes=self.chance.choice([0, -1, 100, 1 << 62]),
            seed=self.chance.choice([0, 1, (1 << 64) - 1]),
        )
        try:
            bounds = self.chance.choice([None, b"", bytes(4), bytes(8), b"\1" * 8, b"abc"])
            made.set_queue_bounds(self.chance.choice([pack([0, 1]), b"", bytes(4), b"abc"]), bounds)
        except REFUSED:
            pass
        return made

    def partitioner(self) -> None:
        """Compute the partition of a key with any numbers."""
        _kernel.partition_for(
            self.chance.choice([0, 1, 2, 3, 7]),
            self.chance.choice([b"", b"key", self.any()]),
            self.chance.choice([1, 7, 0, -1, -(1 << 31), self.any()]),
        )

    def budget(self) -> None:
        """Use a Budget with any limits and amounts."""
        budget = _kernel.Budget(self.any())
        budget.fits(self.any())
        budget.wake_all()

    # Sockets, blocks, hooks -----------------------------------------------------------------------

    def sockets(self) -> None:
        """Read, write and wait with any buffers and descriptors."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            at = self.chance.choice([ours.fileno(), ours.fileno(), -1, 1 << 20])
            ways: tuple[Callable[[], Any], ...] = (
                lambda: _kernel.write_buffers(at, [self.any() for _ in range(3)], 0),
                lambda: _kernel.write_buffers(at, [b"x"] * self.chance.choice([0, 1, 70]), 0),
                lambda: _kernel.write_buffers(at, self.calls.odd.column([(b"a", 0)] * 3)[0], 0),
                lambda: _kernel.poll_events([(at, 1)] * self.chance.choice([0, 1, 8, 9]), 0),
                lambda: _kernel.poll_events([self.any()], 0),
                lambda: _kernel.poll_events(self.any(), 0),
                lambda: _kernel.read_into(at, self.any()),
                lambda: _kernel.read_into(at, bytearray(self.chance.choice([0, 5]))),
                lambda: _kernel.Poker(self.chance.choice([at, self.any()])).poke(),
                lambda: _kernel.drain(at),
            )
            for _ in range(4):
                try:
                    self.chance.choice(ways)()
                except REFUSED:
                    continue

    def block(self) -> None:
        """Send blocks of objects that are not columns, and query the blocks."""
        door = Door()
        block = _kernel.SentBlock()
        columns = self.chance.choice(
            [
                [_kernel.columns_of([b"a", b"b"])],
                [_kernel.Columns()],
                [_kernel.Columns.__new__(_kernel.Columns), _kernel.columns_of([b"a"])],
                [self.any()],
                self.any(),
            ]
        )
        topic = self.chance.choice(["t", None, self.any()])
        try:
            door._send_block(block, topic, columns, self.any(), None, ())
        except REFUSED:
            pass
        for chunk in door._take_all():
            try:
                block.watch_each(self.chance.choice([[print_no] * 2, [], self.any()]))
            except REFUSED:
                pass
            self.end(chunk)
        block.failures()
        block.pending()
        block.outcomes()
        gc.collect(0)

    def settings(self) -> None:
        """Send messages to a door with any settings."""
        door = Door()
        door._open(
            self.chance.choice([_kernel.Budget(self.integer()), door.budget, self.any()]),
            self.chance.choice([door._announce, Hostile(self.calls.odd)]),
            self.any(),
            delivery_timeout=self.chance.choice([1.0, 0.0, -1.0, 1e300, self.any()]),
            max_request_size=self.chance.choice([1000, 0, -1, 1 << 62]),
            serializing=self.chance.random() < 0.3,
            unconfirmed=self.chance.random() < 0.3,
            fake_clock=self.chance.choice([None, door.clock, Hostile(self.calls.odd)]),
        )
        for _ in range(3):
            try:
                door.send("t", self.calls.odd.payload()[0], on_delivery=print_no)
            except (*REFUSED, AssertionError):
                continue
        for chunk in door._take_all():
            self.end(chunk)

    def polled(self) -> None:
        """Produce any messages, and serve their reports and other events."""
        door = Door()
        queue = _kernel.EventQueue()
        waiters = self.chance.choice([[], [None], [self.any()]])
        kind: Any = self.chance.choice([_kernel.DeliveryReport, Report, int, self.any()])
        only_errors = self.chance.random() < 0.2
        made = Polled()
        wake = self.chance.choice([print_no, self.any()])
        outcomes = _kernel.PolledOutcomes(queue, waiters, wake, kind, only_errors=only_errors)
        made._counted_only = _kernel.ReportTo(outcomes, None)
        made._core, made._sure = door, self.chance.choice([0, 2, 1000])
        for _ in range(4):
            callback = self.chance.choice([use, None, Hostile(self.calls.odd), self.any()])
            try:
                made.produce("t", b"value", "key", self.chance.choice([-1, 0, 3]), callback)
                made.produce("t", b"value", b"key", self.integer(), None, callback, self.integer())
                made.produce("t", self.any(), self.any(), on_delivery=callback)
                made._core = self.chance.choice([door, door, None, self.any()])
            except REFUSED:
                continue
        queue.put(self.any(), (self.any(),))
        for chunk in door._take_all():
            self.end(chunk)
        for _ in range(10):
            try:
                queue.serve(self.chance.choice([print_no, self.any()]))
            except REFUSED:
                continue

    def hooks(self) -> None:
        """Call methods of the door that only the pipeline calls."""
        door = self.door()
        past = _kernel.Intercepted(self.any(), Hostile(self.calls.odd))
        ways: tuple[Callable[[], Any], ...] = (
            lambda: door._take(self.any()),
            lambda: door._accept(self.any(), past, self.any()),
            lambda: door.send("t", b"", on_delivery=past),
            door._unannounced,
            door._open_rows,
            lambda: door._take(_kernel.TopicSlot()),
        )
        for _ in range(3):
            try:
                self.chance.choice(ways)()
            except REFUSED:
                continue
        for chunk in door._take_all():
            self.end(chunk)


class Report(_kernel.DeliveryReport):
    """A report, as ``Message`` is one."""

    __slots__ = ()


def use(_error: object, report: _kernel.DeliveryReport) -> None:
    """Use everything that a report has, as a callback, and make it part of a cycle."""
    for _ in range(2):
        for name in dir(report):
            if not name.startswith("_"):
                getattr(report, name)()
        report._fields = (*report._fields[1:], report)
    USED.append(1)


class Polled(_kernel.PolledAdmission):
    """The least that has produce()."""

    _refusals = (Exception,)

    def _refuse_closed(self) -> None: ...

    def _check_room(self, core: Any) -> None: ...

    def _headers_of(self, headers: Any) -> Any:
        return headers

    def _refused(self, error: Exception, *message: Any) -> None:
        raise error


def print_no(*outcome: Any) -> None:
    """Do nothing, as a callback."""

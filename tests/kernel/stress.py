"""Everything that threads may do with the kernel at once: ``python -m tests.kernel.stress``.

Users send, wait, read their handles and drop them; stages take the chunks, split them, let rows
expire, seal requests and settle them; others read statistics. It checks that each message has
exactly one outcome and that all memory is given back. A second of it is part of the tests. It is
meant for ThreadSanitizer in a free-threaded build (``tox -e threads``), where any two of these
meet.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import crc32c

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import (
    FNV1A,
    MURMUR2,
    STICKY,
    Chunk,
    Delivery,
    DeliveryReport,
    EventQueue,
    Partitioner,
    PolledOutcomes,
    ReportTo,
    SampledStat,
    Slice,
)

from .helper import Door, NoSpaceError, pack

TOPICS = ("one", "two", "three")
PARTITIONS = 8
AVAILABLE = pack(range(PARTITIONS))
#: So little that senders wait for space.
LIMIT = 1 << 20


class StressDoor(Door):
    """An admission with the real clock, whose senders wait for space."""

    def __init__(self) -> None:
        super().__init__(limit=LIMIT)
        self._settings["fake_clock"] = None
        self.open()

    def _wait_for_space(self, turn: _kernel.Turn) -> None:
        if not turn.lock.acquire(timeout=0.01):
            raise NoSpaceError


class Stress:
    """One run: the objects that the threads share."""

    def __init__(self, seed: int, seconds: float) -> None:
        self._seed = seed
        self._end = time.monotonic() + seconds
        self._door = StressDoor()
        self._latency = SampledStat(0.1, 3, True)
        self._chunks: collections.deque[Chunk] = collections.deque()
        self._slices: collections.deque[Slice] = collections.deque()
        self._settled: collections.deque[Slice] = collections.deque()
        self._outcomes = PolledOutcomes(
            EventQueue(), [], lambda: None, DeliveryReport, only_errors=False
        )
        self._failures: list[BaseException] = []
        self._called: collections.deque[None] = collections.deque()
        self._asked: collections.deque[None] = collections.deque()
        self._polled: collections.deque[int] = collections.deque()
        self.finished = threading.Event()

    def run(self) -> int:
        """Run all threads; return the number of messages. Raises the first failure."""
        users = [self._user, self._user, self._sender, self._block_user, self._poller]
        stages = [self._dispatcher, self._timer, self._broker, self._broker, self._reporter]
        user_threads = [self._thread(each, number) for number, each in enumerate(users)]
        stage_threads = [self._thread(each, 10 + n) for n, each in enumerate(stages)]
        reader = self._thread(self._reader, 20)
        for thread in user_threads:
            thread.join()
        while not self._door._is_at_rest() and not self._failures:
            self._door.budget.fits(1)
        self.finished.set()
        for thread in (*stage_threads, reader):
            thread.join()
        if self._failures:
            raise self._failures[0]
        self._outcomes.queue.serve(lambda error: error)
        assert self._door.budget.used == 0, self._door.budget.used
        assert len(self._called) == len(self._asked), (len(self._called), len(self._asked))
        return self._door.accepted

    def _thread(self, target: Callable[[random.Random], None], number: int) -> threading.Thread:
        def run() -> None:
            try:
                target(random.Random(self._seed * 100 + number))
            except BaseException as failure:
                self._failures.append(failure)
                self.finished.set()

        thread = threading.Thread(target=run, name=target.__name__)
        thread.start()
        return thread

    def _is_over(self) -> bool:
        return time.monotonic() >= self._end or bool(self._failures)

    # Users ----------------------------------------------------------------------------------------

    def _on_delivery(self, _error: BaseException | None, delivery: Delivery) -> None:
        self._called.append(None)
        assert delivery.done()
        assert delivery.partition is not None or delivery.failed()

    def _send(self, chance: random.Random) -> Delivery | None:
        options: dict[str, Any] = {}
        if chance.random() < 0.3:
            options["on_delivery"] = self._on_delivery
        if chance.random() < 0.1:
            options["delivery_timeout_ms"] = chance.choice([1, 5, 50])
        try:
            delivery: Delivery = self._door.send(
                chance.choice(TOPICS),
                b"v" * chance.choice([0, 1, 100, 100, 100, 20_000]),
                chance.choice([None, b"", b"key%d" % chance.randrange(50)]),
                [("name", b"header")] if chance.random() < 0.1 else None,
                **options,
            )
        except NoSpaceError:
            return None
        if "on_delivery" in options:
            self._asked.append(None)
        return delivery

    def _sender(self, chance: random.Random) -> None:
        """Only send, and drop each handle at once."""
        while not self._is_over():
            for _ in range(50):
                self._send(chance)

    def _user(self, chance: random.Random) -> None:
        handles: list[Delivery] = []
        while not self._is_over():
            for _ in range(chance.choice([1, 20])):
                if (handle := self._send(chance)) is not None:
                    handles.append(handle)
            if handles:
                self._use(chance, chance.choice(handles))
            if len(handles) > 200:
                del handles[: chance.randrange(200)]

    def _use(self, chance: random.Random, handle: Delivery) -> None:
        what = chance.randrange(6)
        if what == 0:
            lock = threading.Lock()
            lock.acquire()
            if handle.watch(lock):
                lock.acquire(timeout=chance.choice([0.0, 0.005]))
                handle.unwatch(lock)
        elif what == 1:
            if handle.when_settled(lambda _delivery: self._called.append(None)):
                self._asked.append(None)
        elif what == 2:
            value, key = handle.value, handle.key  # both may be gone at the next look
            assert value is None or len(value) == handle.serialized_value_size
            assert key is None or key in (b"", key)
        elif what == 3 and handle.failed():
            assert isinstance(handle.failure(), OSError)
        else:
            assert handle.topic in TOPICS
            assert handle.offset is None or handle.partition is not None
            assert handle.timestamp > 0

    def _block_user(self, chance: random.Random) -> None:
        while not self._is_over():
            count = chance.choice([1, 10, 500])
            values = [b"b" * chance.choice([5, 400]) for _ in range(count)]
            block = _kernel.SentBlock()
            watched = chance.random() < 0.5
            watch = (lambda _delivery: self._called.append(None)) if watched else None
            columns = _kernel.columns_of(values, [b"k%d" % n for n in range(count)])
            try:
                self._door._send_block(
                    block, chance.choice(TOPICS), [columns], None, watch, (NoSpaceError,)
                )
            except NoSpaceError:
                continue
            if watched:
                self._asked.append(None)
            for _ in range(chance.choice([0, 3])):
                block.pending()
                block.failures()
            if chance.random() < 0.3:
                delivered, failed = block.outcomes()
                assert sum(rows for rows, _, _ in delivered.values()) + len(failed) <= count

    def _poller(self, chance: random.Random) -> None:
        """Send as ``confluent.Producer`` does, and poll."""
        reports = [ReportTo(self._outcomes, None), ReportTo(self._outcomes, self._on_report)]
        while not self._is_over():
            with contextlib.suppress(NoSpaceError):
                report = chance.choice(reports)
                self._door.send(chance.choice(TOPICS), b"polled", on_delivery=report)
            if chance.random() < 0.1:
                self._outcomes.queue.serve(lambda error: error)
                self._outcomes.take_failures()

    def _on_report(self, _error: BaseException | None, report: DeliveryReport) -> None:
        assert report.value() == b"polled"
        self._polled.append(report.timestamp()[1])

    # Stages ---------------------------------------------------------------------------------------

    def _dispatcher(self, chance: random.Random) -> None:
        """Take, partition and pass on, as the dispatcher and the topic workers do."""
        partitioner = Partitioner(chance.choice([MURMUR2, FNV1A]), STICKY)
        while not self.finished.is_set():
            for chunk in self._door.chunks():
                self._chunks.append(chunk)
                if chance.random() < 0.1:
                    chunk.accepted(), chunk.unassigned(), len(chunk)
                slices, unknown = chunk.split(partitioner, PARTITIONS, AVAILABLE)
                assert unknown is None
                self._slices.extend(slices)

    def _timer(self, chance: random.Random) -> None:
        """Let rows expire, wherever they are."""
        while not self.finished.is_set():
            for _ in range(len(self._chunks)):
                chunk = self._chunks.popleft()
                for part in chunk.expired(time.monotonic()):
                    self._report(part.fail(OSError("expired"), OSError("perhaps")))
                if chunk.unsettled:
                    self._chunks.append(chunk)
                assert chunk.next_deadline > 0
                assert chunk.has_waiters in (False, True)
                assert chunk.handles >= 0

    def _broker(self, chance: random.Random) -> None:
        """Seal and settle."""
        while not self.finished.is_set() or self._slices:
            try:
                part = self._slices.popleft()
            except IndexError:
                continue
            if chance.random() < 0.05:
                part.detach_payload()
            while part.count:
                claimed = part.claim(1 << 16, 500, True)
                if claimed is None:
                    break
                self._settle(chance, claimed)

    def _settle(self, chance: random.Random, claimed: Slice) -> None:
        batch, count = _kernel.encode_batch([claimed], crc32c.crc32c)
        assert count == claimed.count
        assert len(batch) > 61
        what = chance.random()
        if what < 0.1:
            self._report(claimed.fail(OSError("refused"), OSError("perhaps refused")))
        elif what < 0.2:
            claimed.mark_ambiguous()
            claimed.unclaim()
            self._slices.append(claimed)
        else:
            settled, rows, _nbytes = _kernel.deliver_parts(
                [claimed], 1000, -1, self._latency, time.monotonic()
            )
            assert rows <= count
            for part in settled:
                self._report(part)

    def _report(self, part: Slice | None) -> None:
        if part is not None:
            part.wake_waiters()
            self._settled.append(part)

    def _reporter(self, _chance: random.Random) -> None:
        while not self.finished.is_set() or self._settled:
            try:
                part = self._settled.popleft()
            except IndexError:
                continue
            part.first_error()
            part.unreported_failures()
            part.report(self._callback_failed)

    def _callback_failed(self, _callback: object, failure: BaseException) -> None:
        self._failures.append(failure)

    def _reader(self, chance: random.Random) -> None:
        """Read what ``stats()``, ``flush()`` and a BrokerWorker read."""
        door = self._door
        while not self.finished.is_set():
            now = time.monotonic()
            self._latency.recent(now), self._latency.percentiles(now, 0.5, 0.99)
            self._latency.histogram([0.01, 0.1]), self._latency.count, self._latency.largest
            door._open_rows(), door._is_at_rest(), door._unannounced()
            assert 0 <= door.budget.used <= LIMIT
            assert min(door.accepted, door.accepted_bytes) >= 0
            assert door.budget.waiting >= 0
            for slot in door._unannounced():
                assert slot.waiting() >= (0, 0)
                assert slot.is_empty or slot.next_deadline > 0
            if chance.random() < 0.1:
                _kernel.pool_use()


def main() -> int:
    """Run for the time asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernel.stress", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30, help="%(default)s")
    parser.add_argument("--seed", type=int, help="default: a new one each time")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 30) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    print(f"{Stress(seed, arguments.seconds).run():,} messages: one outcome each")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Sealing and settling all batches of a request: the ordinary ones, and those left to Python."""

from __future__ import annotations

import itertools
import zlib
from typing import Any, TypeVar

import crc32c
import pytest

from pykaproducer._kernel import (
    BATCH_OVERHEAD,
    Batcher,
    Chunk,
    ProduceRequest,
    RequestSealer,
    RequestSettler,
    Slice,
)
from pykaproducer._machines.batch import Batch
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import ProducerId, Sequencer
from pykaproducer._pipeline.metrics import ProducerMetrics
from tests._support.no_memory import call_without_memory, needs_hook
from tests.wire.test_confirmation import encoded

from .helper import TOPIC, Door, read, report, some, split

LARGE = 1 << 20


class Gzip:
    """A codec that may have no memory."""

    attribute = 1

    def __init__(self) -> None:
        self.has_memory = True

    def compress(self, data: Any) -> bytes:
        if not self.has_memory:
            raise MemoryError("no memory for gzip")
        return zlib.compress(data, wbits=31)


T = TypeVar("T")


def filled(places: list[T | None]) -> list[T]:
    """Return what is before the first None."""
    return [each for each in itertools.takewhile(lambda each: each is not None, places) if each]


class Broker:
    """The buffers of one broker, and what fills and settles its requests."""

    def __init__(self, *, idempotent: bool = True, compressor: Gzip | None = None) -> None:
        self.door = Door()
        self.metrics = ProducerMetrics(30.0, 2)
        self.idempotent = idempotent
        self.batcher = Batcher(linger=0, batch_size=LARGE, batch_messages=0, sealed_limit=5)
        self.sealer = RequestSealer(
            self.batcher, Batch, crc32c.crc32c, compressor, self.metrics, idempotent=idempotent
        )
        self.moved: set[PartitionBuffer] = set()
        self.errors = {(TOPIC, 0): "an error", (TOPIC, 9): "another"}
        self.rejected: dict[str, object] = {TOPIC: "rejected", "other": "rejected"}
        self.settler = RequestSettler(
            self.batcher, self.moved, self.errors, self.rejected, self.metrics
        )

    @property
    def now(self) -> float:
        return self.door.clock.monotonic()

    def buffers(self, count: int) -> list[PartitionBuffer]:
        return [
            PartitionBuffer(
                TOPIC,
                partition,
                Sequencer(ProducerId(7, 3) if self.idempotent else None, known=True),
            )
            for partition in range(count)
        ]

    def slices(self, count: int, *, size: int = 10, **options: Any) -> list[Slice]:
        """Return a slice of one message for each of *count* partitions."""
        for partition in range(count):
            self.door.send(TOPIC, bytes(size), partition=partition, **options)
        return [part for _, part in sorted(split(self.door.chunk(), count).items())]

    def fill(self, buffers: list[PartitionBuffer], **options: Any) -> list[Slice]:
        parts = self.slices(len(buffers), **options)
        for buffer, part in zip(buffers, parts, strict=True):
            self.batcher.add(buffer, part, self.now)
        return parts

    def settle(self, batches: list[Batch]) -> tuple[list[int], list[Slice], list[Chunk]]:
        """Settle *batches*; return the places of others, what to report, and complete chunks."""
        request = confirmed(batches)
        others = self.settler.settle(request, self.now)
        return others, filled(request.reports), filled(request.finished)

    def seal(self, room: int = LARGE) -> tuple[list[Batch], Any]:
        """Return the batches of a request, and the first buffer that was left alone."""
        batches: list[Batch] = []
        assert self.batcher.begin_round(self.now, flushing=True)
        self.sealer.begin(room)
        return batches, self.sealer.seal(batches, self.now)


def holding(count: int, **options: Any) -> tuple[Broker, list[PartitionBuffer], list[Slice]]:
    """Return a broker with these *options*, *count* buffers, and the slice that each holds."""
    broker = Broker(**options)
    buffers = broker.buffers(count)
    return broker, buffers, broker.fill(buffers)


# Splitting a batch in place -----------------------------------------------------------------------


def one_batch(messages: int, **options: Any) -> tuple[Broker, PartitionBuffer, Batch]:
    """Return a broker, its buffer, and a sealed batch of *messages* messages in two slices."""
    broker = Broker()
    (buffer,) = broker.buffers(1)
    for count in (messages // 2, messages - messages // 2):
        for number in range(count):
            broker.door.send(TOPIC, b"%d" % number, partition=0, **options)
        for part in split(broker.door.chunk(), 1).values():
            broker.batcher.add(buffer, part, broker.now)
    (batch,) = broker.seal()[0]
    assert batch.count == messages
    return broker, buffer, batch


@pytest.mark.parametrize("messages", [2, 3, 7, 10])
def test_the_halves_of_a_batch_have_its_rows_and_its_numbers(messages: int) -> None:
    broker, buffer, batch = one_batch(messages)
    before = buffer.sequencer.next_sequence
    halves = some(broker.sealer.split(batch))
    first, second = halves
    assert (first.count, second.count) == ((messages + 1) // 2, messages // 2)
    assert first.first_sequence == batch.first_sequence
    assert second.first_sequence == batch.first_sequence + first.count
    assert buffer.sequencer.next_sequence == before
    records = [record for half in halves for record in read(bytes(half.payload))]
    assert [r.value for r in records] == [r.value for r in read(bytes(batch.payload))]
    for half in halves:
        assert half.numbered == batch.numbered
        assert half.buffer is buffer
        found = read(bytes(half.payload))
        assert (found.producer_id, found.producer_epoch) == (7, 3)
        assert found.base_sequence == half.first_sequence
    settle_each(broker, halves)


def settle_each(broker: Broker, halves: list[Batch]) -> None:
    """Settle *halves*; all memory is released then."""
    for half in halves:
        half.in_buffer.unanswered[:] = [half]
        assert broker.settle([half])[0] == []
    assert broker.door.budget.used == 0


def test_the_number_after_the_last_one_is_0() -> None:
    broker, _, batch = one_batch(4)
    batch.first_sequence = (1 << 31) - 2
    halves = some(broker.sealer.split(batch))
    assert [half.first_sequence for half in halves] == [(1 << 31) - 2, 0]


def test_a_batch_with_an_expired_row_is_not_split() -> None:
    broker, _, batch = one_batch(4)
    batch.parts[0].chunk.pick([0]).fail(ValueError(), ValueError())
    assert broker.sealer.split(batch) is None
    for part in batch.parts:
        part.fail(ValueError(), ValueError())  # None: nothing else is left
    assert all(part.is_settled for part in batch.parts)


def test_a_batch_whose_rows_are_gone_is_not_split() -> None:
    broker, _, batch = one_batch(4)
    for part in batch.parts:
        settled = some(part.fail(ValueError(), ValueError()))
        settled.finish()
    assert broker.door.budget.used == 0
    assert broker.sealer.split(batch) is None


@needs_hook
@pytest.mark.parametrize("allocation", range(40))
def test_without_memory_a_batch_stays_as_it_is(allocation: int) -> None:
    broker, _, batch = one_batch(6)
    rows = [part.row_numbers() for part in batch.parts]
    call_without_memory(allocation, broker.sealer.split, batch)
    assert [part.row_numbers() for part in batch.parts] == rows
    halves = some(broker.sealer.split(batch))
    settle_each(broker, halves)


def test_the_sealer_counts_its_batches() -> None:
    """A batch that was split is none, and each of its halves is one."""
    assert Broker().sealer.sealed_so_far == 0
    broker, _, batch = one_batch(4)
    assert broker.sealer.sealed_so_far == 1
    broker.sealer.split(batch)
    assert broker.sealer.sealed_so_far == 2
    broker.fill(broker.buffers(3))
    broker.seal()
    assert broker.sealer.sealed_so_far == 5


# Buffering ----------------------------------------------------------------------------------------


def test_new_slices_of_a_failed_or_a_new_buffer_are_left_alone() -> None:
    broker = Broker()
    buffers = broker.buffers(3)
    for buffer in buffers[:2]:
        buffer.attached = True
    buffers[0].failing = True
    items = list(zip(buffers, broker.slices(3), strict=True))
    assert broker.batcher.add_new(items) == [items[0], items[2]]
    assert [list(buffer.pending) for buffer in buffers] == [[], [items[1][1]], []]
    # It lingers since its chunk was opened.
    assert list(buffers[1].enqueued_at) == [items[1][1].chunk.opened]


# Sealing ------------------------------------------------------------------------------------------


def test_a_batch_of_each_buffer_is_sealed_with_its_next_numbers() -> None:
    broker, buffers, _ = holding(3)
    broker.seal()
    broker.fill(buffers)
    broker.fill(buffers)
    batches, left = broker.seal()
    assert left is None
    assert [batch.partition for batch in batches] == [0, 1, 2]
    for batch, buffer in zip(batches, buffers, strict=True):
        assert batch.buffer is buffer
        assert buffer.unanswered[1:] == [batch]
        assert (batch.count, batch.number, batch.first_sequence) == (2, 2, 1)
        assert (batch.producer_id, batch.producer_epoch) == (7, 3)
        assert (buffer.sequencer.sealed, buffer.sequencer.next_sequence) == (2, 3)
        assert (buffer.nbytes, buffer.rows, len(buffer.pending)) == (0, 0, 0)
        records = read(bytes(batch.payload))
        assert (records.producer_id, records.producer_epoch, records.base_sequence) == (7, 3, 1)
    assert not broker.batcher.waiting
    assert broker.metrics.topic(TOPIC).records.count == 6
    assert broker.metrics.queue.count == 9


def test_without_idempotence_there_are_no_numbers() -> None:
    broker = Broker(idempotent=False)
    broker.fill(broker.buffers(1))
    ((batch,), _) = broker.seal()
    assert (batch.sequenced, batch.number, batch.producer_id) == (False, 0, -1)


def test_a_full_request_ends_and_the_next_one_begins_with_the_next_buffer() -> None:
    broker = Broker()
    buffers = broker.buffers(4)
    broker.fill(buffers, size=1000)
    assert [batch.partition for batch in broker.seal(room=2500)[0]] == [0, 1]
    assert [batch.partition for batch in broker.seal(room=2500)[0]] == [2, 3]


def test_a_batch_that_is_larger_than_expected_is_the_first_of_the_next_request() -> None:
    """A compressed batch is sealed before its size is known."""
    broker = Broker(compressor=Gzip())
    broker.fill(broker.buffers(2))
    batches, _ = broker.seal(room=80)
    assert [batch.partition for batch in batches] == [0]
    found, left = broker.seal()
    assert (found, left.partition) == ([], 1)  # it is sealed already
    assert isinstance(left.pending[0], Batch)


def _retried(buffer: PartitionBuffer) -> None:
    buffer.pending[0].level = 1


def _split(buffer: PartitionBuffer) -> None:
    buffer.pending[0].most = 1


def _stale(buffer: PartitionBuffer) -> None:
    buffer.sequencer.stale = True


def _without_an_id(buffer: PartitionBuffer) -> None:
    buffer.sequencer.producer = None


@pytest.mark.parametrize("change", [_retried, _split, _stale, _without_an_id])
def test_a_buffer_in_another_state_is_left_alone(change: Any) -> None:
    broker, buffers, parts = holding(3)
    change(buffers[1])
    batches, left = broker.seal()
    assert [batch.partition for batch in batches] == [0]
    assert left is buffers[1]
    assert list(left.pending) == [parts[1]]
    assert not left.unanswered
    # Afterwards it goes on with the others.
    assert broker.sealer.seal(batches, broker.now) is None
    assert [batch.partition for batch in batches] == [0, 2]


def test_expired_messages_are_skipped() -> None:
    broker, buffers, parts = holding(2)
    parts[0].fail(ValueError("not written"), ValueError("may be written"))
    batches, _ = broker.seal()
    assert [batch.partition for batch in batches] == [1]
    assert not buffers[0].pending
    assert buffers[0].sequencer.sealed == 0


def test_each_topic_has_its_own_statistics() -> None:
    broker = Broker()
    for topic in ("a", "b"):
        buffer = PartitionBuffer(topic, 0, Sequencer(ProducerId(7, 3), known=True))
        for _ in range(2):
            broker.door.send(topic, b"value", partition=0)
            (part,) = split(broker.door.chunk(), 1).values()
            broker.batcher.add(buffer, part, broker.now)
    broker.seal()
    assert [broker.metrics.topic(topic).batches.count for topic in ("a", "b")] == [1, 1]


def test_the_statistics_of_a_forgotten_topic_begin_anew() -> None:
    broker, buffers, _ = holding(1)
    broker.seal()
    broker.metrics.forget(TOPIC)
    broker.fill(buffers)
    broker.seal()
    assert broker.metrics.topic(TOPIC).batches.count == 1


def test_a_request_has_room_for_what_is_around_its_batches() -> None:
    broker, buffers, _ = holding(2, compressor=Gzip())
    size = len(broker.seal()[0][0].payload)
    broker.fill(buffers)
    assert len(broker.seal(room=2 * size + BATCH_OVERHEAD - 1)[0]) == 1


def test_without_memory_messages_stay_pending_and_no_number_is_used() -> None:
    gzip = Gzip()
    broker, buffers, _ = holding(2, compressor=gzip)
    broker.fill(buffers)
    gzip.has_memory = False
    with pytest.raises(MemoryError):
        broker.seal()
    assert broker.sealer.buffer is buffers[0]
    assert [part.count for part in buffers[0].pending] == [1, 1]
    assert (buffers[0].nbytes, buffers[0].rows) == (20, 2)
    assert (buffers[0].sequencer.sealed, buffers[0].unanswered) == (0, [])
    broker.batcher.reschedule(buffers[0])
    gzip.has_memory = True
    batches, _ = broker.seal()
    assert sorted((batch.partition, batch.count) for batch in batches) == [(0, 2), (1, 2)]
    assert {batch.first_sequence for batch in batches} == {0}


def test_without_memory_for_statistics_nothing_is_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that had been sealed would be unanswered forever."""
    broker, buffers, (part,) = holding(1)

    def refused(name: str) -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(broker.metrics, "topic", refused)
        with pytest.raises(MemoryError):
            broker.seal()
    assert (list(buffers[0].pending), buffers[0].unanswered) == ([part], [])
    assert buffers[0].sequencer.sealed == 0
    broker.batcher.reschedule(buffers[0])
    assert len(broker.seal()[0]) == 1


def test_without_memory_messages_count_as_not_written() -> None:
    gzip = Gzip()
    broker, buffers, _ = holding(1, compressor=gzip)
    gzip.has_memory = False
    with pytest.raises(MemoryError):
        broker.seal()
    (part,) = buffers[0].pending
    assert isinstance(part, Slice)
    part.fail(ValueError("not written"), ValueError("may be written"))
    assert str(part.first_error()) == "not written"


# Settling -----------------------------------------------------------------------------------------


def sealed(
    count: int, **options: Any
) -> tuple[Broker, list[PartitionBuffer], list[Slice], list[Batch]]:
    """Return a broker, *count* buffers, the slice of each, and its batch, in one request."""
    broker = Broker()
    buffers = broker.buffers(count)
    parts = broker.fill(buffers, **options)
    return broker, buffers, parts, broker.seal()[0]


def confirmed(batches: list[Batch]) -> ProduceRequest:
    """Return their request, confirmed with the offsets 100, 101, ... and no timestamps."""
    results = {(each.topic, each.partition): (100 + n, -1) for n, each in enumerate(batches)}
    request = ProduceRequest(batches, now=0, deadline=1)
    assert request.read(12, encoded(12, results))
    return request


@pytest.mark.parametrize("idempotent", [False, True])
def test_confirmed_batches_are_settled(idempotent: bool) -> None:
    broker = Broker(idempotent=idempotent)
    buffers = broker.buffers(3)
    for buffer in buffers:
        buffer.sequencer.known = False
    handles = [broker.door.send(TOPIC, b"value", partition=n) for n in range(3)]
    parts = split(broker.door.chunk(), 3)
    for n, buffer in enumerate(buffers):
        broker.batcher.add(buffer, parts[n], broker.now)
    batches, _ = broker.seal()

    others, reports, left = broker.settle(batches)

    assert (others, reports) == ([], [])
    assert left == [parts[0].chunk]
    assert [handle.offset for handle in handles] == [100, 101, 102]
    assert [buffer.unanswered for buffer in buffers] == [[], [], []]
    assert [buffer.sequencer.known for buffer in buffers] == [idempotent] * 3
    assert [buffer.sequencer.youngest_delivered for buffer in buffers] == [int(idempotent)] * 3
    assert broker.errors == {(TOPIC, 9): "another"}
    assert broker.rejected == {"other": "rejected"}
    assert broker.metrics.partition(TOPIC, 2).count == 1
    assert broker.metrics.delivery.count == 3
    assert broker.door.budget.used == 0


def test_the_producer_is_known_to_the_broker_afterwards() -> None:
    """Only then may the next batch be sent before the response to this one."""
    broker = Broker()
    (buffer,) = broker.buffers(1)
    buffer.sequencer.known = False
    broker.fill([buffer])
    batches, _ = broker.seal()
    broker.fill([buffer])
    assert broker.batcher.next_due() is None
    broker.settle(batches)
    assert buffer.sequencer.known
    assert broker.batcher.next_due() is not None


def test_the_batches_of_failed_and_of_moved_buffers_are_left_alone() -> None:
    broker, buffers, _, batches = sealed(3)
    buffers[0].failing = True
    broker.moved.add(buffers[2])
    others, _, _ = broker.settle(batches)
    assert others == [0, 2]
    assert [len(buffer.unanswered) for buffer in buffers] == [1, 0, 1]
    assert not batches[0].is_settled
    assert not batches[2].is_settled


def test_rows_with_a_callback_are_returned_and_not_released() -> None:
    called: list[Any] = []
    broker, *_, batches = sealed(2, on_delivery=lambda error, handle: called.append(handle.offset))
    others, reports, left = broker.settle(batches)
    assert (others, left, called) == ([], [], [])
    for part in reports:
        report(part)
    assert called == [100, 101]
    assert broker.door.budget.used == 0


def test_rows_that_expired_before_keep_their_outcome() -> None:
    broker, buffers, (part,), batches = sealed(1)
    settled = some(part.chunk.whole().fail(ValueError("no"), ValueError("perhaps")))
    report(settled)
    assert broker.settle(batches) == ([], [], [])
    assert broker.metrics.partition(TOPIC, 0).count == 0
    assert not buffers[0].unanswered


def test_what_is_settled_before_memory_runs_out_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, *_, batches = sealed(3, on_delivery=lambda error, handle: None)
    real = broker.metrics.partition

    def refused(topic: str, partition: int) -> Any:
        if partition == 1:
            raise MemoryError
        return real(topic, partition)

    monkeypatch.setattr(broker.metrics, "partition", refused)
    request = confirmed(batches)
    with pytest.raises(MemoryError):
        broker.settler.settle(request, broker.now)
    assert [each.row_numbers() for each in filled(request.reports)] == [[0]]
    assert filled(request.finished) == []
    assert [batch.is_settled for batch in batches] == [True, False, False]


@needs_hook
@pytest.mark.parametrize("allocation", range(40))
def test_whichever_allocation_fails_what_is_settled_is_reported(allocation: int) -> None:
    broker, *_, batches = sealed(3, on_delivery=lambda error, handle: None)
    request, now, settle = confirmed(batches), broker.now, broker.settler.settle
    call_without_memory(allocation, settle, request, now)
    settled = [batch.partition for batch in batches if batch.is_settled]
    assert [part.partition for part in filled(request.reports)] == settled
    assert filled(request.finished) == []


def test_a_request_that_is_not_confirmed_is_not_settled() -> None:
    broker, *_, batches = sealed(2)
    request = ProduceRequest(batches, now=0, deadline=1)
    with pytest.raises(ValueError, match="does not confirm"):
        broker.settler.settle(request, broker.now)
    with pytest.raises(IndexError, match="no confirmed batch"):
        request.result(0)


def test_a_confirmed_request_has_a_result_for_each_batch() -> None:
    *_, batches = sealed(2)
    request = confirmed(batches)
    assert request.result(1) == (101, -1)
    for place in (-1, 2):
        with pytest.raises(IndexError, match="no confirmed batch"):
            request.result(place)
    with pytest.raises(TypeError):
        ProduceRequest(["a batch", "another"], now=0, deadline=1)


def test_rows_that_someone_waits_for_are_returned() -> None:
    """Waking the thread is left to the caller."""
    broker = Broker()
    handle = broker.door.send(TOPIC, b"value", partition=0)
    (part,) = split(broker.door.chunk(), 1).values()
    (buffer,) = broker.buffers(1)
    broker.batcher.add(buffer, part, broker.now)
    batches, _ = broker.seal()
    handle.add_done_callback(lambda _: None)
    _, reports, finished = broker.settle(batches)
    assert ([each.chunk for each in reports], finished) == ([part.chunk], [])


def test_rows_of_a_chunk_with_a_failed_message_are_returned() -> None:
    """The caller remembers failures that nothing has reported."""
    broker, _, parts, batches = sealed(2)
    parts[0].chunk.pick([1]).fail(ValueError("no"), ValueError("perhaps"))
    _, reports, finished = broker.settle(batches)
    assert ([each.partition for each in reports], finished) == ([0], [])

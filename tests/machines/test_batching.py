"""The contents of a broker's partition buffers, of its batches, and when batches are due."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pykaproducer._kernel import Batcher, Slice, encode_batch
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch, Chaser
from pykaproducer._machines.partition_buffer import PartitionBuffer
from pykaproducer._machines.sequencing import ProducerId, Sequencer
from tests.kernel.helper import TOPIC, Door, report, split

#: The bytes that a batch reserves for a record in addition to its payload.
RECORD = 16
#: A batch size that no test in this file reaches.
LARGE = 1 << 20

#: A row is identified by the number of its chunk and its index in it.
Row = tuple[int, int]


def rows_of(*parts: Slice) -> list[Row]:
    return [(part.chunk.serial, row) for part in parts for row in part.row_numbers()]


class Broker:
    """A batcher, driven as the broker's worker drives it."""

    def __init__(
        self,
        *,
        linger: float = 0.0,
        batch_size: int = LARGE,
        batch_messages: int = 0,
        sealed_limit: int = 5,
        idempotent: bool = False,
    ) -> None:
        self.door = Door()
        self.idempotent = idempotent
        self.batcher = Batcher(
            linger=linger,
            batch_size=batch_size,
            batch_messages=batch_messages,
            sealed_limit=sealed_limit,
        )

    @property
    def now(self) -> float:
        return self.door.clock.monotonic()

    def buffer(self, partition: int = 0) -> PartitionBuffer:
        return PartitionBuffer(
            TOPIC, partition, Sequencer(ProducerId(7, 0) if self.idempotent else None)
        )

    def slice(self, *sizes: int, timeout_ms: int | None = None) -> Slice:
        """Return a slice of messages of these sizes."""
        for size in sizes:
            self.door.send(TOPIC, bytes(size), partition=0, delivery_timeout_ms=timeout_ms)
        return split(self.door.chunk(), 1)[0]

    def put(self, buffer: PartitionBuffer, *sizes: int) -> Slice:
        part = self.slice(*sizes)
        self.batcher.add(buffer, part, self.now)
        return part

    def due(self, *, flushing: bool = False) -> list[PartitionBuffer]:
        return list(self.batcher.due(self.now, flushing=flushing))

    def seal(self, buffer: PartitionBuffer) -> Batch:
        """Seal the next batch of *buffer*, which is in flight from now on."""
        taken = self.batcher.take(buffer)
        batch = taken if isinstance(taken, Batch) else self._sealed(buffer, taken)
        buffer.unanswered.append(batch)
        self.batcher.reschedule(buffer)
        return batch

    def _sealed(self, buffer: PartitionBuffer, parts: list[Slice]) -> Batch:
        count = sum(part.count for part in parts)
        assert count
        first = buffer.sequencer.take(count) if self.idempotent else -1
        level = max(part.level for part in parts)
        payload, _ = encode_batch(parts, crc32c.crc32c)
        batch = Batch(TOPIC, buffer.partition, payload, parts, count, level, first_sequence=first)
        batch.number = buffer.sequencer.sealed
        return batch

    def answer(self, buffer: PartitionBuffer, *, known: bool = True) -> None:
        """Mark the oldest in-flight batch of *buffer* as delivered."""
        buffer.unanswered.pop(0)
        buffer.sequencer.known |= known
        self.batcher.reschedule(buffer)

    def drain(self, buffer: PartitionBuffer) -> list[Batch]:
        """Seal everything in *buffer*, answer each batch at once, and return the batches."""
        batches = []
        while self.due(flushing=True):
            batches.append(self.seal(buffer))
            self.answer(buffer)
        return batches


def lane(**options: Any) -> tuple[Broker, PartitionBuffer]:
    """Return a broker with these *options*, and the buffer of its first partition."""
    broker = Broker(**options)
    return broker, broker.buffer()


# The contents of a batch ------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=20), min_size=1, max_size=8),
    st.integers(0, 600),
    st.integers(0, 8),
)
def test_batches_hold_every_message_once_in_order_and_are_as_full_as_they_may_be(
    slices: list[list[int]], batch_size: int, batch_messages: int
) -> None:
    broker, buffer = lane(batch_size=batch_size, batch_messages=batch_messages)
    sent = list(itertools.chain.from_iterable(rows_of(broker.put(buffer, *s)) for s in slices))
    cost = dict(zip(sent, (size + RECORD for s in slices for size in s), strict=True))

    batches = [rows_of(*batch.parts) for batch in broker.drain(buffer)]

    assert list(itertools.chain.from_iterable(batches)) == sent
    most = batch_messages or len(sent)
    for batch in batches:
        assert len(batch) <= most
        assert len(batch) == 1 or sum(cost[row] for row in batch) <= batch_size
    for batch, after in itertools.pairwise(batches):
        fits = sum(cost[row] for row in batch) + cost[after[0]] <= batch_size
        assert len(batch) == most or not fits
    assert not broker.batcher.waiting


@pytest.mark.parametrize(
    ("batch_size", "batch_messages", "sizes", "expected"),
    [
        (LARGE, 0, [5] * 7, [7]),
        (LARGE, 3, [5] * 7, [3, 3, 1]),
        (100, 0, [34] * 4, [2, 2]),
        (99, 0, [34] * 4, [1, 1, 1, 1]),
        (0, 0, [5] * 3, [1, 1, 1]),  # batch_size=0: each message alone
        (100, 0, [10, 900, 10, 10], [1, 1, 2]),  # a message that is too large gets its own batch
    ],
)
def test_batches_by_size_and_by_messages(
    batch_size: int, batch_messages: int, sizes: list[int], expected: list[int]
) -> None:
    broker, buffer = lane(batch_size=batch_size, batch_messages=batch_messages)
    broker.put(buffer, *sizes)
    assert [batch.count for batch in broker.drain(buffer)] == expected


def test_a_sealed_batch_keeps_its_place_and_goes_alone() -> None:
    broker, buffer = lane()
    broker.put(buffer, 1)
    again = broker.seal(buffer)
    broker.answer(buffer)
    before = broker.put(buffer, 1)
    broker.batcher.add(buffer, again, broker.now)
    after = broker.put(buffer, 1)
    expected = [rows_of(before), rows_of(*again.parts), rows_of(after)]
    batches = broker.drain(buffer)
    assert batches[1] is again
    assert [rows_of(*batch.parts) for batch in batches] == expected


def test_a_batch_that_was_put_back_goes_first() -> None:
    broker, buffer = lane()
    broker.put(buffer, 1)
    sealed = broker.seal(buffer)
    broker.put(buffer, 1)
    buffer.put_back(sealed)
    broker.batcher.reschedule(buffer)
    assert broker.drain(buffer)[0] is sealed


def test_what_has_expired_is_left_out() -> None:
    broker, buffer = lane()
    late, alive = broker.slice(10, 10, timeout_ms=50), broker.slice(10)
    for part in (late, alive):
        broker.batcher.add(buffer, part, broker.now)
    expected = rows_of(alive)
    assert report(late.chunk.whole().fail(LookupError(), LookupError()))
    (batch,) = broker.drain(buffer)
    assert rows_of(*batch.parts) == expected


def test_where_everything_has_expired_there_is_no_batch() -> None:
    broker, buffer = lane(linger=5.0, batch_size=20)
    part = broker.put(buffer, 10, 10)
    report(part.chunk.whole().fail(LookupError(), LookupError()))
    assert broker.due() == [buffer]
    assert broker.batcher.take(buffer) == []
    broker.batcher.reschedule(buffer)
    assert not broker.batcher.waiting
    assert broker.batcher.next_due() is None
    # Its bytes do not count towards the next batch.
    broker.put(buffer, 10)
    assert broker.due() == []
    assert broker.batcher.is_small(10)


# When a batch is due ----------------------------------------------------------------------------


def test_a_message_lingers_and_no_longer() -> None:
    broker, buffer = lane(linger=5.0)
    broker.put(buffer, 10)
    assert broker.batcher.next_due() == broker.now + 5
    broker.door.clock.jump(4)
    broker.put(buffer, 10)  # a later message does not extend the linger time of the first one
    assert broker.due() == []
    broker.door.clock.jump(1)
    assert broker.due() == [buffer]
    assert broker.seal(buffer).count == 2


def test_without_linger_it_is_due_at_once() -> None:
    broker, buffer = lane()
    assert broker.due() == []
    broker.put(buffer, 10)
    assert broker.due() == [buffer]


def test_a_flush_does_not_linger() -> None:
    broker = Broker(linger=5.0)
    assert broker.due(flushing=True) == []
    buffer = broker.buffer()
    broker.put(buffer, 10)
    assert broker.due() == []
    assert broker.due(flushing=True) == [buffer]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [({"batch_size": 100}, [49, 50, 1]), ({"batch_messages": 3}, [1, 1, 1])],
    ids=["bytes", "messages"],
)
def test_a_full_batch_does_not_linger(limits: dict[str, int], sizes: list[int]) -> None:
    broker, buffer = lane(linger=5.0, **limits)
    for size in sizes[:-1]:
        broker.put(buffer, size)
        assert broker.due() == []
    broker.put(buffer, sizes[-1])
    assert broker.batcher.next_due() == 0
    assert broker.due() == [buffer]


def test_what_is_left_behind_a_full_batch_lingers() -> None:
    broker, buffer = lane(linger=5.0, batch_messages=3)
    broker.put(buffer, *[1] * 8)
    assert [broker.due() and broker.seal(buffer).count for _ in range(2)] == [3, 3]
    assert broker.due() == []
    assert broker.batcher.next_due() == broker.now + 5


def retried(broker: Broker) -> Slice:
    part = broker.slice(1)
    part.level = 1
    return part


def sealed_before(broker: Broker) -> Batch:
    buffer = broker.buffer()
    broker.put(buffer, 1)
    return broker.seal(buffer)


@pytest.mark.parametrize("make", [retried, sealed_before])
def test_what_comes_round_again_does_not_linger(make: Callable[[Broker], Any]) -> None:
    broker, buffer = lane(linger=5.0)
    broker.batcher.add(buffer, make(broker), broker.now)
    assert broker.due() == [buffer]


def test_all_that_may_go_goes_when_one_is_due() -> None:
    broker = Broker(linger=5.0, batch_messages=2, sealed_limit=1)
    full, lingering, unanswered, empty = (broker.buffer(partition) for partition in range(4))
    broker.put(unanswered, 1)
    broker.seal(unanswered)
    for buffer in (unanswered, lingering):
        broker.put(buffer, 1)
    assert broker.due() == []
    broker.put(full, 1, 1)
    assert set(broker.due()) == {full, lingering}
    assert empty not in broker.due(flushing=True)


def test_a_lane_that_has_failed_is_not_due() -> None:
    broker, buffer = lane()
    broker.put(buffer, 1)
    buffer.fail()
    broker.batcher.reschedule(buffer)
    assert not broker.batcher.waiting
    assert broker.due(flushing=True) == []
    assert broker.batcher.next_due() is None


# Fairness -----------------------------------------------------------------------------------


def test_lanes_take_turns() -> None:
    """Requests have room for two buffers; five that always have messages are served in turn."""
    broker = Broker(batch_messages=1)
    buffers = [broker.buffer(partition) for partition in range(5)]
    for buffer in buffers:
        broker.put(buffer, *[1] * 10)
    turns: list[int] = []
    for _ in range(5):
        for buffer in itertools.islice(broker.batcher.due(broker.now, flushing=False), 2):
            broker.seal(buffer)
            broker.answer(buffer)
            turns.append(buffer.partition)
    assert turns == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_who_comes_later_gets_its_turn_beside_busy_lanes() -> None:
    broker = Broker(batch_messages=1)
    busy = [broker.buffer(partition) for partition in range(3)]
    for buffer in busy:
        broker.put(buffer, *[1] * 10)
    quiet = broker.buffer(3)
    broker.put(quiet, 1)
    turns: list[PartitionBuffer] = []
    while quiet not in turns:
        (buffer,) = itertools.islice(broker.batcher.due(broker.now, flushing=False), 1)
        broker.seal(buffer)
        broker.answer(buffer)
        turns.append(buffer)
    assert len(turns) == 4


def test_a_request_asks_each_lane_once() -> None:
    broker = Broker(batch_messages=1)
    buffers = [broker.buffer(partition) for partition in range(3)]
    for buffer in buffers:
        broker.put(buffer, 1, 1)
    asked = []
    for buffer in broker.batcher.due(broker.now, flushing=False):
        asked.append(buffer)
        if buffer is buffers[0]:  # the last one has no more messages
            buffers[2].fail()
            broker.batcher.reschedule(buffers[2])
        broker.seal(buffer)
    assert asked == buffers[:2]


def test_what_did_not_fit_comes_first_in_the_next_request() -> None:
    broker = Broker(batch_messages=1)
    buffers = [broker.buffer(partition) for partition in range(4)]
    for buffer in buffers:
        broker.put(buffer, 1, 1)
    first, second = itertools.islice(broker.batcher.due(broker.now, flushing=False), 2)
    batch = broker.seal(second)
    batch.buffer = second
    broker.batcher.put_back(batch)
    assert broker.due() == [second, buffers[2], buffers[3], first]
    assert broker.seal(second) is batch
    # The same for a batch that was not even sealed.
    broker.batcher.stays_first(buffers[3])
    assert broker.due()[0] is buffers[3]


def test_how_large_the_next_batch_will_be() -> None:
    broker = Broker(batch_size=110)
    buffer, large = broker.buffer(0), broker.buffer(1)
    broker.put(buffer, 30, 40)
    assert broker.batcher.size_of_next(buffer) == 70
    broker.put(large, 30, 40, 50)
    assert broker.batcher.size_of_next(large) == 110
    again = broker.seal(buffer)
    broker.answer(buffer)
    assert not buffer.pending
    broker.batcher.add(buffer, again, broker.now)
    assert broker.batcher.size_of_next(buffer) == len(again.payload)


# The limit of batches in flight -----------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("idempotent", [False, True])
def test_no_more_batches_than_allowed_are_unanswered(limit: int, idempotent: bool) -> None:
    broker, buffer = lane(batch_messages=1, sealed_limit=limit, idempotent=idempotent)
    buffer.sequencer.known = True
    broker.put(buffer, *[1] * (limit + 2))
    for _ in range(limit):
        assert broker.due() == [buffer]
        broker.seal(buffer)
    assert broker.due(flushing=True) == []
    assert broker.batcher.next_due() is None
    broker.answer(buffer)
    assert broker.due() == [buffer]
    broker.seal(buffer)
    assert broker.due() == []


def test_the_broker_still_remembers_the_oldest_unanswered_batch() -> None:
    """Batch 1 fails each time and later ones are appended: a broker remembers the last five."""
    broker, buffer = lane(batch_messages=1, sealed_limit=2, idempotent=True)
    buffer.sequencer.known = True
    broker.put(buffer, *[1] * 10)
    sent: list[int] = []
    for _ in range(10):
        while broker.due(flushing=True):
            sent.append(broker.seal(buffer).number)
        oldest, *others = buffer.unanswered
        for _ in others:
            buffer.answered(buffer.unanswered[1])  # delivered
        buffer.answered(oldest)
        # It is retried, with all batches after it.
        buffer.fail(oldest)
        again, ambiguous = buffer.drain_for_retry()
        assert not ambiguous
        buffer = PartitionBuffer(TOPIC, 0, buffer.sequencer)
        for item in again:
            assert not isinstance(item, Chaser)
            broker.batcher.add(buffer, item, broker.now)
    assert sorted({*sent}) == [1, 2, 3, 4, 5]
    while broker.due(flushing=True):
        broker.seal(buffer)
    # As soon as it is delivered the others continue.
    broker.answer(buffer)
    while broker.due(flushing=True):
        sent.append(broker.seal(buffer).number)
    assert max(sent) == 7


def test_one_batch_is_unanswered_until_a_broker_knows_the_producer() -> None:
    broker, buffer = lane(batch_messages=1, idempotent=True)
    broker.put(buffer, *[1] * 6)
    broker.seal(buffer)
    assert broker.due(flushing=True) == []
    # it failed permanently: the broker may still not know the producer
    broker.answer(buffer, known=False)
    broker.seal(buffer)
    assert broker.due(flushing=True) == []
    broker.answer(buffer)
    for _ in range(4):
        assert broker.due() == [buffer]
        broker.seal(buffer)
    assert len(buffer.unanswered) == 4


def test_a_new_epoch_waits_for_the_answers_of_the_old_one() -> None:
    broker, buffer = lane(batch_messages=1, idempotent=True)
    buffer.sequencer.known = True
    again = sealed(broker, 1, sequence=5)
    broker.put(buffer, 1)
    broker.seal(buffer)
    buffer.sequencer.invalidate_sequences()
    # A batch that has its sequence numbers can be sent ...
    broker.batcher.add(buffer, again, broker.now)
    broker.put(buffer, 1)
    assert broker.due() == [buffer]
    assert broker.seal(buffer) is again
    # ... one that needs new numbers cannot, until nothing is in flight.
    assert broker.due(flushing=True) == []
    broker.answer(buffer)
    assert broker.due(flushing=True) == []
    broker.answer(buffer)
    assert broker.due() == [buffer]


def test_a_lane_that_waits_for_a_producer_id_is_not_due() -> None:
    broker = Broker(idempotent=True)
    waiting, other = broker.buffer(0), broker.buffer(1)
    waiting.waits_for_id = True
    for buffer in (waiting, other):
        broker.put(buffer, 1)
    assert broker.due(flushing=True) == [other]
    assert broker.batcher.waiting
    waiting.waits_for_id = False
    broker.batcher.reschedule(waiting)
    assert set(broker.due()) == {waiting, other}


def test_one_partition_that_waits_for_an_answer_does_not_hold_another() -> None:
    broker = Broker(batch_messages=1, sealed_limit=1)
    waiting, free = broker.buffer(0), broker.buffer(1)
    broker.put(waiting, 1, 1)
    broker.seal(waiting)
    broker.put(free, 1)
    assert broker.due() == [free]


# The amount that is pending ---------------------------------------------------------------------


def test_little_is_pending_until_it_is_much() -> None:
    broker = Broker(linger=5.0)
    assert broker.batcher.is_small(0)
    broker.put(broker.buffer(), 60)
    broker.put(broker.buffer(1), 40)
    assert not broker.batcher.is_small(99)
    assert broker.batcher.is_small(100)
    assert broker.batcher.waiting


def test_many_lanes_are_never_little() -> None:
    broker = Broker(linger=5.0)
    for partition in range(100):
        broker.put(broker.buffer(partition), 0)
    assert not broker.batcher.is_small(LARGE)


# A model of a buffer ----------------------------------------------------------------------------


class Model:
    """The behaviour that a user may expect of one buffer."""

    def __init__(self) -> None:
        #: (enqueue time, size)
        self.pending: list[tuple[float, int]] = []
        #: The last time at which ``pending`` became non-empty.
        self.since = 0.0
        self.unanswered = 0
        self.known = False


class Batching(RuleBasedStateMachine):
    """Three buffers, filled, sealed and answered in any order."""

    buffers = st.integers(0, 2)

    @initialize(idempotent=st.booleans(), limit=st.integers(1, 3), messages=st.integers(0, 6))
    def begin(self, idempotent: bool, limit: int, messages: int) -> None:
        self.broker = Broker(
            linger=10.0,
            batch_size=200,
            batch_messages=messages,
            sealed_limit=limit,
            idempotent=idempotent,
        )
        self.limit = limit
        self.messages = messages
        self.buffer = [self.broker.buffer(partition) for partition in range(3)]
        self.model = [Model() for _ in self.buffer]

    @rule(which=buffers, sizes=st.lists(st.integers(0, 90), min_size=1, max_size=4))
    def put(self, which: int, sizes: list[int]) -> None:
        model, now = self.model[which], self.broker.now
        if not model.pending:
            model.since = now
        model.pending += [(now, size) for size in sizes]
        self.broker.put(self.buffer[which], *sizes)

    @rule(seconds=st.integers(1, 12))
    def jump(self, seconds: int) -> None:
        self.broker.door.clock.jump(seconds)

    @rule(flushing=st.booleans())
    def send(self, flushing: bool) -> None:
        for buffer in self.broker.due(flushing=flushing):
            batch = self.broker.seal(buffer)
            model = self.model[self.buffer.index(buffer)]
            del model.pending[: batch.count]
            model.unanswered += 1

    @rule()
    def prune(self) -> None:
        self.broker.batcher._prune_timers()

    @rule(which=buffers)
    def answer(self, which: int) -> None:
        if self.model[which].unanswered:
            self.broker.answer(self.buffer[which])
            self.model[which].unanswered -= 1
            self.model[which].known = True

    def may_send(self, model: Model) -> bool:
        most = self.limit if model.known or not self.broker.idempotent else 1
        return bool(model.pending) and model.unanswered < most

    def is_full(self, model: Model) -> bool:
        nbytes = sum(size for _, size in model.pending)
        return nbytes >= 200 or 0 < self.messages <= len(model.pending)

    @invariant()
    def it_is_due_when_it_should_be(self) -> None:
        batcher, now = self.broker.batcher, self.broker.now
        open_ = [model for model in self.model if self.may_send(model)]
        due = batcher.next_due()
        assert bool(batcher.waiting) == any(model.pending for model in self.model)
        assert (due is None) == (not open_)
        if due is not None:
            if any(self.is_full(model) for model in open_):
                assert due == 0
            else:
                assert min(model.since for model in open_) + 10 <= due
                assert due <= min(model.pending[0][0] for model in open_) + 10
        everyone = {self.buffer[self.model.index(model)] for model in open_}
        assert set(batcher.due(now, flushing=True)) == everyone
        goes = due is not None and due <= now
        assert set(batcher.due(now, flushing=False)) == (everyone if goes else set())


TestModel = Batching.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_timers_do_not_pile_up_while_nothing_is_sent() -> None:
    """Without a connection, messages arrive and expire, and next_due() is not called."""
    broker = Broker(linger=10.0)
    buffers = [broker.buffer(partition) for partition in range(100)]
    alive: list[Slice] = []
    for _ in range(30):
        expired, alive = alive, [broker.put(buffer, 1) for buffer in buffers]
        for part, buffer in zip(expired, buffers, strict=False):
            report(part.chunk.whole().fail(LookupError(), LookupError()))
            buffer.sweep()
            broker.batcher.reschedule(buffer)
        broker.door.clock.jump(1)
    assert len(broker.batcher.timers) <= 2 * len(buffers) + 1
    # The timers that are left are the right ones.
    assert broker.batcher.next_due() == broker.now - 1 + 10
    broker.door.clock.jump(8.5)
    assert broker.due() == []
    broker.door.clock.jump(0.5)
    assert set(broker.due()) == set(buffers)


def test_a_timer_that_was_dropped_while_its_buffer_was_closed_is_set_again() -> None:
    broker, buffer = lane(linger=10.0, sealed_limit=1)
    broker.put(buffer, 1)
    broker.door.clock.jump(10)
    broker.seal(buffer)
    broker.put(buffer, 1)
    due = broker.now + 10
    broker.answer(buffer)
    assert broker.batcher.next_due() == due
    buffer.waits_for_id = True
    broker.batcher.reschedule(buffer)
    broker.batcher._prune_timers()
    assert broker.batcher.next_due() is None
    buffer.waits_for_id = False
    broker.batcher.reschedule(buffer)
    assert broker.batcher.next_due() == due


# Retried batches --------------------------------------------------------------------------------


def sealed(broker: Broker, *sizes: int, level: int = 0, sequence: int = -1) -> Batch:
    """Return a sealed batch of messages of these sizes."""
    buffer = broker.buffer()
    broker.put(buffer, *sizes)
    batch = broker.seal(buffer)
    batch.level = level
    batch.first_sequence = sequence
    return batch


@pytest.mark.parametrize(("sequence", "expected"), [(-1, False), (0, True), (2**31 - 1, True)])
def test_a_batch_with_a_sequence_number_is_sequenced(sequence: int, expected: bool) -> None:
    assert sealed(Broker(), 1, sequence=sequence).sequenced is expected


def test_an_unsealed_batch_leaves_slices_that_remember_their_attempts() -> None:
    broker = Broker()
    handle = broker.door.send(TOPIC, b"value", partition=0)
    buffer = broker.buffer()
    broker.batcher.add(buffer, split(broker.door.chunk(), 1)[0], broker.now)
    batch = broker.seal(buffer)
    batch.level, batch.retries_used = 3, 2
    assert handle.possibly_persisted()
    (part,) = batch.unseal()
    assert (part.level, part.retries_used, part.most) == (3, 2, 0)
    assert not handle.possibly_persisted()


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_a_split_batch_goes_in_halves_until_single_messages_are_left(slices: list[int]) -> None:
    broker, buffer = lane()
    sent = list(
        itertools.chain.from_iterable(rows_of(broker.put(buffer, *[1] * n)) for n in slices)
    )
    batches = broker.drain(buffer)
    largest = len(sent)
    while largest > 1:
        for batch in batches:
            batch.split()
            for part in batch.unseal():
                broker.batcher.add(buffer, part, broker.now)
        batches = broker.drain(buffer)
        assert list(itertools.chain.from_iterable(rows_of(*b.parts) for b in batches)) == sent
        assert max(batch.count for batch in batches) <= largest // 2
        largest //= 2


def test_what_was_split_goes_alone() -> None:
    broker, buffer = lane()
    broker.put(buffer, 1, 1)
    batch = sealed(broker, *[1] * 4)
    batch.split()
    for part in batch.unseal():
        broker.batcher.add(buffer, part, broker.now)
    broker.put(buffer, 1)
    assert [batch.count for batch in broker.drain(buffer)] == [2, 2, 2, 1]


def test_a_batch_is_due_with_its_oldest_living_row() -> None:
    broker, buffer = lane()
    for timeout in (300, 100, 200):
        broker.batcher.add(buffer, broker.slice(1, timeout_ms=timeout), broker.now)
    batch = broker.seal(buffer)
    for part, deadline in zip((batch.parts[i] for i in (1, 2, 0)), (0.1, 0.2, 0.3), strict=True):
        assert batch.next_deadline() == pytest.approx(broker.now + deadline)
        part.fail(LookupError(), LookupError())
    assert batch.next_deadline() is None


# Failed buffers ---------------------------------------------------------------------------------


def named(items: Sequence[object], **names: object) -> list[str | list[str]]:
    """Return the names of *items*, with the slices of each backlog as a list."""

    def name(item: object) -> str:
        return next(name for name, known in names.items() if known is item)

    return [
        [name(part) for part in item.slices()] if isinstance(item, Backlog) else name(item)
        for item in items
    ]


def travelling(items: Sequence[object]) -> list[Slice]:
    """Return the slices of the backlogs among *items*, in the order a buffer takes them."""
    backlogs = [item for item in items if isinstance(item, Backlog)]
    return [backlog.popleft() for backlog in backlogs for _ in range(len(backlog))]


def test_a_lane_that_works_hands_nothing_back() -> None:
    broker, buffer = lane()
    buffer.add(broker.slice(1), 0.0)
    assert buffer.drain_for_retry() == ([], [])
    assert len(buffer.pending) == 1


def test_a_lane_hands_back_everything_oldest_first_and_the_chaser_last() -> None:
    broker, buffer = lane()
    old, young = sealed(broker, 1, sequence=0), sealed(broker, 1, sequence=1)
    fresh = broker.slice(1)
    buffer.add(fresh, 0.0)
    buffer.fail(old)
    buffer.fail(young)
    chaser = buffer.chaser = Chaser(TOPIC, 0, 1)
    after = broker.slice(1)
    buffer.add(after, 0.0)
    again, ambiguous = buffer.drain_for_retry()
    names = {"old": old, "young": young, "fresh": fresh, "after": after, "chaser": chaser}
    assert named(again, **names) == ["old", "young", ["fresh", "after"], "chaser"]
    assert ambiguous == []
    assert [item.level for item in again[:-1]] == [1, 1, 1]
    # Later items are handed back without a chaser, which is already on its way.
    later = broker.slice(1)
    buffer.add(later, 0.0)
    again, ambiguous = buffer.drain_for_retry()
    assert named(again, later=later) == [["later"]]
    assert ambiguous == []
    assert (buffer.nbytes, buffer.rows) == (0, 0)


def test_a_lane_hands_back_nothing_while_a_batch_is_unanswered() -> None:
    broker, buffer = lane()
    unanswered, fresh = sealed(broker, 1, sequence=0), broker.slice(1)
    buffer.unanswered.append(unanswered)
    buffer.add(fresh, 0.0)
    buffer.chaser = Chaser(TOPIC, 0, 1)
    buffer.fail()
    assert buffer.drain_for_retry() == ([], [])
    buffer.unanswered.remove(unanswered)
    buffer.fail(unanswered)
    again, _ = buffer.drain_for_retry()
    assert named(again[:2], unanswered=unanswered, fresh=fresh) == ["unanswered", ["fresh"]]


def test_a_batch_without_sequence_numbers_goes_back_unsealed() -> None:
    broker, buffer = lane()
    batch = sealed(broker, 1, 1, level=2)
    batch.retries_used = 1
    expected = rows_of(*batch.parts)
    buffer.fail(batch)
    again, _ = buffer.drain_for_retry()
    assert len(again) == 1
    parts = travelling(again)
    assert rows_of(*parts) == expected
    assert {(part.level, part.retries_used) for part in parts} == {(3, 1)}


def test_numbers_behind_a_batch_that_is_missing_are_void() -> None:
    """A batch that may be in the log under these numbers fails; the others are sealed again."""
    broker, buffer = lane(idempotent=True)
    before, doubted, certain, pending = (sealed(broker, 1, sequence=n) for n in range(4))
    before.possibly_persisted = doubted.possibly_persisted = True
    expected = rows_of(*certain.parts, *pending.parts)
    buffer.fail(before)
    buffer.invalidate_sequences()  # the batch that is answered now is missing
    for batch in (doubted, certain):
        buffer.fail(batch)
    buffer.invalidate_sequences()
    buffer.add(pending, 0.0)
    again, ambiguous = buffer.drain_for_retry()
    assert ambiguous == [doubted]
    assert again[0] is before  # its numbers stay valid: the broker may know it by them
    parts = travelling(again[1:])
    assert rows_of(*parts) == expected
    assert {item.level for item in again if not isinstance(item, Chaser)} == {1}
    assert buffer.sequencer.stale
    # Everything was handed back, so no later numbers are invalid.
    batches = [sealed(broker, 1, sequence=n) for n in range(3)]
    for batch in batches:
        buffer.fail(batch)
    assert buffer.drain_for_retry() == (batches, [])


# Rejected records --------------------------------------------------------------------------------


def test_refused_records_are_one_slice_for_each_text_and_chunk() -> None:
    """Ten thousand rejected records must not cost ten thousand scans of all records."""
    broker = Broker()
    first, second = broker.slice(*[1] * 6), broker.slice(*[1] * 4)
    buffer = broker.buffer()
    for part in (first, second):
        broker.batcher.add(buffer, part, broker.now)
    batch = broker.seal(buffer)
    rows = rows_of(*batch.parts)
    texts = {1: "no key", 2: None, 4: "no key", 5: "no key", 7: "no key", 9: None}
    found = batch.rejected_slices(texts)
    assert {text: len(parts) for text, parts in found.items()} == {"no key": 2, None: 2}
    for text, parts in found.items():
        expected = [rows[number] for number, known in texts.items() if known == text]
        assert rows_of(*parts) == expected
        assert {part.partition for part in parts} == {0}


# Removal of settled rows -------------------------------------------------------------------------


def expire(*parts: Slice) -> None:
    for part in parts:
        report(part.fail(LookupError(), LookupError()))


def test_a_sweep_takes_settled_slices_out_of_a_lane() -> None:
    broker, buffer = lane()
    travels = Backlog(TOPIC, 0, 3, [broker.slice(1), broker.slice(2)])
    old = travels.slices()
    buffer.add(travels, 0.0)
    fresh = [broker.slice(4), broker.slice(8)]
    for part in fresh:
        buffer.add(part, 0.0)
    assert (buffer.nbytes, buffer.rows) == (15, 4)
    expire(*old, fresh[0])
    buffer.sweep()
    assert list(buffer.pending) == [fresh[1]]
    assert len(buffer.enqueued_at) == 1
    assert (buffer.nbytes, buffer.rows) == (8, 1)


def test_one_slice_that_lives_longer_does_not_keep_those_behind_it() -> None:
    broker, buffer = lane()
    first = broker.slice(1)
    buffer.add(first, 0.0)
    most = 0
    for _ in range(1_000):
        part = broker.slice(1)
        buffer.add(part, 0.0)
        expire(part)
        buffer.sweep()
        most = max(most, len(buffer.pending))
    assert most <= 64
    assert buffer.pending[0] is first
    assert buffer.nbytes == buffer.rows == len(buffer.pending)


def test_settled_slices_are_not_handed_back() -> None:
    broker, buffer = lane()
    parts = [broker.slice(1) for _ in range(3)]
    for part in parts:
        buffer.add(part, 0.0)
    expire(*parts[:2])
    buffer.fail()
    again, _ = buffer.drain_for_retry()
    assert named(again, last=parts[2]) == [["last"]]
    buffer.add(parts[0], 0.0)
    assert buffer.drain_for_retry() == ([], [])


def test_a_backlog_is_handed_back_as_the_same_item_however_many_slices_it_has() -> None:
    """Items put into the buffer before and after join it, in order, and get its level."""
    broker, buffer = lane()
    old, fresh = [broker.slice(1) for _ in range(5)], [broker.slice(1) for _ in range(2)]
    backlog = Backlog(TOPIC, 0, 4, old)
    buffer.add(backlog, 0.0)
    for part in fresh:
        buffer.add(part, 0.0)
    buffer.fail()
    (again,), _ = buffer.drain_for_retry()
    assert isinstance(again, Backlog)
    assert again.slices() == [*old, *fresh]
    assert (again.level, again.count, again.nbytes) == (5, 7, 7)
    assert again.popleft().level == 5


# Settled rows of sealed batches ------------------------------------------------------------------


def numbered(broker: Broker, buffer: PartitionBuffer, count: int) -> list[Batch]:
    """Return batches sealed with sequence numbers of *buffer*, whose outcome is unknown."""
    found = []
    for _ in range(count):
        first = buffer.sequencer.take(1)
        batch = sealed(broker, 1, sequence=first)
        batch.number, batch.producer_id, batch.producer_epoch = buffer.sequencer.sealed, 7, 0
        batch.possibly_persisted = True
        found.append(batch)
    return found


@pytest.mark.parametrize("where", ["failed", "pending"])
@pytest.mark.parametrize(
    ("settled", "kept"),
    [
        ([0], [0, 1, 2]),  # the younger ones need it
        ([1, 2], [0]),
        ([0, 2], [0, 1]),
        ([0, 1, 2], []),
        ([], [0, 1, 2]),
    ],
)
def test_a_settled_batch_goes_again_only_for_a_younger_one(
    where: str, settled: list[int], kept: list[int]
) -> None:
    broker, buffer = lane(idempotent=True)
    batches = numbered(broker, buffer, 3)
    for number in settled:
        expire(*batches[number].parts)
    if where == "failed":
        buffer.fail(*batches)
        again, ambiguous = buffer.drain_for_retry()
        assert ambiguous == []
    else:
        for batch in batches:
            buffer.add(batch, 0.0)
        dropped = buffer.drop_unneeded()
        assert dropped == (len(kept) < 3)
        again = list(buffer.pending)  # type: ignore[arg-type]
        assert len(buffer.enqueued_at) == len(again)
    assert again == [batches[number] for number in kept]
    # The next batch starts a new epoch, because the broker would reject the gap.
    assert buffer.sequencer.stale == (len(kept) < 3)


def test_a_settled_batch_is_needed_by_a_younger_one_that_waits_elsewhere() -> None:
    broker = Broker(idempotent=True)
    old_lane = broker.buffer()
    first, second = numbered(broker, old_lane, 2)
    expire(*first.parts)
    buffer = PartitionBuffer(TOPIC, 0, old_lane.sequencer)
    buffer.add(first, 0.0)  # the second is in the buffer of a lower level
    assert not buffer.drop_unneeded()
    buffer.add(second, 0.0)
    expire(*second.parts)
    assert buffer.drop_unneeded()
    assert not buffer.pending


def test_a_batch_that_was_refused_needs_no_older_one() -> None:
    broker, buffer = lane(idempotent=True)
    first, second = numbered(broker, buffer, 2)
    expire(*first.parts, *second.parts)
    buffer.sequencer.missing(*second.numbered)
    buffer.fail(first)
    assert buffer.drain_for_retry() == ([], [])


# A request that is full anyway --------------------------------------------------------------------


def test_many_buffers_fill_a_request_with_one_batch_each() -> None:
    broker = Broker(batch_size=100)
    buffers = [broker.buffer(number) for number in range(20)]
    for buffer in buffers:
        broker.put(buffer, 60)
    assert broker.batcher.many_fill(20 * 60)
    assert not broker.batcher.many_fill(20 * 60 + 1)
    broker.put(buffers[0], 600)  # only one batch of it fits into a request
    assert broker.batcher.many_fill(19 * 60 + 100)
    assert not broker.batcher.many_fill(19 * 60 + 101)
    for buffer in buffers:
        while buffer.pending:
            broker.seal(buffer)
    assert not broker.batcher.many_fill(1)


def test_few_buffers_do_not_count_as_many() -> None:
    """Then messages that arrive now may be in the next request but one, so they are taken."""
    broker = Broker(batch_size=100)
    for number in range(16):
        broker.put(broker.buffer(number), 100)
    assert not broker.batcher.many_fill(100)

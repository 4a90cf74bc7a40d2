"""What waits in a broker's lanes, what goes into one batch, and when it goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pykaproducer._kernel import Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batching import Batcher
from pykaproducer._machines.lane import Batch, Chaser, Lane
from pykaproducer._machines.sequencing import ProducerId, Sequencer
from tests.kernel.helper import TOPIC, Door, encode, report, split

#: What a batch reserves for a record beside its payload.
RECORD = 16
#: A batch size that nothing in here reaches.
LARGE = 1 << 20

#: A row is known by its chunk's number and its own.
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

    def lane(self, partition: int = 0) -> Lane:
        return Lane(TOPIC, partition, Sequencer(ProducerId(7, 0) if self.idempotent else None))

    def slice(self, *sizes: int, timeout_ms: int | None = None) -> Slice:
        """Messages of these sizes."""
        for size in sizes:
            self.door.send(TOPIC, bytes(size), partition=0, delivery_timeout_ms=timeout_ms)
        return split(self.door.chunk(), 1)[0]

    def put(self, lane: Lane, *sizes: int) -> Slice:
        part = self.slice(*sizes)
        self.batcher.add(lane, part, self.now)
        return part

    def due(self, *, flushing: bool = False) -> list[Lane]:
        return list(self.batcher.due(self.now, flushing=flushing))

    def seal(self, lane: Lane) -> Batch:
        """The next batch of *lane*, unanswered from now on."""
        taken = self.batcher.take(lane)
        batch = taken if isinstance(taken, Batch) else self._sealed(lane, taken)
        lane.unanswered.append(batch)
        self.batcher.look(lane)
        return batch

    def _sealed(self, lane: Lane, parts: list[Slice]) -> Batch:
        count = sum(part.count for part in parts)
        assert count
        first = lane.sequencer.take(count) if self.idempotent else -1
        level = max(part.level for part in parts)
        payload = encode(*parts)
        batch = Batch(TOPIC, lane.partition, payload, parts, count, level, first_sequence=first)
        batch.number = lane.sequencer.sealed
        return batch

    def answer(self, lane: Lane, *, known: bool = True) -> None:
        """The oldest unanswered batch of *lane* is delivered."""
        lane.unanswered.pop(0)
        lane.sequencer.known |= known
        self.batcher.look(lane)

    def drain(self, lane: Lane) -> list[Batch]:
        """Everything in *lane*, in batches, each answered at once."""
        batches = []
        while self.due(flushing=True):
            batches.append(self.seal(lane))
            self.answer(lane)
        return batches


# What goes into a batch -------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 200), min_size=1, max_size=20), min_size=1, max_size=8),
    st.integers(0, 600),
    st.integers(0, 8),
)
def test_batches_hold_every_message_once_in_order_and_are_as_full_as_they_may_be(
    slices: list[list[int]], batch_size: int, batch_messages: int
) -> None:
    broker = Broker(batch_size=batch_size, batch_messages=batch_messages)
    lane = broker.lane()
    sent = list(itertools.chain.from_iterable(rows_of(broker.put(lane, *s)) for s in slices))
    cost = dict(zip(sent, (size + RECORD for s in slices for size in s), strict=True))

    batches = [rows_of(*batch.parts) for batch in broker.drain(lane)]

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
        (100, 0, [10, 900, 10, 10], [1, 1, 2]),  # one that is too large is a batch of its own
    ],
)
def test_batches_by_size_and_by_messages(
    batch_size: int, batch_messages: int, sizes: list[int], expected: list[int]
) -> None:
    broker = Broker(batch_size=batch_size, batch_messages=batch_messages)
    lane = broker.lane()
    broker.put(lane, *sizes)
    assert [batch.count for batch in broker.drain(lane)] == expected


def test_a_sealed_batch_keeps_its_place_and_goes_alone() -> None:
    broker = Broker()
    lane = broker.lane()
    broker.put(lane, 1)
    again = broker.seal(lane)
    broker.answer(lane)
    before = broker.put(lane, 1)
    broker.batcher.add(lane, again, broker.now)
    after = broker.put(lane, 1)
    expected = [rows_of(before), rows_of(*again.parts), rows_of(after)]
    batches = broker.drain(lane)
    assert batches[1] is again
    assert [rows_of(*batch.parts) for batch in batches] == expected


def test_a_batch_that_was_put_back_goes_first() -> None:
    broker = Broker()
    lane = broker.lane()
    broker.put(lane, 1)
    sealed = broker.seal(lane)
    broker.put(lane, 1)
    lane.put_back(sealed)
    broker.batcher.look(lane)
    assert broker.drain(lane)[0] is sealed


def test_what_has_expired_is_left_out() -> None:
    broker = Broker()
    lane = broker.lane()
    late, alive = broker.slice(10, 10, timeout_ms=50), broker.slice(10)
    for part in (late, alive):
        broker.batcher.add(lane, part, broker.now)
    expected = rows_of(alive)
    assert report(late.chunk.whole().fail(LookupError(), LookupError()))
    (batch,) = broker.drain(lane)
    assert rows_of(*batch.parts) == expected


def test_where_everything_has_expired_there_is_no_batch() -> None:
    broker = Broker(linger=5.0, batch_size=20)
    lane = broker.lane()
    part = broker.put(lane, 10, 10)
    report(part.chunk.whole().fail(LookupError(), LookupError()))
    assert broker.due() == [lane]
    assert broker.batcher.take(lane) == []
    broker.batcher.look(lane)
    assert not broker.batcher.waiting
    assert broker.batcher.next_due() is None
    # Its bytes do not fill the next batch.
    broker.put(lane, 10)
    assert broker.due() == []
    assert broker.batcher.holds_little(10)


# When it goes -----------------------------------------------------------------------------------


def test_a_message_lingers_and_no_longer() -> None:
    broker = Broker(linger=5.0)
    lane = broker.lane()
    broker.put(lane, 10)
    assert broker.batcher.next_due() == broker.now + 5
    broker.door.clock.jump(4)
    broker.put(lane, 10)  # who comes later does not make the first one wait longer
    assert broker.due() == []
    broker.door.clock.jump(1)
    assert broker.due() == [lane]
    assert broker.seal(lane).count == 2


def test_without_linger_it_is_due_at_once() -> None:
    broker = Broker()
    lane = broker.lane()
    assert broker.due() == []
    broker.put(lane, 10)
    assert broker.due() == [lane]


def test_a_flush_does_not_linger() -> None:
    broker = Broker(linger=5.0)
    assert broker.due(flushing=True) == []
    lane = broker.lane()
    broker.put(lane, 10)
    assert broker.due() == []
    assert broker.due(flushing=True) == [lane]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [({"batch_size": 100}, [49, 50, 1]), ({"batch_messages": 3}, [1, 1, 1])],
    ids=["bytes", "messages"],
)
def test_a_full_batch_does_not_linger(limits: dict[str, int], sizes: list[int]) -> None:
    broker = Broker(linger=5.0, **limits)
    lane = broker.lane()
    for size in sizes[:-1]:
        broker.put(lane, size)
        assert broker.due() == []
    broker.put(lane, sizes[-1])
    assert broker.batcher.next_due() == 0
    assert broker.due() == [lane]


def test_what_is_left_behind_a_full_batch_lingers() -> None:
    broker = Broker(linger=5.0, batch_messages=3)
    lane = broker.lane()
    broker.put(lane, *[1] * 8)
    assert [broker.due() and broker.seal(lane).count for _ in range(2)] == [3, 3]
    assert broker.due() == []
    assert broker.batcher.next_due() == broker.now + 5


def retried(broker: Broker) -> Slice:
    part = broker.slice(1)
    part.level = 1
    return part


def sealed_before(broker: Broker) -> Batch:
    lane = broker.lane()
    broker.put(lane, 1)
    return broker.seal(lane)


@pytest.mark.parametrize("make", [retried, sealed_before])
def test_what_comes_round_again_does_not_linger(make: Callable[[Broker], Any]) -> None:
    broker = Broker(linger=5.0)
    lane = broker.lane()
    broker.batcher.add(lane, make(broker), broker.now)
    assert broker.due() == [lane]


def test_all_that_may_go_goes_when_one_is_due() -> None:
    broker = Broker(linger=5.0, batch_messages=2, sealed_limit=1)
    full, lingering, unanswered, empty = (broker.lane(partition) for partition in range(4))
    broker.put(unanswered, 1)
    broker.seal(unanswered)
    for lane in (unanswered, lingering):
        broker.put(lane, 1)
    assert broker.due() == []
    broker.put(full, 1, 1)
    assert set(broker.due()) == {full, lingering}
    assert empty not in broker.due(flushing=True)


def test_a_lane_that_has_failed_is_not_due() -> None:
    broker = Broker()
    lane = broker.lane()
    broker.put(lane, 1)
    lane.fail()
    broker.batcher.look(lane)
    assert not broker.batcher.waiting
    assert broker.due(flushing=True) == []
    assert broker.batcher.next_due() is None


# Whose turn it is ---------------------------------------------------------------------------


def test_lanes_take_turns() -> None:
    """Requests have room for two lanes; each of five that always have messages gets its turn."""
    broker = Broker(batch_messages=1)
    lanes = [broker.lane(partition) for partition in range(5)]
    for lane in lanes:
        broker.put(lane, *[1] * 10)
    turns: list[int] = []
    for _ in range(5):
        for lane in itertools.islice(broker.batcher.due(broker.now, flushing=False), 2):
            broker.seal(lane)
            broker.answer(lane)
            turns.append(lane.partition)
    assert turns == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_who_comes_later_gets_its_turn_beside_busy_lanes() -> None:
    broker = Broker(batch_messages=1)
    busy = [broker.lane(partition) for partition in range(3)]
    for lane in busy:
        broker.put(lane, *[1] * 10)
    quiet = broker.lane(3)
    broker.put(quiet, 1)
    turns: list[Lane] = []
    while quiet not in turns:
        (lane,) = itertools.islice(broker.batcher.due(broker.now, flushing=False), 1)
        broker.seal(lane)
        broker.answer(lane)
        turns.append(lane)
    assert len(turns) == 4


def test_a_request_asks_each_lane_once() -> None:
    broker = Broker(batch_messages=1)
    lanes = [broker.lane(partition) for partition in range(3)]
    for lane in lanes:
        broker.put(lane, 1, 1)
    asked = []
    for lane in broker.batcher.due(broker.now, flushing=False):
        asked.append(lane)
        if lane is lanes[0]:  # the last one has nothing to send any more
            lanes[2].fail()
            broker.batcher.look(lanes[2])
        broker.seal(lane)
    assert asked == lanes[:2]


def test_what_did_not_fit_comes_first_in_the_next_request() -> None:
    broker = Broker(batch_messages=1)
    lanes = [broker.lane(partition) for partition in range(4)]
    for lane in lanes:
        broker.put(lane, 1, 1)
    first, second = itertools.islice(broker.batcher.due(broker.now, flushing=False), 2)
    batch = broker.seal(second)
    batch.lane = second
    broker.batcher.put_back(batch)
    assert broker.due() == [second, lanes[2], lanes[3], first]
    assert broker.seal(second) is batch
    # The same for one that was not even sealed.
    broker.batcher.stays_first(lanes[3])
    assert broker.due()[0] is lanes[3]


def test_how_large_the_next_batch_will_be() -> None:
    broker = Broker(batch_size=110)
    lane, large = broker.lane(0), broker.lane(1)
    broker.put(lane, 30, 40)
    assert broker.batcher.size_of_next(lane) == 70
    broker.put(large, 30, 40, 50)
    assert broker.batcher.size_of_next(large) == 110
    again = broker.seal(lane)
    broker.answer(lane)
    assert not lane.pending
    broker.batcher.add(lane, again, broker.now)
    assert broker.batcher.size_of_next(lane) == len(again.payload)


# How many may be unanswered ---------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("idempotent", [False, True])
def test_no_more_batches_than_allowed_are_unanswered(limit: int, idempotent: bool) -> None:
    broker = Broker(batch_messages=1, sealed_limit=limit, idempotent=idempotent)
    lane = broker.lane()
    lane.sequencer.known = True
    broker.put(lane, *[1] * (limit + 2))
    for _ in range(limit):
        assert broker.due() == [lane]
        broker.seal(lane)
    assert broker.due(flushing=True) == []
    assert broker.batcher.next_due() is None
    broker.answer(lane)
    assert broker.due() == [lane]
    broker.seal(lane)
    assert broker.due() == []


def test_the_broker_still_remembers_the_oldest_unanswered_batch() -> None:
    """Batch 1 fails each time, and what is behind it is appended: a broker knows its last 5."""
    broker = Broker(batch_messages=1, sealed_limit=2, idempotent=True)
    lane = broker.lane()
    lane.sequencer.known = True
    broker.put(lane, *[1] * 10)
    sent: list[int] = []
    for _ in range(10):
        while broker.due(flushing=True):
            sent.append(broker.seal(lane).number)
        oldest, *others = lane.unanswered
        for _ in others:
            lane.answered(lane.unanswered[1])  # delivered
        lane.answered(oldest)
        # It goes round, with all that is behind it.
        lane.fail(oldest)
        again, doubtful = lane.hand_back()
        assert not doubtful
        lane = Lane(TOPIC, 0, lane.sequencer)
        for item in again:
            assert not isinstance(item, Chaser)
            broker.batcher.add(lane, item, broker.now)
    assert sorted({*sent}) == [1, 2, 3, 4, 5]
    while broker.due(flushing=True):
        broker.seal(lane)
    # As soon as it is delivered the others go on.
    broker.answer(lane)
    while broker.due(flushing=True):
        sent.append(broker.seal(lane).number)
    assert max(sent) == 7


def test_one_batch_is_unanswered_until_a_broker_knows_the_producer() -> None:
    broker = Broker(batch_messages=1, idempotent=True)
    lane = broker.lane()
    broker.put(lane, *[1] * 6)
    broker.seal(lane)
    assert broker.due(flushing=True) == []
    broker.answer(lane, known=False)  # it failed for good: still nothing is known
    broker.seal(lane)
    assert broker.due(flushing=True) == []
    broker.answer(lane)
    for _ in range(4):
        assert broker.due() == [lane]
        broker.seal(lane)
    assert len(lane.unanswered) == 4


def test_a_new_epoch_waits_for_the_answers_of_the_old_one() -> None:
    broker = Broker(batch_messages=1, idempotent=True)
    lane = broker.lane()
    lane.sequencer.known = True
    again = sealed(broker, 1, sequence=5)
    broker.put(lane, 1)
    broker.seal(lane)
    lane.sequencer.spoil()
    # One that has its numbers goes on ...
    broker.batcher.add(lane, again, broker.now)
    broker.put(lane, 1)
    assert broker.due() == [lane]
    assert broker.seal(lane) is again
    # ... the one that needs new ones does not, until nothing is unanswered.
    assert broker.due(flushing=True) == []
    broker.answer(lane)
    assert broker.due(flushing=True) == []
    broker.answer(lane)
    assert broker.due() == [lane]


def test_a_lane_that_waits_for_a_producer_id_is_not_due() -> None:
    broker = Broker(idempotent=True)
    waiting, other = broker.lane(0), broker.lane(1)
    waiting.waits_for_id = True
    for lane in (waiting, other):
        broker.put(lane, 1)
    assert broker.due(flushing=True) == [other]
    assert broker.batcher.waiting
    waiting.waits_for_id = False
    broker.batcher.look(waiting)
    assert set(broker.due()) == {waiting, other}


def test_one_partition_that_waits_for_an_answer_does_not_hold_another() -> None:
    broker = Broker(batch_messages=1, sealed_limit=1)
    waiting, free = broker.lane(0), broker.lane(1)
    broker.put(waiting, 1, 1)
    broker.seal(waiting)
    broker.put(free, 1)
    assert broker.due() == [free]


# How much is pending ----------------------------------------------------------------------------


def test_little_is_pending_until_it_is_much() -> None:
    broker = Broker(linger=5.0)
    assert broker.batcher.holds_little(0)
    broker.put(broker.lane(), 60)
    broker.put(broker.lane(1), 40)
    assert not broker.batcher.holds_little(99)
    assert broker.batcher.holds_little(100)
    assert broker.batcher.waiting


def test_many_lanes_are_never_little() -> None:
    broker = Broker(linger=5.0)
    for partition in range(100):
        broker.put(broker.lane(partition), 0)
    assert not broker.batcher.holds_little(LARGE)


# A model of it ----------------------------------------------------------------------------------


class Model:
    """What a user may expect of one lane."""

    def __init__(self) -> None:
        #: (when it came, its size)
        self.pending: list[tuple[float, int]] = []
        #: When ``pending`` has last ceased to be empty.
        self.since = 0.0
        self.unanswered = 0
        self.known = False


class Batching(RuleBasedStateMachine):
    """Three lanes, filled, sealed and answered in any order."""

    lanes = st.integers(0, 2)

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
        self.lane = [self.broker.lane(partition) for partition in range(3)]
        self.model = [Model() for _ in self.lane]

    @rule(which=lanes, sizes=st.lists(st.integers(0, 90), min_size=1, max_size=4))
    def put(self, which: int, sizes: list[int]) -> None:
        model, now = self.model[which], self.broker.now
        if not model.pending:
            model.since = now
        model.pending += [(now, size) for size in sizes]
        self.broker.put(self.lane[which], *sizes)

    @rule(seconds=st.integers(1, 12))
    def jump(self, seconds: int) -> None:
        self.broker.door.clock.jump(seconds)

    @rule(flushing=st.booleans())
    def send(self, flushing: bool) -> None:
        for lane in self.broker.due(flushing=flushing):
            batch = self.broker.seal(lane)
            model = self.model[self.lane.index(lane)]
            del model.pending[: batch.count]
            model.unanswered += 1

    @rule(which=lanes)
    def answer(self, which: int) -> None:
        if self.model[which].unanswered:
            self.broker.answer(self.lane[which])
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
        assert batcher.waiting == any(model.pending for model in self.model)
        assert (due is None) == (not open_)
        if due is not None:
            if any(self.is_full(model) for model in open_):
                assert due == 0
            else:
                assert min(model.since for model in open_) + 10 <= due
                assert due <= min(model.pending[0][0] for model in open_) + 10
        everyone = {self.lane[self.model.index(model)] for model in open_}
        assert set(batcher.due(now, flushing=True)) == everyone
        goes = due is not None and due <= now
        assert set(batcher.due(now, flushing=False)) == (everyone if goes else set())


TestModel = Batching.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


# A batch that goes round again ------------------------------------------------------------------


def sealed(broker: Broker, *sizes: int, level: int = 0, sequence: int = -1) -> Batch:
    """A batch of messages of these sizes."""
    lane = broker.lane()
    broker.put(lane, *sizes)
    batch = broker.seal(lane)
    batch.level = level
    batch.first_sequence = sequence
    return batch


@pytest.mark.parametrize(("sequence", "expected"), [(-1, False), (0, True), (2**31 - 1, True)])
def test_a_batch_with_a_sequence_number_is_sequenced(sequence: int, expected: bool) -> None:
    assert sealed(Broker(), 1, sequence=sequence).sequenced is expected


def test_an_unsealed_batch_leaves_slices_that_remember_their_attempts() -> None:
    broker = Broker()
    handle = broker.door.send(TOPIC, b"value", partition=0)
    lane = broker.lane()
    broker.batcher.add(lane, split(broker.door.chunk(), 1)[0], broker.now)
    batch = broker.seal(lane)
    batch.level, batch.retries_used = 3, 2
    assert handle.possibly_persisted()
    (part,) = batch.unseal()
    assert (part.level, part.retries_used, part.most) == (3, 2, 0)
    assert not handle.possibly_persisted()


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_a_split_batch_goes_in_halves_until_single_messages_are_left(slices: list[int]) -> None:
    broker = Broker()
    lane = broker.lane()
    sent = list(itertools.chain.from_iterable(rows_of(broker.put(lane, *[1] * n)) for n in slices))
    batches = broker.drain(lane)
    largest = len(sent)
    while largest > 1:
        for batch in batches:
            batch.split()
            for part in batch.unseal():
                broker.batcher.add(lane, part, broker.now)
        batches = broker.drain(lane)
        assert list(itertools.chain.from_iterable(rows_of(*b.parts) for b in batches)) == sent
        assert max(batch.count for batch in batches) <= largest // 2
        largest //= 2


def test_what_was_split_goes_alone() -> None:
    broker = Broker()
    lane = broker.lane()
    broker.put(lane, 1, 1)
    batch = sealed(broker, *[1] * 4)
    batch.split()
    for part in batch.unseal():
        broker.batcher.add(lane, part, broker.now)
    broker.put(lane, 1)
    assert [batch.count for batch in broker.drain(lane)] == [2, 2, 2, 1]


def test_a_batch_is_due_with_its_oldest_living_row() -> None:
    broker = Broker()
    lane = broker.lane()
    for timeout in (300, 100, 200):
        broker.batcher.add(lane, broker.slice(1, timeout_ms=timeout), broker.now)
    batch = broker.seal(lane)
    for part, deadline in zip((batch.parts[i] for i in (1, 2, 0)), (0.1, 0.2, 0.3), strict=True):
        assert batch.next_deadline() == pytest.approx(broker.now + deadline)
        part.fail(LookupError(), LookupError())
    assert batch.next_deadline() is None


# A lane that has failed -------------------------------------------------------------------------


def named(items: Sequence[object], **names: object) -> list[str | list[str]]:
    """The names of *items*; those of the slices of a backlog as a list."""

    def name(item: object) -> str:
        return next(name for name, known in names.items() if known is item)

    return [
        [name(part) for part in item.slices()] if isinstance(item, Backlog) else name(item)
        for item in items
    ]


def travelling(items: Sequence[object]) -> list[Slice]:
    """The slices of the backlogs among *items*, as a lane takes them out."""
    backlogs = [item for item in items if isinstance(item, Backlog)]
    return [backlog.popleft() for backlog in backlogs for _ in range(len(backlog))]


def test_a_lane_that_works_hands_nothing_back() -> None:
    broker = Broker()
    lane = broker.lane()
    lane.add(broker.slice(1), 0.0)
    assert lane.hand_back() == ([], [])
    assert len(lane.pending) == 1


def test_a_lane_hands_back_everything_oldest_first_and_the_chaser_last() -> None:
    broker = Broker()
    lane = broker.lane()
    old, young = sealed(broker, 1, sequence=0), sealed(broker, 1, sequence=1)
    fresh = broker.slice(1)
    lane.add(fresh, 0.0)
    lane.fail(old)
    lane.fail(young)
    chaser = lane.chaser = Chaser(TOPIC, 0, 1)
    after = broker.slice(1)
    lane.add(after, 0.0)
    again, doubtful = lane.hand_back()
    names = {"old": old, "young": young, "fresh": fresh, "after": after, "chaser": chaser}
    assert named(again, **names) == ["old", "young", ["fresh", "after"], "chaser"]
    assert doubtful == []
    assert [item.level for item in again[:-1]] == [1, 1, 1]
    # What comes later goes back alone: the chaser is on its way.
    later = broker.slice(1)
    lane.add(later, 0.0)
    again, doubtful = lane.hand_back()
    assert named(again, later=later) == [["later"]]
    assert doubtful == []
    assert (lane.nbytes, lane.rows) == (0, 0)


def test_a_lane_hands_back_nothing_while_a_batch_is_unanswered() -> None:
    broker = Broker()
    lane = broker.lane()
    unanswered, fresh = sealed(broker, 1, sequence=0), broker.slice(1)
    lane.unanswered.append(unanswered)
    lane.add(fresh, 0.0)
    lane.chaser = Chaser(TOPIC, 0, 1)
    lane.fail()
    assert lane.hand_back() == ([], [])
    lane.unanswered.remove(unanswered)
    lane.fail(unanswered)
    again, _ = lane.hand_back()
    assert named(again[:2], unanswered=unanswered, fresh=fresh) == ["unanswered", ["fresh"]]


def test_a_batch_without_sequence_numbers_goes_back_unsealed() -> None:
    broker = Broker()
    lane = broker.lane()
    batch = sealed(broker, 1, 1, level=2)
    batch.retries_used = 1
    expected = rows_of(*batch.parts)
    lane.fail(batch)
    again, _ = lane.hand_back()
    assert len(again) == 1
    parts = travelling(again)
    assert rows_of(*parts) == expected
    assert {(part.level, part.retries_used) for part in parts} == {(3, 1)}


def test_numbers_behind_a_batch_that_is_missing_are_void() -> None:
    """What may be in the log under them fails; the rest is sealed anew."""
    broker = Broker(idempotent=True)
    lane = broker.lane()
    before, doubted, certain, pending = (sealed(broker, 1, sequence=n) for n in range(4))
    before.possibly_persisted = doubted.possibly_persisted = True
    expected = rows_of(*certain.parts, *pending.parts)
    lane.fail(before)
    lane.spoil()  # the batch answered now is missing
    for batch in (doubted, certain):
        lane.fail(batch)
    lane.spoil()
    lane.add(pending, 0.0)
    again, doubtful = lane.hand_back()
    assert doubtful == [doubted]
    assert again[0] is before  # its numbers stand: the broker may know it by them
    parts = travelling(again[1:])
    assert rows_of(*parts) == expected
    assert {item.level for item in again if not isinstance(item, Chaser)} == {1}
    assert lane.sequencer.stale
    # What was handed back is done with: from now on nothing is void.
    batches = [sealed(broker, 1, sequence=n) for n in range(3)]
    for batch in batches:
        lane.fail(batch)
    assert lane.hand_back() == (batches, [])


# Records that the broker has refused -------------------------------------------------------------


def test_refused_records_are_one_slice_for_each_text_and_chunk() -> None:
    """Ten thousand refused records must not cost ten thousand looks at each record."""
    broker = Broker()
    first, second = broker.slice(*[1] * 6), broker.slice(*[1] * 4)
    lane = broker.lane()
    for part in (first, second):
        broker.batcher.add(lane, part, broker.now)
    batch = broker.seal(lane)
    rows = rows_of(*batch.parts)
    texts = {1: "no key", 2: None, 4: "no key", 5: "no key", 7: "no key", 9: None}
    found = batch.refused(texts)
    assert {text: len(parts) for text, parts in found.items()} == {"no key": 2, None: 2}
    for text, parts in found.items():
        expected = [rows[number] for number, known in texts.items() if known == text]
        assert rows_of(*parts) == expected
        assert {part.partition for part in parts} == {0}


# What has its outcome leaves ---------------------------------------------------------------------


def expire(*parts: Slice) -> None:
    for part in parts:
        report(part.fail(LookupError(), LookupError()))


def test_a_sweep_takes_settled_slices_out_of_a_lane() -> None:
    broker = Broker()
    lane = broker.lane()
    travels = Backlog(TOPIC, 0, 3, [broker.slice(1), broker.slice(2)])
    old = travels.slices()
    lane.add(travels, 0.0)
    fresh = [broker.slice(4), broker.slice(8)]
    for part in fresh:
        lane.add(part, 0.0)
    assert (lane.nbytes, lane.rows) == (15, 4)
    expire(*old, fresh[0])
    lane.sweep()
    assert list(lane.pending) == [fresh[1]]
    assert len(lane.came) == 1
    assert (lane.nbytes, lane.rows) == (8, 1)


def test_one_slice_that_lives_longer_does_not_keep_those_behind_it() -> None:
    broker = Broker()
    lane = broker.lane()
    first = broker.slice(1)
    lane.add(first, 0.0)
    most = 0
    for _ in range(1_000):
        part = broker.slice(1)
        lane.add(part, 0.0)
        expire(part)
        lane.sweep()
        most = max(most, len(lane.pending))
    assert most <= 64
    assert lane.pending[0] is first
    assert lane.nbytes == lane.rows == len(lane.pending)


def test_settled_slices_are_not_handed_back() -> None:
    broker = Broker()
    lane = broker.lane()
    parts = [broker.slice(1) for _ in range(3)]
    for part in parts:
        lane.add(part, 0.0)
    expire(*parts[:2])
    lane.fail()
    again, _ = lane.hand_back()
    assert named(again, last=parts[2]) == [["last"]]
    lane.add(parts[0], 0.0)
    assert lane.hand_back() == ([], [])


def test_a_backlog_is_handed_back_as_the_same_item_however_many_slices_it_has() -> None:
    """What was put into the lane before and after it joins it, in order, and has its level."""
    broker = Broker()
    lane = broker.lane()
    old, fresh = [broker.slice(1) for _ in range(5)], [broker.slice(1) for _ in range(2)]
    backlog = Backlog(TOPIC, 0, 4, old)
    lane.add(backlog, 0.0)
    for part in fresh:
        lane.add(part, 0.0)
    lane.fail()
    (again,), _ = lane.hand_back()
    assert isinstance(again, Backlog)
    assert again.slices() == [*old, *fresh]
    assert (again.level, again.count, again.nbytes) == (5, 7, 7)
    assert again.popleft().level == 5


# Sealed batches that are settled -----------------------------------------------------------------


def numbered(broker: Broker, lane: Lane, count: int) -> list[Batch]:
    """Sealed batches under the numbers of *lane*, of unknown fate."""
    found = []
    for _ in range(count):
        first = lane.sequencer.take(1)
        batch = sealed(broker, 1, sequence=first)
        batch.number, batch.producer_id, batch.producer_epoch = lane.sequencer.sealed, 7, 0
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
    broker = Broker(idempotent=True)
    lane = broker.lane()
    batches = numbered(broker, lane, 3)
    for number in settled:
        expire(*batches[number].parts)
    if where == "failed":
        lane.fail(*batches)
        again, doubtful = lane.hand_back()
        assert doubtful == []
    else:
        for batch in batches:
            lane.add(batch, 0.0)
        dropped = lane.drop_needless()
        assert dropped == (len(kept) < 3)
        again = list(lane.pending)  # type: ignore[arg-type]
        assert len(lane.came) == len(again)
    assert again == [batches[number] for number in kept]
    # The next batch is sealed under a new epoch, as the broker would refuse the gap.
    assert lane.sequencer.stale == (len(kept) < 3)


def test_a_settled_batch_is_needed_by_a_younger_one_that_waits_elsewhere() -> None:
    broker = Broker(idempotent=True)
    old_lane = broker.lane()
    first, second = numbered(broker, old_lane, 2)
    expire(*first.parts)
    lane = Lane(TOPIC, 0, old_lane.sequencer)
    lane.add(first, 0.0)  # the second is in the buffer of a lower level
    assert not lane.drop_needless()
    lane.add(second, 0.0)
    expire(*second.parts)
    assert lane.drop_needless()
    assert not lane.pending


def test_a_batch_that_was_refused_needs_no_older_one() -> None:
    broker = Broker(idempotent=True)
    lane = broker.lane()
    first, second = numbered(broker, lane, 2)
    expire(*first.parts, *second.parts)
    lane.sequencer.missing(*second.numbered)
    lane.fail(first)
    assert lane.hand_back() == ([], [])

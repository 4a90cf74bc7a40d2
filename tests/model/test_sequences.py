"""Sequences of events that the search has found or may miss."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from unittest import mock

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.ordering import Effect, Ordering, Transition, Transitions
from pykaproducer._machines.sequencing import Sequencer
from pykaproducer._util.randomness import system_random
from pykaproducer.errors import Status

from .cluster import Fate, Kind
from .stages import ModelPipeline
from .world import CALM, WELL, World


@contextlib.contextmanager
def a_world(
    *,
    idempotent: bool,
    pipeline_type: type[ModelPipeline] = ModelPipeline,
    sequencer: type[Sequencer] = Sequencer,
) -> Iterator[World]:
    """Yield a world with one partition, in which message 0 is delivered."""
    world = World()
    world.replaced = {"Sequencer": sequencer}
    world.idempotent = idempotent
    world.pipeline_type = pipeline_type
    world.begin([0], Transitions(), batch_max_messages=1)
    with world.patches:
        world.user_sends(0, 1, 2 * CALM)
        world.calm_down()
        yield world


class TrustfulSequencer(Sequencer):
    """Treats every broker as one that knows the producer."""

    def __init__(self) -> None:
        super().__init__(known=True)

    def renew(self) -> bool:
        renewed = super().renew()
        self.known = True
        return renewed


@pytest.mark.parametrize("sequencer", [Sequencer, TrustfulSequencer])
def test_to_a_broker_that_may_not_know_the_producer_one_batch_is_sent(
    sequencer: type[Sequencer],
) -> None:
    """An unknown producer has only one batch in flight.

    1. Batches 0 and 1 are in flight, the producer's first. 0 is rejected.
    2. 1 is appended: an unknown producer may begin with any number.
    3. 0 is retried, and can never be appended before 1.

    The second run removes the rule that only one batch is in flight in this state.
    """
    world = World()
    world.replaced = {"Sequencer": sequencer}
    world.begin([0], Transitions(), batch_max_messages=1)
    refused = Fate(Kind.REFUSE, ErrorCode.NOT_ENOUGH_REPLICAS)
    with world.patches:
        world.user_sends(0, 2, 2 * CALM)
        world.go_on(itertools.chain([refused], itertools.repeat(WELL)), 8, wait=True)
        delivered = [message.offset for message in world.messages] == [0, 1]
        assert delivered == (sequencer is Sequencer)


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_a_leader_that_resigns_may_have_appended(code: int, idempotent: bool) -> None:
    """A batch whose leader resigns is ambiguous.

    1. The leader appends a batch and waits for its replicas (``acks=all``).
    2. They fetch it. The leader loses the leadership, the partition or its disk, and answers with
       that error (Kafka's DelayedProduce, cases A and B).
    3. The batch is retried and finally rejected. It is in the log.
    """
    refused = Fate(Kind.REFUSE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with a_world(idempotent=idempotent) as world:
        world.user_sends(0, 1, 2 * CALM)
        resigned = Fate(Kind.TAKE_AND_COMPLAIN, code)
        world.go_on(itertools.chain([resigned], itertools.repeat(refused)), 8, wait=True)
        assert world.cluster.logs[0].records == [0, 1]
        assert world.messages[1].status is Status.POSSIBLY_PERSISTED


class Hasty(Ordering):
    """Descends although a lower level still expects its chaser."""

    def chaser(self, level: int) -> list[Effect]:
        effects = super().chaser(level)
        while self.high_watermark:
            effects += super().chaser(self.high_watermark)
        return effects


@pytest.mark.parametrize("ordering_type", [Ordering, Hasty])
def test_a_lower_level_waits_for_its_own_chaser(ordering_type: type[Ordering]) -> None:
    """A level is released only after its own chaser is back.

    1. Broker 0, the old leader, has rejected message 1 and holds 2; then its stage is slow.
    2. 1 is retried: level 1. Its chaser waits in the slow stage, after 2. 3 is buffered at level 0.
    3. Broker 1 rejects 1 as well: level 2. This chaser is back at once.
    4. 3 stays buffered until the first chaser is back, and 2 before it.

    The second run removes the last rule.
    """

    class Pipeline(ModelPipeline):
        ordering = ordering_type

    refused = Fate(Kind.REFUSE, ErrorCode.NOT_ENOUGH_REPLICAS)
    with a_world(idempotent=True, pipeline_type=Pipeline) as world:
        (old,) = world.pipeline.brokers.all()
        world.user_sends(0, 1, 2 * CALM)
        world.run_all()
        world.cluster.move(0, 1, cut=False)
        world.cluster.published = list(world.cluster.leaders)
        world.serve(itertools.repeat(WELL))
        world.schedule.held_up.add(old)
        world.user_sends(0, 1, 2 * CALM)
        world.run_all()
        world.schedule.run(old, 1)
        world.run_all()
        # The new leader is known before 1 is retried.
        world.clock.jump(0.2)
        world.schedule.run(world.metadata, 1)
        world.metadata.answered(world.cluster)
        world.run_all()
        while not world.pipeline.taken[Transition.RISE]:
            assert world.jump_to_next(2)
            world.run_all()
        world.user_sends(0, 1, 2 * CALM)
        world.go_on(itertools.chain([refused], itertools.repeat(WELL)), 8, wait=True)
        world.calm_down()
        assert world.pipeline.taken[Transition.DESCEND_TO_WAIT]
        in_order = world.cluster.logs[0].records == [0, 1, 2, 3]
        assert in_order == (ordering_type is Ordering)


def test_a_broker_that_has_forgotten_the_producer_gets_the_order_right() -> None:
    """The order is preserved on a broker that has forgotten the producer.

    1. Nothing is sent for a day, and the broker forgets the producer.
    2. Batches 1 and 2 are in flight. 1 is rejected: replicas are missing for a moment.
    3. 2 is appended: an unknown producer may begin with any number.
    4. 1 is retried, and is out of order with nothing older in flight.
    """
    refused = Fate(Kind.REFUSE, ErrorCode.NOT_ENOUGH_REPLICAS)
    with a_world(idempotent=True) as world:
        world.cluster.logs[0].forget_producers(strict=False)
        world.user_sends(0, 2, 2 * CALM)
        world.go_on(itertools.chain([refused], itertools.repeat(WELL)), 8, wait=True)
        world.check_the_end()


def test_numbers_are_void_wherever_a_batch_waits() -> None:
    """Invalid sequence numbers are recognised wherever a batch waits.

    1. Batches 1 and 2 have been sealed and are retried: there is another leader.
    2. 1 has a higher retry level than 2. The new leader rejects its numbers; it is sealed again
       under
       a new epoch, while 2 waits in the buffer of a lower level with its old one.
    3. 2 is rejected for its epoch. 3, sealed after it under the new one, is not.
    """
    with (
        a_world(idempotent=True) as world,
        mock.patch.object(system_random, "random", return_value=0.5),
    ):
        world.cluster.logs[0].forget_producers(strict=True)
        world.cluster.move(0, 2, cut=False)
        for rounds, wait in ((2, True), (1, False), (1, False)):
            world.user_sends(0, 1, 2 * CALM)
            world.go_on(itertools.repeat(WELL), rounds, wait=wait)
        world.check_the_end()
        assert world.cluster.logs[0].records == [0, 1, 2, 3, 4, 5]


class HastySequencer(Sequencer):
    """Drops a batch whose rows have all expired although a younger one needs it."""

    def is_needed(self, number: int, producer_id: int, epoch: int) -> bool:
        return False


@pytest.mark.parametrize("sequencer", [Sequencer, HastySequencer])
def test_what_has_expired_is_written_if_a_younger_batch_needs_it(
    sequencer: type[Sequencer],
) -> None:
    """An expired batch is retried if a younger batch needs its sequence numbers.

    1. Batches 1 and 2 have been written, and the connection is lost: their outcome is unknown.
    2. The message in 1 expires before the broker is back.
    3. 1 is retried all the same: the broker would reject 2 after the gap.

    The second run removes that rule: 2 then fails, as it may be in the log under invalid numbers.
    """
    with a_world(idempotent=True, sequencer=sequencer) as world:
        for seconds in (2.0, 2 * CALM):
            world.user_sends(0, 1, seconds)
            world.run_all()
        (bridge,) = world.bridges("ready")
        assert len(bridge.wire) == 2
        bridge.cut(2, 0, world.cluster)
        world.run_all()
        world.clock.jump(3.0)
        world.calm_down()
        assert world.messages[1].status is Status.POSSIBLY_PERSISTED
        if sequencer is Sequencer:
            assert world.cluster.logs[0].records == [0, 1, 2]
        else:
            assert world.messages[2].status is Status.POSSIBLY_PERSISTED


@pytest.mark.parametrize("written", [0, 1])
def test_what_has_expired_is_not_written_if_nothing_needs_it(written: int) -> None:
    """An expired batch is dropped if no other needs it.

    1. A batch has been sealed, and the connection is lost.
    2. Its message expires, and is reported as failed.
    3. The broker is back: the next message is sent under a new epoch.
    """
    with a_world(idempotent=True) as world:
        world.user_sends(0, 1, 2.0)
        world.run_all()
        (bridge,) = world.bridges("ready")
        late = bridge.cut(written, 0, world.cluster)
        world.run_all()
        world.clock.jump(3.0)
        world.calm_down()
        world.user_sends(0, 1, 2 * CALM)
        world.calm_down()
        assert world.cluster.logs[0].records == [0, 2]
        assert [logged.batch.epoch for logged in world.cluster.logs[0]._batches] == [0, 1]
        # An attempt that arrives late is rejected for its old epoch.
        world.late = [(0, late)] if late else []
        world.check_the_end()
        assert 1 not in world.cluster.logs[0].records

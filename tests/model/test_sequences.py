"""Sequences of events that the search has found, or may miss."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from unittest import mock

import pytest

from pykaproducer._machines.ordering import Transitions
from pykaproducer._machines.sequencing import Sequencer
from pykaproducer._wire.error_codes import ErrorCode
from pykaproducer.errors import Status

from .cluster import Fate, Kind
from .world import CALM, WELL, World


@contextlib.contextmanager
def a_world(*, idempotent: bool) -> Iterator[World]:
    """One partition, message 0 delivered."""
    world = World()
    world.idempotent = idempotent
    world.begin([0], Transitions(), batch_max_messages=1)
    with world.patches:
        world.user_sends(0, 1, 2 * CALM)
        world.calm_down()
        yield world


class TrustfulSequencer(Sequencer):
    """Takes every broker for one that knows the producer."""

    @property
    def known(self) -> bool:
        return True

    @known.setter
    def known(self, value: bool) -> None:
        pass


@pytest.mark.parametrize("sequencer", [Sequencer, TrustfulSequencer])
def test_to_a_broker_that_may_not_know_the_producer_one_batch_is_sent(
    sequencer: type[Sequencer],
) -> None:
    """1. Batches 0 and 1 are under way, the producer's first. 0 is refused.
    2. 1 is appended: a producer that is not known may begin with any number.
    3. 0 goes again, and can never be appended before 1.

    The second run takes away the rule that only one is under way then.
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
    """1. The leader appends a batch, and waits for its replicas (``acks=all``).
    2. They fetch it. The leader finds that it does not lead any more, or has lost the partition
       or its disk, and answers so (Kafka's DelayedProduce, cases A and B).
    3. The batch goes again, and is refused for good. It is in the log.
    """
    refused = Fate(Kind.REFUSE, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with a_world(idempotent=idempotent) as world:
        world.user_sends(0, 1, 2 * CALM)
        resigned = Fate(Kind.TAKE_AND_COMPLAIN, code)
        world.go_on(itertools.chain([resigned], itertools.repeat(refused)), 8, wait=True)
        assert world.cluster.logs[0].records == [0, 1]
        assert world.messages[1].status is Status.POSSIBLY_PERSISTED


def test_a_broker_that_has_forgotten_the_producer_gets_the_order_right() -> None:
    """1. Nothing is sent for a day, and the broker forgets the producer.
    2. Batches 1 and 2 are under way. 1 is refused: replicas are missing for a moment.
    3. 2 is appended: a producer that is not known may begin with any number.
    4. 1 goes again, and is out of order with nothing older under way.
    """
    refused = Fate(Kind.REFUSE, ErrorCode.NOT_ENOUGH_REPLICAS)
    with a_world(idempotent=True) as world:
        world.cluster.logs[0].forget_producers(strict=False)
        world.user_sends(0, 2, 2 * CALM)
        world.go_on(itertools.chain([refused], itertools.repeat(WELL)), 8, wait=True)
        world.check_the_end()


def test_numbers_are_void_wherever_a_batch_waits() -> None:
    """1. Batches 1 and 2 have been sealed, and go round: the leader is elsewhere.
    2. 1 is further round than 2. The new leader refuses its numbers; it is sealed anew, under a
       new epoch, while 2 waits in the buffer of a lower level with its old one.
    3. 2 is refused for its epoch. 3, sealed behind it under the new one, is not.
    """
    with a_world(idempotent=True) as world, mock.patch("random.random", return_value=0.5):
        world.cluster.logs[0].forget_producers(strict=True)
        world.cluster.move(0, 2, cut=False)
        for rounds, wait in ((2, True), (1, False), (1, False)):
            world.user_sends(0, 1, 2 * CALM)
            world.go_on(itertools.repeat(WELL), rounds, wait=wait)
        world.check_the_end()
        assert world.cluster.logs[0].records == [0, 1, 2, 3, 4, 5]

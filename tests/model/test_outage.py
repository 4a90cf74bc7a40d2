"""An hour of outage: memory and work depend on the number of live messages, not on its length."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.ordering import Transitions
from pykaproducer._pipeline.broker_events import Enqueue, EnqueueNew
from pykaproducer._pipeline.retry import RetryItems
from pykaproducer.errors import DeliveryTimeoutError
from tests._support.pairs import partly
from tests.kernel.helper import TOPIC

from .cluster import Fate, Kind
from .world import CALM, WELL, World

#: The delivery timeout of messages, and of every fiftieth (seconds). One is sent each second.
SHORT, LONG = 30.0, 600.0
HOUR = 3600
REFUSED = Fate(Kind.REFUSE, ErrorCode.NOT_ENOUGH_REPLICAS)


class Outage(World):
    """A producer whose messages expire one after the other."""

    def __init__(self, *, idempotent: bool, mixed: bool) -> None:
        super().__init__()
        self.idempotent = idempotent
        self.mixed = mixed
        self.accepted = self.failed = 0
        self.worst = 0.0
        # A retry costs one batch and nothing else.
        self.begin([0], Transitions(), linger_ms=0, batch_max_messages=50)

    def send(self) -> None:
        long = self.mixed and self.accepted % 50 == 0
        seconds = LONG if long else SHORT
        deadline = self.clock.monotonic() + seconds

        def report(error: BaseException | None, _: object) -> None:
            if error is not None:
                assert isinstance(error, DeliveryTimeoutError), error
                self.failed += 1
                self.worst = max(self.worst, self.clock.monotonic() - deadline)

        self.accepted += 1
        self.door.send(
            TOPIC, b"value", partition=0, on_delivery=report, delivery_timeout_ms=int(seconds * 1e3)
        )

    def second(self, fault: Callable[[World], object]) -> None:
        """Send a message, and run the stages as often as they need within a second."""
        self.send()
        for _ in range(4):
            self.run_all()
            fault(self)
            self.run_all()
            self.clock.jump(0.25)
        self.check_now()

    def kept(self) -> int:
        """Return how many chunks, slices and batches the stages and their inboxes hold."""
        stages = [*self.pipeline.stages, *self.pipeline.brokers.all(), *self.pipeline.bridges]
        found = [held for stage in stages for held in stage.held_items()]
        found += [item for inbox in self.schedule.inboxes.values() for item in inbox]
        return sum(map(_size, found))

    def calls(self, seconds: int, fault: Callable[[World], object]) -> int:
        """Return how many functions are called in this many seconds."""
        count = 0

        def profile(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            for _ in range(seconds):
                self.second(fault)
        finally:
            sys.setprofile(None)
        return count


def _size(held: object) -> int:
    match held:
        case RetryItems():
            return sum(map(_size, held.items))
        case Enqueue():
            return _size(held.item)
        case EnqueueNew():
            return len(held.items)
        case Backlog():
            return len(held)
    return 1


def no_metadata(world: World) -> None:
    """Make every server of the cluster unreachable."""


def no_leader(world: World) -> None:
    world.cluster.published = [-1]
    world.serve(itertools.repeat(WELL))


def broker_down(world: World) -> None:
    """Make the leader unreachable although the metadata names it."""
    for bridge in world.bridges("ready"):
        bridge.cut(1, 0, world.cluster)
    while world.metadata.wire:
        world.metadata.answered(world.cluster)
    for bridge in world.bridges("wants"):
        bridge.connected(False)


def refused(world: World) -> None:
    world.serve(itertools.repeat(REFUSED))


FAULTS = [no_metadata, no_leader, broker_down, refused]


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("mixed", [False, True], ids=["equal", "mixed"])
@pytest.mark.parametrize("fault", partly(FAULTS, FAULTS[:2]), ids=lambda fault: fault.__name__)
def test_an_hour_of_outage(fault: Callable[[World], object], mixed: bool, idempotent: bool) -> None:
    world = Outage(idempotent=idempotent, mixed=mixed)
    with world.patches:
        if fault is broker_down:
            # Batches with an ambiguous outcome wait there, too.
            world.user_sends(0, 1, CALM)
            world.calm_down()
            world.send()
            world.run_all()
        # Each window is a hundred seconds and has two messages with the long timeout.
        for _ in range(1000):
            world.second(fault)
        early = world.calls(100, fault)
        for _ in range(HOUR - 1200):
            world.second(fault)
        late = world.calls(100, fault)
        assert world.failed > HOUR - SHORT - LONG / 50 - 10
        assert late < 1.2 * early, "the work grows with the outage"
        assert world.worst < 0.5

        alive = world.accepted - world.failed
        # Expired rows after a longer-lived one may stay until they outnumber the live ones.
        most = 2 * (alive + 64) if mixed else alive + 20
        assert world.kept() <= most, "failed messages are kept"
        (*_, partition) = [s for s in world.pipeline.stages if hasattr(s, "queued")] or [None]
        if partition is not None:
            assert partition.queued <= most * len(b"value")  # type: ignore[attr-defined]

        # Nothing more is sent: the last sweep removes the rest.
        for _ in range(int(LONG) + 10):
            world.clock.jump(1.0)
            world.run_all()
            fault(world)
        world.run_all()
        assert world.failed == world.accepted
        assert world.kept() <= 2
        assert not world.pipeline.incomplete.chunks()
        assert not list(world.pipeline.dispatcher.waiting)

        world.cluster.published = list(world.cluster.leaders)
        world.user_sends(0, 3, 2 * CALM)
        world.calm_down()
        assert all(message.offset is not None for message in world.messages)


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_a_refused_partition_costs_the_same_whatever_its_backlog(idempotent: bool) -> None:
    """Each retry sends the backlog through the pipeline as one item."""

    def calls(backlog: int) -> int:
        world = Outage(idempotent=idempotent, mixed=False)
        with world.patches:
            for _ in range(backlog):
                world.user_sends(0, 1, 10 * CALM)
                world.run_all()
            for _ in range(20):
                world.second(refused)
            return world.calls(20, refused)

    assert calls(1_000) < 1.5 * calls(100)

"""When a broker's worker has the messages in the open chunks taken."""

from __future__ import annotations

import math

from pykaproducer._machines.window import Window
from pykaproducer._pipeline.held_puller import HeldPuller
from pykaproducer._pipeline.held_slots import HeldSlots
from pykaproducer._pipeline.worker import Worker
from tests.kernel.helper import TOPIC, Door
from tests.machines.test_batching import Broker

from .helper import stage_context

#: Bytes of a message, of which a request has room for ten.
SIZE = 100


class Puller:
    """A HeldPuller whose window is open, with 20 partitions and a held slot."""

    def __init__(self, *, linger: float = 0.0) -> None:
        self.broker = Broker(batch_size=1_000, linger=linger)
        self.buffers = [self.broker.buffer(number) for number in range(20)]
        held = HeldSlots(lambda _: 20)
        door = Door()
        door.send(TOPIC, b"held")
        held.add(door.told[0])
        self.taken = 0
        self.puller = HeldPuller(
            Worker("broker", stage_context(self.broker.door.clock)),
            held,
            self._take,
            self.broker.batcher,
            Window(limit=5, most=10 * SIZE, timeout=30.0),
            lambda full: 0.0,
        )

    def _take(self) -> None:
        self.taken += 1

    def fill(self) -> None:
        for buffer in self.buffers:
            self.broker.put(buffer, SIZE)

    def seal(self) -> None:
        for buffer in self.buffers:
            self.broker.seal(buffer)


def test_they_are_taken_once_the_full_request_is_sealed() -> None:
    """No response need come before that."""
    it = Puller()
    it.fill()
    it.puller.pull()
    assert it.taken == 0
    assert not it.puller.look()  # nothing was sealed: the window has closed
    assert it.puller.opens_in(it.broker.now) == math.inf
    it.puller.pull()
    it.seal()
    assert it.puller.look()
    assert it.puller.opens_in(it.broker.now) == 0.0
    it.puller.pull()
    assert it.taken == 1
    assert not it.puller.look()


def test_a_full_request_that_lingers_does_not_keep_them() -> None:
    """They may fill a batch, which need not linger."""
    it = Puller(linger=5.0)
    it.fill()
    it.puller.pull()
    assert it.taken == 1
    assert not it.puller.look()
    assert it.puller.opens_in(it.broker.now) == 0.0

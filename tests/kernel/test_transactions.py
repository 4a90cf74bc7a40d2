"""Admission while transactions begin and end: no message is part of a later one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import ROW_COST, Delivery, Intercepted, SentBlock, Turn
from tests._support.threads import Call

from .helper import TOPIC, Door, deliver, fail, split

#: Far more than any operation here takes (seconds).
SOON = 30


class ShutError(Exception):
    """No transaction is open."""


class TooLateError(Exception):
    """A substitute for the producer's TransactionStateError."""


class Transactions(Door):
    """A door that is open during transactions."""

    #: Called, once, in the place of a step that may take long.
    meanwhile: Callable[[], object] | None = None

    def _start(self) -> None:
        if not self._ready:
            raise ShutError

    def _is_too_late(self) -> None:
        raise TooLateError

    def next(self) -> None:
        """End the transaction, and begin the next one."""
        self._pause()
        self._admit(self._transaction + 1)

    def run_meanwhile(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def _wait_for_space(self, turn: Turn) -> None:
        self.run_meanwhile()
        if self._ready and self._transaction == turn.transaction:
            assert turn.lock.acquire(timeout=SOON)

    def _intercept(self, topic: str, value: Any, *others: Any) -> Delivery:
        began = self._transaction
        self.run_meanwhile()
        past = Intercepted(None, self.told_of.append, began)
        try:
            return self.send(topic, value, on_delivery=past)
        finally:
            self.accepted_after_all = past.accepted

    accepted_after_all = False

    @property
    def told_of(self) -> list[Delivery]:
        return self.__dict__.setdefault("_told_of", [])


def opened(**settings: Any) -> Transactions:
    door = Transactions(**settings)
    door._admit(1)
    return door


def send_block(door: Door, values: list[bytes], refusals: Any = ()) -> SentBlock:
    block = SentBlock()
    block.transaction = door._transaction
    door._send_block(block, TOPIC, [_kernel.columns_of(values)], None, None, refusals)
    return block


def test_messages_of_each_transaction_are_accepted() -> None:
    door = opened()
    assert door._transaction == 1
    door.send(TOPIC, b"first")
    door.next()
    assert door._transaction == 2
    door.send(TOPIC, b"second")
    send_block(door, [b"third"])
    assert door.accepted == 3


def test_without_a_transaction_the_ordinal_is_0() -> None:
    door = Door()
    door.send(TOPIC, b"value")
    assert door._transaction == 0


def test_between_transactions_nothing_is_accepted() -> None:
    door = opened()
    door._pause()
    for call in (lambda: door.send(TOPIC, b"value"), lambda: send_block(door, [b"value"])):
        with pytest.raises(ShutError):
            call()
    assert (door.accepted, door.budget.used) == (0, 0)


def slow_at(step: str) -> Transactions:
    """Return a door at which *step* of a ``send()`` takes long."""

    class Slow(Transactions):
        def _check_topic(self, topic: object) -> None:
            super()._check_topic(topic)
            if step == "topic":
                self.run_meanwhile()

    def serialize(value: bytes) -> bytes:
        if step == "serializer":
            door.run_meanwhile()
        return value

    door = Slow(serializers=(lambda key: key, serialize))
    door._admit(1)
    door._intercepting = step == "interceptor"
    return door


@pytest.mark.parametrize("step", ["serializer", "topic", "interceptor"])
def test_a_step_that_ends_in_the_next_transaction(step: str) -> None:
    door = slow_at(step)
    door.meanwhile = door.next
    with pytest.raises(TooLateError):
        door.send(TOPIC, b"late")
    assert not door.accepted_after_all
    assert (door.accepted, door.budget.used, door.told_of) == (0, 0, [])
    door.send(TOPIC, b"in time")
    assert door.accepted == 1
    assert door.accepted_after_all == (step == "interceptor")


def test_a_serializer_that_ends_between_transactions() -> None:
    door = slow_at("serializer")
    door.meanwhile = door._pause
    with pytest.raises(ShutError):
        door.send(TOPIC, b"late")
    assert (door.accepted, door.budget.used) == (0, 0)


COST = ROW_COST + 100


def full(door: Transactions) -> None:
    """Take all of *door*'s bytes."""
    while door.budget.used + COST <= door.budget.limit:
        door.send(TOPIC, bytes(100))


@pytest.mark.parametrize("block", [False, True], ids=["send", "send_many"])
@pytest.mark.parametrize("granted", [False, True], ids=["no space", "space"])
def test_a_message_that_waits_for_space(granted: bool, block: bool) -> None:
    """Whether it gets its bytes before the next transaction or not."""
    door = opened(limit=10 * COST)
    full(door)
    used = door.budget.used

    def end() -> None:
        if granted:
            for chunk in door.chunks():
                fail(chunk.whole())
        door.next()

    def send() -> object:
        return send_block(door, [bytes(100)]) if block else door.send(TOPIC, bytes(100))

    door.meanwhile = end
    with pytest.raises(TooLateError):
        send()
    assert door.budget.used == (0 if granted else used)
    assert (door.accepted, door.budget.waiting) == (10, 0)
    if granted:
        send()
        assert door.accepted == 11


def test_a_message_that_another_thread_lets_wait_for_space() -> None:
    door = opened(limit=COST)
    full(door)
    waits = threading.Event()
    door.meanwhile = waits.set
    sender = Call(lambda: door.send(TOPIC, bytes(100)))
    assert waits.wait(SOON)
    door.next()
    door.budget.wake_all()
    assert isinstance(sender.outcome(), TooLateError)
    assert (door.accepted, door.budget.used) == (1, COST)


def test_a_block_whose_transaction_ends_between_its_pieces() -> None:
    """The first rows are accepted, and the others have the error as their outcome."""
    door = opened(limit=10 * COST)
    door.meanwhile = door.next
    block = send_block(door, [bytes(100)] * 25, (TooLateError,))
    assert isinstance(block.refusal, TooLateError)
    assert block.transaction == 1
    assert 0 < block.accepted < 25
    assert door.accepted == block.accepted
    for chunk in door.chunks():
        deliver(chunk.whole())
    assert door.budget.used == 0


def test_a_chunk_tells_when_its_rows_have_their_outcome() -> None:
    """Before their callbacks have run."""
    door = opened()
    for partition in (0, 1):
        door.send(TOPIC, b"value", partition=partition)
    chunk = door.chunk()
    first, second = split(chunk, 2).values()
    assert not chunk.is_settled
    one = first.deliver(7)
    assert not chunk.is_settled
    other = second.fail(LookupError(), TimeoutError())
    assert chunk.is_settled
    assert chunk.unsettled == 2
    for part in (one, other):
        assert part is not None
        part.finish()
    assert chunk.is_settled
    assert chunk.unsettled == 0


def test_a_row_counts_once_as_settled() -> None:
    door = opened()
    for _ in range(2):
        door.send(TOPIC, b"value", partition=0, delivery_timeout_ms=1)
    door.send(TOPIC, b"value", partition=0)
    chunk = door.chunk()
    (part,) = split(chunk, 1).values()
    door.clock.jump(1.0)
    for late in chunk.expired(door.clock.monotonic()):
        late.fail(LookupError(), TimeoutError())
    part.fail(LookupError(), TimeoutError())
    assert chunk.is_settled

"""Every promise about transactions, under any sequence of events, with both protocols."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.ordering import Transitions
from pykaproducer._machines.transaction_states import TransactionCall, TransactionState
from pykaproducer._wire.messages import ApiKey
from pykaproducer.errors import CommitOutcome

from .cluster import Fate, Kind
from .coordinator_stages import ModelConnection
from .test_model import NORMAL, chosen
from .transactional_machine import TransactionalModel, TransactionalModelBefore
from .transactional_world import TransactionalWorld


@pytest.mark.parametrize("least", [40, pytest.param(200, marks=pytest.mark.full)])
@pytest.mark.parametrize("model", [TransactionalModel, TransactionalModelBefore])
def test_any_interleaving_keeps_the_promises_of_transactions(
    model: type[TransactionalModel], least: int
) -> None:
    # A factory is accepted in place of a class.
    make: Any = functools.partial(model, Transitions())
    asked = chosen() if least > NORMAL.max_examples else settings(NORMAL, max_examples=least)
    run_state_machine_as_test(
        make, settings=settings(asked, max_examples=max(least, asked.max_examples))
    )


# What the search has found ------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[TransactionalWorld]:
    """Yield a producer in a transaction, with a delivered message."""
    world = TransactionalWorld()
    world.begin([0], Transitions())
    with world.patches:
        world.call(TransactionCall.INIT)
        world.call(TransactionCall.BEGIN)
        world.user_sends(0, 1, 60.0)
        world.calm_down()
        yield world


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_a_coordinator_that_resigns_may_have_committed(
    world: TransactionalWorld, code: int
) -> None:
    world.user_calls(TransactionCall.COMMIT, None)
    connection = world.go_until(ApiKey.END_TXN)
    assert isinstance(connection, ModelConnection)
    connection.taken_by_broker(world.cluster, Fate(Kind.TAKE_AND_COMPLAIN, code))
    connection.answered()
    while not world.take_over():
        world.cluster.write_marker()
    world.wait()
    assert world.transactions[-1].outcome is CommitOutcome.POSSIBLY_COMMITTED
    assert [log.readable() for log in world.cluster.logs] == [[0]]
    world.check_the_end()


def test_an_unused_topic_does_not_begin_again_with_the_same_numbers() -> None:
    """With the first protocol the next transaction has the same epoch."""

    class Before(TransactionalWorld):
        level = 0

    world = Before()
    world.begin([0], Transitions())
    with world.patches:
        world.call(TransactionCall.INIT)
        assert world.transact([0])
        for _ in range(20):
            world.clock.jump(world.config.metadata_max_idle_ms / 4000)
            world.calm_down()
        assert world.transact([0])
        world.check_the_end()


def test_offsets_after_a_timeout_do_not_make_the_producer_unusable(
    world: TransactionalWorld,
) -> None:
    world.time_out()
    world.user_sends_offsets("group", 0, None)
    world.wait()
    assert world.machine.state is TransactionState.ABORTABLE
    world.call(TransactionCall.ABORT)
    assert world.transact([0])
    world.check_the_end()

"""Signals at every place of the calls for transactions: Ctrl-C, and a handler that makes calls."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer import Delivery, ProducerClosedError, TransactionStateError
from pykaproducer.delivery import TopicPartition
from pykaproducer.testing import ScriptedCluster
from tests._support.interrupts import (
    SOON,
    Operation,
    Place,
    Scene,
    in_time,
    interrupt_everywhere,
    left_to_other_runs,
    opcodes,
)
from tests.pipeline.helper import until

#: The calls whose result must not be missed, and the one that can be repeated, too.
ENDS = ("commit_transaction", "prepare_transaction", "abort_transaction")
FEATURES: dict[str, dict[str, int]] = {"TV1": {"transaction.version": 0}, "TV2": {}}
OFFSETS = {TopicPartition("input", 0): 7}


@pytest.fixture(scope="module", params=FEATURES)
def scripted(request: pytest.FixtureRequest) -> Iterator[ScriptedCluster]:
    with ScriptedCluster(topics={"input": 1}, features=FEATURES[request.param]) as cluster:
        yield cluster


class TransactionScene(Scene):
    """A producer with transactions, each of which has two messages, in two topics."""

    ids = itertools.count()

    def __init__(self, cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
        self.name_of_id = f"id-{next(self.ids)}"
        super().__init__(cluster, {"transactional_id": self.name_of_id, **settings})

    def ready(self) -> None:
        self.producer.init_transactions(SOON)

    def open(self) -> None:
        self.ready()
        self.producer.begin_transaction()
        self.write()

    def write(self) -> None:
        self.send(0)
        self.send(1)

    def write_one(self) -> None:
        with self.producer.transaction():
            self.write()

    def fail_in_one(self) -> None:
        with contextlib.suppress(ZeroDivisionError), self.producer.transaction():
            self.write()
            _ = 1 // 0

    def committed(self) -> list[bytes | None]:
        cluster = self.cluster
        return [r.value for topic in self.topics for r in cluster.log(topic, committed=True)]

    def end(self) -> None:
        """Do what the errors say, until there is no transaction."""
        producer = self.producer
        name = "commit_transaction"
        for _ in range(5):
            try:
                if name == "send_offsets_to_transaction":
                    producer.send_offsets_to_transaction(OFFSETS, "group")
                else:
                    getattr(producer, name)(SOON)
            except TransactionStateError as error:
                if error.under_way is None:
                    return
                name = error.under_way
            else:
                name = "commit_transaction"
        raise AssertionError("it does not end")

    def check_that_it_is_usable(self) -> None:
        """Check that what was done is visible as a whole or not at all, and that more can be."""
        in_time_or_raise(self.end)
        before = self.committed()
        assert len(before) in (0, 2)
        in_time_or_raise(self.write_one)
        last_two = [self.value_of(delivery) for delivery in self.accepted[-2:]]
        assert sorted(map(str, self.committed())) == sorted(map(str, [*before, *last_two]))
        self.check_each_has_one_outcome()

    def value_of(self, delivery: Delivery) -> bytes | None:
        """Return the value in the log at the place of *delivery*."""
        log = self.cluster.log(delivery.topic)
        return next(record.value for record in log if record.offset == delivery.offset)


def in_time_or_raise(operation: Callable[[], object]) -> None:
    error = in_time(operation)
    if error is not None:
        raise error


def call(name: str, *arguments: object) -> Callable[[Any], object]:
    return lambda scene: getattr(scene.producer, name)(*arguments)


OPERATIONS = {
    "the first init_transactions()": Operation(lambda scene: None, call("init_transactions", SOON)),
    "init_transactions()": Operation(TransactionScene.ready, call("init_transactions")),  # type: ignore[arg-type]
    "begin_transaction()": Operation(TransactionScene.ready, call("begin_transaction")),  # type: ignore[arg-type]
    "send_offsets_to_transaction()": Operation(
        TransactionScene.open,  # type: ignore[arg-type]
        call("send_offsets_to_transaction", OFFSETS, "group"),
    ),
    "commit_transaction()": Operation(TransactionScene.open, call("commit_transaction")),  # type: ignore[arg-type]
    "abort_transaction()": Operation(TransactionScene.open, call("abort_transaction")),  # type: ignore[arg-type]
    "with": Operation(TransactionScene.ready, TransactionScene.write_one),  # type: ignore[arg-type]
    "with an exception": Operation(TransactionScene.ready, TransactionScene.fail_in_one),  # type: ignore[arg-type]
    "close()": Operation(TransactionScene.open, call("close", SOON)),  # type: ignore[arg-type]
}
PREPARE = Operation(TransactionScene.open, call("prepare_transaction"))  # type: ignore[arg-type]
each_operation = pytest.mark.parametrize("name", OPERATIONS)


def usable(scene: Scene, error: BaseException | None) -> None:
    assert isinstance(scene, TransactionScene)
    assert isinstance(error, KeyboardInterrupt)
    scene.check_that_it_is_usable()


def closed(scene: Scene, error: BaseException | None) -> None:
    assert isinstance(scene, TransactionScene)
    assert isinstance(error, KeyboardInterrupt)
    scene.check_it_can_be_closed()
    assert scene.committed() == []
    scene.check_each_has_one_outcome()


#: Ctrl-C strikes at one of so many places in each run: all take minutes.
PARTS = 3


@each_operation
def test_ctrl_c_anywhere(scripted: ScriptedCluster, name: str) -> None:
    """The producer remains usable, and a transaction is visible as a whole or not at all."""
    interrupt_everywhere(
        scripted,
        OPERATIONS[name],
        closed if name == "close()" else usable,
        spared=left_to_other_runs(PARTS),
        new_scene=TransactionScene,
    )


@pytest.mark.parametrize("name", ["with", "with an exception"])
def test_an_interrupted_block_leaves_no_transaction_open(
    scripted: ScriptedCluster, name: str
) -> None:
    """It is ended, or being ended: the program has no block any more that could do it."""

    def check(scene: Scene, error: BaseException | None) -> None:
        assert isinstance(scene, TransactionScene)
        assert isinstance(error, KeyboardInterrupt)
        until(lambda: scene.producer.stats()["transactions"]["state"] not in ("open", "abortable"))
        scene.check_that_it_is_usable()

    def is_thrown_in(place: Place) -> bool:
        """Python does not look for signals as it throws the block's exception into a generator."""
        code, at = place[0]
        return name == "with an exception" and opcodes(code).get(at) in ("YIELD_VALUE", "RESUME")

    interrupt_everywhere(
        scripted,
        OPERATIONS[name],
        check,
        spared=left_to_other_runs(PARTS, spared=is_thrown_in),
        new_scene=TransactionScene,
    )


def has_returned(place: Place) -> bool:
    """Return whether the public method has got the result of the call that it consists of."""
    code, at = place[0]
    return code.co_name in ENDS and at > min(
        offset for offset, name in opcodes(code).items() if name == "CALL"
    )


@pytest.mark.parametrize("name", ENDS)
def test_the_same_call_tells_the_outcome(scripted: ScriptedCluster, name: str) -> None:
    """Wherever Ctrl-C strikes in it, before it has returned."""

    def check(scene: Scene, error: BaseException | None) -> None:
        assert isinstance(scene, TransactionScene)
        assert isinstance(error, KeyboardInterrupt)
        in_time_or_raise(functools.partial(getattr(scene.producer, name), SOON))
        if name == "prepare_transaction":
            scene.ready()  # which aborts it
        assert len(scene.committed()) == (2 if name == "commit_transaction" else 0)
        scene.check_that_it_is_usable()

    operation = OPERATIONS.get(f"{name}()", PREPARE)
    interrupt_everywhere(
        scripted,
        operation,
        check,
        spared=left_to_other_runs(PARTS, spared=has_returned),
        new_scene=TransactionScene,
    )


# A handler ---------------------------------------------------------------------------------------


def make(name: str) -> Callable[[Scene], None]:
    def handler(scene: Scene) -> None:
        scene.hold.release()
        with contextlib.suppress(TransactionStateError, ProducerClosedError):
            if name == "send":
                scene.send()
            elif name == "flush":
                scene.producer.flush(SOON)
            else:
                getattr(scene.producer, name)()

    return handler


HANDLERS = (
    "init_transactions",
    "begin_transaction",
    "commit_transaction",
    "abort_transaction",
    "send",
    "flush",
    "close",
)


@pytest.mark.parametrize("handler", HANDLERS)
@each_operation
def test_a_signal_handler_may_make_any_call_anywhere(
    scripted: ScriptedCluster, name: str, handler: str
) -> None:
    """Nothing hangs; the call that is interrupted returns, or finds another state."""

    def check(scene: Scene, error: BaseException | None) -> None:
        assert isinstance(scene, TransactionScene)
        if handler == "close":
            assert isinstance(error, TransactionStateError | ProducerClosedError | None)
            return
        assert isinstance(error, TransactionStateError | None)
        with contextlib.suppress(ProducerClosedError):
            in_time_or_raise(scene.end)
            scene.write_one()
            scene.check_each_has_one_outcome()

    interrupt_everywhere(
        scripted,
        OPERATIONS[name],
        check,
        make(handler),
        # Each place has one handler, another one in the next run.
        spared=left_to_other_runs(len(HANDLERS), HANDLERS.index(handler)),
        new_scene=TransactionScene,
    )

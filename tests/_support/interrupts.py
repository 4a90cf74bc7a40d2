"""Interrupting a user thread at every place where an interrupt can strike.

An operation runs once to list the places where Python checks for signals: the beginning of a
function, after a call, at the end of a loop, before a lock; each of them on each call path that
leads there. Then it runs once for each place, with a separate producer.
"""

from __future__ import annotations

import asyncio
import contextlib
import dis
import functools
import itertools
import pathlib
import random
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pyarrow

import pykaproducer
from pykaproducer import (
    BufferFullError,
    Delivery,
    FlushTimeoutError,
    Status,
    TransactionStateError,
)
from pykaproducer._util.clock import Clock
from pykaproducer.delivery import TopicPartition
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Hold
from tests._support.effort import NIGHTLY
from tests._support.fixtures.seeds import SEED
from tests._support.threads import Call, threads_left
from tests.pipeline.helper import until

#: Far more than any operation here takes, and the timeout for one that hangs (seconds).
SOON = 30

PACKAGE = str(pathlib.Path(pykaproducer.__file__).parent)

#: (code, instruction) of a frame and of its callers, as far as they are traced.
Place = tuple[tuple[CodeType, int], ...]


@functools.cache
def opcodes(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


def handler(code: CodeType, at: int) -> int | None:
    """Return where an exception raised by the instruction continues, if in the same function."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return next((entry.target for entry in entries if entry.start <= at < entry.end), None)


def python_looks(code: CodeType, last: int | None, at: int) -> bool:
    """Return whether an interrupt can strike before the instruction *at*, which follows *last*.

    The exception then belongs to *last*: where the two have different handlers (the end of a `with`
    block) it cannot be raised at the other instruction instead.
    """
    if last is None or opcodes(code)[at] == "BEFORE_WITH":  # it may wait for a lock
        return True
    name = opcodes(code)[last]
    looked = name.startswith("CALL") or "BACKWARD" in name
    return looked and handler(code, last) == handler(code, at)


class Tracer:
    """A tracer of the frames of *files* in one thread, which strikes once, at one place."""

    def __init__(
        self,
        strike: Callable[[], object] = lambda: None,
        target: Place | None = None,
        on_wait: Callable[[], None] = lambda: None,
        files: tuple[str, ...] = (PACKAGE,),
    ) -> None:
        self.places: dict[Place, None] = {}
        self.struck = False
        self._strike = strike
        self._target = target
        self._on_wait = on_wait
        self._files = files
        self._last: dict[FrameType, int | None] = {}

    def run(self, operation: Callable[[], object]) -> None:
        sys.settrace(self._called)
        try:
            operation()
        finally:
            sys.settrace(None)
            self._last.clear()  # an interrupted function never reports its return

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(self._files):
            return None
        if frame.f_code is Clock.acquire.__code__:
            self._on_wait()
        frame.f_trace_opcodes = True
        self._last[frame] = None
        self._look(frame)
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            last, self._last[frame] = self._last[frame], frame.f_lasti
            if last is not None and python_looks(frame.f_code, last, frame.f_lasti):
                self._look(frame)
        elif event == "return":
            del self._last[frame]
        return self._stepped

    def _look(self, frame: FrameType) -> None:
        place: list[tuple[CodeType, int]] = []
        at: FrameType | None = frame
        while at is not None and at.f_code.co_filename.startswith(self._files):
            place.append((at.f_code, at.f_lasti))
            at = at.f_back
        self.places[tuple(place)] = None
        if tuple(place) == self._target and not self.struck:
            self.struck = True
            self._strike()


def describe(place: Place) -> str:
    lines = []
    for code, at in place:
        known = [line for start, end, line in code.co_lines() if start <= at < end]
        lines.append(f"{code.co_filename}:{(known or [code.co_firstlineno])[0]} {code.co_name}")
    return " called from ".join(lines)


def in_time(operation: Callable[[], object]) -> BaseException | None:
    """Run *operation* in a separate thread, which must end, and return the exception it raises."""
    error: BaseException | None = Call(operation).error()
    return error


def in_time_or_raise(operation: Callable[[], object]) -> None:
    error = in_time(operation)
    if error is not None:
        raise error


# Producers


class Scene:
    """One producer, its accepted messages, and the reported outcomes."""

    numbers = itertools.count()
    #: Where the operation is interrupted.
    place: Place

    def __init__(self, cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
        self.name = f"scene{next(self.numbers)}"
        self.cluster = cluster
        self.topics = [f"{self.name}-a", f"{self.name}-b"]
        for topic in self.topics:
            cluster.add_topic(topic)
        self.producer = cluster.producer(client_id=self.name, **settings)
        self.accepted: list[Delivery] = []
        self.told: list[tuple[bytes, BaseException | None]] = []
        self._reported = threading.Semaphore(0)
        self.hold = Hold()
        self.lingers = "linger_ms" in settings
        self._numbers = itertools.count()

    def send(self, topic: int = 0, size: int = 0) -> Delivery:
        value = b"%d" % next(self._numbers) + bytes(size)

        def report(error: BaseException | None, delivery: Delivery) -> None:
            self.told.append((value, error))
            self._reported.release()

        delivery = self.producer.send(self.topics[topic], value, on_delivery=report)
        self.accepted.append(delivery)
        return delivery

    def send_block(self) -> None:
        self.producer.send_arrow(pyarrow.record_batch({"topic": self.topics, "value": self.topics}))

    def start(self) -> None:
        self.send()
        self.producer.flush(SOON)

    def pend(self) -> None:
        """Start the producer and send messages that are not answered until the operation waits."""
        self.start()
        self.cluster.next("produce", self.hold)
        self.send()
        self.send(1)

    def fill(self) -> None:
        self.pend()
        while self.producer._budget.fits(1200):
            self.send(size=1000)

    def log(self) -> list[bytes | None]:
        return [record.value for topic in self.topics for record in self.cluster.log(topic)]

    async def wait_in_event_loop(self) -> None:
        asyncio.get_running_loop().call_soon(self.hold.release)
        await self.accepted[-1]

    # Invariants

    def check_nothing_is_lost(self) -> None:
        if not self.lingers:  # otherwise only a flush sends the messages
            for _ in range(self.producer.accepted):
                assert self._reported.acquire(timeout=SOON), "a message is stuck"
        assert in_time(lambda: self.producer.flush(SOON)) is None
        assert all(delivery.exception(0) is None for delivery in self.accepted)
        assert {error for _, error in self.told} <= {None}
        self.check_each_has_one_outcome()
        assert sorted(value for value, _ in self.told) == sorted(map(bytes, self.log()))  # type: ignore[arg-type]

    def check_the_block_is_whole(self) -> None:
        """Check that its rows are accepted in all topics or in none, and sent by themselves."""
        until(lambda: not self.producer.stats()["messages"]["pending"])
        assert sorted(map(len, map(self.cluster.log, self.topics))) in ([0, 1], [1, 2])

    def check_each_has_one_outcome(self) -> None:
        assert all(delivery.done() for delivery in self.accepted)
        assert len(self.told) == self.producer.accepted
        assert len({value for value, _ in self.told}) == len(self.told)
        log = self.log()
        assert len(set(log)) == len(log)
        for value, error in self.told:
            status = getattr(error, "status", Status.PERSISTED)
            assert value in log or status is not Status.PERSISTED
            assert value not in log or status is not Status.NOT_PERSISTED

    def check_no_flush_is_running(self) -> None:
        """Check that messages linger again, and that no barrier is left."""
        pipeline = self.producer._pipeline
        assert pipeline is not None
        assert not pipeline.is_flushing()
        assert not pipeline._barriers
        # A stage may refer to one for a moment.
        barriers = pipeline.incomplete.barriers
        until(lambda: not any(barrier() for barrier in list(barriers.values())))
        self.check_nothing_is_lost()

    def check_it_can_be_closed(self) -> None:
        assert in_time(lambda: self.producer.close(SOON)) is None
        assert threads_left(self.name) == []
        assert self.producer._budget.used == 0

    def check_after_abort(self) -> None:
        self.check_it_can_be_closed()
        self.cluster.join_connections()  # batches in flight are in the log now, or never will be
        self.check_each_has_one_outcome()


OFFSETS = {TopicPartition("input", 0): 7}


class TransactionScene(Scene):
    """A producer with transactions, each of which has two messages, in two topics."""

    def __init__(self, cluster: ScriptedCluster, settings: dict[str, Any]) -> None:
        super().__init__(cluster, {"transactional_id": f"id-{next(self.numbers)}", **settings})

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
        """Make the calls that the errors require, until no transaction is open."""
        name = "commit_transaction"
        for _ in range(5):
            try:
                if name == "send_offsets_to_transaction":
                    self.producer.send_offsets_to_transaction(OFFSETS, "group")
                else:
                    getattr(self.producer, name)(SOON)
            except TransactionStateError as error:
                if error.under_way is None:
                    return
                name = error.under_way
            else:
                name = "commit_transaction"
        raise AssertionError("it does not end")

    # Invariants

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

    def check_the_block_has_ended(self) -> None:
        """Check that no transaction is open: the program has no block that could end it.

        Python does not look for signals as it throws the block's exception into a generator.
        """
        code, at = self.place[0]
        if opcodes(code).get(at) not in ("YIELD_VALUE", "RESUME"):
            stats = self.producer.stats
            until(lambda: stats()["transactions"]["state"] not in ("open", "abortable"))
        self.check_that_it_is_usable()

    def check_that_the_same_call_reports_the_outcome(self, name: str) -> None:
        """Check it unless the public method had got the result of the call that it consists of."""
        code, at = self.place[0]
        calls = [offset for offset, each in opcodes(code).items() if each == "CALL"]
        if code.co_name == name and at > calls[0]:
            return
        in_time_or_raise(functools.partial(getattr(self.producer, name), SOON))
        if name == "prepare_transaction":
            self.ready()  # which aborts it
        assert len(self.committed()) == (2 if name == "commit_transaction" else 0)
        self.check_that_it_is_usable()

    def check_close(self) -> None:
        self.check_it_can_be_closed()
        assert self.committed() == []
        self.check_each_has_one_outcome()


# The interrupted operations


class Operation(NamedTuple):
    """A preparation, the operation to interrupt, and what holds after Ctrl-C."""

    prepare: Callable[[Any], object]
    act: Callable[[Any], object]
    settings: dict[str, Any] = {}
    #: An exception that it may raise by itself.
    may_raise: type[Exception] | tuple[()] = ()
    #: True: the answers arrive when the operation waits. False: only when it is over.
    answered: bool = True
    check: Callable[[Any], object] = Scene.check_nothing_is_lost
    scene: type[Scene] = Scene


def nothing(scene: Scene) -> None:
    pass


def call(name: str, *arguments: object) -> Callable[[Any], object]:
    return lambda scene: getattr(scene.producer, name)(*arguments)


def last(name: str, *arguments: object) -> Callable[[Any], object]:
    """Return a call of the last delivery."""
    return lambda scene: getattr(scene.accepted[-1], name)(*arguments)


def transactional(
    prepare: Callable[[Any], object],
    act: Callable[[Any], object],
    check: Callable[[Any], object] = TransactionScene.check_that_it_is_usable,
) -> Operation:
    return Operation(prepare, act, check=check, scene=TransactionScene)


def end_of_transaction(name: str) -> Operation:
    """Return an operation; the same call reports its outcome, and so do the calls in errors."""

    def check(scene: TransactionScene) -> None:
        if name == "prepare_transaction" or random.random() < 0.5:
            scene.check_that_the_same_call_reports_the_outcome(name)
        else:
            scene.check_that_it_is_usable()

    return transactional(TransactionScene.open, call(name), check)


LINGER = {"linger_ms": 60_000}
SMALL = {"buffer_memory": 10_000}
READY, OPEN = TransactionScene.ready, TransactionScene.open
send_large = functools.partial(Scene.send, size=1000)

#: All calls of a user that wait, or start something.
OPERATIONS = {
    "the first send()": Operation(nothing, Scene.send),
    # With "shared", send() is compiled to the end, and has no bytecodes to interrupt.
    "send()": Operation(Scene.start, Scene.send, {"stage_threads": "own"}),
    "send() to a new topic": Operation(Scene.start, lambda scene: scene.send(1)),
    "send() with a serializer": Operation(
        Scene.start, Scene.send, {"stage_threads": "own", "value_serializer": bytes}
    ),
    "send_arrow() to several topics": Operation(
        Scene.start, Scene.send_block, check=Scene.check_the_block_is_whole
    ),
    "send() that waits for space": Operation(Scene.fill, send_large, SMALL),
    "send() that finds no space": Operation(
        Scene.fill, send_large, {**SMALL, "max_block_ms": 0}, may_raise=BufferFullError
    ),
    "result()": Operation(Scene.pend, last("result", SOON)),
    "result() of a settled message": Operation(Scene.start, last("result", SOON)),
    "result(0)": Operation(Scene.pend, last("result", 0), may_raise=TimeoutError),
    "exception()": Operation(Scene.pend, last("exception", SOON)),
    "await": Operation(Scene.pend, lambda scene: asyncio.run(scene.wait_in_event_loop())),
    "flush()": Operation(Scene.pend, call("flush")),
    "flush(timeout) of what lingers": Operation(Scene.pend, call("flush", SOON), LINGER),
    "flush(0)": Operation(
        Scene.pend,
        call("flush", 0),
        may_raise=FlushTimeoutError,
        check=Scene.check_no_flush_is_running,
    ),
    "the first partitions_for()": Operation(
        nothing, lambda scene: scene.producer.partitions_for(scene.topics[0])
    ),
    "partitions_for()": Operation(
        Scene.start, lambda scene: scene.producer.partitions_for(scene.topics[1])
    ),
    "close()": Operation(Scene.pend, call("close", SOON), LINGER),
    "abort()": Operation(
        Scene.pend, call("abort"), LINGER, answered=False, check=Scene.check_after_abort
    ),
    "the first init_transactions()": transactional(nothing, call("init_transactions", SOON)),
    "init_transactions()": transactional(READY, call("init_transactions")),
    "begin_transaction()": transactional(READY, call("begin_transaction")),
    "send_offsets_to_transaction()": transactional(
        OPEN, call("send_offsets_to_transaction", OFFSETS, "group")
    ),
    "commit_transaction()": end_of_transaction("commit_transaction"),
    "abort_transaction()": end_of_transaction("abort_transaction"),
    "prepare_transaction()": end_of_transaction("prepare_transaction"),
    "with": transactional(
        READY, TransactionScene.write_one, TransactionScene.check_the_block_has_ended
    ),
    "with an exception": transactional(
        READY, TransactionScene.fail_in_one, TransactionScene.check_the_block_has_ended
    ),
    "close() in a transaction": transactional(
        OPEN, call("close", SOON), TransactionScene.check_close
    ),
}


# Everywhere


def raise_it(scene: Scene) -> None:
    raise KeyboardInterrupt


def operation_waits(scene: Scene, operation: Operation) -> Callable[[], None]:
    return scene.hold.release if operation.answered else lambda: None


def places(cluster: ScriptedCluster, operation: Operation, files: tuple[str, ...]) -> list[Place]:
    """Return the places where the operation can be interrupted."""
    scene = operation.scene(cluster, operation.settings)
    operation.prepare(scene)
    tracer = Tracer(on_wait=operation_waits(scene, operation), files=files)
    error = in_time(lambda: tracer.run(lambda: operation.act(scene)))
    assert error is None or isinstance(error, operation.may_raise)
    scene.hold.release()
    scene.check_it_can_be_closed()
    assert tracer.places
    return list(tracer.places)


def left_to_other_runs(parts: int, first: int = 0) -> Callable[[Place], bool]:
    """Return whether a place is left out: of each *parts* places, this run keeps one.

    Another seed keeps others, and a nightly run keeps all.
    """
    turn = itertools.count(SEED + first)
    return lambda place: not NIGHTLY and next(turn) % parts != 0


def interrupt_everywhere(
    cluster: ScriptedCluster,
    operation: Operation,
    check: Callable[[Any, BaseException | None], object],
    strike: Callable[[Any], object] = raise_it,
    files: tuple[str, ...] = (PACKAGE,),
    spared: Callable[[Place], bool] = lambda place: False,
) -> None:
    """Run *operation* once for each place, and *check* its exception and the state afterwards."""
    struck = 0
    everywhere = places(cluster, operation, files)
    found = list(itertools.filterfalse(spared, everywhere))
    # With another thread schedule it may not get to a place. At one, at least, it must be struck.
    for number, place in enumerate([*found, *everywhere]):
        if number >= len(found) and (struck or not found):
            break
        scene = operation.scene(cluster, operation.settings)
        scene.place = place
        operation.prepare(scene)
        tracer = Tracer(
            functools.partial(strike, scene), place, operation_waits(scene, operation), files
        )
        try:
            error = in_time(functools.partial(tracer.run, functools.partial(operation.act, scene)))
            scene.hold.release()
            if tracer.struck:
                struck += 1
                check(scene, error)
            scene.check_it_can_be_closed()
        except AssertionError as problem:
            problem.add_note(f"interrupted at {describe(place)}")
            in_time(lambda: scene.producer.close(0))  # noqa: B023 - called at once
            raise
    assert struck or not found

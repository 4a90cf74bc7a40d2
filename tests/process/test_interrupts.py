"""Signals in a user thread, at each place of each call: Ctrl-C, and handlers that make calls.

Nothing is lost, duplicated or broken, and a transaction is visible as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import dis
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from pykaproducer import FlushTimeoutError, ProducerClosedError, TransactionStateError
from pykaproducer.testing import ScriptedCluster
from tests._support.interrupts import (
    OPERATIONS,
    PACKAGE,
    SOON,
    Place,
    Scene,
    TransactionScene,
    call,
    in_time_or_raise,
    interrupt_everywhere,
    left_to_other_runs,
)
from tests._support.pairs import pairwise

PROTOCOLS: dict[str, dict[str, int]] = {"TV1": {"transaction.version": 0}, "TV2": {}}


@pytest.fixture(scope="module")
def clusters() -> Iterator[dict[str, ScriptedCluster]]:
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(ScriptedCluster(topics={"input": 1}, features=features))
            for name, features in PROTOCOLS.items()
        }


Case = tuple[str, ...]
#: The parts into which the places of a call are divided.
SHARES = 6


def shared(rows: Iterable[Any]) -> list[Any]:
    """Return each of *rows* for each share: the first one by default, the others in full.

    Which places those are changes with each run.
    """
    return [
        pytest.param(
            row.values,
            share,
            marks=[*row.marks, *([pytest.mark.full] if share else [])],
            id="-".join((*row.values, str(share))),
        )
        for row in rows
        for share in range(SHARES)
    ]


def has_transactions(name: str) -> bool:
    return OPERATIONS[name].scene is TransactionScene


def protocols(name: str) -> list[str]:
    """Return the protocols in which *name* is another operation."""
    return [*PROTOCOLS] if has_transactions(name) else ["TV2"]


@pytest.mark.parametrize(
    ("case", "share"),
    shared(pytest.param(name, protocol) for name in OPERATIONS for protocol in protocols(name)),
)
def test_ctrl_c_anywhere(clusters: dict[str, ScriptedCluster], case: Case, share: int) -> None:
    """It is raised, and the producer remains usable."""
    name, protocol = case

    def check(scene: Scene, error: BaseException | None) -> None:
        assert isinstance(error, KeyboardInterrupt)
        error.__traceback__ = None  # it refers to all objects that the call used
        OPERATIONS[name].check(scene)

    # The shares are all places, or for transactions a third of them: all take minutes.
    spared = left_to_other_runs(3 * SHARES if has_transactions(name) else SHARES, share)
    interrupt_everywhere(clusters[protocol], OPERATIONS[name], check, spared=spared)


def waits_for_a_thread(place: Place) -> bool:
    """Return whether *place* is in ``Thread.start``, which has started the thread."""
    code, at = place[0]
    starts = ("_start_new_thread", "_start_joinable_thread")
    return code is threading.Thread.start.__code__ and at > max(
        each.offset for each in dis.get_instructions(code) if each.argval in starts
    )


@pytest.mark.parametrize("name", ["the first send()", "the first partitions_for()"])
def test_ctrl_c_while_a_thread_starts(clusters: dict[str, ScriptedCluster], name: str) -> None:
    """A first use waits at one point only: for the new thread to report that it runs."""

    def check(scene: Scene, error: BaseException | None) -> None:
        if isinstance(error, KeyboardInterrupt):  # threading may raise another error because of it
            scene.check_nothing_is_lost()

    interrupt_everywhere(
        clusters["TV2"],
        OPERATIONS[name],
        check,
        files=(PACKAGE, threading.__file__),
        spared=lambda place: not waits_for_a_thread(place),
    )


# A handler ---------------------------------------------------------------------------------------


Handler = Callable[[Any], object]


def send_and_flush(scene: Scene) -> None:
    with contextlib.suppress(ProducerClosedError):
        scene.send(1)
    with contextlib.suppress(FlushTimeoutError):
        scene.producer.flush(0)


def send_and_wait(scene: Scene) -> None:
    with contextlib.suppress(ProducerClosedError):
        delivery = scene.send(0)
        if not scene.lingers:
            delivery.result(SOON)


def unless_refused(act: Handler) -> Handler:
    def handler(scene: Scene) -> None:
        with contextlib.suppress(TransactionStateError, ProducerClosedError):
            act(scene)

    return handler


HANDLERS: dict[str, Handler] = {
    "send, flush(0)": send_and_flush,
    "send, result": send_and_wait,
    "flush": call("flush"),
    "close": call("close"),
}
CALLS = ("init_transactions", "begin_transaction", "commit_transaction", "abort_transaction")
TRANSACTION_HANDLERS: dict[str, Handler] = {
    "send": unless_refused(Scene.send),
    **{name: unless_refused(call(name)) for name in (*CALLS, "flush", "close")},
}


def handlers(name: str) -> dict[str, Handler]:
    return TRANSACTION_HANDLERS if has_transactions(name) else HANDLERS


@pytest.mark.parametrize(
    ("case", "share"),
    shared(
        pairwise(
            (name, handler, protocol)
            for name in OPERATIONS
            if name not in ("abort()", "prepare_transaction()", "send_arrow() to several topics")
            for handler in handlers(name)
            for protocol in protocols(name)
        )
    ),
)
def test_a_signal_handler_may_make_any_call_anywhere(
    clusters: dict[str, ScriptedCluster], case: Case, share: int
) -> None:
    """Nothing hangs or is lost; the interrupted call returns, or finds another state."""
    name, handler, protocol = case
    operation = OPERATIONS[name]

    def strike(scene: Scene) -> None:
        scene.hold.release()
        handlers(name)[handler](scene)

    def check(scene: Any, error: BaseException | None) -> None:
        closed = ProducerClosedError if handler == "close" else ()
        if not has_transactions(name):
            assert error is None or isinstance(error, (operation.may_raise, closed))
            scene.check_nothing_is_lost()
            return
        assert error is None or isinstance(error, (TransactionStateError, closed))
        if handler != "close":
            with contextlib.suppress(ProducerClosedError):
                in_time_or_raise(scene.end)
                scene.write_one()
                scene.check_each_has_one_outcome()

    # Each place has one handler, another one in the next run.
    names = [*handlers(name)]
    spared = left_to_other_runs(SHARES * len(names), SHARES * names.index(handler) + share)
    interrupt_everywhere(clusters[protocol], operation, check, strike, spared=spared)

"""Ctrl-C at each place of a call of TransactionControl: the next call works."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable

import pytest

from pykaproducer import PreparedTransaction, TransactionControl
from pykaproducer._util.clock import Clock
from pykaproducer.testing import ScriptedCluster
from pykaproducer.transaction_control import EndState
from tests._support.interrupts import PACKAGE, Place, Tracer, describe
from tests.pipeline.helper import SOON

from .bounds import scripted_control
from .scripted_helper import NAME, begun, producer_of

#: The traced files. Interrupts in the connections are tested elsewhere.
FILES = tuple(str(pathlib.Path(PACKAGE) / name) for name in ("transaction_control.py", "_control"))


@pytest.fixture(scope="module")
def scripted() -> ScriptedCluster:
    with ScriptedCluster(topics={"t": 1}) as made:
        yield made


@pytest.fixture(scope="module")
def prepared(scripted: ScriptedCluster) -> PreparedTransaction:
    with producer_of(scripted) as producer:
        begun(producer)
        producer.send("t", b"value", partition=0)
        return producer.prepare_transaction()


def makes_connection(place: Place) -> bool:
    """Return whether a connection is being made there, which the garbage collector would close."""
    return any(code.co_qualname in ("Link.__init__", "ControlExchange._open") for code, _ in place)


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupt_everywhere(
    scripted: ScriptedCluster,
    act: Callable[[TransactionControl], object],
    check: Callable[[TransactionControl], object],
) -> None:
    """Interrupt *act* at each place, each time with another client, and then *check* that."""

    def run(tracer: Tracer) -> None:
        with scripted_control(scripted, Clock()) as control:  # type: ignore[arg-type]
            try:
                tracer.run(lambda: act(control))
            except KeyboardInterrupt:
                assert tracer.struck
            try:
                check(control)
            except Exception as error:
                error.add_note("" if target is None else f"interrupted at {describe(target)}")
                raise

    target: Place | None = None
    first = Tracer(files=FILES)
    run(first)
    for target in itertools.filterfalse(makes_connection, first.places):
        run(Tracer(interrupt, target, files=FILES))


@pytest.mark.full
def test_the_end_of_a_transaction(scripted: ScriptedCluster, prepared: PreparedTransaction) -> None:
    def end(control: TransactionControl) -> None:
        ended = control.complete(prepared, commit=True, timeout=SOON)
        assert ended.state is EndState.COMMITTED

    interrupt_everywhere(scripted, end, end)


@pytest.mark.full
def test_a_call_whose_time_is_over(scripted: ScriptedCluster) -> None:
    """It leaves requests without an answer, to which the next call must not listen."""

    def in_no_time(control: TransactionControl) -> None:
        control.describe([NAME], timeout=SOON)
        with pytest.raises(TimeoutError):
            control.describe([NAME, "other"], timeout=0.001)

    def check(control: TransactionControl) -> None:
        assert set(control.describe([NAME, "other"], timeout=SOON)) == {NAME, "other"}

    interrupt_everywhere(scripted, in_no_time, check)

"""Every control call returns within its bound and a second, whatever the cluster does.

And it can be called again: with a coordinator that works, the same call succeeds.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer import (
    Ended,
    EndState,
    Producer,
    TransactionError,
    TransactionTimeoutError,
)
from pykaproducer.testing import ScriptedCluster
from tests._support.pairs import pairwise
from tests.transactions.bounds import (
    CONTROLS,
    COORDINATOR,
    FAULTS,
    NAME,
    OTHER,
    PLACE,
    TOPIC,
    CountingClock,
    PollingClock,
    heal,
    scripted_control,
)
from tests.transactions.helper import PATIENCE

#: The timeout of each call (seconds).
TIMEOUT = 5.0
#: How often a call is repeated that succeeds in the end. The clock runs faster than the threads.
ROUNDS = 100

#: No deadline of a message or a transaction passes in the meantime.
SETTINGS: dict[str, Any] = {
    "transactional_id": NAME,
    "transaction_timeout_ms": 900_000,
    "delivery_timeout_ms": 7_200_000,
}


@pytest.fixture
def scripted(request: pytest.FixtureRequest) -> Iterator[ScriptedCluster]:
    features = {"transaction.version": request.param}
    with ScriptedCluster(2, {TOPIC: 2}, features=features) as found:
        for partition, leader in enumerate((OTHER, COORDINATOR)):
            found.move_leader(TOPIC, partition, leader)
        yield found


def repeated(clock: CountingClock, call: Callable[[], Any]) -> Any:
    """Repeat *call* while its time is over before it has ended; return its last result."""
    result: Any = None
    for _ in range(ROUNDS):
        result = clock.bounded(call)
        found = result[0] if isinstance(result, list) and result else result
        late = isinstance(found, Ended) and found.state is EndState.UNSURE and found.code is None
        if not late and not isinstance(found, TransactionTimeoutError):
            break
    return result


# The producer -------------------------------------------------------------------------------------


def _begin(producer: Producer) -> None:
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(TOPIC, b"value", partition=0).result()


#: The call, and what has to be done before.
CALLS: dict[str, tuple[Callable[[Producer, float], Any], Callable[[Producer], Any]]] = {
    "init_transactions": (lambda p, t: p.init_transactions(t), lambda p: None),
    "init_transactions, another id": (
        lambda p, t: p.init_transactions(t, transactional_id="orders-1"),
        lambda p: p.init_transactions(),
    ),
    "send_offsets_to_transaction": (
        lambda p, t: p.send_offsets_to_transaction({PLACE: 1}, "readers", timeout=t),
        _begin,
    ),
    "commit_transaction": (lambda p, t: p.commit_transaction(t), _begin),
    "abort_transaction": (lambda p, t: p.abort_transaction(t), _begin),
    "prepare_transaction": (lambda p, t: p.prepare_transaction(t), _begin),
    "close": (lambda p, t: p.close(t), _begin),
}


@pytest.mark.parametrize(
    ("scripted", "name", "fault"),
    pairwise(itertools.product([0, 2], CALLS, FAULTS)),
    indirect=["scripted"],
)
def test_calls_of_a_producer(scripted: ScriptedCluster, name: str, fault: str) -> None:
    call, prepare = CALLS[name]
    clock = CountingClock()
    producer = scripted.producer(clock=clock, **SETTINGS)
    try:
        prepare(producer)
        FAULTS[fault](scripted)
        if prepare is _begin and name != "close":
            producer.send(TOPIC, b"more", partition=1)  # to a broker that may be down
        result = clock.bounded(lambda: call(producer, TIMEOUT))
        assert not isinstance(result, Exception) or isinstance(result, TransactionError), result
        heal(scripted)
        if isinstance(result, TransactionTimeoutError):
            assert f"{name.partition(',')[0]}() has not ended within its timeout" in str(result)
            result = repeated(clock, lambda: call(producer, TIMEOUT))
            assert not isinstance(result, Exception), result
    finally:
        heal(scripted)
        producer.abort()


@pytest.mark.parametrize("name", ["begin", "commit", "abort"])
def test_a_blocked_stage_does_not_block_calls_without_a_timeout(name: str) -> None:
    """As by a resolver: the stage cannot keep the deadline of the call."""
    is_armed, is_free = threading.Event(), threading.Event()
    with ScriptedCluster(topics={TOPIC: 1}) as scripted:
        resolve = scripted.network.resolve

        def slow(host: str, port: int) -> Any:
            if is_armed.is_set() and "coordinator" in threading.current_thread().name:
                is_free.wait()
            return resolve(host, port)

        scripted.network.resolve = slow  # type: ignore[method-assign]
        producer = scripted.producer(transactional_id=NAME, max_block_ms=500)
        call = getattr(producer, f"{name}_transaction")
        try:
            if name == "begin":
                is_armed.set()
                with pytest.raises(TransactionTimeoutError):
                    producer.init_transactions()
            else:
                _begin(producer)
                is_armed.set()
                scripted.stop(0)
                scripted.start(0)
            with pytest.raises(TransactionTimeoutError):
                call()
            is_free.set()
            if name == "begin":
                producer.init_transactions(PATIENCE)
            call(*[PATIENCE][: name != "begin"])
        finally:
            is_free.set()
            producer.abort()


# The control client -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scripted", "name", "fault", "connected"),
    pairwise(itertools.product([0, 2], CONTROLS, FAULTS, [False, True])),
    indirect=["scripted"],
)
def test_calls_of_a_control_client(
    scripted: ScriptedCluster, name: str, fault: str, connected: bool
) -> None:
    call = CONTROLS[name]
    clock = PollingClock()
    with scripted_control(scripted, clock) as control:
        token = control.initialize(NAME, 60_000)
        control.commit_offsets(token, {"other": {PLACE: 1}})
        if not connected:
            for link in list(control._exchange._links):
                control._exchange._drop(link)
            control._exchange._places.clear()
        FAULTS[fault](scripted)
        result = clock.bounded(lambda: call(control, token, TIMEOUT))
        assert not isinstance(result, Exception) or isinstance(result, TransactionError), result
        heal(scripted)
        if isinstance(result, TransactionTimeoutError):
            assert str(result).startswith(f"{name}(): ")
            assert "no answer within 5 s" in str(result)
            again = repeated(clock, lambda: call(control, token, TIMEOUT))
            assert not isinstance(again, Exception), again
        elif name.startswith("complete"):
            ended = result[0] if isinstance(result, list) else result
            if ended.code is None:
                again = repeated(clock, lambda: call(control, token, TIMEOUT))
                ended = again[0] if isinstance(again, list) else again
            assert ended.state is not EndState.UNSURE or ended.code is not None

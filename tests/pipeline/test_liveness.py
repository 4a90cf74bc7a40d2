"""Unused connections: ``connections_check_idle_ms``, ``connections_max_idle_ms``.

They may have been dropped silently, and are closed if they are idle for too long.
"""

from __future__ import annotations

from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer._pipeline.bridge import Bridge
from pykaproducer.errors import DeliveryError, Status
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Hold, proceed
from tests._support.callers import needs_callers

from .helper import (
    FAST,
    SOON,
    came,
    frozen,
    hold,
    let_pass,
    log,
    numbers,
    offsets,
    pipeline_of,
    running,
    send,
    until,
    warm_up,
)
from .test_callers import last_caller, warm

#: Metadata is not requested in these tests, and no connection is closed.
QUIET: dict[str, Any] = {
    "metadata_max_age_ms": 3_600_000,
    "metadata_max_idle_ms": 3_600_000,
    "connections_max_idle_ms": -1,
}


def connections(cluster: ScriptedCluster) -> int:
    return len({received.connection for received in cluster.received("produce")})


def checks(cluster: ScriptedCluster) -> int:
    """Return how often a connection to a leader was checked."""
    leaders = {received.connection for received in cluster.received("produce")}
    asked = [each for each in cluster.received("api_versions") if each.connection in leaders]
    return len(asked) - len(leaders)


def mute_after_use(cluster: ScriptedCluster, clock: FakeClock, producer: Producer) -> None:
    """Deliver a message; later, nothing that is written to the connections arrives."""
    warm_up(producer)
    came(cluster, "produce", 1)
    for end in list(cluster._connections):
        end.mute()
    clock.jump(240)


def stale_at(bridge: Bridge) -> float:
    assert bridge._connection is not None
    return bridge._connection.stale_at


# connections_check_idle_ms ----------------------------------------------------------------------


def test_a_connection_that_lives_is_asked_once_and_kept() -> None:
    with frozen(**QUIET) as (cluster, clock, producer):
        warm_up(producer)
        clock.jump(4.9)
        assert offsets(send(producer, [b"second"])) == [1]
        before = checks(cluster)
        clock.jump(5.1)
        assert offsets(send(producer, numbers(20))) == list(range(2, 22))
        assert checks(cluster) == before + 1
        assert connections(cluster) == 1


@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": False}])
def test_nothing_is_written_to_a_connection_that_gives_no_sign_of_life(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with frozen(**QUIET, **settings) as (cluster, clock, producer):
        mute_after_use(cluster, clock, producer)
        deliveries = send(producer, numbers(3))
        bridge = pipeline_of(producer).brokers.all()[0].bridge
        until(lambda: "has not answered the check" in bridge.setting_up())
        clock.jump(2.1)
        until(lambda: any("was unused" in text for text in caplog.messages))
        clock.jump(1.3)  # the backoff
        for delivery in deliveries:
            assert delivery.exception(SOON) is None
        until(lambda: log(cluster) == [b"first", *numbers(3)])
        # The log of the muted connections would show what was written there.
        assert connections(cluster) == 2


@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": False}])
def test_a_message_that_expires_during_the_check_was_not_written(settings: dict[str, Any]) -> None:
    with frozen(**QUIET, **settings) as (cluster, clock, producer):
        mute_after_use(cluster, clock, producer)
        early = producer.send("t", b"early", delivery_timeout_ms=1_000)
        late = producer.send("t", b"late")
        bridge = pipeline_of(producer).brokers.all()[0].bridge
        until(lambda: "has not answered the check" in bridge.setting_up())
        clock.jump(1.1)
        error = early.exception(SOON)
        assert isinstance(error, DeliveryError)
        assert error.status is Status.NOT_PERSISTED
        let_pass(clock, [late])
        assert late.exception(0) is None
        assert log(cluster) == [b"first", b"late"]


def test_a_broker_that_is_slow_with_a_request_is_not_asked() -> None:
    """A Produce request may wait for replicas for as long as request_timeout_ms."""
    held = Hold(proceed)
    with frozen(**QUIET) as (cluster, clock, producer):
        warm_up(producer)
        before = checks(cluster)
        cluster.next("produce", held)
        (first,) = send(producer, [b"second"])
        held.wait_until_held()
        clock.jump(20)
        (second,) = send(producer, [b"third"])
        held.release()
        assert offsets([first, second]) == [1, 2]
        assert checks(cluster) == before
        assert connections(cluster) == 1


def test_never() -> None:
    with frozen(connections_check_idle_ms=0, **QUIET) as (cluster, clock, producer):
        warm_up(producer)
        before = checks(cluster)
        clock.jump(600)
        assert offsets(send(producer, [b"second"])) == [1]
        assert checks(cluster) == before


def test_not_without_acknowledgements() -> None:
    """The connection is not unused: its broker is slow. Messages must not overtake each other."""
    held = Hold()
    with frozen(acks=0, **QUIET) as (cluster, clock, producer):
        warm_up(producer)
        cluster.next("produce", held)
        offsets(send(producer, [b"second"]))
        held.wait_until_held()
        clock.jump(20)
        offsets(send(producer, [b"third"]))
        held.release()
        came(cluster, "produce", 3)
        until(lambda: len(log(cluster)) == 3)
        assert log(cluster)[1:] == [b"second", b"third"]
        assert checks(cluster) == 0
        assert connections(cluster) == 1


@needs_callers
def test_callers_use_a_connection_that_is_never_checked_or_closed() -> None:
    with running(connections_check_idle_ms=0, **FAST, **QUIET) as (cluster, producer):
        warm(producer)
        bridge = pipeline_of(producer).brokers.all()[0].bridge
        until(lambda: bridge._sleeps_until is None)  # it sleeps without a limit
        warm(producer)
        assert checks(cluster) == 0


@needs_callers
def test_a_caller_writes_to_no_connection_that_has_to_be_checked() -> None:
    with running(connections_check_idle_ms=50, **FAST, **QUIET) as (cluster, producer):
        warm(producer)
        before = last_caller(producer)
        bridge = pipeline_of(producer).brokers.all()[0].bridge
        # The stage's thread has taken the connection back, and sleeps on.
        until(lambda: bridge.clock.monotonic() > stale_at(bridge))
        until(lambda: bridge._sleeps_until is None or bridge._sleeps_until > stale_at(bridge))
        asked = checks(cluster)
        producer.send("t", b"it").result(SOON)
        assert last_caller(producer) == before
        assert checks(cluster) == asked + 1
        # Afterwards callers send again.
        warm(producer)


# connections_max_idle_ms ------------------------------------------------------------------------

IDLE: dict[str, Any] = {"connections_max_idle_ms": 10_000, "metadata_max_age_ms": 3_600_000}


def test_an_idle_connection_is_closed_and_the_next_message_opens_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with frozen(**IDLE) as (cluster, clock, producer), caplog.at_level("DEBUG", "pykaproducer"):
        warm_up(producer)
        refreshes = len(cluster.received("metadata"))
        clock.jump(10.1)
        cluster.join_connections()
        assert offsets(send(producer, [b"second"])) == [1]
        assert connections(cluster) == 2
        # This is not a failure: nothing is logged, and no metadata is requested.
        assert len(cluster.received("metadata")) == refreshes
        assert not [record for record in caplog.records if record.levelname != "DEBUG"][2:]


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_connection_that_a_nat_forgot_is_not_used(idempotent: bool) -> None:
    """After the idle time, nothing that is written to the old connections arrives."""
    with frozen(enable_idempotence=idempotent, **IDLE) as (cluster, clock, producer):
        warm_up(producer)
        for end in list(cluster._connections):
            end.mute()
        clock.jump(10.1)
        assert offsets(send(producer, [b"second"])) == [1]


def test_a_connection_with_an_unanswered_request_is_not_idle() -> None:
    with frozen(**IDLE) as (cluster, clock, producer):
        warm_up(producer)
        held, (delivery,) = hold(cluster, producer, [b"second"])
        clock.jump(10.1)
        clock.jump(10.1)
        held.release()
        assert offsets([delivery]) == [1]
        assert log(cluster) == [b"first", b"second"]
        assert connections(cluster) == 1


@pytest.mark.parametrize("never", [0, -1])
def test_a_connection_may_be_idle_without_end(never: int) -> None:
    settings = {**IDLE, "connections_max_idle_ms": never, "metadata_max_idle_ms": 10_000_000}
    with frozen(**settings) as (cluster, clock, producer):
        warm_up(producer)
        clock.jump(1_000)
        clock.jump(1_000)
        assert offsets(send(producer, [b"second"])) == [1]
        assert connections(cluster) == 1


def test_messages_in_the_rhythm_of_the_idle_time_arrive_in_order() -> None:
    """Each message meets a connection that is about to be closed."""
    with frozen(**IDLE) as (cluster, clock, producer):
        deliveries = []
        for number in range(30):
            deliveries += send(producer, [b"%d" % number])
            came(cluster, "produce", number + 1)
            clock.jump(10.0)
        assert offsets(deliveries) == list(range(30))
        assert log(cluster) == [b"%d" % number for number in range(30)]

"""Idle connections: ``connections_max_idle_ms``."""

from __future__ import annotations

from typing import Any

import pytest

from pykaproducer.testing import ScriptedCluster

from .helper import came, frozen, hold, log, offsets, send, warm_up

IDLE: dict[str, Any] = {"connections_max_idle_ms": 10_000, "metadata_max_age_ms": 3_600_000}


def connections(cluster: ScriptedCluster) -> set[int]:
    return {received.connection for received in cluster.received("produce")}


def test_an_idle_connection_is_closed_and_the_next_message_opens_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with frozen(**IDLE) as (cluster, clock, producer), caplog.at_level("DEBUG", "pykaproducer"):
        warm_up(producer)
        refreshes = len(cluster.received("metadata"))
        clock.jump(10.1)
        cluster.join_connections()
        assert offsets(send(producer, [b"second"])) == [1]
        assert len(connections(cluster)) == 2
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
        assert len(connections(cluster)) == 1


@pytest.mark.parametrize("never", [0, -1])
def test_a_connection_may_be_idle_without_end(never: int) -> None:
    settings = {**IDLE, "connections_max_idle_ms": never, "metadata_max_idle_ms": 10_000_000}
    with frozen(**settings) as (cluster, clock, producer):
        warm_up(producer)
        clock.jump(1_000)
        clock.jump(1_000)
        assert offsets(send(producer, [b"second"])) == [1]
        assert len(connections(cluster)) == 1


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

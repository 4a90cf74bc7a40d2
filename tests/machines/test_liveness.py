"""When a connection has to be checked, and when its peer counts as gone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from pykaproducer._machines.liveness import Liveness
from pykaproducer._machines.session import IllegalMove, Move, Session, SessionState


@dataclass
class Settings:
    connections_check_idle_ms: float = 5_000
    tcp_user_timeout_ms: float = 10_000


def test_a_connection_is_stale_after_a_pause_until_it_was_checked() -> None:
    liveness = Liveness(Settings())
    assert liveness.stale_at(100.0) == 105.0
    liveness.just_checked = True
    assert liveness.stale_at(100.0) == math.inf
    assert Liveness(Settings(connections_check_idle_ms=0)).stale_at(100.0) == math.inf


def test_the_peer_is_gone_when_it_has_acknowledged_nothing_since_the_last_use() -> None:
    liveness = Liveness(Settings())
    assert liveness.next_look_at(100.0) == math.inf
    liveness.can_look = True
    assert liveness.next_look_at(100.0) == 110.0
    # The last acknowledgement was long before the last use.
    assert liveness.failure(500.0, 100.0, 109.0) is None
    assert liveness.next_look_at(100.0) == 110.0
    assert liveness.failure(3.0, 100.0, 120.0) is None
    assert liveness.next_look_at(100.0) == 121.0
    assert liveness.failure(None, 100.0, 121.0) is None
    text = liveness.failure(10.0, 100.0, 122.0)
    assert text == (
        "the broker's host acknowledged nothing that was sent in the last 10 s "
        "(tcp_user_timeout_ms)"
    )
    liveness = Liveness(Settings(tcp_user_timeout_ms=0))
    liveness.can_look = True
    assert liveness.next_look_at(100.0) == math.inf
    assert liveness.failure(1e9, 100.0, 1e9) is None


def one_way(**settings: float) -> Liveness:
    liveness = Liveness(Settings(**settings))
    liveness.can_look = liveness.is_one_way = True
    return liveness


def test_without_responses_the_peer_is_gone_although_the_connection_is_in_use() -> None:
    liveness = one_way()
    assert liveness.next_look_at(100.0) <= 100.0
    assert liveness.failure(0.0, 100.0, 100.0) is None
    for second in range(101, 111):
        assert liveness.next_look_at(second - 0.1) == second
        assert liveness.failure(50.0, second - 0.1, float(second)) is None
    assert "acknowledged nothing" in (liveness.failure(50.0, 110.9, 111.0) or "")


def test_a_lost_packet_after_a_pause_is_not_a_peer_that_is_gone() -> None:
    """The last acknowledgement was before the pause."""
    liveness = one_way()
    assert liveness.failure(0.0, 100.0, 111.0) is None
    assert liveness.failure(61.0, 160.0, 161.0) is None
    assert liveness.failure(0.2, 160.0, 162.0) is None
    assert liveness.failure(0.0, 160.0, 163.0) is None
    assert liveness.failure(11.0, 172.0, 174.0) is None


def test_without_responses_an_unused_connection_is_not_looked_at() -> None:
    liveness = one_way()
    liveness.failure(0.0, 100.0, 110.0)
    assert liveness.next_look_at(100.0) == 111.0
    liveness.failure(0.0, 100.0, 111.0)
    assert liveness.next_look_at(100.0) == math.inf
    assert liveness.next_look_at(200.0) <= 200.0
    assert one_way(tcp_user_timeout_ms=0).next_look_at(100.0) == math.inf


@pytest.mark.parametrize("state", [SessionState.CLOSED, SessionState.CHECKING])
def test_a_session_is_checked_only_while_it_takes_requests(state: SessionState) -> None:
    session = Session("tester")
    if state is SessionState.CHECKING:
        for move in (Move.OPEN, Move.CONNECTED, Move.NEGOTIATED):
            session.move(move)
        session.check()
    assert session.state is state
    with pytest.raises(IllegalMove):
        session.check()
    assert session.state is state

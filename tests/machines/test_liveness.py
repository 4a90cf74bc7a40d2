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

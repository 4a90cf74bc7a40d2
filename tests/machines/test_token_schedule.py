"""When a token is requested."""

from __future__ import annotations

import pytest

from pykaproducer._machines.token_schedule import TokenSchedule


def made() -> TokenSchedule:
    return TokenSchedule(0.1, 10.0)


def test_the_first_token_is_due_at_once() -> None:
    schedule = made()
    assert schedule.fetch_at < 0
    assert not schedule.is_valid(0.0)


@pytest.mark.parametrize(("random", "due"), [(0.0, 180.0), (1.0, 185.0)])
def test_a_token_is_renewed_after_80_percent_of_its_life(random: float, due: float) -> None:
    schedule = made()
    schedule.fetched(100.0, 100.0, random)
    assert schedule.fetch_at == pytest.approx(due)
    assert schedule.is_valid(199.9)
    assert not schedule.is_valid(200.0)


def test_a_short_token_is_not_renewed_all_the_time() -> None:
    schedule = made()
    schedule.fetched(0.1, 50.0, 0.0)
    assert schedule.fetch_at == 51.0


def test_failures_are_retried_with_backoff_and_the_old_token_stays() -> None:
    schedule = made()
    schedule.fetched(100.0, 0.0, 0.0)
    pauses = []
    for _ in range(9):
        schedule.failed(80.0, 0.5, permanent=False)
        pauses.append(schedule.fetch_at - 80.0)
    assert pauses[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert pauses[-1] == pytest.approx(10.0)
    assert schedule.is_valid(99.0)
    schedule.fetched(100.0, 90.0, 0.0)
    schedule.failed(170.0, 0.5, permanent=False)
    assert schedule.fetch_at == pytest.approx(170.1)


def test_a_permanent_failure_is_retried_at_the_longest_backoff() -> None:
    schedule = made()
    schedule.failed(5.0, 0.5, permanent=True)
    assert schedule.fetch_at == 15.0


def test_a_token_that_a_broker_rejects_is_replaced() -> None:
    schedule = made()
    schedule.fetched(3600.0, 0.0, 0.0)
    schedule.rejected(60.0)
    # Other brokers may accept it.
    assert schedule.is_valid(60.0)
    assert schedule.fetch_at == 60.0
    # The new one is no better: the endpoint is not asked all the time.
    schedule.fetched(3600.0, 60.0, 0.0)
    schedule.rejected(61.0)
    assert schedule.fetch_at == 80.0


def test_each_token_is_replaced_once_however_often_it_is_rejected() -> None:
    schedule = made()
    schedule.fetched(3600.0, 0.0, 0.0)
    schedule.rejected(60.0)
    schedule.failed(60.0, 0.5, permanent=True)
    schedule.rejected(61.0)
    assert schedule.fetch_at == 70.0


def test_the_pause_doubles_while_every_token_is_rejected() -> None:
    schedule = made()
    now, pauses = 0.0, []
    for _ in range(8):
        schedule.fetched(3600.0, now, 0.0)
        schedule.rejected(now)
        pauses.append(schedule.fetch_at - now)
        now = schedule.fetch_at
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 320.0, 320.0]
    # It begins anew after a token that was not rejected.
    schedule.fetched(3600.0, now, 0.0)
    schedule.fetched(3600.0, now + 2880.0, 0.0)
    schedule.rejected(now + 2880.0)
    assert schedule.fetch_at == now + 2890.0


def test_a_rejected_token_is_renewed_no_later_than_any_other() -> None:
    schedule = made()
    schedule.fetched(5.0, 0.0, 0.0)
    schedule.rejected(1.0)
    assert schedule.fetch_at == 4.0

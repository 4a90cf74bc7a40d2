"""The window of bytes in flight to a broker, and how it adapts to slow lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._machines.window import LEAST, PAUSE, Window

MOST = 1 << 20


def window(timeout: float = 30.0) -> Window:
    return Window(limit=5, most=MOST, timeout=timeout)


def test_a_request_may_be_as_large_as_the_settings_say() -> None:
    assert window().most == MOST


def test_a_large_request_that_is_lost_halves_the_bound_down_to_a_least_one() -> None:
    found = window()
    sizes = []
    for _ in range(10):
        found.lost(found.most)
        sizes.append(found.most)
    assert sizes[:3] == [MOST // 2, MOST // 4, MOST // 8]
    assert sizes[-1] == LEAST


def test_a_small_request_that_is_lost_teaches_nothing() -> None:
    found = window()
    found.lost(MOST // 2 - 1)
    assert found.most == MOST


def test_a_setting_below_the_least_bound_holds() -> None:
    found = Window(limit=5, most=1000, timeout=30.0)
    found.lost(1000)
    assert found.most == 1000


def test_requests_that_are_answered_soon_bring_the_bound_back() -> None:
    found = window()
    for _ in range(10):
        found.lost(found.most)
    for number in range(20):
        found.answered(float(number), number - 0.1, found.most)
    assert found.most == MOST


def test_small_requests_do_not_bring_it_back() -> None:
    found = window()
    found.lost(MOST)
    found.answered(1.0, 0.9, 100)
    assert found.most == MOST // 2


def test_a_request_that_took_longer_than_its_time_shows_what_the_line_can_take() -> None:
    """It was not lost, because data was sent all the time."""
    found = window(timeout=30.0)
    found.answered(100.0, 0.0, MOST)
    assert found.most == int(MOST * 15 / 100)
    assert found.took == 100.0


def test_a_request_s_turn_comes_with_the_answer_before_it() -> None:
    found = window(timeout=30.0)
    for answered in (20.0, 40.0, 60.0, 80.0):  # all of them were sent at once
        found.answered(answered, 0.0, MOST)
        assert found.took == 20.0
    assert found.most == MOST


def test_a_request_gets_more_than_the_least_time_where_the_last_one_needed_it() -> None:
    found = window(timeout=30.0)
    assert found.patience(3.0) == 3.0
    found.answered(5.0, 0.0, MOST)
    assert found.patience(3.0) == 10.0
    found.answered(105.0, 5.0, MOST)
    assert found.patience(3.0) == 30.0
    assert Window(limit=5, most=MOST, timeout=1.0).patience(3.0) == 1.0


@given(rate=st.floats(2_000, 10_000_000), timeout=st.floats(1, 60))
def test_on_any_line_requests_soon_take_no_longer_than_their_time(
    rate: float, timeout: float
) -> None:
    """Applies if the line can carry the smallest of them in that time at all."""
    found = Window(limit=5, most=MOST, timeout=timeout)
    now, late = 0.0, []
    for _ in range(40):
        size = found.most
        took = size / rate
        if took > 4 * timeout:  # the client does not wait that long: the connection is lost
            now += timeout
            found.lost(size)
            late.append(True)
            continue
        found.answered(now + took, now, size)
        now += took
        late.append(took > timeout)
    assert LEAST <= found.most <= MOST
    if rate * timeout >= LEAST:
        assert not any(late[8:])
    if rate * timeout >= 4 * MOST:
        assert found.most == MOST


@pytest.mark.parametrize("rate", [20_000, 35_000, 100_000])
def test_the_bound_does_not_swing(rate: int) -> None:
    found = window(timeout=30.0)
    now = 0.0
    seen = []
    for _ in range(30):
        size = found.most
        now += size / rate
        found.answered(now, now - size / rate, size)
        seen.append(found.most)
    assert len(set(seen[10:])) == 1


# The number of requests ---------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_full_requests_go_up_to_the_limit(limit: int) -> None:
    found = Window(limit=limit, most=MOST, timeout=30.0)
    # With a limit of 1, one more request is sealed ahead.
    for under_way in range(max(2, limit)):
        assert found.opens_at(under_way, full=True) == 0.0
    assert found.opens_at(max(2, limit), full=True) is None


@pytest.mark.parametrize("limit", [1, 2])
def test_small_requests_go_up_to_two(limit: int) -> None:
    found = Window(limit=limit, most=MOST, timeout=30.0)
    assert [found.opens_at(n, full=False) for n in range(limit)] == [0.0] * limit
    assert found.opens_at(limit, full=False) is None


def test_small_requests_beyond_two_go_at_even_distances() -> None:
    found = window()
    found.sealed(10.0)
    assert found.opens_at(1, full=False) == 0.0
    assert found.opens_at(2, full=False) == 10.0 + PAUSE
    found.answered(10.1, 10.0, 100)
    found.sealed(10.1)
    assert found.opens_at(4, full=False) == pytest.approx(10.1 + 0.1 / 5)
    assert found.opens_at(5, full=False) is None

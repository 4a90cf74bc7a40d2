"""Which of a host's addresses is tried when, and for how long."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pykaproducer._machines.address_race import AddressRace, SetupTimeouts, interleaved

V4, V6 = 2, 10
HOST = ("broker", 9092)


class At(NamedTuple):
    family: int
    name: str


def names(*addresses: At, first: int | None = None) -> str:
    return "".join(address.name for address in interleaved(addresses, first))


def test_families_alternate() -> None:
    six, four = [At(V6, each) for each in "abc"], [At(V4, each) for each in "12"]
    assert names(*six, *four) == "a1b2c"
    assert names(*four, *six) == "1a2bc"
    assert names(*six, *four, first=V4) == "1a2bc"
    assert names(*six, first=V4) == "abc"
    assert names() == ""


def test_each_attempt_starts_a_moment_after_the_one_before() -> None:
    race = AddressRace(3, 100.0, 110.0)
    assert race.start(100.0) == 0
    assert race.start(100.0) is None
    assert race.deadline == 100.25
    assert race.start(100.25) == 1
    assert race.start(100.5) == 2
    assert race.deadline == 110.0
    assert race.start(101.0) is None
    assert not race.late(109.9)
    assert race.late(110.0)


def test_a_failure_starts_the_next_at_once() -> None:
    race = AddressRace(2, 100.0, 110.0)
    race.start(100.0)
    race.failed(100.01)
    assert race.start(100.01) == 1
    race.failed(100.02)
    assert race.is_over(100.02)


def test_more_addresses_than_there_is_time_for() -> None:
    race = AddressRace(3, 100.0, 100.3)
    assert [race.start(100.0), race.start(100.25)] == [0, 1]
    assert race.late(100.3)
    race.failed(100.3)
    assert not race.is_over(100.3)
    race.failed(100.3)
    assert race.start(100.3) is None
    assert race.is_over(100.3)


def test_the_winner_leaves_time_for_the_others() -> None:
    race = AddressRace(3, 100.0, 110.0)
    race.start(100.0)
    race.start(100.25)
    race.won([0], 101.0)
    # The winner, the one that was given up, and the one that was not tried.
    assert race.deadline == 104.0
    assert race.start(102.0) is None
    assert race.late(104.0)
    race.failed(104.0)
    assert race.start(104.0) == 0
    assert race.start(104.25) == 2
    assert not race.is_over(104.25)


def test_the_only_address_has_all_the_time() -> None:
    race = AddressRace(1, 100.0, 110.0)
    race.start(100.0)
    race.won([], 101.0)
    assert race.deadline == 110.0


def test_no_address() -> None:
    race = AddressRace(0, 100.0, 110.0)
    assert race.start(100.0) is None
    assert race.is_over(100.0)


def test_setup_timeouts_double_with_jitter_until_the_maximum() -> None:
    timeouts = SetupTimeouts(10.0, 30.0)
    assert timeouts.timeout(HOST, 0.0) == timeouts.timeout(HOST, 1.0) == 10.0
    timeouts.failed(HOST)
    assert timeouts.timeout(HOST, 0.0) == 16.0
    assert timeouts.timeout(HOST, 1.0) == pytest.approx(24.0)
    for _ in range(5000):
        timeouts.failed(HOST)
    assert timeouts.timeout(HOST, 0.5) == 30.0
    assert timeouts.timeout(("another", 9092), 0.5) == 10.0
    timeouts.succeeded(HOST)
    assert timeouts.timeout(HOST, 0.5) == 10.0

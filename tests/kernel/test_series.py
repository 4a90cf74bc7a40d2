"""Sampled statistics: totals, recent values, percentiles; and statistics of settled rows."""

from __future__ import annotations

import random

import pytest

from pykaproducer._kernel import SampledStat
from tests._support.threads import run_together

from .helper import TOPIC, Door, some

#: The relative width of a bucket.
WITHIN = 0.07


def test_totals_are_for_ever() -> None:
    stat = SampledStat(10.0, 2)
    for second in range(100):
        stat.add(1000.0 + second, 3.0, 2)
    assert stat.count == 200
    assert stat.sum == 600.0
    assert stat.largest == 3.0


def test_lately_is_this_sample_and_those_before_it() -> None:
    stat = SampledStat(10.0, 2)
    stat.add(1000.0, 1.0)
    stat.add(1009.0, 2.0)
    assert stat.recent(1009.0) == (2, 3.0, 2.0, 9.0)
    stat.add(1012.0, 5.0)
    assert stat.recent(1019.0) == (3, 8.0, 5.0, 19.0)
    # The third sample begins: the first one is dropped, even if nothing is added.
    assert stat.recent(1021.0) == (1, 5.0, 5.0, 11.0)
    stat.add(1021.0, 1.0)
    assert stat.recent(1021.0) == (2, 6.0, 5.0, 11.0)
    assert stat.recent(2000.0)[:3] == (0, 0.0, 0.0)


def test_nothing_yet() -> None:
    stat = SampledStat(10.0, 2, True)
    assert stat.recent(1000.0) == (0, 0.0, 0.0, 0.0)
    assert stat.percentiles(1000.0, 0.5, 0.99) == [None, None]
    assert stat.histogram([1.0]) == SampledStat(10.0, 2).histogram([1.0]) == [0, 0]


def test_a_thread_that_looked_at_the_clock_behind_another_one_counts() -> None:
    stat = SampledStat(10.0, 2)
    stat.add(1000.0, 1.0)
    stat.add(1010.1, 1.0)
    stat.add(1009.9, 1.0)
    assert stat.recent(1010.1)[0] == 3


@pytest.mark.parametrize("scale", [1e-5, 1e-3, 0.1, 10.0, 3600.0])
def test_percentiles_are_right_within_a_bucket(scale: float) -> None:
    numbers = random.Random(1)
    durations = sorted(numbers.lognormvariate(0, 1) * scale for _ in range(10_000))
    stat = SampledStat(1000.0, 2, True)
    for duration in numbers.sample(durations, len(durations)):
        stat.add(1.0, duration)
    fractions = (0.5, 0.95, 0.99, 1.0)
    for fraction, found in zip(fractions, stat.percentiles(1.0, *fractions), strict=True):
        exact = durations[min(len(durations) - 1, int(fraction * len(durations)))]
        assert found == pytest.approx(exact, rel=WITHIN, abs=1e-6)


def test_no_duration_is_too_short_or_too_long() -> None:
    stat = SampledStat(1000.0, 2, True)
    for duration in (-1.0, 0.0, 1e-9, 1e9):
        stat.add(1.0, duration)
    assert stat.count == 4
    assert stat.percentiles(1.0, 1.0)[0] is not None


def test_the_spread_since_the_start() -> None:
    stat = SampledStat(1.0, 1, True)
    for second, duration in enumerate([0.0005, 0.003, 0.003, 0.7, 9.0]):
        stat.add(1000.0 + 10 * second, duration)
    assert stat.histogram([0.001, 0.01, 1.0]) == [1, 2, 1, 1]


def test_many_threads_add_to_one_series() -> None:
    stat = SampledStat(1000.0, 2, True)

    def add() -> None:
        for _ in range(20_000):
            stat.add(1.0, 0.01)

    run_together(*[add] * 4)
    assert stat.count == 80_000
    assert stat.histogram([1.0]) == [80_000, 0]


def test_rows_are_told_while_they_settle() -> None:
    """Each time is measured from the row's own send(), not from the opening of the chunk."""
    door = Door()
    for _ in range(100):
        door.send(TOPIC, b"value")
        door.clock.jump(0.01)
    (chunk,) = door._take_all()
    latency = SampledStat(1000.0, 2, True)
    settled = some(chunk.whole().deliver(0, latency=latency, now=door.clock.monotonic()))
    assert settled.nbytes == chunk.nbytes
    assert latency.count == 100
    assert latency.sum == pytest.approx(sum(0.01 * n for n in range(1, 101)))
    assert latency.largest == pytest.approx(1.0)
    assert latency.percentiles(door.clock.monotonic(), 0.5)[0] == pytest.approx(0.5, rel=WITHIN)
    settled.finish()


def test_a_row_that_has_its_outcome_is_not_told_again() -> None:
    door = Door()
    for _ in range(4):
        door.send(TOPIC, b"value")
    (chunk,) = door._take_all()
    late = some(chunk.pick([1, 3]).fail(TimeoutError(), TimeoutError()))
    assert late.nbytes == 10
    latency = SampledStat(1000.0, 2, True)
    settled = some(chunk.whole().deliver(0, latency=latency, now=door.clock.monotonic()))
    assert (latency.count, settled.count, settled.nbytes) == (2, 2, 10)
    late.finish()
    settled.finish()


def test_a_row_with_a_timeout_of_its_own_counts_from_the_opening_of_its_chunk() -> None:
    door = Door()
    door.send(TOPIC, b"first")
    door.clock.jump(1.0)
    door.send(TOPIC, b"second", delivery_timeout_ms=5)
    (chunk,) = door._take_all()
    latency = SampledStat(1000.0, 2, True)
    settled = chunk.whole().deliver(0, latency=latency, now=door.clock.monotonic())
    assert latency.sum == pytest.approx(2.0)
    assert settled is not None
    settled.finish()


def test_what_was_accepted_is_counted_in_bytes() -> None:
    door = Door()
    door.send(TOPIC, b"value", key=b"key")
    door.send(TOPIC, None)
    assert (door.accepted, door.accepted_bytes) == (2, 8)
    rows, nbytes, opened = door._open_rows()
    assert (rows, nbytes) == (2, 8)
    assert opened == door.clock.monotonic()
    door._take_all()
    assert door._open_rows() == (0, 0, None)

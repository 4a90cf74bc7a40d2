"""Shares of messages without a key (KIP-794)."""

from __future__ import annotations

from pykaproducer._machines import adaptive_partitioning


def test_equal_queues_share_alike() -> None:
    assert adaptive_partitioning.bounds([], 1000) is None
    assert adaptive_partitioning.bounds([0, 0, 0], 1000) is None
    assert adaptive_partitioning.bounds([5000, 5999, 5100], 1000) is None


def test_a_shorter_queue_has_the_larger_share() -> None:
    # As in Kafka's BuiltInPartitioner: queues of 0, 3 and 1 batches weigh 4, 1 and 3.
    assert adaptive_partitioning.bounds([0, 3000, 1999], 1000) == [4, 5, 8]


def test_bounds_fit_into_32_bits_however_long_the_queues() -> None:
    found = adaptive_partitioning.bounds([20 << 30] * 299 + [0], 1)
    assert found is not None
    assert found[-1] < 1 << 32
    assert found[-1] - found[-2] > found[0]


def test_looking_at_queues_costs_little_however_many_there_are() -> None:
    assert adaptive_partitioning.pause(12) == adaptive_partitioning.LEAST_PAUSE
    assert adaptive_partitioning.pause(5000) >= 5000 * adaptive_partitioning.PAUSE_EACH

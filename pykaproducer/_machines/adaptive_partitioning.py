"""Adaptive partitioning: partitions with longer queues get fewer messages without a key (KIP-794).

The queues of a broker's partitions grow while the broker is slow. As in Kafka's
``BuiltInPartitioner``, each partition is drawn with a weight that decreases with the length of its
queue. The longest queue has weight 1, and every *unit* of bytes by which a queue is shorter adds 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

#: Maximum unit (bytes); ``batch_size`` is used if it is smaller.
UNIT = 64 << 10
#: Time between two checks of the queues: the minimum, and the addition per partition (seconds).
LEAST_PAUSE, PAUSE_EACH = 0.01, 10e-6


def bounds(queues: Sequence[int], unit: int) -> list[int] | None:
    """Return the upper bound of each partition's share of a draw; None for equal shares.

    A number is drawn below the last bound. It selects the first partition whose bound is greater.
    *queues*: bytes that wait for each partition.
    """
    # The last bound must fit into 32 bits.
    unit = max(unit, max(queues, default=0) * len(queues) >> 31)
    steps = [queued // unit for queued in queues]
    longest = max(steps, default=0)
    if longest == min(steps, default=0):
        return None
    return list(accumulate(longest + 1 - each for each in steps))


def pause(partitions: int) -> float:
    """Return the time until the next check, in seconds: checks take about 1 % of the time."""
    return max(LEAST_PAUSE, partitions * PAUSE_EACH)

"""How messages without a key are shared out: a partition with a long queue gets less (KIP-794).

A broker that is slow for a while lets the queues of its partitions grow. As in Kafka's own
``BuiltInPartitioner`` each partition is drawn with a weight that falls with its queue: the longest
queue has weight 1, and every *unit* of bytes that a queue is shorter adds 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

#: Bytes of a queue that count as one step, at most (a batch, if that is smaller).
UNIT = 64 << 10
#: Seconds between two looks at the queues: at least, and for each partition of the topic.
LEAST_PAUSE, PAUSE_EACH = 0.01, 10e-6


def bounds(queues: Sequence[int], unit: int) -> list[int] | None:
    """Where each partition's share of a draw ends; None if all are equally long.

    A number drawn below the last bound belongs to the first partition whose bound is above it.
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
    """Seconds to the next look: so that looking costs about a hundredth of the time."""
    return max(LEAST_PAUSE, partitions * PAUSE_EACH)

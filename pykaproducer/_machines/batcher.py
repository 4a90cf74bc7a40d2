"""Create the :class:`~pykaproducer._kernel.Batcher` of a broker; since when an item lingers.

The batcher, which decides when a batch is due and which rows it takes, is compiled:
``_kernel_parts/batcher.pxi``.
"""

from __future__ import annotations

from pykaproducer._kernel import Batcher, Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch
from pykaproducer.config import Config


def lingers_since(item: Slice | Batch | Backlog, now: float) -> float:
    """Return since when *item* lingers, which arrives now.

    New messages may have waited in the open chunk: since it was opened. A retry does not linger.
    """
    return item.chunk.opened if isinstance(item, Slice) and not item.level else now


def batcher_for(config: Config, batch_size: int) -> Batcher:
    """Return the batcher of a broker with these settings, and batches of *batch_size* bytes."""
    return Batcher(
        linger=config.linger_ms / 1000,
        batch_size=batch_size,
        batch_messages=config.batch_max_messages,
        # Without sequence numbers: one in flight, and one sealed ahead of the response.
        sealed_limit=config.max_in_flight_requests_per_connection if config.idempotent else 2,
    )

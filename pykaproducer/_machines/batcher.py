"""Create the :class:`~pykaproducer._kernel.Batcher` of a broker.

The batcher, which decides when a batch is due and which rows it takes, is compiled:
``_kernel_parts/batcher.pxi``.
"""

from __future__ import annotations

from pykaproducer._kernel import Batcher
from pykaproducer.config import Config


def batcher_for(config: Config, batch_size: int) -> Batcher:
    """Return the batcher of a broker with these settings, and batches of *batch_size* bytes."""
    return Batcher(
        linger=config.linger_ms / 1000,
        batch_size=batch_size,
        batch_messages=config.batch_max_messages,
        # Without sequence numbers: one in flight, and one sealed ahead of the response.
        sealed_limit=config.max_in_flight_requests_per_connection if config.idempotent else 2,
    )

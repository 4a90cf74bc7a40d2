"""Create the :class:`~pykaproducer._kernel.Batcher` of a broker.

The batcher, which decides when a batch is due and which rows it takes, is compiled:
``_kernel_parts/batcher.pxi``.
"""

from __future__ import annotations

from pykaproducer._kernel import Batcher
from pykaproducer.config import Config

#: Brokers from this version of Produce on (Kafka 1.0) recognise a retry of any of the last five
#: batches of a producer; older ones that of the last one only (KAFKA-5494).
_REMEMBERS_FIVE = 5


def batcher_for(config: Config, batch_size: int) -> Batcher:
    """Return the batcher of a broker with these settings, and batches of *batch_size* bytes."""
    return Batcher(
        linger=config.linger_ms / 1000,
        batch_size=batch_size,
        batch_messages=config.batch_max_messages,
        sealed_limit=sealed_limit(config),
    )


def sealed_limit(config: Config, version: int = _REMEMBERS_FIVE) -> int:
    """Return how many batches of a partition may be unanswered, with *version* of Produce."""
    if not config.idempotent:
        return 2  # one in flight, and one sealed ahead of the response
    return config.max_in_flight_requests_per_connection if version >= _REMEMBERS_FIVE else 1

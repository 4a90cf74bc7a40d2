"""A Produce request of any bytes, framed by the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pykaproducer._kernel import produce_frame
from pykaproducer._wire.produce import produce_head

#: The first version with compact strings and tagged fields.
FLEXIBLE = 9


def produce_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    acks: int,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, Any]],
) -> list[Any]:
    """Return the buffers of a request; *batches*: (topic, partition, record batch)."""
    head = produce_head(version, client_id, acks)
    return produce_frame(head, correlation_id, timeout_ms, batches, version >= FLEXIBLE)

"""What goes wrong with a cluster, and is put right again whatever a test does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pykaproducer.testing import KafkaCluster


@contextmanager
def paused(cluster: KafkaCluster, broker: int = 0) -> Iterator[None]:
    """Its sockets stay open and are silent inside the block."""
    cluster.pause(broker)
    try:
        yield
    finally:
        cluster.resume(broker)


@contextmanager
def down(cluster: KafkaCluster, broker: int = 0) -> Iterator[None]:
    """Killed at the beginning of the block, and at the end started on the same port again."""
    cluster.kill(broker)
    try:
        yield
    finally:
        cluster.restart(broker)

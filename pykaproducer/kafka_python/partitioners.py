"""kafka-python's partitioner objects, whose method ``partition()`` is called in ``send()``.

kafka-python's two partitioners have equivalents here. Any other object is called as by that
library: on the calling thread, with the key and value before and after serialization, once the
topic is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pykaproducer._config.serializers import takes
from pykaproducer._machines.cluster import ClusterView

#: ``partitioner(topic, key, key_bytes, value, value_bytes, cluster)``.
PartitionerCallable = Callable[[str, Any, Any, Any, Any, "Cluster"], Any]

#: The equivalents of kafka-python's partitioners.
_NAMED = {
    "kafka.partitioner.default.DefaultPartitioner": "murmur2_random",
    "kafka.partitioner.sticky.StickyPartitioner": "murmur2",
}


class Cluster:
    """A snapshot with the methods of ``ClusterMetadata`` that a partitioner may call."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def topics(self) -> set[str]:
        """Return the known topics."""
        return {name for name, topic in self._view.topics.items() if topic.partitions}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return all partitions of a topic, or None if it is unknown."""
        found = self._view.topics.get(topic)
        return set(range(found.partitions)) if found is not None and found.partitions else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic that have a leader, or None if it is unknown."""
        found = self._view.topics.get(topic)
        return set(found.leaders) if found is not None and found.partitions else None


def callable_or_setting(partitioner: Any) -> tuple[PartitionerCallable | None, Any]:
    """Return a callable if *partitioner* has a method ``partition``, and the setting to use."""
    kind = type(partitioner)
    name = _NAMED.get(f"{kind.__module__}.{kind.__qualname__}")
    method = getattr(partitioner, "partition", None)
    if name is not None:
        return None, name
    if isinstance(partitioner, (str, type)) or not callable(method):
        return None, partitioner
    if takes(method, 6):
        return method, "murmur2"
    # kafka-python also calls objects like this that do not derive from its Partitioner.
    return lambda topic, key, packed, *more: method(topic, packed, more[-1]), "murmur2"

"""Partitioners as objects of kafka-python: their method ``partition()`` is called in ``send()``.

Its own two have names here. Any other object is asked as that library asks it: in the caller's
thread, with the key and the value before and after their serializers, once the topic is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pykaproducer._machines.cluster import ClusterView
from pykaproducer._serializers import takes

#: ``chooser(topic, key, key_bytes, value, value_bytes, cluster)``.
Chooser = Callable[[str, Any, Any, Any, Any, "Cluster"], Any]

#: What kafka-python's own do, by the name that it has here.
_NAMED = {
    "kafka.partitioner.default.DefaultPartitioner": "murmur2_random",
    "kafka.partitioner.sticky.StickyPartitioner": "murmur2",
}


class Cluster:
    """What a partitioner may ask of kafka-python's ``ClusterMetadata``: a snapshot."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def topics(self) -> set[str]:
        """The topics that are known."""
        return {name for name, topic in self._view.topics.items() if topic.partitions}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """All partitions of a topic; None: it is not known."""
        found = self._view.topics.get(topic)
        return set(range(found.partitions)) if found is not None and found.partitions else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """The partitions of a topic that have a leader; None: it is not known."""
        found = self._view.topics.get(topic)
        return set(found.leaders) if found is not None and found.partitions else None


def chooser_or_setting(partitioner: Any) -> tuple[Chooser | None, Any]:
    """A chooser, if *partitioner* is an object with a method ``partition``; and what to set."""
    kind = type(partitioner)
    name = _NAMED.get(f"{kind.__module__}.{kind.__qualname__}")
    method = getattr(partitioner, "partition", None)
    if name is not None:
        return None, name
    if isinstance(partitioner, (str, type)) or not callable(method):
        return None, partitioner
    if takes(method, 6):
        return method, "murmur2"
    # As kafka-python still calls those that do not derive from its Partitioner.
    return lambda topic, key, packed, *more: method(topic, packed, more[-1]), "murmur2"

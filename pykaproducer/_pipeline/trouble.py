"""Why messages wait: the last known reason, for the error that they get in the end.

Written by the stages that meet the trouble, read when a row expires. Each entry is replaced or
removed whole; dictionary operations are atomic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from pykaproducer._machines.cluster import DELETED, ClusterView
from pykaproducer._texts import code_text
from pykaproducer.errors import DeliveryError

log = logging.getLogger("pykaproducer.producer")


class Trouble:
    """What stands between messages and the log, by cluster, broker and partition."""

    def __init__(self) -> None:
        #: No server of the cluster can be asked.
        self.cluster: str | None = None
        #: No producer id has been given: nothing can be sealed.
        self.producer_id: str | None = None
        self.brokers: dict[int, str] = {}
        self.throttled: dict[int, str] = {}
        self.partitions: dict[tuple[str, int], str] = {}
        self.view = ClusterView()
        #: How far the connection for metadata has come, if it does not stand yet; by wiring.
        self.setting_up: Callable[[], str] = str
        #: Topics of which the log tells that messages for them are refused.
        self._refused: dict[str, object] = {}

    def refused(self, topic: str, error: DeliveryError) -> None:
        """Messages for *topic* are refused, whatever is in them: say so, once until one passes.

        Whoever sent them learns it from them; whoever runs the program looks into the log.
        """
        mine = object()
        # Two stages may come here at once: one of them has put it there.
        if self._refused.setdefault(topic, mine) is mine:
            log.error("%s", Exception.__str__(error))

    def forget(self, topic: str, partitions: Iterable[int]) -> None:
        """Remove *topic*, which is no longer used, and those of its *partitions* that were."""
        self._refused.pop(topic, None)
        for partition in partitions:
            self.partitions.pop((topic, partition), None)

    def delivered(self, topic: str, partition: int) -> None:
        """A message has been delivered: nothing is in the way any more."""
        self.partitions.pop((topic, partition), None)
        self._refused.pop(topic, None)

    def why(self, topic: str, partition: int | None) -> str | None:
        """The reason why a message for *topic*, *partition* has not been delivered."""
        view = self.view.topics.get(topic)
        if view is None or not view.partitions:
            if self.cluster is not None:
                return self.cluster
            if view is None:
                under_way = self.setting_up()
                return "no metadata of the topic has come yet" + (under_way and f": {under_way}")
            if view.error_code:
                return f"the cluster has no such topic: {code_text(view.error_code)}"
            return "the cluster has no such topic"
        if partition is None:
            return None
        leader = view.leaders.get(partition)
        if leader is None:
            if view.error_code in DELETED:
                return f"the cluster has no such topic any more: {code_text(view.error_code)}"
            if view.error_code:
                return f"the topic cannot be looked up: {code_text(view.error_code)}"
            if partition >= view.partitions:
                return self.cluster or f"the topic has partitions 0 to {view.partitions - 1} only"
            return self.cluster or "the partition has no leader"
        return (
            self.brokers.get(leader)
            or self.throttled.get(leader)
            or self.producer_id
            or self.partitions.get((topic, partition))
            or "the broker has not answered yet"
        )

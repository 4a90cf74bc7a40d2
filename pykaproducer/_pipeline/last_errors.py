"""The last known reasons why messages have to wait, for the errors of messages that expire.

Written by the stages that meet an error, and read when a row expires. Each entry is replaced or
removed as a whole, with atomic dictionary operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pykaproducer._errors.formatting import format_partition_numbers
from pykaproducer._machines.cluster import ClusterView, lookup_error
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer.errors import DeliveryError

log = GuardedLogger("pykaproducer.producer")

NO_ANSWER = "the broker has not answered yet"


class LastErrors:
    """The last errors of the cluster, the brokers and the partitions."""

    def __init__(self) -> None:
        #: Why no server of the cluster can be reached.
        self.cluster: str | None = None
        #: Why there is no producer id, without which no batch can be sealed.
        self.producer_id: str | None = None
        self.brokers: dict[int, str] = {}
        self.throttled: dict[int, str] = {}
        # Never replaced, nor is `rejected_topics`: each RequestSettler keeps them.
        self.partitions: dict[tuple[str, int], str] = {}
        self.view = ClusterView()
        #: Describes the progress of the metadata connection while it is set up. Set by wiring.
        self.setting_up: Callable[[], str] = str
        #: Topics for which it was logged that all messages are rejected.
        self.rejected_topics: dict[str, object] = {}

    def rejected(self, topic: str, error: DeliveryError) -> None:
        """Log that all messages for *topic* are rejected, once until one succeeds.

        The messages' errors inform the caller, and the log informs the operator.
        """
        mine = object()
        # Two stages may call this at once; only the one whose entry was stored logs.
        if self.rejected_topics.setdefault(topic, mine) is mine:
            log.error("%s", Exception.__str__(error))

    def forget(self, topic: str, partitions: Iterable[int]) -> None:
        """Remove *topic*, which is no longer used, and its *partitions*."""
        self.rejected_topics.pop(topic, None)
        for partition in partitions:
            self.partitions.pop((topic, partition), None)

    def delivered(self, topic: str, partition: int) -> None:
        """Remove the errors of a partition and its topic, as a message was delivered."""
        self.partitions.pop((topic, partition), None)
        self.rejected_topics.pop(topic, None)

    def reason_for_any(self, topic: str) -> str | None:
        """Return why messages for some partition of *topic* have not been delivered."""
        reason = self.reason_for(topic, None)
        view = self.view.topics.get(topic)
        if reason is None and view is not None:
            found = [self.reason_for(topic, partition) for partition in range(view.partitions)]
            reason = next((each for each in found if each != NO_ANSWER), NO_ANSWER)
        return reason

    def reason_for(self, topic: str, partition: int | None) -> str | None:
        """Return why a message for *topic*, *partition* has not been delivered."""
        view = self.view.topics.get(topic)
        if view is None or not view.partitions:
            if self.cluster is not None:
                return self.cluster
            if view is None:
                under_way = self.setting_up()
                return "no metadata of the topic has arrived yet" + (under_way and f": {under_way}")
            if view.error_code:
                return lookup_error(view.error_code)
            return "the cluster has no such topic"
        if partition is None:
            return None
        leader = view.leaders.get(partition)
        if leader is None:
            if view.error_code:
                return lookup_error(view.error_code, was_known=True)
            if partition >= view.partitions:
                return self.cluster or f"the topic has {format_partition_numbers(view.partitions)}"
            no_leader = "the partition has no leader"
            return no_leader if self.cluster is None else f"{no_leader}; {self.cluster}"
        return (
            self.brokers.get(leader)
            or self.throttled.get(leader)
            or self.producer_id
            or self.partitions.get((topic, partition))
            or NO_ANSWER
        )

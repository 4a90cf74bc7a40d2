"""The view of the cluster, and when it must be asked for again."""

from __future__ import annotations

import dataclasses
from array import array
from dataclasses import dataclass, field

from pykaproducer._wire.kafka_python import BrokerAddress, MetadataAnswer, TopicAnswer


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic: its partitions and who leads them."""

    name: str
    #: Kafka's error code for the topic as a whole, 0 for none.
    error_code: int
    #: How many partitions: their numbers are 0 to this.
    partitions: int
    #: partition -> broker id; partitions without leader are not in it.
    leaders: dict[int, int]
    #: Partitions with a leader, packed as the kernel takes them (int32).
    available: bytes


@dataclass(frozen=True, slots=True)
class ClusterView:
    """An immutable snapshot: readers take the reference and need no lock."""

    brokers: dict[int, BrokerAddress] = field(default_factory=dict)
    topics: dict[str, TopicView] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> int | None:
        """Broker id of the partition's leader, None if there is none or it is not known."""
        view = self.topics.get(topic)
        return None if view is None else view.leaders.get(partition)

    def with_answer(self, answer: MetadataAnswer) -> ClusterView:
        """The view after *answer*: its brokers, and its topics in place of those known before."""
        topics = dict(self.topics)
        for topic in answer.topics:
            view = _topic_view(topic)
            known = topics.get(topic.name)
            if view.error_code and known is not None and known.partitions:
                # A topic that was there: its partitions still are, for all we know, leaderless.
                view = TopicView(topic.name, topic.error_code, known.partitions, {}, b"")
            topics[topic.name] = view
        return ClusterView({broker.node_id: broker for broker in answer.brokers}, topics)

    def with_leader(self, topic: str, partition: int, address: BrokerAddress) -> ClusterView:
        """The view after a broker's hint that *address* leads a partition (KIP-951).

        Where it is no news: the same view.
        """
        view = self.topics.get(topic)
        if view is None or not 0 <= partition < view.partitions:
            return self
        if view.leaders.get(partition) == address.node_id:
            return self
        leaders = {**view.leaders, partition: address.node_id}
        changed = dataclasses.replace(view, leaders=leaders, available=_available(leaders))
        return ClusterView(
            {**self.brokers, address.node_id: address}, {**self.topics, topic: changed}
        )


def _topic_view(answer: TopicAnswer) -> TopicView:
    leaders = {p.index: p.leader_id for p in answer.partitions if p.leader_id >= 0}
    partitions = len(answer.partitions)
    return TopicView(answer.name, answer.error_code, partitions, leaders, _available(leaders))


def _available(leaders: dict[int, int]) -> bytes:
    return array("i", sorted(leaders)).tobytes()


class Backoff:
    """Exponential backoff with jitter (KIP-580), fed with randomness from outside."""

    def __init__(self, first: float, most: float) -> None:
        self.first = first
        self.most = most
        self.failures = 0

    def next(self, random: float) -> float:
        """Seconds to wait after one more failure; *random* in [0, 1)."""
        wait = backoff(self.first, self.most, self.failures, random)
        self.failures += 1
        return wait

    def reset(self) -> None:
        """It worked."""
        self.failures = 0


def backoff(first: float, most: float, failures: int, random: float) -> float:
    """``first * 2**failures``, at most *most*, give or take a fifth."""
    return min(most, first * 2.0 ** min(failures, 32)) * (0.8 + 0.4 * random)


class Refresh:
    """When the next Metadata request is due, and for which topics. Single-flight.

    A refresh is due on request (a new topic, an error), and by age. Requests that come while one
    is under way are one request after it. After a failure it waits with backoff.
    """

    def __init__(self, *, max_age: float, backoff_first: float, backoff_most: float) -> None:
        self.max_age = max_age
        self.topics: set[str] = set()
        self.under_way = False
        #: Topics that were asked for and are not there yet: asked for again and again.
        self.missing: set[str] = set()
        self._backoff = Backoff(backoff_first, backoff_most)
        self._wanted = False
        self._not_before = 0.0
        self._fresh_until = 0.0

    def want(self, topic: str | None = None) -> None:
        """Ask for a refresh, as soon as the backoff allows; of *topic* too from now on."""
        self._wanted = True
        if topic is not None and topic not in self.topics:
            self.topics.add(topic)
            self.missing.add(topic)
            self._not_before = 0.0  # somebody waits for a topic never asked for: at once

    def next_due(self) -> float | None:
        """When the next request is to be sent; None while one is under way or none is needed."""
        if self.under_way:
            return None
        if self._wanted or self.missing:
            return self._not_before
        return max(self._fresh_until, self._not_before) if self.topics else None

    def sent(self) -> None:
        """A request is under way."""
        self.under_way = True
        self._wanted = False

    def succeeded(self, now: float, random: float, *, missing: set[str]) -> None:
        """An answer has come; *missing* of its topics are not (all) there."""
        self.under_way = False
        self.missing = missing
        self._fresh_until = now + self.max_age
        if not missing:
            self._backoff.reset()
        # Also after a good answer: a leader that moves is asked for again no faster than this.
        self._not_before = now + self._backoff.next(random)
        if not missing:
            self._backoff.reset()

    def failed(self, now: float, random: float) -> None:
        """No answer has come."""
        self.under_way = False
        self._wanted = True
        self._not_before = now + self._backoff.next(random)

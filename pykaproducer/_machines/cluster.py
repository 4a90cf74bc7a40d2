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
    """When the next Metadata request is due, and of which topics. Single-flight.

    * A topic that was never asked for: at once, and alone unless others are due.
    * Those that are missing (unknown to the cluster, or with a partition that has no leader): again
      and again, with backoff, and no more often than their number allows: ten thousand unknown
      topics must not slow down the known ones.
    * Those that are there: on request (an error), with a pause after the last time, and by age.

    Requests that come while one is under way are one request after it.
    """

    #: Missing topics take no more than this share of the time that encoding and decoding costs.
    _SHARE = 0.01

    def __init__(self, *, max_age: float, backoff_first: float, backoff_most: float) -> None:
        self.max_age = max_age
        # A topic is in one of these, or only in what is asked for.
        self.known: set[str] = set()
        self.missing: set[str] = set()
        self._new: set[str] = set()
        #: What the request under way asks for; None: there is none.
        self._asked: set[str] | None = None
        self._backoff = Backoff(backoff_first, backoff_most)
        self._pause = Backoff(backoff_first, backoff_first)
        self._wanted = False
        self._not_before = 0.0
        self._missing_not_before = 0.0
        self._fresh_until = 0.0

    @property
    def under_way(self) -> bool:
        """Whether a request is."""
        return self._asked is not None

    def want(self, topic: str | None = None) -> None:
        """Ask for a refresh of what is there, or for *topic* from now on."""
        if topic is None:
            self._wanted = True
        elif not any(topic in some for some in (self.known, self.missing, self._asked or ())):
            self._new.add(topic)
            self._backoff.reset()

    def next_due(self) -> float | None:
        """When the next request is to be sent; None while one is under way or none is needed."""
        if self.under_way:
            return None
        if self._new:
            return 0.0
        due = [self._missing_not_before] if self.missing else []
        if self._wanted:
            due.append(self._not_before)
        elif self.known:
            due.append(max(self._fresh_until, self._not_before))
        return min(due, default=None)

    def send(self, now: float) -> list[str]:
        """A request goes out: the topics that it asks for. (None: it asks for the brokers.)"""
        self._asked, self._new = self._new, set()
        if now >= self._not_before and (self._wanted or now >= self._fresh_until):
            self._asked |= self.known
            self._wanted = False
        if now >= self._missing_not_before:
            self._asked |= self.missing
        return sorted(self._asked)

    def succeeded(self, now: float, random: float, *, there: set[str], cost: float) -> None:
        """An answer has come: of what was asked for the topics *there* need no more asking.

        *cost*: how many seconds of work it has made.
        """
        asked, self._asked = self._asked or set(), None
        missing = asked - there
        if missing:
            due = now + max(self._backoff.next(random), cost / self._SHARE)
            # New topics must not put off again and again what has waited longer.
            others = self.missing - asked
            self._missing_not_before = min(due, self._missing_not_before) if others else due
        if asked >= self.known:
            self._fresh_until = now + self.max_age
        self.known = (self.known - asked) | (asked & there)
        self.missing = (self.missing - asked) | missing
        if not self.missing:
            self._backoff.reset()
        # Also after a good answer: a leader that moves is asked for again no faster than this.
        self._not_before = now + self._pause.next(random)

    def failed(self, now: float, random: float) -> None:
        """No answer has come."""
        asked, self._asked = self._asked or set(), None
        self.missing |= asked - self.known
        self._wanted = True
        self._not_before = self._missing_not_before = now + self._backoff.next(random)

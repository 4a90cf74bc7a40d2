"""The view of the cluster (brokers, topics, partition leaders), and the backoff of attempts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_error_code
from pykaproducer._errors.hints import ADVICE
from pykaproducer._machines.verdicts import FATAL_TOPIC_ERRORS
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import (
    BrokerAddress,
    MetadataAnswer,
    PartitionAnswer,
    TopicAnswer,
)

#: Number of consecutive responses with an older leader epoch, or with fewer partitions of a topic
#: without an id, that are ignored. The next one is accepted: the metadata of the cluster may have
#: been restored from a backup, or the topic created again.
REWINDS = 5

#: ``TopicView.shrunk`` of a topic that may be another one by the next response.
_GONE = (-1, 0)
#: A response whose greatest partition number is more than this times its number of entries, and not
#: known, is malformed.
_WILD = 10

#: Errors that mean that a known topic has been deleted. The leader epochs of a new topic with the
#: same name start from 0.
DELETED = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


def lookup_error(code: int, *, was_known: bool = False) -> str:
    """Format the error *code* of a topic in a Metadata response."""
    what = "the topic cannot be looked up"
    if code in DELETED:
        what = "the cluster has no such topic" + (" any more" if was_known else "")
    advice = f"; {ADVICE[code]}" if code in FATAL_TOPIC_ERRORS else ""
    return f"{what}: {format_error_code(code)}{advice}"


class TopicView(NamedTuple):
    """One topic: its partitions and their leaders."""

    name: str
    #: Kafka's error code for the topic as a whole, 0 for none.
    error_code: int
    #: Number of partitions. A partition that responses lack is one without a leader.
    partitions: int
    #: partition -> broker id; partitions without a leader are absent.
    leaders: dict[int, int]
    #: Partitions with a leader, packed for the kernel (int32).
    available: bytes
    #: partition -> epoch of its leader; partitions with an unknown epoch are absent.
    epochs: Mapping[int, int] = MappingProxyType({})
    #: Distinguishes the topic from others of the same name; empty if the broker sends none.
    topic_id: bytes = b""
    #: partition -> number of consecutive responses with an older epoch, or without the partition.
    #: Empty: the last response was up to date.
    rewinds: Mapping[int, int] = MappingProxyType({})
    #: When the request for this view was sent (monotonic seconds).
    asked_at: float = 0.0
    #: The number of partitions in the last responses, if it was smaller, and how many they were.
    shrunk: tuple[int, int] = (0, 0)
    #: The server whose response named partitions of the topic; None: it named none.
    named_by: tuple[str, int] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every partition has a leader."""
        return not self.error_code and len(self.leaders) == self.partitions

    def is_recent(self, since: float, now: float, believed_for: float) -> bool:
        """Return whether its error may fail messages that have waited since *since*.

        An older view may not, because access to the topic may have been granted since it was
        requested. *believed_for*: a view of at most this age is recent enough in any case
        (seconds).
        """
        return self.asked_at >= min(since, now - believed_for)


_NO_TOPIC = TopicView("", 0, 0, {}, b"")


class LeaderHint(NamedTuple):
    """A partition's leader, as a broker names it in an error response (KIP-951)."""

    topic: str
    partition: int
    #: -1 if the broker does not name it.
    epoch: int
    leader: BrokerAddress


class ClusterView(NamedTuple):
    """An immutable snapshot of the cluster: readers copy the reference and need no lock."""

    brokers: Mapping[int, BrokerAddress] = MappingProxyType({})
    topics: Mapping[str, TopicView] = MappingProxyType({})

    def leader(self, topic: str, partition: int) -> int | None:
        """Return the broker id of the partition's leader, None if there is none or unknown."""
        view = self.topics.get(topic)
        return None if view is None else view.leaders.get(partition)

    def with_answer(
        self,
        answer: MetadataAnswer,
        asked_at: float = 0.0,
        server: tuple[str, int] | None = None,
    ) -> ClusterView:
        """Return the view after *answer*: its brokers, and its topics in place of the old ones.

        A leader with an older epoch than the known one is ignored. Brokers do not learn of a new
        leader at the same time, and a broker that is cut off from the controllers never does.
        Nor does a topic shrink, or a broker vanish that leads a partition, because *answer* lacks
        it.

        Raises:
            WireError: a partition number is far beyond the number of partitions.
        """
        topics = dict(self.topics)
        brokers = {broker.node_id: broker for broker in answer.brokers}
        for topic in answer.topics:
            topics[topic.name] = _topic_view(topics.get(topic.name), topic, asked_at, server)
        if gone := self.brokers.keys() - brokers.keys():
            # The response may lack the address of a leader that it does not know, or not name.
            for view in topics.values():
                for leader in gone & set(view.leaders.values()):
                    brokers[leader] = self.brokers[leader]
        return ClusterView(brokers, topics)

    def with_leaders(self, hints: Iterable[LeaderHint]) -> ClusterView:
        """Return the view after the *hints* of one broker; the same view if they change nothing."""
        by_topic: dict[str, list[LeaderHint]] = {}
        for hint in hints:
            by_topic.setdefault(hint.topic, []).append(hint)
        brokers: dict[int, BrokerAddress] = {}
        topics: dict[str, TopicView] = {}
        for topic, some in by_topic.items():
            view = self.topics.get(topic)
            if view is None:
                continue
            news = [hint for hint in some if _is_newer(hint, view)]
            if not news:
                continue
            leaders = view.leaders | {hint.partition: hint.leader.node_id for hint in news}
            epochs = {hint.partition: hint.epoch for hint in news if hint.epoch >= 0}
            topics[topic] = view._replace(
                leaders=leaders, epochs={**view.epochs, **epochs}, available=_available(leaders)
            )
            brokers.update((hint.leader.node_id, hint.leader) for hint in news)
        if not topics:
            return self
        return ClusterView({**self.brokers, **brokers}, {**self.topics, **topics})

    def without(self, topic: str) -> ClusterView:
        """Return the view without *topic*."""
        return ClusterView(
            self.brokers, {name: view for name, view in self.topics.items() if name != topic}
        )

    def without_brokers(self) -> ClusterView:
        """Return the view without brokers, leaders and epochs, which may be of another cluster.

        The topics keep the number of their partitions, until the next response.
        """
        return ClusterView(
            {},
            {
                name: TopicView(name, view.error_code, view.partitions, {}, b"", shrunk=_GONE)
                for name, view in self.topics.items()
            },
        )

    def is_out_of_date(self, topics: Iterable[str]) -> bool:
        """Return whether the last response lacked a partition of *topics*, or had an older epoch.

        But not forever: after several such responses, no server seems to know it.
        """
        views = [self.topics[name] for name in topics if name in self.topics]
        return any(times <= REWINDS for view in views for times in view.rewinds.values())


def led_by_others(old: ClusterView, new: ClusterView) -> frozenset[tuple[str, int]]:
    """Return the partitions, of topics in both views, that have another leader in *new*."""
    found: set[tuple[str, int]] = set()
    for name, view in new.topics.items():
        before = old.topics.get(name)
        if before is not None and before is not view and before.leaders != view.leaders:
            changed = view.leaders.items() - before.leaders.items()
            found.update((name, partition) for partition, _ in changed)
    return frozenset(found)


def _is_newer(hint: LeaderHint, view: TopicView) -> bool:
    known = view.epochs.get(hint.partition, -1)
    leader = view.leaders.get(hint.partition)
    if not 0 <= hint.partition < view.partitions:
        return False
    if hint.epoch < 0 or known < 0:
        return leader != hint.leader.node_id
    return hint.epoch > known or (hint.epoch == known and leader is None)


def _topic_view(
    known: TopicView | None, answer: TopicAnswer, asked_at: float, server: tuple[str, int] | None
) -> TopicView:
    name, code = answer.name, answer.error_code
    if known is None or not known.partitions:
        known = _NO_TOPIC
    elif code:
        # A known topic: assume that its partitions still exist, without leaders.
        epochs, shrunk = ({}, _GONE) if code in DELETED else (known.epochs, known.shrunk)
        return TopicView(
            name, code, known.partitions, {}, b"", epochs, known.topic_id, {}, asked_at, shrunk
        )
    elif not answer.partitions:
        # Every topic has partitions; the broker does not have their metadata yet.
        return known._replace(asked_at=asked_at, named_by=None)
    have_ids = bool(known.topic_id and answer.topic_id)
    if known.topic_id != answer.topic_id if have_ids else known.shrunk == _GONE:
        known = _NO_TOPIC  # deleted and created again
    return _described(known, answer, have_ids=have_ids, asked_at=asked_at, server=server)


def _described(
    known: TopicView,
    answer: TopicAnswer,
    *,
    have_ids: bool,
    asked_at: float,
    server: tuple[str, int] | None,
) -> TopicView:
    """Return the view of a topic whose partitions *answer* names, after *known*."""
    entries = _entries_of(answer, known.partitions)
    named, shrunk = 1 + max(entries, default=-1), (0, 0)
    if named < known.partitions and not have_ids:
        shrunk = (named, 1 + (known.shrunk[1] if known.shrunk[0] == named else 0))
        if shrunk[1] > REWINDS:
            known, shrunk = _NO_TOPIC, (0, 0)
    count = max(named, known.partitions)
    leaders: dict[int, int] = {}
    new_epochs: dict[int, int] = {}
    rewinds: dict[int, int] = {}
    for index, partition in entries.items():
        leader, epoch = partition.leader_id, partition.leader_epoch
        if 0 <= epoch < (newer := known.epochs.get(index, -1)):
            times = known.rewinds.get(index, 0) + 1
            if times <= REWINDS:
                rewinds[index] = times
                leader, epoch = known.leaders.get(index, -1), newer
        if leader >= 0:
            leaders[index] = leader
        if epoch >= 0:
            new_epochs[index] = epoch
    if len(entries) < count:
        for index in set(range(count)).difference(entries):
            rewinds[index] = min(known.rewinds.get(index, 0), REWINDS) + 1
            if index in known.epochs:
                new_epochs[index] = known.epochs[index]
    return TopicView(
        answer.name,
        answer.error_code,
        count,
        leaders,
        _available(leaders),
        new_epochs,
        answer.topic_id or known.topic_id,
        rewinds,
        asked_at,
        shrunk,
        server,
    )


def _entries_of(answer: TopicAnswer, known: int) -> dict[int, PartitionAnswer]:
    """Return the partitions by number. Raises WireError if one is far beyond them and *known*."""
    entries = {partition.index: partition for partition in answer.partitions}
    if len(entries) < len(answer.partitions):  # the latest of several entries counts
        entries = {each.index: each for each in sorted(answer.partitions, key=_age)}
    if (last := max(entries, default=0)) >= max(1 + _WILD * len(entries), known):
        raise WireError(f"a topic of {len(entries)} partitions has the partition {last}")
    return entries


def _age(partition: PartitionAnswer) -> tuple[int, bool]:
    return partition.leader_epoch, partition.leader_id >= 0


def _available(leaders: dict[int, int]) -> bytes:
    return array("i", sorted(leaders)).tobytes()


class Backoff:
    """Exponential backoff with jitter (KIP-580). The caller supplies the randomness."""

    def __init__(self, first: float, most: float) -> None:
        self.first = first
        self.most = most
        self.failures = 0

    def next(self, random: float) -> float:
        """Return the seconds to wait after another failure; *random* is in [0, 1)."""
        wait = backoff(self.first, self.most, self.failures, random)
        self.failures += 1
        return wait

    def reset(self) -> None:
        """Reset the number of failures, after a success."""
        self.failures = 0


def backoff(first: float, most: float, failures: int, random: float) -> float:
    """Return ``first * 2**failures``, at most *most*, with a jitter of 20 %."""
    return min(most, first * 2.0 ** min(failures, 32)) * (0.8 + 0.4 * random)

"""Metadata refreshes: when to request metadata, of which topics, and from which server."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable
from typing import NamedTuple

from pykaproducer._machines.cluster import Backoff, ClusterView, TopicView

Address = tuple[str, int]
#: A topic and a partition, or something else that a server is asked for and ``_WHOLE``.
_Place = tuple[Hashable, int]
_WHOLE = -1
_NEVER = -math.inf


class Ask(NamedTuple):
    """The contents of a Metadata request."""

    #: Sorted; empty: only the brokers are requested.
    topics: list[str]
    #: Whether the broker may create the topics.
    may_create: bool


class Handled(NamedTuple):
    """A handled response."""

    throttle_ms: int
    #: Its subject, and whether the producer still does not have it; see ``Distrust.responded()``.
    what: Hashable
    in_vain: bool


class Refresh:
    """Decides when the next Metadata request is due, and of which topics. Single-flight.

    * A new topic, which was never requested: at once, and alone unless others are due.
    * *Missing* topics (never seen), while messages wait for them: with backoff, and less often the
      more there are, so that ten thousand unknown topics do not slow down the known ones.
    * *Lacking* topics (seen, but now without a leader for a partition, or deleted), while messages
      wait for them: with backoff.
    * All *known* topics (seen, lacking or not): on request, with a pause after the last refresh,
      and by age.

    A stage that waits for a topic calls :meth:`want` once for each response: every response ends
    the wish, and the stage repeats it if necessary. So topics for which no stage waits any more are
    not requested.

    Only topics for which messages wait may be created. Otherwise a refresh by age would re-create a
    topic that has been deleted.

    Calls during a request are combined into one request after it.
    """

    #: Maximum fraction of time spent on encoding and decoding requests for missing topics.
    _SHARE_OF_MISSING = 0.01
    #: The same for other topics, to limit the frequency of refreshes of ten thousand partitions.
    _SHARE = 0.2
    #: Maximum pause for that reason (seconds), because messages may wait.
    _LONGEST_PAUSE = 1.0

    def __init__(self, *, max_age: float, backoff_first: float, backoff_most: float) -> None:
        self.max_age = max_age
        # A topic is in one of these two, or else in `_new` or in the request in flight.
        self.known: set[str] = set()
        self.missing: set[str] = set()
        #: Known topics that were incomplete or absent in the last response about them.
        self.lacking: set[str] = set()
        self._new: set[str] = set()
        #: Missing and known topics for which messages wait.
        self._waited_for: set[str] = set()
        #: The topics of the request in flight; None: there is no request.
        self._asked: set[str] | None = None
        self._asked_for_all = False
        self._missing_backoff = Backoff(backoff_first, backoff_most)
        self._lacking_backoff = Backoff(backoff_first, backoff_most)
        self._pause = Backoff(backoff_first, backoff_first)
        self._wanted = False
        #: All known topics were due, but other topics were requested first.
        self._passed_over = False
        self._not_before = 0.0
        self._missing_not_before = 0.0
        self._lacking_not_before = 0.0
        self._fresh_until = 0.0

    @property
    def under_way(self) -> bool:
        """Whether a request is in flight."""
        return self._asked is not None

    @property
    def asked(self) -> set[str]:
        """The topics of the request in flight, without those forgotten since."""
        return self._asked or set()

    @property
    def waited_for(self) -> set[str]:
        """The topics of the request in flight that was sent because messages wait for them."""
        return set() if self._asked_for_all else self.asked

    def want(self, topic: str | None = None, *, anew: bool = False) -> None:
        """Request a refresh of all known topics, or of *topic*, because messages wait for it.

        *anew*: the view of *topic* is wrong, and so may be the response to a request in flight.
        """
        if topic is None:
            self._wanted = True
        elif not anew and topic in self.asked:
            return  # the waiting stage checks that response first
        elif topic in self.known:
            if anew or topic in self.lacking:
                self._waited_for.add(topic)
        elif topic in self.missing or topic in self.asked:
            self._waited_for.add(topic)
        else:
            self._new.add(topic)
            self._missing_backoff.reset()

    def forget(self, topic: str) -> None:
        """Remove *topic*, which is no longer used."""
        for some in (self.known, self.missing, self.lacking, self._new, self._waited_for):
            some.discard(topic)
        if self._asked is not None:
            self._asked.discard(topic)

    def next_due(self) -> float | None:
        """Return when to send the next request; None if one is in flight or none is needed."""
        if self.under_way:
            return None
        due = [*self._due_for_all(), *(when for when, _ in self._due_for_waiting())]
        return min(due, default=None)

    def _due_for_all(self) -> list[float]:
        if self._wanted:
            return [self._not_before]
        return [max(self._fresh_until, self._not_before)] if self.known else []

    def _due_for_waiting(self) -> list[tuple[float, set[str]]]:
        """Return the topics for which messages wait, grouped by when they are due."""
        found = [(0.0, self._new)] if self._new else []
        if self._waited_for:
            lacking = self._waited_for & self.lacking
            classes = (
                (self._missing_not_before, self._waited_for & self.missing),
                (self._lacking_not_before, lacking),
                (self._not_before, (self._waited_for & self.known) - lacking),
            )
            found += [each for each in classes if each[1]]
        return found

    def send(self, now: float) -> Ask:
        """Begin a request; return its contents."""
        waiting: set[str] = set()
        for when, topics in self._due_for_waiting():
            if when <= now:
                waiting |= topics
        for_all = any(when <= now for when in self._due_for_all())
        if waiting and not (for_all and self._passed_over):
            self._passed_over = for_all
            self._asked_for_all = False
            self._asked = waiting
            self._new -= waiting
            self._waited_for -= waiting
            return Ask(sorted(waiting), may_create=True)
        self._wanted = self._passed_over = False
        self._asked_for_all = True
        self._asked = set(self.known)
        return Ask(sorted(self._asked), may_create=False)

    def succeeded(
        self, now: float, random: float, *, there: set[str], seen: set[str], cost: float
    ) -> None:
        """Handle a response.

        *there*: topics that exist and have all their leaders. *seen*: these, and other topics that
        exist or did exist. *cost*: the time spent on handling the response (seconds).
        """
        asked, self._asked = self.asked, None
        missing, lacking = asked - seen, (asked & seen) - there
        if missing:
            share = cost * len(missing) / len(asked)
            due = now + max(self._missing_backoff.next(random), share / self._SHARE_OF_MISSING)
            # New topics must not repeatedly postpone topics that have waited longer.
            others = (self.missing & self._waited_for) - asked
            self._missing_not_before = min(due, self._missing_not_before) if others else due
        if lacking:
            wait = max(self._lacking_backoff.next(random), self._pause_for(cost))
            self._lacking_not_before = now + wait
        if self._asked_for_all:
            self._fresh_until = now + self.max_age
        if self._asked_for_all or asked & self.known:
            # Also after success, to limit the rate of refreshes when a leader moves repeatedly.
            self._not_before = now + max(self._pause.next(random), self._pause_for(cost))
        self.known |= asked & seen
        self.missing = (self.missing - asked) | missing
        self.lacking = (self.lacking - asked) | lacking
        if not self.missing & self._waited_for and not missing:
            self._missing_backoff.reset()
        if not self.lacking:
            self._lacking_backoff.reset()

    def _pause_for(self, cost: float) -> float:
        return min(cost / self._SHARE, self._LONGEST_PAUSE)

    def failed(self, now: float, random: float) -> None:
        """Record that the request has failed: it is retried, with backoff."""
        asked, self._asked = self.asked, None
        if self._asked_for_all:
            self._wanted = True
        else:
            self.missing |= asked - self.known
            self._waited_for |= asked
        wait = now + self._missing_backoff.next(random)
        self._not_before = self._missing_not_before = self._lacking_not_before = wait


class Distrust:
    """Decides when to switch to another server, because the current one may keep an outdated view.

    The indication is something that the producer needs, and asks the server for again and again in
    vain: the leader of a partition, which keeps rejecting batches, although each lookup returns the
    same leader and epoch; a topic or leader that messages wait for; a coordinator that does not
    serve requests. There may be another cause, for example too few replicas. Therefore the number
    of requests before a switch doubles with each switch, until the thing is found.
    """

    _PATIENCE = 3
    _MOST_PATIENCE = 48
    #: How many things other than topics are remembered. Their waiters give up without notice.
    _MOST_OTHERS = 100

    def __init__(self) -> None:
        #: A thing needed -> number of consecutive responses in vain, and how many are tolerated.
        #: In the order of the last responses about them.
        self._doubts: dict[_Place, tuple[int, int]] = {}
        self._rejected: set[tuple[str, int]] = set()

    def rejected(self, topic: str, partition: int) -> None:
        """Record that the partition's leader in the view has rejected a batch, or keeps failing."""
        self._rejected.add((topic, partition))

    def answered(
        self,
        old: ClusterView,
        new: ClusterView,
        topics: Iterable[str],
        incomplete: Iterable[str] = (),
    ) -> bool:
        """Return whether to switch to another server, after a response about *topics*.

        *old* is the view before the response, *new* the view after it. *incomplete*: topics that
        messages wait for, and that *new* lacks, or some of their leaders.
        """
        answered = set(topics)
        about = {place for place in self._doubts.keys() | self._rejected if place[0] in answered}
        vain = {
            place
            for place in self._rejected & about
            if _state_of(old, place) == _state_of(new, place)
        }
        self._rejected -= about
        return self._count(about, vain | {(topic, _WHOLE) for topic in incomplete})

    def responded(self, what: Hashable, *, in_vain: bool) -> bool:
        """Return whether to switch to another server, after a response about *what*."""
        place = (what, _WHOLE)
        is_enough = self._count({place}, {place} if in_vain else set())
        others = [place for place in self._doubts if not isinstance(place[0], str)]
        for place in others[: -self._MOST_OTHERS]:
            del self._doubts[place]
        return is_enough

    def _count(self, about: set[_Place], vain: set[_Place]) -> bool:
        before = self._doubts
        self._doubts = {place: doubt for place, doubt in before.items() if place not in about}
        is_enough = False
        for place in vain:
            times, patience = before.get(place, (0, self._PATIENCE))
            if times + 1 >= patience:
                is_enough = True
                times, patience = -1, min(2 * patience, self._MOST_PATIENCE)
            self._doubts[place] = times + 1, patience
        if is_enough:
            self._doubts = {place: (0, doubt[1]) for place, doubt in self._doubts.items()}
        return is_enough

    def forget(self, topic: str) -> None:
        """Remove *topic*, which is no longer used."""
        self._doubts = {place: doubt for place, doubt in self._doubts.items() if place[0] != topic}
        self._rejected = {place for place in self._rejected if place[0] != topic}


def _state_of(view: ClusterView, place: tuple[str, int]) -> tuple[int | None, int | None]:
    topic, partition = place
    found = view.topics.get(topic)
    return (
        (None, None)
        if found is None
        else (
            found.leaders.get(partition),
            found.epochs.get(partition),
        )
    )


class Denials:
    """Decides when messages may fail because their topic has no such partition.

    A partition that one server does not know may have been added a moment ago. So every known
    server must have denied it since a message waits for it, in at least two responses that were
    requested at least two seconds apart.
    """

    _APART = 2.0

    def __init__(self) -> None:
        #: When each server was asked last, of those that named the number of partitions.
        self._asked: dict[Address, float] = {}

    def heard(self, view: TopicView) -> None:
        """Handle a view without the partition."""
        if view.named_by is not None:
            self._asked[view.named_by] = view.asked_at

    def next_server(self, servers: Collection[Address]) -> Address | None:
        """Return which of *servers* to ask next; None: any, as none has denied it yet."""
        if not self._asked:
            return None
        return min(servers, key=lambda each: self._asked.get(each, _NEVER), default=None)

    def suffice(
        self, view: TopicView, since: float, first: float, servers: Collection[Address]
    ) -> bool:
        """Return whether a message that waits *since* may fail after *view*.

        *first*: when the first view was requested that denied its partition. *servers*: all known
        servers.
        """
        return view.asked_at >= first + self._APART and all(
            self._asked.get(server, _NEVER) >= since for server in servers
        )


def candidates(
    known: list[Address], configured: list[Address], last: Address | None
) -> list[Address]:
    """Return the servers to try, alternating between the view and ``bootstrap_servers``.

    They alternate because all known brokers may be gone, for example after the cluster has moved,
    and each attempt takes seconds. *last*, the server that was left, is tried after all others.
    """
    turns: dict[Address, None] = {}
    for number in range(max(len(known), len(configured))):
        turns.update(dict.fromkeys((*known[number : number + 1], *configured[number : number + 1])))
    found = list(turns)
    if last in turns and last is not None:
        found.remove(last)
        found.append(last)
    return found

"""When the cluster must be asked for its metadata, of which topics, and which server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pykaproducer._machines.cluster import Backoff, ClusterView

Address = tuple[str, int]


class Ask(NamedTuple):
    """What a Metadata request asks for."""

    #: In order; none: for the brokers alone.
    topics: list[str]
    #: Whether the broker may create them.
    may_create: bool


class Refresh:
    """When the next Metadata request is due, and of which topics. Single-flight.

    * A topic that was never asked for: at once, and alone unless others are due.
    * One that is *missing* (never seen), for as long as messages wait for it: with backoff, and no
      more often than their number allows: ten thousand unknown topics must not slow down the known
      ones.
    * One that is *lacking* (seen, and now without a leader for a partition, or gone), for as long
      as messages wait for it: with backoff.
    * All *known* ones (seen, lacking or not): on request, with a pause after the last time, and by
      age.

    A stage that waits for a topic calls :meth:`want` once for each answer: every answer ends the
    request, and if it did not help the stage repeats it. So topics that no stage waits for any more
    are not asked for.

    Only topics that messages wait for may be created: a refresh by age would bring back a topic
    that has been deleted.

    Calls that come while a request is under way are combined into one request after it.
    """

    #: Missing topics take no more than this share of the time that encoding and decoding costs.
    _SHARE_OF_MISSING = 0.01
    #: The others: so that a refresh of ten thousand partitions does not follow another at once.
    _SHARE = 0.2
    #: But no pause for that reason is longer (seconds): messages may wait.
    _LONGEST_PAUSE = 1.0

    def __init__(self, *, max_age: float, backoff_first: float, backoff_most: float) -> None:
        self.max_age = max_age
        # A topic is in one of these two, or only in what is asked for.
        self.known: set[str] = set()
        self.missing: set[str] = set()
        #: Those of the known ones that were not there as a whole at the last look.
        self.lacking: set[str] = set()
        self._new: set[str] = set()
        #: Those of the missing and the known ones that messages wait for.
        self._waited_for: set[str] = set()
        #: What the request under way asks for; None: there is none.
        self._asked: set[str] | None = None
        self._asked_for_all = False
        self._missing_backoff = Backoff(backoff_first, backoff_most)
        self._lacking_backoff = Backoff(backoff_first, backoff_most)
        self._pause = Backoff(backoff_first, backoff_first)
        self._wanted = False
        #: All known ones were due, and others went first.
        self._passed_over = False
        self._not_before = 0.0
        self._missing_not_before = 0.0
        self._lacking_not_before = 0.0
        self._fresh_until = 0.0

    @property
    def under_way(self) -> bool:
        """Return whether a request is under way."""
        return self._asked is not None

    @property
    def asked(self) -> set[str]:
        """Return the topics that the request under way asks for, without those forgotten since."""
        return self._asked or set()

    def want(self, topic: str | None = None, *, anew: bool = False) -> None:
        """Ask for a refresh of what is known, or for *topic*, because messages wait for it.

        *anew*: what is known of it is wrong, and so may be the answer to the request under way.
        """
        if topic is None:
            self._wanted = True
        elif not anew and topic in self.asked:
            return  # the waiting stage looks at that answer first
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
        """Return when to send the next request; None while one is under way or none is needed."""
        if self.under_way:
            return None
        due = [*self._due_for_all(), *(when for when, _ in self._due_for_waiting())]
        return min(due, default=None)

    def _due_for_all(self) -> list[float]:
        if self._wanted:
            return [self._not_before]
        return [max(self._fresh_until, self._not_before)] if self.known else []

    def _due_for_waiting(self) -> list[tuple[float, set[str]]]:
        """Return the topics that messages wait for, grouped by when they are due."""
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
        """Begin a request; return what it asks for."""
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
        """Process an answer.

        *there*: topics that are there with all their leaders; *seen*: these, and others that are
        or were there. *cost*: how many seconds of work the answer has made.
        """
        asked, self._asked = self.asked, None
        missing, lacking = asked - seen, (asked & seen) - there
        if missing:
            share = cost * len(missing) / len(asked)
            due = now + max(self._missing_backoff.next(random), share / self._SHARE_OF_MISSING)
            # New topics must not repeatedly postpone what has waited longer.
            others = (self.missing & self._waited_for) - asked
            self._missing_not_before = min(due, self._missing_not_before) if others else due
        if lacking:
            wait = max(self._lacking_backoff.next(random), self._pause_for(cost))
            self._lacking_not_before = now + wait
        if self._asked_for_all:
            self._fresh_until = now + self.max_age
        if self._asked_for_all or asked & self.known:
            # Also after a good answer: a leader that moves is looked up no more often than this.
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
        """Record that no answer has come: what was asked for is retried, with backoff."""
        asked, self._asked = self.asked, None
        if self._asked_for_all:
            self._wanted = True
        else:
            self.missing |= asked - self.known
            self._waited_for |= asked
        wait = now + self._missing_backoff.next(random)
        self._not_before = self._missing_not_before = self._lacking_not_before = wait


class Distrust:
    """When to ask another server: one that has an old view may never learn of the new one.

    A partition that is refused, looked up and refused again, with the same leader and epoch each
    time, is reason for it. As the refusals may have another reason (too few replicas, for
    example), patience doubles with each change of the server, until no partition is refused.
    """

    _PATIENCE = 3
    _MOST_PATIENCE = 48

    def __init__(self) -> None:
        #: partition -> how many answers in a row brought nothing new after it was refused.
        self._counts: dict[tuple[str, int], int] = {}
        self._refused: set[tuple[str, int]] = set()
        self._patience = self._PATIENCE

    def refused(self, topic: str, partition: int) -> None:
        """Record that the leader that the view names has refused a batch, or keeps failing."""
        self._refused.add((topic, partition))

    def answered(self, old: ClusterView, new: ClusterView, topics: Iterable[str]) -> bool:
        """Return whether to ask another server, after an answer about *topics*.

        *old* is the view before the answer, *new* the one after it.
        """
        answered = set(topics)
        counts = {
            place: self._counts.get(place, 0) + 1
            for place in self._refused
            if place[0] in answered and _state_of(old, place) == _state_of(new, place)
        }
        self._refused = {place for place in self._refused if place[0] not in answered}
        kept = {place: n for place, n in self._counts.items() if place[0] not in answered}
        self._counts = kept | counts
        if max(counts.values(), default=0) >= self._patience:
            self._counts.clear()
            self._patience = min(2 * self._patience, self._MOST_PATIENCE)
            return True
        if not self._counts and not self._refused:
            self._patience = self._PATIENCE
        return False

    def forget(self, topic: str) -> None:
        """Remove *topic*, which is no longer used."""
        self._counts = {place: n for place, n in self._counts.items() if place[0] != topic}
        self._refused = {place for place in self._refused if place[0] != topic}


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


def candidates(
    known: list[Address], configured: list[Address], last: Address | None
) -> list[Address]:
    """Return the servers to try, alternating those of the view and ``bootstrap_servers``.

    When all known brokers are gone, as after a move of the cluster, each takes seconds to try.
    *last*, the server that was left, is tried after all others.
    """
    turns: dict[Address, None] = {}
    for number in range(max(len(known), len(configured))):
        turns.update(dict.fromkeys((*known[number : number + 1], *configured[number : number + 1])))
    found = list(turns)
    if last in turns and last is not None:
        found.remove(last)
        found.append(last)
    return found

"""Metadata refreshes: when they are due, for which topics, and from which server."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykaproducer._machines.cluster import ClusterView
from pykaproducer._machines.refresh import Ask, Denials, Distrust, Refresh, candidates

from .test_cluster import RANDOM, seen, topic

# When metadata is requested, and for which topics ------------------------------------------------

MAX_AGE = 300.0


class Asking:
    """A refresh, driven as the metadata worker drives it."""

    def __init__(self, *known: str) -> None:
        self.machine = Refresh(max_age=MAX_AGE, backoff_first=0.1, backoff_most=1.0)
        self.now = 1000.0
        self.asked = Ask([], may_create=False)
        if known:
            self.want(*known)
            self.send()
            self.answered(*known)
            self.machine.want()
            self.send()
            self.answered(*known)

    def want(self, *topics: str, anew: bool = False) -> None:
        for name in topics:
            self.machine.want(name, anew=anew)

    @property
    def due_in(self) -> float | None:
        """Return the time until the next request is due."""
        due = self.machine.next_due()
        return None if due is None else max(0.0, due - self.now)

    def send(self) -> list[str]:
        """Jump to the next request and return the topics that it requests."""
        due = self.machine.next_due()
        assert due is not None
        self.now = max(self.now, due)
        self.asked = self.machine.send(self.now)
        return self.asked.topics

    def answered(
        self, *there: str, seen: tuple[str, ...] = (), random: float = 0.5, cost: float = 0.0
    ) -> None:
        """Answer with leaders for *there*; topics in *seen* but not in *there* are missing."""
        self.machine.succeeded(self.now, random, there=set(there), seen={*there, *seen}, cost=cost)

    def failed(self) -> None:
        self.machine.failed(self.now, 0.5)


def test_who_knows_no_topic_asks_for_nothing_unless_somebody_wants_it() -> None:
    asking = Asking()
    assert asking.due_in is None
    asking.machine.want()
    assert asking.due_in == 0
    assert asking.send() == []
    asking.machine.want()
    assert asking.due_in is None  # one is in flight
    asking.answered()
    assert asking.send() == []
    asking.answered()
    assert asking.due_in is None


def test_new_topics_are_asked_for_at_once_and_alone() -> None:
    asking = Asking("known")
    asking.machine.want()
    asking.want("b", "a", "b")
    assert asking.due_in == 0
    assert asking.send() == ["a", "b"]


def test_one_request_at_a_time_and_what_is_wanted_meanwhile_is_one_more() -> None:
    asking = Asking()
    asking.want("a")
    assert asking.send() == ["a"]
    asking.want("b", "a", "c", "b")
    for _ in range(3):
        asking.machine.want()
    assert asking.machine.under_way
    assert asking.due_in is None
    asking.answered("a")
    assert not asking.machine.under_way
    # These topics were not requested before, so there is no pause.
    assert asking.due_in == 0
    assert asking.send() == ["b", "c"]
    asking.answered("b", "c")
    assert asking.due_in == 0
    assert asking.send() == ["a", "b", "c"]
    asking.answered("a", "b", "c")
    assert asking.due_in == pytest.approx(MAX_AGE)


def test_what_is_there_is_asked_for_again_by_age() -> None:
    asking = Asking("a", "b")
    assert asking.due_in == pytest.approx(MAX_AGE)
    assert asking.send() == ["a", "b"]
    asking.answered("a", "b")
    assert asking.due_in == pytest.approx(MAX_AGE)


def test_a_new_topic_does_not_make_the_others_look_younger() -> None:
    asking = Asking("a")
    asking.now += 100
    asking.want("b")
    assert asking.due_in == 0
    asking.send()
    asking.answered("b")
    assert asking.due_in == pytest.approx(MAX_AGE - 100)
    assert asking.send() == ["a", "b"]


def test_a_topic_that_is_there_is_not_asked_for_because_it_is_wanted_again() -> None:
    asking = Asking("a")
    asking.want("a")
    assert asking.due_in == pytest.approx(MAX_AGE)


@pytest.mark.parametrize(("random", "wait"), [(0.0, 0.08), (0.5, 0.1), (0.999_999, 0.12)])
def test_a_view_that_is_out_of_date_is_refreshed_after_a_pause(random: float, wait: float) -> None:
    """A leader that moves back and forth must not cause requests as fast as brokers answer."""
    asking = Asking("a")
    for _ in range(3):  # successful answers do not lengthen the pause
        asking.machine.want()
        assert asking.send() == ["a"]
        asking.answered("a", random=random)
        asking.machine.want()
        assert asking.due_in == pytest.approx(wait)


def test_what_is_missing_is_asked_for_ever_more_slowly_while_somebody_waits() -> None:
    asking = Asking("there")
    asking.want("a", "b")
    waits = []
    for _ in range(6):
        assert asking.send() == ["a", "b"]
        assert asking.asked.may_create
        asking.answered()
        asking.want("a", "b")  # messages still wait for them
        waits.append(asking.due_in)
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert asking.send() == ["a", "b"]
    asking.answered("a")
    asking.want("a", "b")
    assert asking.send() == ["b"]
    asking.answered("b")
    assert asking.machine.known == {"a", "b", "there"}
    assert asking.send() == ["a", "b", "there"]
    assert asking.now > 1000 + MAX_AGE - 1


def test_what_is_missing_is_not_asked_for_once_nobody_waits() -> None:
    asking = Asking("there")
    asking.want("mistyped")
    assert asking.send() == ["mistyped"]
    asking.answered()
    assert asking.due_in == pytest.approx(MAX_AGE)
    assert asking.send() == ["there"]
    # A message for it is sent again.
    asking.answered("there")
    asking.want("mistyped")
    assert asking.send() == ["mistyped"]


def test_only_topics_that_messages_wait_for_may_be_created() -> None:
    """A refresh by age would recreate a topic that was deleted."""
    asking = Asking("a", "b")
    for _ in range(2):
        assert asking.send() == ["a", "b"]
        assert not asking.asked.may_create
        asking.answered("a", seen=("b",))
    # A message for it is sent.
    asking.want("b")
    assert asking.send() == ["b"]
    assert asking.asked.may_create


def test_what_was_there_belongs_to_what_is_known() -> None:
    """After a broker dies, its partitions have no leaders until the next answer but one."""
    asking = Asking("big", "t")
    asking.machine.want()
    assert asking.send() == ["big", "t"]
    asking.answered("t", seen=("big",), cost=0.5)
    assert (asking.machine.known, asking.machine.missing) == ({"big", "t"}, set())
    # However long an answer takes to process, messages wait only for a short time.
    asking.machine.want()
    assert asking.due_in == pytest.approx(1.0)
    assert asking.send() == ["big", "t"]


def test_a_partition_without_leader_is_asked_for_as_long_as_messages_wait() -> None:
    asking = Asking("a", "b")
    asking.machine.want()
    asking.send()
    waits = []
    for _ in range(6):
        asking.answered(seen=("b",))
        asking.want("a", "b")
        waits.append(asking.due_in)
        assert asking.send() == ["b"]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    asking.answered(seen=("b",))
    assert asking.due_in == pytest.approx(MAX_AGE, abs=10)


def test_what_is_wrong_is_asked_for_anew_also_while_a_request_is_under_way() -> None:
    asking = Asking("a", "b")
    asking.want("a", anew=True)
    assert asking.send() == ["a"]
    asking.want("a")  # the request in flight is enough
    asking.answered("a")
    assert asking.due_in == pytest.approx(MAX_AGE, abs=1)
    asking.want("a", anew=True)
    assert asking.send() == ["a"]
    asking.want("a", anew=True)  # and here it is not
    asking.answered("a")
    assert asking.due_in == pytest.approx(0.1)
    assert asking.send() == ["a"]


def test_a_stream_of_wishes_does_not_keep_the_known_ones_waiting() -> None:
    asking = Asking("a", "b")
    asking.machine.want()
    asked = []
    for _ in range(4):
        asking.want("a", anew=True)
        asked.append(asking.send())
        asking.answered(*asked[-1])
    assert ["a", "b"] in asked


def test_a_topic_that_was_forgotten_is_not_asked_for() -> None:
    asking = Asking("a", "b")
    asking.machine.want()
    assert asking.send() == ["a", "b"]
    asking.machine.forget("b")
    assert asking.machine.asked == {"a"}
    asking.answered("a")
    assert asking.send() == ["a"]
    asking.answered("a")
    asking.want("b")
    assert asking.due_in == 0
    assert asking.send() == ["b"]


def test_a_new_wish_is_asked_for_at_full_speed_again() -> None:
    asking = Asking()
    for _ in range(5):
        asking.want("a")
        asking.send()
        asking.answered()
    asking.want("b")
    assert asking.send() == ["b"]
    asking.answered()
    asking.want("b")
    assert asking.due_in == pytest.approx(0.1)


def test_what_is_missing_takes_a_hundredth_of_the_time_at_most() -> None:
    asking = Asking("there")
    asking.want("a")
    asking.send()
    asking.answered(cost=0.5)
    asking.want("a")
    assert asking.due_in == pytest.approx(50)
    # A request for topics that exist is not delayed by it.
    asking.machine.want()
    assert asking.due_in == pytest.approx(0.1)
    assert asking.send() == ["there"]


def test_new_topics_do_not_put_off_those_that_are_missing() -> None:
    asking = Asking()
    asking.want("a")
    asking.send()
    asking.answered()
    asking.want("a")
    due = asking.machine.next_due()
    for name in ("b", "c"):
        asking.now += 0.01
        asking.want(name)
        assert asking.send() == [name]
        asking.answered(cost=1.0)
        asking.want(name)
    assert asking.machine.next_due() == due
    assert asking.send() == ["a", "b", "c"]


def test_without_an_answer_it_asks_again_ever_more_slowly() -> None:
    asking = Asking("a")
    asking.want("b")
    waits = []
    for _ in range(3):
        assert asking.send() == ["b"]
        asking.failed()
        waits.append(asking.due_in)
    assert waits == pytest.approx([0.1, 0.2, 0.4])
    assert asking.send() == ["b"]
    asking.answered("b")
    asking.machine.want()
    assert asking.send() == ["a", "b"]
    asking.failed()
    assert asking.send() == ["a", "b"]
    asking.answered("a", "b")
    assert asking.due_in == pytest.approx(MAX_AGE)


EVENTS = st.sampled_from(
    ["want", "new", "again", "anew", "forget", "send", "answer", "half an answer", "failure"]
)


@settings(deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 0.5), RANDOM), max_size=80))
def test_no_topic_that_is_waited_for_is_left_out(events: list[tuple[str, float, float]]) -> None:
    asking = Asking()
    made = asking.machine
    topics: list[str] = []
    asked: list[str] = []
    there: set[str] = set()
    for number, (event, seconds, random) in enumerate(events):
        asking.now += seconds
        if event == "want":
            made.want()
        elif event in ("new", "again", "anew"):
            if event == "new" or not topics:
                topics.append(f"topic-{number}")
            made.want(topics[-1], anew=event == "anew")
            made.want(topics[len(topics) // 2])
        elif event == "forget" and topics:
            made.forget(topics.pop(0))
        elif event == "send" and asking.due_in == 0:
            asked = made.send(asking.now).topics
            assert set(asked) <= set(topics)
        elif made.under_way:
            if event == "failure":
                made.failed(asking.now, random)
            elif event != "send":
                found = asked if event == "answer" else asked[::2]
                # A topic that has been seen counts as seen in each response, as in the view.
                seen = tuple(made.known)
                asking.answered(*found, seen=seen, random=random, cost=0.001)
        assert not (made.known & made.missing)
        assert made.lacking <= made.known
        assert made.known | made.missing | made.asked <= set(topics)
        if made.under_way:
            assert made.next_due() is None
    if made.under_way:
        asking.failed()
    # From now on the cluster has every topic, and messages wait for all of them.
    for _ in range(4):
        for name in set(topics) - there:
            made.want(name)
        if made.next_due() is not None:
            asked = asking.send()
            there |= set(asked)
            asking.answered(*asked)
    assert (made.known, made.missing) == (set(topics), set())


# Selection of the server --------------------------------------------------------------------------


def refused(distrust: Distrust, view: ClusterView, times: int, *others: ClusterView) -> list[bool]:
    """Report a rejected partition and look it up *times* times; return when to switch servers."""
    found = []
    for _ in range(times):
        distrust.rejected("t", 0)
        found.append(distrust.answered(view, view, ["t"]))
    return found


def test_a_partition_that_is_refused_though_nothing_has_changed_makes_us_ask_elsewhere() -> None:
    view = seen(topic("t", 0, epoch=3))
    distrust = Distrust()
    assert refused(distrust, view, 3) == [False, False, True]
    # There may be another reason, so the threshold grows.
    assert refused(distrust, view, 6) == [False] * 5 + [True]
    # The partition works again.
    distrust.answered(view, view, ["t"])
    assert refused(distrust, view, 3) == [False, False, True]


def test_a_new_leader_or_epoch_is_tried_before_another_server_is_asked() -> None:
    distrust = Distrust()
    views = [seen(topic("t", leader, epoch=epoch)) for leader, epoch in ((0, 1), (1, 1), (1, 2))]
    for _ in range(4):
        for old, new in itertools.pairwise(views):
            distrust.rejected("t", 0)
            assert not distrust.answered(old, new, ["t"])


def test_an_answer_about_other_topics_says_nothing() -> None:
    view = seen(topic("t", 0))
    distrust = Distrust()
    refused(distrust, view, 2)
    distrust.rejected("t", 0)
    assert not distrust.answered(view, view, ["u"])
    assert distrust.answered(view, view, ["t"])


@pytest.mark.parametrize("incomplete", [["t"], ["t", "mistyped"]])
def test_a_topic_that_messages_wait_for_makes_us_ask_elsewhere(incomplete: list[str]) -> None:
    view, distrust = seen(topic("t", -1)), Distrust()
    found = [distrust.answered(view, view, incomplete, incomplete) for _ in range(9)]
    assert found == [False, False, True, *[False] * 5, True]
    # It is there; another one that is not does not make a coordinator wait.
    assert not distrust.answered(view, view, ["t"])
    assert [distrust.responded("coordinator", in_vain=True) for _ in range(3)] == [
        False,
        False,
        True,
    ]


def test_what_is_told_at_last_begins_anew() -> None:
    distrust = Distrust()
    for _ in range(3):
        told = [
            distrust.responded("coordinator", in_vain=in_vain) for in_vain in (True, True, False)
        ]
        assert told == [False] * 3


def test_what_is_not_asked_for_any_more_is_forgotten() -> None:
    """A program may use any number of groups, and give up waiting for their coordinators."""
    distrust, view = Distrust(), seen(topic("t", 0))
    assert refused(distrust, view, 3)[-1]
    groups = [("group", str(number)) for number in range(1000)]
    for group in (*groups, groups[0], groups[-1], groups[0]):
        assert not distrust.responded(group, in_vain=True)
    assert distrust.responded(groups[-1], in_vain=True)
    assert refused(distrust, view, 6) == [False] * 5 + [True]


# Partitions that servers deny ---------------------------------------------------------------------

A, B = ("a", 1), ("b", 1)


def denied_by(*answers: tuple[tuple[str, int] | None, float]) -> list[bool]:
    """Return, after each answer of a server, whether a message that waits since 10.0 may fail."""
    denials, found, first = Denials(), [], None
    for server, asked_at in answers:
        view = seen(topic("t", 0)).topics["t"]._replace(named_by=server, asked_at=asked_at)
        denials.heard(view)
        if asked_at >= 10.0 and first is None:
            first = asked_at
        found.append(first is not None and denials.suffice(view, 10.0, first, [A, B]))
    return found


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([(A, 10.0), (B, 10.5), (A, 11.9), (A, 12.0)], [False, False, False, True]),
        ([(A, 10.0), (A, 99.0), (B, 99.5)], [False, False, True]),
        ([(B, 9.9), (A, 10.0), (A, 13.0)], [False] * 3),
        ([(A, 10.0), (None, 13.0)], [False] * 2),
        ([(A, 13.0), (B, 13.0)], [False] * 2),
    ],
)
def test_when_no_server_knows_a_partition(
    answers: list[tuple[tuple[str, int] | None, float]], found: list[bool]
) -> None:
    assert denied_by(*answers) == found


def test_the_server_asked_next_is_the_one_that_was_not_asked_for_longest() -> None:
    denials, view = Denials(), seen(topic("t", 0)).topics["t"]
    assert denials.next_server([A, B]) is None
    for server, asked_at, expected in ((A, 1.0, B), (B, 2.0, A), (A, 3.0, B)):
        denials.heard(view._replace(named_by=server, asked_at=asked_at))
        assert denials.next_server([A, B]) == expected
    assert denials.next_server([]) is None


def test_known_brokers_and_configured_servers_are_tried_in_turn() -> None:
    known = [("a", 1), ("b", 1), ("c", 1)]
    assert candidates(known, [("x", 9)], None) == [("a", 1), ("x", 9), ("b", 1), ("c", 1)]
    assert candidates([], [("x", 9), ("y", 9)], None) == [("x", 9), ("y", 9)]
    assert candidates(known, [("a", 1)], ("a", 1)) == [("b", 1), ("c", 1), ("a", 1)]
    assert candidates(known, [], ("gone", 1)) == known

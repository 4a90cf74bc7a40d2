"""The view of the cluster, how long is waited between attempts, and when metadata is asked for."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykaproducer._machines.cluster import Backoff, ClusterView, Refresh, backoff
from pykaproducer._wire.error_codes import ErrorCode
from pykaproducer._wire.kafka_python import (
    BrokerAddress,
    MetadataAnswer,
    PartitionAnswer,
    TopicAnswer,
)

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

# The view ---------------------------------------------------------------------------------------


def broker(number: int, host: str = "host") -> BrokerAddress:
    return BrokerAddress(number, host, 9092)


def topic(name: str, *leaders: int, code: int = 0) -> TopicAnswer:
    """A topic whose partitions 0, 1 ... are led by *leaders* (-1: nobody)."""
    partitions = (
        PartitionAnswer(index, 0 if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE, leader, -1)
        for index, leader in enumerate(leaders)
    )
    return TopicAnswer(name, code, tuple(partitions))


def seen(*answers: MetadataAnswer | TopicAnswer) -> ClusterView:
    """The view after these answers, one after the other."""
    view = ClusterView()
    for answer in answers:
        if isinstance(answer, TopicAnswer):
            answer = MetadataAnswer((), (answer,))
        view = view.with_answer(answer)
    return view


def available(view: ClusterView, name: str) -> list[int]:
    packed = view.topics[name].available
    return list(struct.unpack(f"{len(packed) // 4}i", packed))


def test_an_empty_view_knows_no_leader() -> None:
    assert ClusterView().leader("t", 0) is None


def test_leaders_of_a_topic() -> None:
    view = seen(topic("t", 3, -1, 0))
    assert [view.leader("t", partition) for partition in range(4)] == [3, None, 0, None]
    assert view.leader("u", 0) is None
    assert view.topics["t"].partitions == 3
    assert available(view, "t") == [0, 2]


def test_partitions_may_be_told_in_any_order() -> None:
    told = tuple(PartitionAnswer(index, 0, 10 + index, -1) for index in (2, 0, 1))
    view = seen(TopicAnswer("t", 0, told))
    assert [view.leader("t", partition) for partition in range(3)] == [10, 11, 12]
    assert available(view, "t") == [0, 1, 2]


def test_a_new_answer_replaces_a_topic_and_leaves_the_others() -> None:
    view = seen(topic("t", 0, 1), topic("u", 2), topic("t", 1, -1, 1))
    assert [view.leader("t", partition) for partition in range(3)] == [1, None, 1]
    assert view.topics["t"].partitions == 3
    assert view.leader("u", 0) == 2


def test_brokers_are_those_of_the_last_answer() -> None:
    view = seen(
        MetadataAnswer((broker(0), broker(1)), ()),
        MetadataAnswer((broker(1, "moved"), broker(2)), ()),
    )
    assert view.brokers == {1: broker(1, "moved"), 2: broker(2)}


def test_a_view_that_somebody_holds_does_not_change() -> None:
    before = seen(MetadataAnswer((broker(0),), (topic("t", 0),)))
    after = before.with_answer(MetadataAnswer((broker(1),), (topic("t", 1), topic("u", 1))))
    assert (before.leader("t", 0), after.leader("t", 0)) == (0, 1)
    assert set(before.topics) == {"t"}
    assert set(before.brokers) == {0}


def test_a_topic_that_is_not_there_has_no_partitions_and_says_why() -> None:
    view = seen(topic("t", code=UNKNOWN))
    assert (view.topics["t"].partitions, view.topics["t"].error_code) == (0, UNKNOWN)
    assert view.leader("t", 0) is None


def test_a_topic_that_was_there_keeps_its_partitions_without_leaders() -> None:
    """Messages that are partitioned already wait on: a key still means the same partition."""
    gone = topic("t", code=UNKNOWN)
    for view in (seen(topic("t", 0, 1, 2), gone), seen(topic("t", 0, 1, 2), gone, gone)):
        assert (view.topics["t"].partitions, view.topics["t"].error_code) == (3, UNKNOWN)
        assert [view.leader("t", partition) for partition in range(3)] == [None] * 3
        assert available(view, "t") == []


def test_a_topic_that_comes_back_is_as_it_is_told() -> None:
    view = seen(topic("t", 0, 1, 2), topic("t", code=UNKNOWN), topic("t", 5))
    assert (view.topics["t"].partitions, view.topics["t"].error_code) == (1, 0)
    assert view.leader("t", 0) == 5


# A broker's hint where a leader has gone (KIP-951) ----------------------------------------------


def test_a_hint_changes_one_leader() -> None:
    before = seen(MetadataAnswer((broker(0),), (topic("t", 0, -1, 0), topic("u", 0))))
    after = before.with_leader("t", 1, broker(7))
    assert [after.leader("t", partition) for partition in range(3)] == [0, 7, 0]
    assert available(after, "t") == [0, 1, 2]
    assert after.leader("u", 0) == 0
    assert after.brokers == {0: broker(0), 7: broker(7)}
    # Somebody may hold the view from before.
    assert (before.leader("t", 1), available(before, "t")) == (None, [0, 2])


def test_a_hint_that_is_no_news_changes_nothing() -> None:
    view = seen(topic("t", 0, 1))
    assert view.with_leader("t", 1, broker(1)) is view


@pytest.mark.parametrize(("name", "partition"), [("u", 0), ("t", 2), ("t", -1), ("t", 2**31 - 1)])
def test_a_hint_about_what_is_not_known_changes_nothing(name: str, partition: int) -> None:
    view = seen(topic("t", 0, 1))
    assert view.with_leader(name, partition, broker(7)) is view


def test_metadata_goes_before_an_older_hint() -> None:
    view = seen(topic("t", 0)).with_leader("t", 0, broker(7))
    view = view.with_answer(MetadataAnswer((broker(1),), (topic("t", 1),)))
    assert (view.leader("t", 0), view.brokers) == (1, {1: broker(1)})


# Backoff ----------------------------------------------------------------------------------------

SECONDS = st.floats(0.001, 1000)
RANDOM = st.floats(0, 1, exclude_max=True)
#: What is left out of account when floats are compared.
CLOSE = 1e-9


@settings(deadline=None)
@given(SECONDS, SECONDS, st.integers(0, 10_000), RANDOM)
def test_a_wait_is_within_a_fifth_of_its_power_of_two(
    first: float, most: float, failures: int, random: float
) -> None:
    exact = min(most, first * 2.0 ** min(failures, 900))
    wait = backoff(first, most, failures, random)
    assert 0.8 * exact * (1 - CLOSE) <= wait <= 1.2 * exact * (1 + CLOSE)


@pytest.mark.parametrize(
    ("failures", "random", "wait"),
    [
        (0, 0.5, 0.1),
        (1, 0.5, 0.2),
        (2, 0.5, 0.4),
        (3, 0.5, 0.8),
        (4, 0.5, 1.0),
        (2**31, 0.5, 1.0),
        (0, 0.0, 0.08),
        (0, 0.999_999_999, 0.12),
        (9, 0.0, 0.8),
        (9, 0.999_999_999, 1.2),
    ],
)
def test_waits_of_100_ms_to_1_s(failures: int, random: float, wait: float) -> None:
    assert backoff(0.1, 1.0, failures, random) == pytest.approx(wait)


def test_a_first_wait_that_is_longer_than_the_longest_is_cut() -> None:
    assert backoff(5.0, 1.0, 0, 0.5) == pytest.approx(1.0)


def test_no_backoff_is_no_wait() -> None:
    assert backoff(0.0, 0.0, 100, 0.9) == 0


def test_each_failure_doubles_the_wait_until_it_works() -> None:
    waits = Backoff(0.1, 1.0)
    assert [waits.next(0.5) for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    waits.reset()
    assert waits.next(0.5) == pytest.approx(0.1)


# When metadata is asked for, and of which topics -------------------------------------------------

MAX_AGE = 300.0


class Asking:
    """A refresh, driven as the metadata's worker drives it."""

    def __init__(self, *known: str) -> None:
        self.machine = Refresh(max_age=MAX_AGE, backoff_first=0.1, backoff_most=1.0)
        self.now = 1000.0
        if known:
            self.want(*known)
            self.send()
            self.answered(*known)

    def want(self, *topics: str) -> None:
        for name in topics:
            self.machine.want(name)

    @property
    def due_in(self) -> float | None:
        """How long until the next request is due."""
        due = self.machine.next_due()
        return None if due is None else max(0.0, due - self.now)

    def send(self) -> list[str]:
        """Let the time come to the next request; the topics that it asks for."""
        due = self.machine.next_due()
        assert due is not None
        self.now = max(self.now, due)
        return self.machine.send(self.now)

    def answered(self, *there: str, random: float = 0.5, cost: float = 0.0) -> None:
        self.machine.succeeded(self.now, random, there=set(there), cost=cost)

    def failed(self) -> None:
        self.machine.failed(self.now, 0.5)


def test_who_knows_no_topic_asks_for_nothing_unless_somebody_wants_it() -> None:
    asking = Asking()
    assert asking.due_in is None
    asking.machine.want()
    assert asking.due_in == 0
    assert asking.send() == []
    asking.machine.want()
    assert asking.due_in is None  # one is under way
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
    # Nobody has asked for these: no pause.
    assert asking.due_in == 0
    assert asking.send() == ["b", "c"]
    asking.answered("b", "c")
    assert asking.due_in == pytest.approx(0.1)
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
    """A leader that moves to and fro must not be asked for as fast as brokers answer."""
    asking = Asking("a")
    for _ in range(3):  # good answers do not make it longer
        asking.machine.want()
        assert asking.send() == ["a"]
        asking.answered("a", random=random)
        asking.machine.want()
        assert asking.due_in == pytest.approx(wait)


def test_what_is_missing_is_asked_for_again_and_again_ever_more_slowly() -> None:
    asking = Asking("there")
    asking.want("a", "b")
    waits = []
    for _ in range(6):
        assert asking.send() == ["a", "b"]
        asking.answered()
        waits.append(asking.due_in)
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    assert asking.send() == ["a", "b"]
    asking.answered("a")
    assert asking.send() == ["b"]
    asking.answered("b")
    assert asking.machine.known == {"a", "b", "there"}
    assert asking.send() == ["a", "b", "there"]
    assert asking.now > 1000 + MAX_AGE - 1


def test_a_new_wish_is_asked_for_at_full_speed_again() -> None:
    asking = Asking()
    asking.want("a")
    for _ in range(5):
        asking.send()
        asking.answered()
    asking.want("b")
    assert asking.send() == ["b"]
    asking.answered()
    assert asking.due_in == pytest.approx(0.1)


def test_a_topic_that_is_gone_is_missing() -> None:
    asking = Asking("a", "b")
    asking.machine.want()
    assert asking.send() == ["a", "b"]
    asking.answered("b")
    assert (asking.machine.known, asking.machine.missing) == ({"b"}, {"a"})
    assert asking.send() == ["a"]


def test_what_is_missing_takes_a_hundredth_of_the_time_at_most() -> None:
    asking = Asking("there")
    asking.want("a")
    asking.send()
    asking.answered(cost=0.5)
    assert asking.due_in == pytest.approx(50)
    # What is there does not wait for it.
    asking.machine.want()
    assert asking.due_in == pytest.approx(0.1)
    assert asking.send() == ["there"]


def test_new_topics_do_not_put_off_those_that_are_missing() -> None:
    asking = Asking()
    asking.want("a")
    asking.send()
    asking.answered()
    due = asking.machine.next_due()
    for name in ("b", "c"):
        asking.now += 0.01
        asking.want(name)
        assert asking.send() == [name]
        asking.answered(cost=1.0)
    assert asking.machine.next_due() == due
    assert asking.send() == ["a", "b", "c"]


def test_without_an_answer_it_asks_again_ever_more_slowly() -> None:
    asking = Asking("a")
    asking.want("b")
    asking.send()
    waits = []
    for _ in range(3):
        asking.failed()
        waits.append(asking.due_in)
        assert asking.send() == ["a", "b"]
    assert waits == pytest.approx([0.1, 0.2, 0.4])
    asking.answered("a", "b")
    assert asking.due_in == pytest.approx(MAX_AGE)


EVENTS = st.sampled_from(["want", "new", "again", "send", "answer", "half an answer", "failure"])


@settings(deadline=None)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 0.5), RANDOM), max_size=80))
def test_no_topic_is_forgotten(events: list[tuple[str, float, float]]) -> None:
    asking = Asking()
    made = asking.machine
    topics: list[str] = []
    asked: list[str] = []
    for event, seconds, random in events:
        asking.now += seconds
        if event == "want":
            made.want()
        elif event in ("new", "again"):
            if event == "new" or not topics:
                topics.append(f"topic-{len(topics)}")
            made.want(topics[-1])
            made.want(topics[len(topics) // 2])
        elif event == "send" and asking.due_in == 0:
            asked = made.send(asking.now)
            assert set(asked) <= set(topics)
        elif made.under_way:
            if event == "failure":
                made.failed(asking.now, random)
            elif event != "send":
                there = asked if event == "answer" else asked[::2]
                asking.answered(*there, random=random, cost=0.001)
        if made.under_way:
            assert made.next_due() is None
        elif topics:
            assert made.next_due() is not None
        assert not (made.known & made.missing)
    if made.under_way:
        asking.failed()
    # From now on the cluster has everything.
    for _ in range(6):
        if made.next_due() is not None:
            asking.answered(*asking.send())
    assert (made.known, made.missing) == (set(topics), set())
    assert asking.due_in == (pytest.approx(MAX_AGE) if topics else None)

"""The view of the cluster, and the backoff between attempts."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.cluster import (
    REWINDS,
    Backoff,
    ClusterView,
    LeaderHint,
    backoff,
    led_by_others,
)
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import BrokerAddress, MetadataAnswer, PartitionAnswer, TopicAnswer

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

# The view ---------------------------------------------------------------------------------------


def broker(number: int, host: str = "host") -> BrokerAddress:
    return BrokerAddress(number, host, 9092)


def topic(
    name: str, *leaders: int, code: int = 0, epoch: int = -1, topic_id: bytes = b""
) -> TopicAnswer:
    """Return topic *name* in *epoch*, its partitions 0, 1 ... led by *leaders* (-1: none)."""
    partitions = (
        PartitionAnswer(index, 0 if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE, leader, epoch)
        for index, leader in enumerate(leaders)
    )
    return TopicAnswer(name, code, tuple(partitions), topic_id)


def hint(name: str, partition: int, leader: int, epoch: int = -1) -> LeaderHint:
    return LeaderHint(name, partition, epoch, broker(leader))


def seen(*answers: MetadataAnswer | TopicAnswer) -> ClusterView:
    """Return the view after applying these answers in order."""
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
    """Messages that already have a partition keep waiting: a key maps to the same partition."""
    gone = topic("t", code=UNKNOWN)
    for view in (seen(topic("t", 0, 1, 2), gone), seen(topic("t", 0, 1, 2), gone, gone)):
        assert (view.topics["t"].partitions, view.topics["t"].error_code) == (3, UNKNOWN)
        assert [view.leader("t", partition) for partition in range(3)] == [None] * 3
        assert available(view, "t") == []


def test_a_topic_that_comes_back_is_as_it_is_told() -> None:
    view = seen(topic("t", 0, 1, 2), topic("t", code=UNKNOWN), topic("t", 5))
    assert (view.topics["t"].partitions, view.topics["t"].error_code) == (1, 0)
    assert view.leader("t", 0) == 5


# Responses that lack something --------------------------------------------------------------------

OLD, NEW = b"1" * 16, b"2" * 16


def some(*indexes: int, leader: int = 0, epoch: int = 3, topic_id: bytes = OLD) -> TopicAnswer:
    """Return topic "t" with the partitions *indexes* only."""
    parts = (PartitionAnswer(index, 0, leader, epoch) for index in indexes)
    return TopicAnswer("t", 0, tuple(parts), topic_id)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "indexes", [(0, 1, 3), (1, 2, 3), (3,), (3, 0), (0, 3, 3, 0)], ids=lambda each: str(each)
)
def test_a_partition_that_an_answer_lacks_has_no_leader(
    indexes: tuple[int, ...], known: bool
) -> None:
    view = seen(*[some(0, 1, 2, 3)] * known, some(*indexes))
    assert view.topics["t"].partitions == 4
    assert available(view, "t") == sorted(set(indexes))
    assert view.topics["t"].is_complete is False
    # Another server may know them. The search ends, because none may.
    out_of_date = []
    for _ in range(2 * REWINDS):
        out_of_date.append(view.is_out_of_date(["t"]))
        view = view.with_answer(MetadataAnswer((), (some(*indexes),)))
    assert out_of_date == [True] * REWINDS + [False] * REWINDS
    view = view.with_answer(MetadataAnswer((), (some(0, 1, 2, 3),)))
    assert (view.topics["t"].is_complete, view.topics["t"].rewinds) == (True, {})


@pytest.mark.parametrize("order", [1, -1])
def test_the_latest_of_several_entries_counts(order: int) -> None:
    entries = [
        PartitionAnswer(0, 0, 7, 3),
        PartitionAnswer(0, 5, -1, 4),
        PartitionAnswer(0, 0, 8, 4),
    ]
    view = seen(TopicAnswer("t", 0, tuple(entries[::order]), OLD))
    assert (view.topics["t"].partitions, view.leader("t", 0)) == (1, 8)


@pytest.mark.parametrize(
    ("known", "indexes", "is_right"),
    [
        ((), (10,), True),
        ((), (11,), False),
        ((), (0, 1, 2**31 - 1), False),
        (range(40), (39,), True),
        (range(40), (40,), False),
    ],
)
def test_an_index_far_beyond_the_others_is_malformed(
    known: Sequence[int], indexes: tuple[int, ...], is_right: bool
) -> None:
    before = seen(*[some(*known)] * bool(known))
    if is_right:
        after = before.with_answer(MetadataAnswer((), (some(*indexes),)))
        assert after.topics["t"].partitions == max([*known, *indexes]) + 1
    else:
        with pytest.raises(WireError, match="has the partition"):
            before.with_answer(MetadataAnswer((), (some(*indexes),)))


#: Other answers, then how many answers with one partition of four make it so.
SHRINKING: dict[str, tuple[list[TopicAnswer], bytes, int | None]] = {
    "same id": ([], OLD, None),
    "same id, unknown once": ([topic("t", code=UNKNOWN)], OLD, None),
    "another id": ([], NEW, 1),
    "no id": ([], b"", REWINDS + 1),
    "no id, unknown once": ([topic("t", code=UNKNOWN)], b"", 1),
    "no id, unknown, then another error": (
        [topic("t", code=UNKNOWN), topic("t", code=ErrorCode.LEADER_NOT_AVAILABLE)],
        b"",
        1,
    ),
    "no id, another error": ([topic("t", code=ErrorCode.LEADER_NOT_AVAILABLE)], b"", REWINDS + 1),
    "no id, answers that do not agree": (
        [*[some(0, topic_id=b"")] * REWINDS, some(0, 1, topic_id=b"")],
        b"",
        REWINDS + 1,
    ),
}


@pytest.mark.parametrize("case", SHRINKING)
def test_when_a_topic_may_have_fewer_partitions(case: str) -> None:
    """Kafka's topics never shrink: it is a new one, or a server that lags behind."""
    others, topic_id, times = SHRINKING[case]
    first = OLD if topic_id else b""
    view = seen(some(0, 1, 2, 3, topic_id=first), *others)
    found = []
    for _ in range(REWINDS + 3):
        view = view.with_answer(MetadataAnswer((), (some(0, topic_id=topic_id),)))
        found.append(view.topics["t"].partitions)
    expected = [4] * (REWINDS + 3 if times is None else times - 1)
    assert found == expected + [1] * (REWINDS + 3 - len(expected))


def test_a_server_without_ids_does_not_make_the_id_forgotten() -> None:
    view = seen(some(0, 1), some(0, 1, topic_id=b""), some(0))
    assert (view.topics["t"].partitions, view.topics["t"].topic_id) == (2, OLD)


def test_after_a_rebootstrap_the_topic_is_as_it_is_told() -> None:
    view = seen(some(0, 1, 2, topic_id=b"")).without_brokers()
    view = view.with_answer(MetadataAnswer((), (some(0, topic_id=b""),)))
    assert view.topics["t"].partitions == 1


def test_a_broker_that_leads_stays_though_an_answer_lacks_it() -> None:
    view = seen(MetadataAnswer((broker(0), broker(1), broker(2)), (topic("t", 0), topic("u", 1))))
    view = view.with_answer(MetadataAnswer((broker(0),), (topic("t", 0),)))
    assert set(view.brokers) == {0, 1}
    view = view.with_answer(MetadataAnswer((broker(0),), (topic("u", 0),)))
    assert set(view.brokers) == {0}


@given(st.lists(st.lists(st.integers(0, 6), min_size=1), min_size=1))
def test_whatever_answers_lack_the_number_never_falls(answers: list[list[int]]) -> None:
    view, number = ClusterView(), 0
    for indexes in answers:
        view = view.with_answer(MetadataAnswer((), (some(*indexes),)))
        number = max(number, *(index + 1 for index in indexes))
        assert view.topics["t"].partitions == number
        assert available(view, "t") == sorted(set(indexes))


# A broker's hint about the new leader (KIP-951) -------------------------------------------------


def test_a_hint_changes_one_leader() -> None:
    before = seen(MetadataAnswer((broker(0),), (topic("t", 0, -1, 0), topic("u", 0))))
    after = before.with_leaders([hint("t", 1, 7)])
    assert [after.leader("t", partition) for partition in range(3)] == [0, 7, 0]
    assert available(after, "t") == [0, 1, 2]
    assert after.leader("u", 0) == 0
    assert after.brokers == {0: broker(0), 7: broker(7)}
    # The old view is immutable: a stage may still hold it.
    assert (before.leader("t", 1), available(before, "t")) == (None, [0, 2])


def test_a_hint_that_is_no_news_changes_nothing() -> None:
    view = seen(topic("t", 0, 1))
    assert view.with_leaders([hint("t", 1, 1)]) is view


@pytest.mark.parametrize(("name", "partition"), [("u", 0), ("t", 2), ("t", -1), ("t", 2**31 - 1)])
def test_a_hint_about_what_is_not_known_changes_nothing(name: str, partition: int) -> None:
    view = seen(topic("t", 0, 1))
    assert view.with_leaders([hint(name, partition, 7)]) is view


def test_the_hints_of_an_answer_make_one_view() -> None:
    before = seen(topic("t", *[0] * 50, epoch=3), topic("u", 0))
    hints = [hint("t", partition, 7, epoch=4) for partition in range(40)]
    after = before.with_leaders([*hints, hint("u", 0, 8), hint("gone", 0, 8)])
    assert [after.leader("t", partition) for partition in range(50)] == [7] * 40 + [0] * 10
    assert after.leader("u", 0) == 8
    assert led_by_others(before, after) == {*(("t", index) for index in range(40)), ("u", 0)}


@pytest.mark.parametrize(("epoch", "leader"), [(4, 0), (5, 0), (6, 7), (-1, 7)])
def test_a_hint_of_an_older_epoch_changes_nothing(epoch: int, leader: int) -> None:
    view = seen(topic("t", 0, epoch=5))
    assert view.with_leaders([hint("t", 0, 7, epoch)]).leader("t", 0) == leader


def test_a_hint_of_the_same_epoch_names_a_leader_where_none_was_known() -> None:
    view = seen(topic("t", -1, epoch=5))
    assert view.with_leaders([hint("t", 0, 7, epoch=5)]).leader("t", 0) == 7


def test_metadata_of_an_older_epoch_than_a_hint_changes_nothing() -> None:
    view = seen(topic("t", 0, epoch=4)).with_leaders([hint("t", 0, 7, epoch=5)])
    answer = MetadataAnswer((broker(0),), (topic("t", 0, epoch=4),))
    view = view.with_answer(answer)
    assert view.leader("t", 0) == 7
    # The old answer does not contain the new leader's address.
    assert view.brokers == {0: broker(0), 7: broker(7)}
    assert view.is_out_of_date(["t"])


# Leader epochs (KIP-320) ------------------------------------------------------------------------


def test_an_older_epoch_changes_nothing_and_a_newer_one_does() -> None:
    view = seen(topic("t", 1, 1, epoch=5), topic("t", 0, 0, epoch=4))
    assert [view.leader("t", partition) for partition in range(2)] == [1, 1]
    assert view.is_out_of_date(["t"])
    assert not view.is_out_of_date(["u"])
    view = view.with_answer(MetadataAnswer((), (topic("t", 2, 2, epoch=6),)))
    assert [view.leader("t", partition) for partition in range(2)] == [2, 2]
    assert not view.is_out_of_date(["t"])


def test_an_older_epoch_that_stays_is_believed_in_the_end() -> None:
    """The cluster may really have gone back, for example to a backup of its metadata."""
    view = seen(topic("t", 1, epoch=5))
    old = MetadataAnswer((), (topic("t", 0, epoch=4),))
    for _ in range(REWINDS):
        view = view.with_answer(old)
        assert view.leader("t", 0) == 1
    view = view.with_answer(old)
    assert view.leader("t", 0) == 0
    assert not view.is_out_of_date(["t"])


def test_an_answer_that_is_up_to_date_ends_the_patience_with_older_ones() -> None:
    new, old = topic("t", 1, epoch=5), topic("t", 0, epoch=4)
    view = seen(*[new, *[old] * REWINDS] * 3)
    assert view.leader("t", 0) == 1


def test_a_topic_that_was_created_again_counts_its_epochs_anew() -> None:
    first = topic("t", 1, epoch=5, topic_id=b"first".ljust(16))
    second = topic("t", 2, epoch=0, topic_id=b"second".ljust(16))
    assert seen(first, second).leader("t", 0) == 2
    # A broker that sends no topic id has reported that the topic was gone.
    view = seen(topic("t", 1, epoch=5), topic("t", code=UNKNOWN), topic("t", 2, epoch=0))
    assert view.leader("t", 0) == 2


def test_an_epoch_that_is_not_told_is_believed() -> None:
    assert seen(topic("t", 1, epoch=5), topic("t", 0)).leader("t", 0) == 0


def test_a_topic_that_is_described_without_partitions_stays_as_it_was() -> None:
    view = seen(topic("t", 0, 1, 2), topic("t"))
    assert (view.topics["t"].partitions, view.topics["t"].error_code) == (3, 0)
    assert [view.leader("t", partition) for partition in range(3)] == [0, 1, 2]


def test_partitions_that_another_leads() -> None:
    old = seen(topic("t", 0, 1, -1, 1), topic("u", 0), topic("v", 0))
    new = seen(topic("t", 0, 2, 2, -1), topic("u", 0), topic("w", 0))
    assert led_by_others(old, new) == {("t", 1), ("t", 2)}
    assert led_by_others(old, old) == frozenset()


def test_a_topic_that_is_forgotten_is_in_no_view() -> None:
    view = seen(MetadataAnswer((broker(0),), (topic("t", 0), topic("u", 0))))
    assert set(view.without("t").topics) == {"u"}
    assert view.without("t").brokers == view.brokers


def test_metadata_goes_before_an_older_hint() -> None:
    view = seen(topic("t", 0)).with_leaders([hint("t", 0, 7)])
    view = view.with_answer(MetadataAnswer((broker(1),), (topic("t", 1),)))
    assert (view.leader("t", 0), view.brokers) == (1, {1: broker(1)})


# Backoff ----------------------------------------------------------------------------------------

SECONDS = st.floats(0.001, 1000)
RANDOM = st.floats(0, 1, exclude_max=True)
#: Tolerance for comparing floats.
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

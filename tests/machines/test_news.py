"""The log lines for a new view of the cluster: each change is logged once."""

from __future__ import annotations

import pytest

from pykaproducer._machines.cluster import ClusterView, LeaderHint
from pykaproducer._machines.cluster_changes import cluster_changes
from pykaproducer._wire.messages import BrokerAddress, MetadataAnswer, PartitionAnswer, TopicAnswer

BROKERS = tuple(BrokerAddress(number, "h", 9092 + number) for number in range(3))


class Log:
    """A sequence of views and the lines logged for them."""

    def __init__(self) -> None:
        self.view = ClusterView()
        self.missing: dict[str, int] = {}

    def told(self, leaders: list[int] | None, code: int = 0, topic: str = "t") -> list[str]:
        """Return the lines for an answer: *leaders* by partition, or None without the topic."""
        topics = []
        if leaders is not None:
            partitions = [
                PartitionAnswer(number, 5 if leader < 0 else 0, leader, -1)
                for number, leader in enumerate(leaders)
            ]
            topics = [TopicAnswer(topic, code, tuple(partitions))]
        return self.show(self.view.with_answer(MetadataAnswer(BROKERS, tuple(topics))))

    def show(self, view: ClusterView) -> list[str]:
        old, self.view = self.view, view
        return [
            ("! " if each.is_bad else "") + each.text
            for each in cluster_changes(old, view, self.missing)
        ]


def test_the_cluster_answers_for_the_first_time() -> None:
    log = Log()
    assert log.told(None) == ["the cluster answers; broker ids: 0, 1, 2"]
    assert log.told(None) == []


def test_a_topic_that_is_there_is_no_news() -> None:
    log = Log()
    log.told(None)
    assert log.told([0, 1, 2]) == []
    assert log.told([0, 1, 2]) == []


def test_a_topic_that_stays_away_is_told_of_once_and_when_it_comes() -> None:
    log = Log()
    log.told(None)
    told = [line for _ in range(20) for line in log.told([], code=3)]
    assert told == [
        "! topic 't': the cluster has no such topic: UNKNOWN_TOPIC_OR_PARTITION (3); its messages "
        "wait"
    ]
    assert log.told([0, 1]) == ["topic 't': now exists; partitions: 2"]


def test_a_topic_that_cannot_be_looked_up() -> None:
    log = Log()
    log.told(None)
    (told,) = (line for _ in range(20) for line in log.told([], code=-1))
    assert told == "! topic 't': the topic cannot be looked up: UNKNOWN (-1); its messages wait"


@pytest.mark.parametrize("code", [17, 29])
def test_a_topic_whose_messages_fail_is_no_news(code: int) -> None:
    log = Log()
    log.told(None)
    assert [line for _ in range(20) for line in log.told([], code=code)] == []
    assert log.told([0, 1]) == []


def test_a_topic_that_is_created_by_being_asked_for_is_no_news() -> None:
    log = Log()
    log.told(None)
    assert log.told([], code=3) == log.told([], code=5) == log.told([0]) == []


def test_leaders_that_move_are_lost_and_come_back() -> None:
    log = Log()
    log.told(None)
    log.told([0, 1, 2])
    assert log.told([1, 1, 2]) == [
        "topic 't': the leader has moved: partition 0 (from broker 0 to 1)"
    ]
    assert log.told([1, -1, -1]) == ["! topic 't': no leader any more: partition 1, 2"]
    assert log.told([1, -1, -1]) == []
    assert log.told([1, 0, 2]) == ["topic 't': has a leader again: partition 1, 2"]


def test_many_at_once_are_one_line() -> None:
    log = Log()
    log.told(None)
    log.told([0] * 1000)
    assert log.told([1] * 1000) == [
        "topic 't': the leader has moved: partition 0, 1, 2 and 997 more (from broker 0 to 1)"
    ]


def test_a_topic_that_vanishes_has_lost_its_leaders() -> None:
    log = Log()
    log.told(None)
    log.told([0, 1])
    assert log.told([], code=3) == ["! topic 't': no leader any more: partition 0, 1"]
    assert log.told([], code=3) == []
    assert log.told([0, 1]) == ["topic 't': has a leader again: partition 0, 1"]


def test_partitions_are_added() -> None:
    log = Log()
    log.told(None)
    log.told([0])
    assert log.told([0, 1]) == ["topic 't': partitions: 1, now 2"]


def test_a_hint_is_news_and_the_answer_behind_it_none() -> None:
    log = Log()
    log.told(None)
    log.told([0])
    moved = log.view.with_leaders([LeaderHint("t", 0, -1, BROKERS[2])])
    assert log.show(moved) == ["topic 't': the leader has moved: partition 0 (from broker 0 to 2)"]
    assert log.told([2]) == []

"""Messages that the broker or the partitioner rejects while their transaction fails.

Each error names the rejection, and not "another message failed".
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError

from pykaproducer import Delivery, Producer, Status
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import kafka_class
from pykaproducer._pipeline.coordinator import CoordinatorItem
from pykaproducer._pipeline.coordinator_items import RowsFailed
from pykaproducer._pipeline.partition import PartitionWorker
from pykaproducer._pipeline.wiring import Pipeline
from pykaproducer.errors import PartitionerError
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Refuse
from tests.pipeline.helper import SOON, Amend, until

from .scripted_helper import begun, error_of, producer_of


def pipeline_of(producer: Producer) -> Pipeline:
    assert producer._pipeline is not None
    return producer._pipeline


def fail_all_after_the_first(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> threading.Event:
    """Have all messages of the transaction fail when the first one has; return when they have.

    The stage that has failed it goes on after that.
    """
    pipeline = pipeline_of(producer)
    coordinator, settler, dispatcher = pipeline.coordinator, pipeline.settler, pipeline.dispatcher
    assert coordinator is not None
    put, report_settled = coordinator.put, settler.report_settled
    all_failed, first = threading.Event(), threading.Lock()

    def note(item: CoordinatorItem) -> None:
        put(item)
        if isinstance(item, RowsFailed):
            all_failed.set()

    def report(*settled: Any) -> None:
        # The dispatcher, which fails all, may come here before the stage that has failed the first.
        if threading.current_thread() is not dispatcher.thread and first.acquire(blocking=False):
            assert all_failed.wait(SOON)
        report_settled(*settled)

    monkeypatch.setattr(coordinator, "put", note)
    monkeypatch.setattr(settler, "report_settled", report)
    return all_failed


def assert_own_errors(
    deliveries: Sequence[Delivery], kind: type[BaseException], all_failed: threading.Event
) -> None:
    assert all_failed.wait(SOON)
    for delivery in deliveries:
        assert isinstance(delivery.exception(SOON), kind)


@pytest.mark.parametrize("code", [ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_batches_that_are_rejected_in_one_response(
    scripted: ScriptedCluster, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producer_of(scripted, linger_ms=60_000) as producer:
        begun(producer)
        for partition in range(2):  # in TV1 these are added to the transaction one by one
            producer.send("t", b"before", partition=partition)
        producer.flush(SOON)
        deliveries = [producer.send("t", b"%d" % i, partition=i) for i in range(2)]
        all_failed = fail_all_after_the_first(producer, monkeypatch)
        scripted.next("produce", Refuse(code))
        error_of(producer.commit_transaction)
        assert_own_errors(deliveries, kafka_class(code), all_failed)
        assert [each.status for each in deliveries] == [Status.NOT_PERSISTED] * 2


def test_messages_for_a_partition_that_does_not_exist(
    scripted: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producer_of(scripted, linger_ms=60_000) as producer:
        begun(producer)
        producer.send("t", b"before", partition=0)
        producer.flush(SOON)
        all_failed = fail_all_after_the_first(producer, monkeypatch)
        deliveries = [producer.send("t", b"%d" % i, partition=7 + i) for i in range(2)]
        error_of(producer.commit_transaction)
        assert_own_errors(deliveries, PartitionerError, all_failed)


def test_messages_that_wait_for_a_leader_when_the_right_is_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = ""

    def amend(answer: Any) -> None:
        for topic in answer.topics:
            if topic.name == "t" and state == "no leader":
                topic.partitions[0].leader_id = -1
            elif topic.name == "t" and state == "no right":
                topic.error_code, topic.partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []

    with ScriptedCluster(topics={"t": 1}) as scripted, producer_of(scripted) as producer:
        scripted.always("metadata", Amend(amend))
        begun(producer)
        producer.send("t", b"before", partition=0)
        producer.flush(SOON)
        stages = pipeline_of(producer).stages
        (worker,) = [stage for stage in stages if isinstance(stage, PartitionWorker)]
        state = "no leader"
        scripted.always("produce", Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        deliveries = []
        for value in (b"a batch", b"not sealed yet"):
            deliveries.append(producer.send("t", value, partition=0))
            until(lambda: len(list(worker.held_items())) == len(deliveries))
        all_failed = fail_all_after_the_first(producer, monkeypatch)
        state = "no right"
        error_of(producer.commit_transaction)
        assert_own_errors(deliveries, TopicAuthorizationFailedError, all_failed)

"""``fail_next(code)``: the outcome is that of the real producer, whose brokers always refuse so."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pykaproducer import DeliveryTimeoutError, Producer, Status
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.verdicts import VERDICTS, Action
from pykaproducer.errors import DeliveryError, RetriesExhaustedError
from pykaproducer.testing import MockProducer, ScriptedCluster
from pykaproducer.testing.scripted import Exchange
from tests.producer.test_producer import SOON

CODES = sorted([*(code for code in VERDICTS if VERDICTS[code].action is not Action.DELIVERED), 999])
#: Until its deadline a message must have been refused once, and sent again (milliseconds).
DEADLINE = 2000
#: More requests than a producer sends in that time.
OFTEN = 10_000


def topic(code: int) -> str:
    return f"code-{code}".replace("--", "-minus-")


def refuse_all(exchange: Exchange) -> None:
    """Answer for each topic with the code for which it is named."""
    codes = {topic(code): code for code in CODES}
    answer = exchange.apply([(name, 0) for name in codes])
    for each in answer.responses:
        for partition in each.partition_responses:
            partition.error_code = codes[each.name]
            partition.base_offset = -1
    exchange.answer(answer)


def shape(error: BaseException | None) -> tuple[object, ...]:
    """Return what a program sees of *error*; the time that it waited is that of the run."""
    assert isinstance(error, DeliveryError)
    text = str(error)
    if isinstance(error, DeliveryTimeoutError):
        text = text.partition(" s: ")[2]
    text = re.sub(r"the batch of .* bytes; ", "", text)  # the mock makes no batch
    return type(error), error.status, error.retriable, error.topic, error.partition, text


@pytest.mark.parametrize(
    "settings",
    [{}, {"enable_idempotence": False}, {"retries": 1}],
    ids=["idempotent", "plain", "one retry"],
)
def test_as_the_real_producer(settings: dict[str, Any]) -> None:
    mock = MockProducer(**settings)
    for code in CODES:
        mock.fail_next(code)
    mocked = [mock.send(topic(code), b"value", partition=0) for code in CODES]
    topics = {topic(code): 1 for code in CODES}
    with ScriptedCluster(topics=topics) as cluster:
        cluster.next("produce", *[refuse_all] * OFTEN)
        with cluster.producer(delivery_timeout_ms=DEADLINE, **settings) as real:
            sent = [real.send(topic(code), b"value", partition=0) for code in CODES]
            expected = [shape(delivery.exception(SOON)) for delivery in sent]
    assert [shape(delivery.exception()) for delivery in mocked] == expected


def failure(producer: Producer) -> DeliveryError:
    error = producer.send("events", b"value").exception(SOON)
    assert isinstance(error, DeliveryError)
    return error


def test_a_limited_number_of_retries() -> None:
    mock = MockProducer(retries=2)
    mock.fail_next(ErrorCode.NOT_ENOUGH_REPLICAS)
    error = failure(mock)
    assert isinstance(error, RetriesExhaustedError)
    assert "after 2 retries" in str(error)


def test_the_status_that_is_given_counts() -> None:
    mock = MockProducer()
    mock.fail_next(ErrorCode.REQUEST_TIMED_OUT, status=Status.NOT_PERSISTED)
    assert failure(mock).status is Status.NOT_PERSISTED

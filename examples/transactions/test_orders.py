"""Tests of ``orders.py`` without a broker: what readers would see, and what is said.

Run them with ``pytest``.
"""

from __future__ import annotations

import json

import pytest
from orders import send_orders

from pykaproducer import ProducerFencedError
from pykaproducer.testing import MockProducer


@pytest.fixture
def producer() -> MockProducer:
    return MockProducer(transactional_id="orders-test")


def order(number: int, *parcels: str) -> str:
    return json.dumps({"id": str(number), "parcels": parcels})


def parcels(producer: MockProducer) -> list[bytes | None]:
    """Return what readers of committed messages see in the topic of the parcels."""
    return [record.value for record in producer.history() if record.topic == "shop-parcels"]


def test_an_order_and_its_parcels(producer: MockProducer) -> None:
    assert send_orders(producer, [order(1, "tea", "cups"), order(2)]) == 2
    topics = [record.topic for record in producer.history()]
    assert topics == ["shop-orders", "shop-parcels", "shop-parcels", "shop-orders"]
    assert {record.key for record in producer.history()} == {b"1", b"2"}


def test_nothing_of_a_wrong_line_is_seen(
    producer: MockProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [order(1, "tea"), '{"id": "2", "parcels": ["milk", 7]}', order(3, "cups")]
    assert send_orders(producer, lines) == 2
    assert parcels(producer) == [b"tea", b"cups"]
    assert capsys.readouterr().out.startswith("line 2 is wrong: AttributeError")
    assert producer.stats()["transactions"]["aborted"] == 1


def test_a_message_that_is_not_delivered(
    producer: MockProducer, capsys: pytest.CaptureFixture[str]
) -> None:
    producer.fail_next(29)  # TOPIC_AUTHORIZATION_FAILED
    assert send_orders(producer, [order(1, "tea"), order(2, "cups")]) == 1
    assert parcels(producer) == [b"cups"]
    assert "TOPIC_AUTHORIZATION_FAILED" in capsys.readouterr().out


def test_a_commit_that_is_refused(producer: MockProducer) -> None:
    producer.refuse_next("commit_transaction", 120)  # TRANSACTION_ABORTABLE
    assert send_orders(producer, [order(1, "tea"), order(2, "cups")]) == 1
    assert parcels(producer) == [b"cups"]


def test_another_program_that_is_started_with_the_same_id(producer: MockProducer) -> None:
    """This one ends: the other one continues its work."""
    assert send_orders(producer, [order(1, "tea")]) == 1
    producer.fence_producer()
    with pytest.raises(ProducerFencedError):
        send_orders(producer, [order(2, "cups")])
    assert parcels(producer) == [b"tea"]

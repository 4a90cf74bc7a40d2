"""Transactions on real Kafka in ``stats()`` and in the log."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pykaproducer.errors import ProducerFencedError, TransactionAbortableError
from tests.transactions.helper import BOTH, PATIENCE, Kafka


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (each.levelname, each.getMessage())
        for each in caplog.records
        if each.name == "pykaproducer.transactions"
    ]


@BOTH
def test_through_a_transaction(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:

        def stats() -> dict[str, Any]:
            found: dict[str, Any] = producer.stats()["transactions"]
            return found

        assert stats()["state"] == "uninitialized"
        producer.init_transactions()
        ready = stats()
        assert (ready["state"], ready["serial"], ready["open_s"]) == ("ready", 0, None)
        assert ready["protocol"] == int(kafka.protocol[-1])
        assert ready["producer_id"] >= 0
        assert ready["assignments"] == 1
        assert ready["coordinator"] == kafka.cluster.bootstrap_servers
        producer.begin_transaction()
        assert stats()["partitions"] == 0
        for partition in (0, 2):
            producer.send(topic, b"value", partition=partition).result(PATIENCE)
        begun = stats()
        assert (begun["state"], begun["serial"], begun["partitions"]) == ("open", 1, 2)
        assert begun["open_s"] >= begun["state_s"] >= 0
        producer.commit_transaction()
        committed = stats()
        assert (committed["state"], committed["committed"], committed["aborted"]) == ("ready", 1, 0)
        assert (committed["open_s"], committed["partitions"]) == (None, 0)
        producer.begin_transaction()
        assert stats()["partitions"] == 0
        producer.send(topic, b"value", partition=1).result(PATIENCE)
        assert stats()["partitions"] == 1
        producer.abort_transaction()
        with producer.transaction():
            pass  # an empty one counts, too
        ended = stats()
        assert (ended["committed"], ended["aborted"], ended["serial"]) == (2, 1, 3)
        assert ended["assignments"] == ended["producer_epoch"] - ready["producer_epoch"] + 1
        latency = producer.stats()["latency_ms"]["commit"]
        assert latency["count"] == 2
        assert latency["max"] > 0
        kinds = {each["stage"] for each in producer.stats()["stages"]}
        assert "Coordinator" in kinds
    assert (stats()["state"], stats()["committed"], stats()["aborted"]) == ("closed", 2, 1)


@BOTH
def test_the_log_has_one_line_for_each_change(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pykaproducer.transactions")
    with kafka.producer(transactional_id=topic) as producer:
        for _ in range(3):
            with producer.transaction():
                producer.send(topic, b"value")
            with producer.transaction() as transaction:
                producer.send(topic, b"value")
                transaction.abort()
        for _ in range(3):
            with pytest.raises(TransactionAbortableError), producer.transaction():
                producer.send(topic, b"nowhere", partition=99)
        for _ in range(2):
            with producer.transaction():
                producer.send(topic, b"value")
        producer.begin_transaction()
        producer.send(topic, b"value").result(PATIENCE)
        with kafka.producer(transactional_id=topic) as other:
            other.init_transactions()
            assert producer.send(topic, b"late").exception(PATIENCE) is not None
            with pytest.raises(TransactionAbortableError):
                producer.commit_transaction()
            with pytest.raises(ProducerFencedError):
                producer.abort_transaction()
            assert other.stats()["transactions"]["fenced"] == 0
        found = producer.stats()["transactions"]
        assert (found["state"], found["fenced"]) == ("fatal", 1)
        assert "taken over" in found["error"]
        # TV1: the coordinator has aborted it; then InitProducerId returns that this one is fenced.
        assert (found["committed"], found["aborted"]) == (5, 7 if kafka.protocol == "TV1" else 6)
    said = lines(caplog)
    # The other producer writes its line in another thread.
    other_one = next(text for _, text in said[1:] if "initialized" in text)
    said.remove(("INFO", other_one))
    assert [level for level, _ in said] == ["INFO", "WARNING", "INFO", "WARNING", "ERROR"]
    initialized, abortable, again, refused, fenced = (text for _, text in said)
    assert initialized.startswith(f"transactional id {topic!r}: initialized, with producer id ")
    assert f"the coordinator is {kafka.cluster.bootstrap_servers}" in initialized
    assert initialized.endswith(f"the transaction protocol {kafka.protocol[-1]}")
    assert "must be aborted" in abortable
    assert "partition 99" in abortable
    assert again.endswith("transactions are committed again")
    assert "INVALID_PRODUCER_EPOCH" in refused
    assert "another producer has taken over the transactional id" in fenced

"""The benchmark of transactions runs, and rejects invalid runs. No test depends on speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition

from benchmarks import readback
from benchmarks.child import RunFailed
from benchmarks.peers import TABLE, Feature
from pykaproducer import Producer
from pykaproducer.testing import KafkaCluster
from tests.benchmarks.helper import call, every_peer, results

pytestmark = pytest.mark.full

#: As short as possible: one transaction, or a few.
SHORT = ["--seconds", "0.05", "--warm-up-seconds", "0", "--rounds", "1", "--warm-up-rounds", "0"]


def measured(cluster: KafkaCluster | None, tmp_path: Path, *words: str) -> list[Any]:
    path = tmp_path / "results.json"
    assert call(cluster, "transactions", *words, *SHORT, "--json", str(path)) == 0
    runs: list[Any] = results(path)["runs"]
    return runs


def test_every_client_commits(lent: KafkaCluster, tmp_path: Path) -> None:
    names = every_peer("transactions")
    assert {"tv1", "idempotent", "flushing"} <= set(names)
    words = ["--messages", "1", "300", "--partitions", "2", "--keyed", "--callback"]
    runs = measured(lent, tmp_path, *words, "--vs", *names)
    assert [run["client"] for run in runs] == 2 * ["pykaproducer", *names]
    assert {run["case"] for run in runs} == {
        "1 message per transaction",
        "300 messages per transaction",
    }
    for run in runs:
        measures = run["measures"]
        assert measures["messages_per_s"] > 0
        if run["client"] != "idempotent":
            assert 0 < measures["p50_ms"] <= measures["p99_ms"]


def test_offsets_are_part_of_the_transactions(lent: KafkaCluster, tmp_path: Path) -> None:
    names = [
        name for name in every_peer("transactions") if Feature.OFFSETS not in TABLE[name].lacks
    ]
    assert "tv1" in names
    runs = measured(lent, tmp_path, "--messages", "10", "--offsets", "--vs", *names)
    assert all(run["measures"]["transactions_per_s"] > 0 for run in runs)


def test_offsets_count_only_if_they_are_committed(lent: KafkaCluster, topic: str) -> None:
    lent.create_topic(topic)
    with Producer(bootstrap_servers=lent.bootstrap_servers, transactional_id=topic) as producer:
        for offset, commits in ((3, True), (4, False)):
            with producer.transaction() as transaction:
                producer.send_offsets_to_transaction({TopicPartition(topic, 0): offset}, topic)
                if not commits:
                    transaction.abort()
    readback.check_offset(lent, topic, topic, 3)


def test_clients_without_offsets_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call(None, "transactions", "--offsets", "--vs", "flushing")
    assert "flushing does not support offsets in transactions" in capsys.readouterr().err


@pytest.mark.kafka
def test_brokers_without_kip_890(tmp_path: Path) -> None:
    (run,) = measured(None, tmp_path, "--messages", "10", "--tv1")
    assert run["measures"]["transactions_per_s"] > 0


def test_messages_count_only_if_they_are_committed(
    lent: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent.create_topic(topic, partitions=2)
    with Producer(bootstrap_servers=lent.bootstrap_servers, transactional_id=topic) as producer:
        for count, commits in ((3, True), (4, False)):
            with producer.transaction() as transaction:
                for i in range(count):
                    producer.send(topic, b"value", partition=i % 2)
                producer.flush()
                if not commits:
                    transaction.abort()
    monkeypatch.setattr(readback, "_MARKERS", 0.0)
    with pytest.raises(RunFailed, match=r"the log holds 3 that are committed, and 4 that are not"):
        readback.check_committed(lent, topic, 7)

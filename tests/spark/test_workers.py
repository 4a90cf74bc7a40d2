"""State in Spark's Python workers: one producer per configuration, however many tasks."""

from __future__ import annotations

from typing import Any

import pytest

from pykaproducer.spark import register
from pykaproducer.testing import KafkaCluster

from .helper import connections_by_worker, connections_to, save, values


@pytest.fixture(autouse=True, scope="module")
def registered(spark: Any) -> None:
    register(spark)


@pytest.fixture(scope="module")
def cluster(own_cluster: KafkaCluster) -> KafkaCluster:
    """Return a broker whose connections are all from here."""
    return own_cluster


def test_connections_do_not_grow_with_batches(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic, partitions=2)
    df = spark.range(20, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    counts: dict[str, int] = {}
    for _ in range(20):
        save(df, cluster, topic=topic)
        for worker, count in connections_by_worker(cluster).items():
            counts[worker] = max(count, counts.get(worker, 0))
    # One for metadata and one to the broker. Usually two workers; two more if Spark has not got
    # the first ones back as the next tasks begin.
    assert counts
    assert max(counts.values()) <= 2, counts
    assert len(counts) <= 4, counts
    assert len(values(cluster, topic, 2)) == 400


@pytest.mark.full
def test_configurations_that_are_no_longer_used_do_not_pile_up(
    spark: Any, cluster: KafkaCluster, topic: str
) -> None:
    cluster.create_topic(topic)
    df = spark.range(1, numPartitions=1).selectExpr("CAST(id AS STRING) AS value")
    before = connections_to(cluster)
    for number in range(12):
        save(df, cluster, topic=topic, kafka_linger_ms=str(number))
    # At most four producers in each of two workers.
    assert connections_to(cluster) - before <= 16

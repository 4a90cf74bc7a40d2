"""DataFrames to write, and what they have become in Kafka."""

from __future__ import annotations

from typing import Any

from pykaproducer.testing import KafkaCluster
from tests.cluster.readback import Record, read_log


def save(df: Any, cluster: KafkaCluster, **options: str) -> None:
    """Write *df* with the sink; ``kafka_x_y`` stands for ``kafka.x.y``."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    given.setdefault("kafka.bootstrap.servers", cluster.bootstrap_servers)
    df.write.format("pykaproducer").options(**given).mode("append").save()


def records(cluster: KafkaCluster, topic: str, partitions: int = 1) -> list[Record]:
    """Everything in a topic, partition by partition."""
    return [
        record
        for partition in range(partitions)
        for record in read_log(cluster, topic, partition).records
    ]


def values(cluster: KafkaCluster, topic: str, partitions: int = 1) -> list[bytes | None]:
    """The values in a topic, in order of their bytes."""
    return sorted(record.value or b"" for record in records(cluster, topic, partitions))

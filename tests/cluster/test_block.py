"""Blocks on real Kafka, read back by another client."""

from __future__ import annotations

import pyarrow
import pytest

from pykaproducer import Producer
from pykaproducer.testing import KafkaCluster
from tests._support.pairs import partly

from .readback import read_log

ROWS = 150_000


@pytest.mark.parametrize("compression", partly(["none", "lz4"], ["lz4"]))
def test_every_row_of_a_table_is_in_the_log_once_and_in_order(
    cluster: KafkaCluster, topic: str, compression: str
) -> None:
    cluster.create_topic(topic)
    values = [b"value %d " % number + bytes(number % 50) for number in range(ROWS)]
    keys = [None if number % 7 == 0 else b"key %d" % (number % 100) for number in range(ROWS)]
    table = pyarrow.table({"value": pyarrow.array(values), "key": pyarrow.array(keys)})
    with Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        compression_type=None if compression == "none" else compression,
        buffer_memory=4 << 20,  # sent in pieces
    ) as producer:
        found = producer.send_arrow(table, topic).result(60)
        assert producer.send_many(topic, values[:1000], keys[:1000]).result(60).rows == 1000
    assert [len(offsets) for ranges in found.offsets.values() for offsets in ranges] == [ROWS]
    log = read_log(cluster, topic)
    assert log.values == values + values[:1000]
    assert [record.key for record in log.records] == keys + keys[:1000]

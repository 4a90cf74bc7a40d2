"""A real broker reads the output of our compressors, even if it spans several of their blocks."""

from __future__ import annotations

import random
import struct

import crc32c
import pytest

from pykaproducer._net.transport import Network
from pykaproducer._util.compression import compressor
from pykaproducer.testing import KafkaCluster
from tests._support.consumer import consume
from tests.net.helper import Settings
from tests.testing.helper import RawClient
from tests.wire.helper import record_batch

#: Offsets in the header of a record batch.
_SIZE, _LENGTH_AT, _CRC_AT, _ATTRIBUTES_AT = 61, 8, 17, 21


def compressed(batch: bytes, name: str, level: int | None) -> bytes:
    """Return the same batch with its records compressed by our code."""
    made = compressor(name, level)
    assert made is not None
    data = bytearray(batch[:_SIZE] + made.compress(memoryview(batch)[_SIZE:]))
    struct.pack_into(">h", data, _ATTRIBUTES_AT, made.attribute)
    struct.pack_into(">i", data, _LENGTH_AT, len(data) - 12)
    struct.pack_into(">I", data, _CRC_AT, crc32c.crc32c(bytes(data[_ATTRIBUTES_AT:])))
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "level"),
    [("gzip", None), ("gzip", 1), ("snappy", None), ("lz4", None), ("lz4", 9), ("zstd", None)],
)
def test_kafka_takes_it_and_gives_it_back(
    cluster: KafkaCluster, topic: str, name: str, level: int | None
) -> None:
    cluster.create_topic(topic)
    broker = cluster.brokers[0]
    chance = random.Random(7)
    # 3.3 MB, a tenth of them incompressible.
    values = [chance.randbytes(3_000) + b"all work and no play " * 1_450 for _ in range(100)]
    batch = compressed(record_batch(*values), name, level)
    assert len(batch) < 1_000_000
    with RawClient(Network(Settings()), broker.host, broker.port) as client:
        # The broker decompresses and checks every record before it appends the batch.
        while (answer := client.produce((topic, 0, batch))) != [(0, 0)]:
            assert answer[0][0] in (3, 5, 6), answer  # it may not know yet that it is the leader
    read = consume(cluster.bootstrap_servers, topic, len(values))
    assert [record.value for record in read] == values

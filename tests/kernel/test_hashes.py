"""The hashes that decide a key's partition: they must match other clients."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.partitioner import murmur2

from pykaproducer._kernel import CRC32, FNV1A, MURMUR2, partition_for

try:
    import confluent_kafka
except ImportError:
    confluent_kafka = None

KEYS = st.binary(max_size=64)
COUNTS = st.integers(1, 1 << 31).map(lambda n: min(n, (1 << 31) - 1)) | st.integers(1, 50)


def fnv1a(data: bytes) -> int:
    """Return FNV-1a, 32 bits, as a signed number."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


@given(KEYS, COUNTS)
def test_murmur2_is_that_of_kafka_python(key: bytes, partitions: int) -> None:
    assert partition_for(MURMUR2, key, partitions) == (murmur2(key) & 0x7FFF_FFFF) % partitions


@pytest.mark.parametrize(
    ("key", "value"),
    [
        # As tested in Sarama against the Java client.
        (b"foo", 597841616),
        (b"bar", 988958145),
        (b"baz", 1973573280),
        (b"", 275646681),
        (b"kafka", 3496464228),
        (b"sarama", 770765511),
        # org.apache.kafka.common.utils.UtilsTest.testMurmur2: signed values.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_known_values(key: bytes, value: int) -> None:
    for partitions in (1, 7, 100, (1 << 31) - 1):
        assert partition_for(MURMUR2, key, partitions) == (value & 0x7FFF_FFFF) % partitions


@given(KEYS, COUNTS)
def test_crc32_is_that_of_zlib(key: bytes, partitions: int) -> None:
    assert partition_for(CRC32, key, partitions) == zlib.crc32(key) % partitions


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        (b"abc123def456", 57),
        (b"SheetJS", 26),
        (b"9e8c7f4cf45857cfff7645d6", 24),
        (b"3900446192ff85a5f67da10c", 75),
        (b"0f4407b7a67d6d27de372198", 50),
    ],
)
def test_crc32_known_partitions(key: bytes, partition: int) -> None:
    assert partition_for(CRC32, key, 100) == partition


@given(KEYS, COUNTS)
@example(b"1468509572224", 50)
def test_fnv1a_takes_the_absolute_value_of_the_remainder(key: bytes, partitions: int) -> None:
    # Go and C truncate towards zero: the remainder of a negative number is negative.
    assert partition_for(FNV1A, key, partitions) == abs(fnv1a(key)) % partitions


@pytest.mark.parametrize(
    ("key", "partitions", "partition"),
    [
        (b"1468509572224", 50, 48),  # its hash is the smallest 32-bit integer
        (b"1468509572224", 1, 0),
        (b"foo", 100, 73),
        (b"", 100, abs(0x811C9DC5 - (1 << 32)) % 100),
    ],
)
def test_fnv1a_known_partitions(key: bytes, partitions: int, partition: int) -> None:
    assert partition_for(FNV1A, key, partitions) == partition


if confluent_kafka is not None:  # an optional dependency of the tests: an additional oracle

    @pytest.mark.parametrize(
        ("hashing", "oracle"),
        [(MURMUR2, confluent_kafka.murmur2), (CRC32, confluent_kafka.consistent)],
    )
    def test_librdkafka_finds_the_same(hashing: int, oracle: Callable[[bytes, int], int]) -> None:
        for number in range(2000):
            key = b"%d-key" % number * (number % 5)
            assert partition_for(hashing, key, 1 + number % 97) == oracle(key, 1 + number % 97)

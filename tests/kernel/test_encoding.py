"""The kernel's output, read and rebuilt by kafka-python, an independent implementation."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import kafka.codec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

import pykaproducer._kernel as _kernel
from pykaproducer._kernel import Slice
from pykaproducer._util import compression

from .helper import TOPIC, Door, claim, encode, read, some, split

#: (key, value, headers, timestamp)
Message = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]

# Around the sizes at which a varint takes another byte.
SIZES = st.sampled_from([0, 1, 2, 62, 63, 64, 65, 127, 128, 129, 8190, 8191, 8192, 8193])
PAYLOAD = st.none() | st.binary(max_size=80) | SIZES.map(lambda size: b"\xa5" * size)
HEADER = st.tuples(st.text(max_size=70), st.none() | st.binary(max_size=70))
TIMESTAMP = (
    st.integers(1_600_000_000_000, 1_600_000_100_000)
    | st.integers(0, 1 << 45)
    | st.sampled_from([0, 1, 1 << 62])
)
MESSAGE = st.tuples(PAYLOAD, PAYLOAD, st.lists(HEADER, max_size=4), TIMESTAMP)
MESSAGES = st.lists(MESSAGE, min_size=1, max_size=30)


def claimed(door: Door, messages: list[Message]) -> Slice:
    for key, value, headers, timestamp in messages:
        door.send(TOPIC, value, key, headers, 0, timestamp)
    return claim(split(door.chunk(), 1)[0])


def as_read(batch: Any) -> list[Message]:
    return [(r.key, r.value, r.headers, r.timestamp) for r in batch]


def built(messages: list[Message], **how: Any) -> bytes:
    """Return kafka-python's encoding of the same messages."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        batch_size=1 << 30,
        producer_id=how.get("producer_id", -1),
        producer_epoch=how.get("producer_epoch", -1),
        base_sequence=how.get("base_sequence", -1),
    )
    for offset, (key, value, headers, timestamp) in enumerate(messages):
        assert builder.append(offset, timestamp, key, value, headers) is not None
    batch = builder.build()
    # It writes 0 for the leader epoch, which the broker sets and no checksum covers; the Java
    # client writes -1.
    struct.pack_into(">i", batch, 12, -1)
    return bytes(batch)


@given(MESSAGES)
@example([(None, None, [], 1)])
@example([(b"", b"", [("", b"")], 1), (b"", b"", [("", None)], 0)])
def test_kafka_python_reads_what_was_sent(messages: list[Message]) -> None:
    batch = read(encode(claimed(Door(), messages)))
    assert batch.magic == 2
    assert batch.base_offset == 0
    assert batch.leader_epoch == -1
    assert batch.attributes == 0
    assert batch.records_count == len(messages)
    assert batch.last_offset_delta == len(messages) - 1
    assert batch.first_timestamp == messages[0][3]
    assert batch.max_timestamp == max(timestamp for *_, timestamp in messages)
    assert not batch.has_producer_id()
    assert as_read(batch) == messages


@given(
    MESSAGES,
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 15) - 1),
    st.integers(0, (1 << 31) - 1),
)
def test_kafka_python_builds_the_same_bytes(
    messages: list[Message], producer_id: int, epoch: int, sequence: int
) -> None:
    how = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    assert encode(claimed(Door(), messages), **how) == built(messages, **how)


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_several_slices_make_one_batch(groups: list[list[Message]]) -> None:
    door = Door()
    parts = [claimed(door, messages) for messages in groups]
    everything = [message for messages in groups for message in messages]
    assert encode(*parts) == built(everything)


@given(MESSAGES, st.data())
def test_any_rows_of_a_chunk_make_a_batch(messages: list[Message], data: st.DataObject) -> None:
    door = Door()
    places = data.draw(st.lists(st.integers(0, 2), min_size=len(messages), max_size=len(messages)))
    for place, (key, value, headers, timestamp) in zip(places, messages, strict=True):
        door.send(TOPIC, value, key, headers, place, timestamp)
    for place, part in split(door.chunk(), 3).items():
        mine = [m for p, m in zip(places, messages, strict=True) if p == place]
        assert encode(claim(part)) == built(mine)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_compressed_batch(codec: str) -> None:
    messages: list[Message] = [(b"k", b"value %d" % i * 9, [("h", None)], i) for i in range(50)]
    readable = getattr(kafka.codec, f"has_{codec}")()
    if not (readable and compression.CODECS[codec].is_installed()):
        pytest.skip(f"no package for {codec} is installed")
    compressor = some(compression.compressor(codec, None))
    encoded = encode(
        claimed(Door(), messages), compress=compressor.compress, attributes=compressor.attribute
    )
    batch = read(encoded)
    assert batch.compression_type == {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[codec]
    assert batch.records_count == 50
    assert as_read(batch) == messages
    assert len(encoded) < len(built(messages))


def test_attributes_say_more_than_the_codec() -> None:
    batch = read(
        encode(
            claimed(Door(), [(None, b"v", [], 7)]),
            compress=lambda body: gzip.compress(body),
            attributes=1 | 16,
        )
    )
    assert batch.compression_type == 1
    assert batch.is_transactional


def test_a_checksum_that_fails_leaves_the_rows_as_they_were() -> None:
    door = Door()
    part = claimed(door, [(b"k", b"v", [], 7)])

    def checksum(batch: Any) -> int:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        _kernel.encode_batch([part], checksum)
    assert part.waiting() == 1
    part.unclaim()
    assert as_read(read(encode(claim(part)))) == [(b"k", b"v", [], 7)]


def test_a_codec_must_give_bytes() -> None:
    part = claimed(Door(), [(b"k", b"v", [], 7)])
    with pytest.raises(_kernel.CompressionError, match="bytes"):
        encode(part, compress=lambda body: bytearray(body), attributes=1)  # type: ignore[arg-type]


def test_a_batch_needs_rows() -> None:
    with pytest.raises(ValueError, match="requires rows"):
        encode()


def test_a_value_of_a_megabyte_beside_small_ones() -> None:
    messages: list[Message] = [
        (None, b"small", [], 5),
        (b"key", bytes(range(256)) * 4096, [("h", b"x" * 5000)], 4),
        (None, None, [], 6),
    ]
    assert encode(claimed(Door(), messages)) == built(messages)

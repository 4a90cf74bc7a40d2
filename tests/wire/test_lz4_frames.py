"""The two packages that write LZ4 frames can stand in for each other, and real Kafka reads both."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec

from pykaproducer import ConfigurationError, Producer
from pykaproducer._util.compression import CODECS, Compressor, CramjamLz4, Lz4, lz4_compressor
from pykaproducer.testing import KafkaCluster
from tests._support.consumer import consume

cramjam = pytest.importorskip("cramjam")
lz4_frame = pytest.importorskip("lz4.frame")

WRITERS: list[Callable[..., Compressor]] = [Lz4, CramjamLz4]
#: lz4's own reader, cramjam's, and the one that kafka-python's consumer uses.
READERS: list[Callable[[bytes], bytes]] = [
    lz4_frame.decompress,
    lambda frame: bytes(cramjam.lz4.decompress(frame)),
    codec.lz4_decode,
]
LEVELS = (0, 1, 2, 3, 9, 12)
CHANCE = random.Random(16)
#: Sizes around a block of 64 KiB and around a MB; what can be compressed and what cannot.
DATA = {
    "empty": b"",
    "one byte": b"x",
    "one block less one": CHANCE.randbytes(30_000) + bytes(35_535),
    "one block": b"ab" * 32_768,
    "one block and one": b"ab" * 32_768 + b"c",
    "incompressible block": CHANCE.randbytes(65_536),
    "incompressible MB": CHANCE.randbytes(1_100_000),
    "text": b" ".join(b"%d: %d" % (n, n * n) for n in range(100_000)),
    "mixed": CHANCE.randbytes(100_000) + bytes(1_500_000) + CHANCE.randbytes(70_000),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_every_reader_reads_every_writer(
    data: bytes, write: Callable[..., Compressor], level: int, read: Callable[[bytes], bytes]
) -> None:
    assert read(write(level).compress(data)) == data


@given(data=st.binary(max_size=3000))
def test_both_packages_write_the_same_bytes(data: bytes) -> None:
    assert CramjamLz4().compress(data) == Lz4().compress(data)


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_they_do_so_for_several_blocks(data: bytes) -> None:
    assert CramjamLz4(1).compress(data) == Lz4(1).compress(data)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("write", WRITERS)
def test_kafka_reads_such_blocks(write: Callable[..., Compressor], level: int) -> None:
    info = lz4_frame.get_frame_info(write(level).compress(DATA["text"]))
    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024
    assert not info["content_checksum"]


def test_a_higher_level_makes_it_smaller() -> None:
    sizes = [len(CramjamLz4(level).compress(DATA["text"])) for level in (1, 3, 9, 12)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]


@pytest.mark.parametrize("level", [1, 9])
@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview, lambda b: memoryview(b)[1:]])
def test_any_buffer(buffer: Callable[[bytes], bytes], level: int) -> None:
    given = buffer(DATA["text"])
    assert lz4_frame.decompress(CramjamLz4(level).compress(given)) == bytes(given)


@pytest.fixture
def without_lz4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the package lz4 be missing, for whoever imports it from now on."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "lz4"]:
        monkeypatch.setitem(sys.modules, name, None)


def test_lz4_is_used_where_it_is_installed() -> None:
    assert isinstance(lz4_compressor(), Lz4)


@pytest.mark.usefixtures("without_lz4")
def test_cramjam_is_used_where_lz4_is_missing() -> None:
    assert isinstance(lz4_compressor(), CramjamLz4)
    assert CODECS["lz4"].is_installed()


@pytest.mark.usefixtures("without_lz4")
def test_without_both_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(ConfigurationError, match="needs the package lz4: pip install 'lz4'"):
        Producer(compression_type="lz4")


def test_without_snappy_the_others_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snappy", None)
    text = "pip install 'python-snappy', or choose gzip or lz4"
    with pytest.raises(ConfigurationError, match=text):
        Producer(compression_type="snappy")
    Producer(compression_type="lz4")


@pytest.mark.parametrize("level", [None, 1, 9])
@pytest.mark.usefixtures("without_lz4")
def test_a_real_broker_reads_the_frames_of_cramjam(
    cluster: KafkaCluster, topic: str, level: int | None
) -> None:
    cluster.create_topic(topic)
    values = [CHANCE.randbytes(3_000) + b"all work and no play " * 1_450 for _ in range(40)]
    values += [b"", b"short", CHANCE.randbytes(500_000)]
    settings = {"bootstrap_servers": cluster.bootstrap_servers, "batch_size": 600_000}
    with Producer(**settings, compression_type="lz4", compression_level=level) as producer:
        producer.send_many(topic, values).result(timeout=60)
    read = consume(cluster.bootstrap_servers, topic, len(values))
    assert [record.value for record in read] == values

"""Independent decompressors read the output of our compressors."""

from __future__ import annotations

import functools
import random
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec

from pykaproducer._util.compression import CODECS, compressor
from tests._support.programs import run
from tests._support.threads import run_together

READERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": codec.gzip_decode,
    "snappy": codec.snappy_decode,
    "lz4": codec.lz4_decode,
    "zstd": codec.zstd_decode,
}
LEVELS = {"gzip": [1, 6, 9], "lz4": [1, 3, 12], "zstd": [-5, 1, 3, 19, 22]}


def installed(name: str, *others: object) -> Any:
    """Return a parameter for the codec *name*, which is skipped if no package provides it.

    Kafka-python reads LZ4 with ``lz4`` only; ``cramjam`` may be all that is installed.
    """
    readable = getattr(codec, f"has_{name}")()
    missing = not (CODECS[name].is_installed() and readable)
    reason = f"no package for {name} is installed"
    return pytest.param(name, *others, marks=pytest.mark.skipif(missing, reason=reason))


CODEC_NAMES = [installed(name) for name in READERS]

#: Half of it is compressible, half is not; longer than a snappy block.
LONG = random.Random(5).randbytes(700_000) + b"all work and no play " * 50_000


def compress(name: str, data: bytes, level: int | None = None) -> bytes:
    made = compressor(name, level)
    assert made is not None
    return made.compress(data)


@pytest.mark.parametrize("name", CODEC_NAMES)
@given(data=st.binary(min_size=1, max_size=3000))
def test_kafka_python_reads_it(name: str, data: bytes) -> None:
    assert READERS[name](compress(name, data)) == data


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_kafka_python_reads_what_is_longer_than_a_block(name: str) -> None:
    compressed = compress(name, LONG)
    assert len(compressed) < len(LONG)
    assert READERS[name](compressed) == LONG


@pytest.mark.parametrize(
    ("name", "level"),
    [installed(name, level) for name, levels in LEVELS.items() for level in levels],
)
def test_levels(name: str, level: int) -> None:
    data = LONG[600_000:800_000]
    assert READERS[name](compress(name, data, level)) == data


@pytest.mark.parametrize("name", [installed(name) for name in LEVELS])
def test_a_higher_level_makes_it_smaller(name: str) -> None:
    text = b" ".join(b"%d: %d" % (n, n * n) for n in range(20_000))
    sizes = [len(compress(name, text, level)) for level in LEVELS[name]]
    assert sizes[-1] < sizes[0]


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("name", CODEC_NAMES)
def test_any_buffer(name: str, buffer: Callable[[bytes], bytes]) -> None:
    assert READERS[name](compress(name, buffer(b"abc" * 100))) == b"abc" * 100


def test_attribute_bits() -> None:
    bits = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    made = {name: compressor(name) for name, codec in CODECS.items() if codec.is_installed()}
    assert {name: each.attribute for name, each in made.items() if each is not None} == {
        name: bits[name] for name in made
    }


def test_none() -> None:
    assert compressor(None) is None


def test_gzip_is_at_zlib_s_own_level() -> None:
    data = LONG[600_000:800_000]
    assert compress("gzip", data) == zlib.compress(data, 6, wbits=31)


@pytest.mark.parametrize("name", [installed("snappy")])
def test_snappy_has_the_java_library_s_header(name: str) -> None:
    assert compress(name, b"x")[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_several_threads_share_one(name: str) -> None:
    made = compressor(name)
    assert made is not None

    def work(seed: int) -> None:
        data = random.Random(seed).randbytes(20_000) + b"abc" * 5000
        for _ in range(20):
            assert READERS[name](made.compress(data)) == data

    run_together(*(functools.partial(work, seed) for seed in range(4)))


#: Prints how often there was no memory to compress a megabyte.
WITHOUT_MEMORY = """
    import os, resource, sys
    from pykaproducer._util.compression import compressor

    codec = compressor(sys.argv[1])
    codec.compress(b"v")
    data, refused, unlimited = os.urandom(1 << 20), 0, resource.RLIM_INFINITY
    pieces = []  # what Python's allocator has reserved: without the GIL, a gigabyte

    def limit(room):
        used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + room, unlimited))

    limit(0)
    try:
        while True:
            pieces.append(bytes(1 << 18))
    except MemoryError:
        pass
    for room in range(0, 4 << 20, 1 << 18):
        limit(room)
        try:
            codec.compress(data)
        except MemoryError:
            refused += 1
        resource.setrlimit(resource.RLIMIT_AS, (unlimited, unlimited))
    print(refused)
"""


@pytest.mark.scripted
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", CODEC_NAMES)
def test_without_memory(name: str) -> None:
    """Each package reports it in its own way, or would end the process; here it is MemoryError."""
    assert int(run(WITHOUT_MEMORY, name)) > 0

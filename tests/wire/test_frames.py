"""Frames are cut out of the stream however it is split, and a claimed length costs nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._wire import WireError
from pykaproducer._wire.frames import CHUNK, FrameReader

MOST = 1_000_000


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big", signed=True) + payload


def feed(reader: FrameReader, data: bytes) -> list[bytes]:
    """Receive *data*, in pieces as large as the reader has space for."""
    frames: list[bytes] = []
    view = memoryview(data)
    while len(view):
        space = reader.space()
        count = min(len(space), len(view))
        assert count > 0
        space[:count] = view[:count]
        frames += reader.received(count)
        view = view[count:]
    return frames


payloads = st.lists(
    st.binary(min_size=4, max_size=50)
    | st.integers(CHUNK - 10, 3 * CHUNK).map(lambda n: bytes(range(256)) * (n // 256 + 1)),
    max_size=6,
)


@given(payloads, st.lists(st.integers(1, 100_000), max_size=20))
def test_frames_come_whole_wherever_the_stream_is_torn(
    payloads: list[bytes], tears: list[int]
) -> None:
    reader = FrameReader(MOST)
    stream = b"".join(map(framed, payloads))
    frames: list[bytes] = []
    at = 0
    for size in [*tears, len(stream)]:
        frames += feed(reader, stream[at : at + size])
        at += size
    assert frames == payloads
    assert not reader.partial


def test_bytes_one_by_one() -> None:
    reader = FrameReader(MOST)
    stream = framed(b"first") + framed(b"second")
    frames = [frame for byte in stream for frame in feed(reader, bytes([byte]))]
    assert frames == [b"first", b"second"]


def test_frames_before_a_bad_length_are_told_first() -> None:
    reader = FrameReader(MOST)
    stream = framed(b"good") + framed(b"good too") + b"\xff\xff\xff\xff"
    reader.space()[: len(stream)] = stream
    frames = reader.received(len(stream))
    assert [next(frames), next(frames)] == [b"good", b"good too"]
    with pytest.raises(WireError, match="-1 bytes"):
        next(frames)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 3, MOST + 1, 2**31 - 1])
def test_a_length_that_no_broker_sends(length: int) -> None:
    reader = FrameReader(MOST)
    with pytest.raises(WireError, match=f"length of {length} bytes"):
        feed(reader, length.to_bytes(4, "big", signed=True))


def test_the_longest_frame_is_taken() -> None:
    payload = bytes(MOST)
    assert feed(FrameReader(MOST), framed(payload)) == [payload]


def test_who_speaks_something_else_is_told_so() -> None:
    with pytest.raises(WireError, match="TLS"):
        feed(FrameReader(MOST), b"\x15\x03\x03\x00\x02\x02\x28")
    with pytest.raises(WireError, match="HTTP"):
        feed(FrameReader(MOST), b"HTTP/1.1 400 Bad Request\r\n")


def test_memory_follows_what_has_come_and_not_what_was_announced() -> None:
    reader = FrameReader(100_000_000)
    feed(reader, (100_000_000).to_bytes(4, "big"))
    assert len(reader.space()) <= CHUNK
    feed(reader, bytes(CHUNK))
    # At most twice the received bytes.
    assert len(reader.space()) <= 2 * CHUNK


def test_a_large_frame_leaves_no_large_buffer_behind() -> None:
    reader = FrameReader(MOST)
    feed(reader, framed(bytes(10 * CHUNK)))
    assert len(reader.space()) == CHUNK

"""The compiled decoder of a response that confirms a whole request, against the general decoder."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._kernel import ProduceRequest, RecordBatch
from pykaproducer._machines.batch import Batch
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import VERSIONS, ApiKey
from pykaproducer._wire.produce import decode_produce

FIRST, LAST = VERSIONS[ApiKey.PRODUCE]
versions = st.integers(FIRST, LAST)
int64 = st.integers(-(2**63), 2**63 - 1)

#: The place of a batch, its offset, and its time.
Results = dict[tuple[str, int], tuple[int, int]]

results: st.SearchStrategy[Results] = st.dictionaries(
    st.tuples(st.sampled_from(["a", "müll", "x" * 249]), st.integers(0, 2**31 - 1)),
    st.tuples(int64, int64),
    min_size=1,
    max_size=8,
)


def request_for(places: Iterable[tuple[str, int]]) -> ProduceRequest:
    """Return a request with a batch of each place."""
    batches = [Batch(topic, partition, RecordBatch(0), [], 1, 0) for topic, partition in places]
    return ProduceRequest(batches, now=0, deadline=1)


def length(n: int, size: str, *, flexible: bool) -> bytes:
    if not flexible:
        return struct.pack(size, n)
    n += 1
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def encoded(
    version: int,
    found: Results,
    *,
    code: int = 0,
    throttle: int = 0,
    texts: tuple[int, int] = (0, -1),
    tags: bytes = b"\0",
) -> bytes:
    """Return a response that confirms *found*, apart from the given fields."""
    flexible = version >= 9
    tags = tags if flexible else b""
    no_tags = b"\0" if flexible else b""
    topics: dict[str, list[bytes]] = {}
    for (topic, partition), (offset, timestamp) in found.items():
        result = struct.pack(">ihqq", partition, code, offset, timestamp)
        if version >= 5:
            result += struct.pack(">q", 0)
        if version >= 8:
            result += length(texts[0], ">i", flexible=flexible)
            result += length(texts[1], ">h", flexible=flexible)
        topics.setdefault(topic, []).append(result + tags)
    payload = no_tags + length(len(topics), ">i", flexible=flexible)
    for topic, all_of_it in topics.items():
        name = topic.encode()
        payload += length(len(name), ">h", flexible=flexible) + name
        payload += length(len(all_of_it), ">i", flexible=flexible) + b"".join(all_of_it) + no_tags
    return payload + struct.pack(">i", throttle) + no_tags


def assert_agrees(version: int, payload: bytes, request: ProduceRequest) -> None:
    """Check that the general decoder finds the same, and nothing else."""
    answer = decode_produce(version, payload)
    assert (answer.throttle_ms, answer.node_endpoints) == (0, ())
    theirs = {(each.topic, each.partition): each for each in answer.partitions}
    assert len(answer.partitions) == len(theirs) == len(request.batches)
    for place, batch in enumerate(request.batches):
        each = theirs[batch.topic, batch.partition]
        assert request.result(place) == (each.base_offset, each.log_append_time_ms)
        assert (each.error_code, each.error_message, each.record_errors) == (0, None, ())
        assert each.current_leader is None


@given(versions, results, st.randoms())
def test_it_has_the_offset_and_the_time_of_each_batch(
    version: int, expected: Results, random: Any
) -> None:
    """A broker sends the results in any order."""
    places = list(expected)
    random.shuffle(places)
    request = request_for(places)
    payload = encoded(version, expected)
    assert request.read(version, payload)
    assert list(map(request.result, range(len(places)))) == [expected[each] for each in places]
    assert_agrees(version, payload, request)


@given(versions, results, st.sampled_from([{"code": 6}, {"throttle": 1}, {"code": -1}]))
def test_an_error_or_throttling_is_left_to_the_general_decoder(
    version: int, expected: Results, change: dict[str, int]
) -> None:
    payload = encoded(version, expected, **change)  # type: ignore[arg-type]
    assert not request_for(expected).read(version, payload)


@given(st.integers(8, LAST), results)
def test_a_message_is_left_to_the_general_decoder(version: int, expected: Results) -> None:
    """An empty one, in place of none."""
    payload = encoded(version, expected, texts=(0, 0))
    assert not request_for(expected).read(version, payload)


@given(st.integers(9, LAST), results)
def test_a_tagged_field_is_left_to_the_general_decoder(version: int, expected: Results) -> None:
    payload = encoded(version, expected, tags=b"\x01\x07\x01x")
    assert not request_for(expected).read(version, payload)
    assert len(decode_produce(version, payload).partitions) == len(expected)


@given(versions, results)
def test_a_response_about_other_batches_is_left_to_the_general_decoder(
    version: int, expected: Results
) -> None:
    payload = encoded(version, expected)
    places = list(expected)
    assert not request_for(places[1:]).read(version, payload)
    assert not request_for([*places, ("other", 0)]).read(version, payload)


def test_a_batch_without_a_result_beside_one_with_two_is_noticed() -> None:
    one = encoded(3, {("t", 0): (5, -1)})
    result = one[4 + 3 + 4 : -4]
    twice = one[: 4 + 3] + struct.pack(">i", 2) + result * 2 + one[-4:]
    assert not request_for([("t", 0), ("t", 1)]).read(3, twice)
    assert len(decode_produce(3, twice).partitions) == 2


@given(versions, results, st.data())
def test_any_bytes_are_understood_as_the_general_decoder_does_or_not_at_all(
    version: int, expected: Results, data: st.DataObject
) -> None:
    payload = bytearray(encoded(version, expected))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload)))
        change = data.draw(st.binary(max_size=2))
        payload[at : at + data.draw(st.integers(0, 2))] = change
    request = request_for(expected)
    if request.read(version, payload):
        assert_agrees(version, bytes(payload), request)


@given(versions, results, st.data())
def test_a_response_that_is_cut_off_is_not_understood(
    version: int, expected: Results, data: st.DataObject
) -> None:
    payload = encoded(version, expected)
    cut = payload[: data.draw(st.integers(0, len(payload) - 1))]
    assert not request_for(expected).read(version, cut)
    assert not request_for(expected).read(version, payload + b"\0")
    with pytest.raises(WireError):
        decode_produce(version, cut)

"""Produce requests and answers against an independent codec, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._kernel import COPIED_BATCH
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import VERSIONS, ApiKey, BrokerAddress
from pykaproducer._wire.produce import decode_produce
from pykaproducer.testing._messages import ProduceResponse
from tests._support.produce import produce_request
from tests.testing.helper import produce_request as their_request
from tests.wire.helper import client_ids, hosts, int16, int32, int64, names, payload, texts

FIRST, LAST = VERSIONS[ApiKey.PRODUCE]
versions = st.integers(FIRST, LAST)

batches = st.lists(
    st.tuples(
        st.sampled_from(["a", "events", "müll", "x" * 249]) | names,
        st.integers(0, 2**31 - 1),
        st.binary(max_size=20) | st.integers(100, 40_000).map(bytes),
    ),
    max_size=8,
)


@given(versions, st.integers(0, 2**31 - 1), client_ids, st.sampled_from([-1, 0, 1]), int32, batches)
def test_a_request_has_the_bytes_that_the_other_codec_writes(
    version: int,
    correlation_id: int,
    client_id: str | None,
    acks: int,
    timeout_ms: int,
    batches: list[tuple[str, int, bytes]],
) -> None:
    ours = produce_request(version, correlation_id, client_id, acks, timeout_ms, batches)
    theirs = their_request(batches, acks, version, timeout_ms=timeout_ms)
    theirs.with_header(correlation_id=correlation_id, client_id=client_id)
    assert b"".join(ours) == theirs.encode(header=True, framed=True)


@pytest.mark.parametrize("version", range(FIRST, LAST + 1))
def test_large_batches_are_handed_over_and_not_copied(version: int) -> None:
    large = COPIED_BATCH + 1
    records: list[Any] = [bytearray(large), memoryview(bytes(large)), bytes(large)]
    request = produce_request(
        version, 1, "c", 1, 1000, [("t", 0, records[0]), ("u", 0, records[1]), ("t", 1, records[2])]
    )
    assert [buffer for buffer in request if any(buffer is each for each in records)] == [
        records[0],
        records[2],
        records[1],
    ]
    # One piece before each of them, and at most one after the last.
    assert len(request) <= 2 * len(records) + 1


@pytest.mark.parametrize("version", range(FIRST, LAST + 1))
def test_small_batches_make_one_piece(version: int) -> None:
    """Each piece costs more than copying a small batch."""
    batches = [("t", partition, bytes(COPIED_BATCH)) for partition in range(100)]
    assert len(produce_request(version, 1, "c", 1, 1000, batches)) == 1


@pytest.mark.parametrize("version", [FIRST - 1, LAST + 1])
def test_a_version_that_is_not_built_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match=f"version {version}"):
        produce_request(version, 1, "c", 1, 1000, [])
    with pytest.raises(ValueError, match=f"version {version}"):
        decode_produce(version, b"")


_Topic = ProduceResponse.TopicProduceResponse
_Partition = _Topic.PartitionProduceResponse

record_errors = st.lists(st.tuples(int32, st.none() | texts), max_size=3)
leaders = st.none() | st.tuples(st.integers(0, 2**31 - 1), int32)
partitions = st.fixed_dictionaries(
    {
        "index": int32,
        "error_code": int16,
        "base_offset": int64,
        "log_append_time_ms": int64,
        "log_start_offset": int64,
        "record_errors": record_errors,
        "error_message": st.none() | texts,
        "current_leader": leaders,
    }
)
answers = st.fixed_dictionaries(
    {
        "throttle_time_ms": int32,
        "topics": st.lists(st.tuples(names, st.lists(partitions, max_size=4)), max_size=3),
        "node_endpoints": st.lists(st.tuples(int32, hosts, int32, st.none() | names), max_size=2),
    }
)


def their_answer(version: int, answer: dict[str, Any]) -> Any:
    """Return the codec's object for a generated answer."""

    def partition(fields: dict[str, Any]) -> Any:
        leader = fields["current_leader"]
        errors = [
            _Partition.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
            for index, text in fields["record_errors"]
        ]
        made = _Partition(**{**fields, "record_errors": errors})
        if leader is not None:
            leader = _Partition.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
        else:
            leader = _Partition(version=12).current_leader  # the default, which is not sent
        made.current_leader = leader
        return made

    made = ProduceResponse(
        version=version,
        throttle_time_ms=answer["throttle_time_ms"],
        responses=[
            _Topic(name=name, partition_responses=[partition(fields) for fields in partitions])
            for name, partitions in answer["topics"]
        ],
    )
    made.node_endpoints = [
        ProduceResponse.NodeEndpoint(node_id=i, host=host, port=port, rack=rack)
        for i, host, port, rack in answer["node_endpoints"]
    ]
    return made


@given(versions, answers)
def test_an_answer_that_the_other_codec_writes_is_understood(
    version: int, answer: dict[str, Any]
) -> None:
    decoded = decode_produce(version, payload(their_answer(version, answer)))
    assert decoded.throttle_ms == answer["throttle_time_ms"]
    expected = [(name, fields) for name, parts in answer["topics"] for fields in parts]
    assert len(decoded.partitions) == len(expected)
    for ours, (name, fields) in zip(decoded.partitions, expected, strict=True):
        assert (ours.topic, ours.partition) == (name, fields["index"])
        assert ours.error_code == fields["error_code"]
        assert ours.base_offset == fields["base_offset"]
        assert ours.log_append_time_ms == fields["log_append_time_ms"]
        # A field that a version does not have gets the value for "unknown".
        assert ours.log_start_offset == (fields["log_start_offset"] if version >= 5 else -1)
        assert ours.error_message == (fields["error_message"] if version >= 8 else None)
        assert list(ours.record_errors) == (fields["record_errors"] if version >= 8 else [])
        assert ours.current_leader == (fields["current_leader"] if version >= 10 else None)
    endpoints = answer["node_endpoints"] if version >= 10 else []
    assert list(decoded.node_endpoints) == [BrokerAddress(i, h, p) for i, h, p, _ in endpoints]


@given(versions, answers, st.data())
def test_an_answer_that_is_cut_off_is_an_error(
    version: int, answer: dict[str, Any], data: st.DataObject
) -> None:
    whole = payload(their_answer(version, answer))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(WireError):
        decode_produce(version, whole[:cut])


@given(versions, st.binary(max_size=200))
def test_garbage_is_an_error_or_an_answer_and_nothing_else(version: int, garbage: bytes) -> None:
    try:
        decode_produce(version, garbage)
    except WireError as error:
        assert str(error)  # noqa: PT017 - other garbage makes sense


def test_a_length_that_is_only_claimed_allocates_nothing() -> None:
    # An array of two billion topics, in 8 bytes; and a compact one of four billion.
    with pytest.raises(WireError, match="array of 2147483647 elements"):
        decode_produce(8, b"\x7f\xff\xff\xff" + bytes(4))
    with pytest.raises(WireError, match="array of 34359738366 elements"):
        decode_produce(9, b"\0" + b"\xff" * 4 + b"\x7f" + bytes(4))
    with pytest.raises(WireError, match="varint"):
        decode_produce(9, b"\0" + b"\xff" * 100)


def test_tagged_fields_of_the_future_are_passed_over() -> None:
    fields = {
        "index": 1,
        "error_code": 6,
        "base_offset": -1,
        "log_append_time_ms": -1,
        "log_start_offset": -1,
        "record_errors": [],
        "error_message": None,
        "current_leader": (7, 3),
    }
    answer: dict[str, Any] = {
        "throttle_time_ms": 5,
        "topics": [("t", [fields])],
        "node_endpoints": [],
    }
    theirs = their_answer(12, answer)
    theirs.responses[0].partition_responses[0].unknown_tags = {"_99": b"from the future"}
    decoded = decode_produce(12, payload(theirs))
    assert decoded.partitions[0].current_leader == (7, 3)
    assert decoded.throttle_ms == 5

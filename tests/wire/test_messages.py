"""ApiVersions, Metadata and InitProducerId against an independent codec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._version import VERSION
from pykaproducer._wire import WireError
from pykaproducer._wire.create_topics import create_topic_request, decode_create_topic
from pykaproducer._wire.messages import (
    API_VERSIONS_LADDER,
    VERSIONS,
    ApiKey,
    BrokerAddress,
    MetadataAnswer,
    PartitionAnswer,
    ProducerIdAnswer,
    TopicAnswer,
    api_versions_request,
    common_versions,
    decode_api_versions,
    decode_init_producer_id,
    decode_metadata,
    init_producer_id_request,
    metadata_request,
)
from pykaproducer._wire.sasl import (
    AUTHENTICATE_VERSIONS,
    HANDSHAKE_VERSIONS,
    authenticate_request,
    decode_handshake,
    handshake_request,
)
from pykaproducer.testing import _messages as theirs
from pykaproducer.testing._admin_messages import CreateTopicsRequest, CreateTopicsResponse
from tests.wire.helper import (
    check_answer,
    client_ids,
    hosts,
    int16,
    int32,
    int64,
    names,
    payload,
    read_request,
    texts,
    versions,
)

# Requests -----------------------------------------------------------------------------------


@given(st.sampled_from(API_VERSIONS_LADDER), st.integers(0, 2**31 - 1), client_ids)
def test_api_versions_request(version: int, correlation_id: int, client_id: str | None) -> None:
    framed = api_versions_request(version, correlation_id, client_id)
    request = read_request(theirs.ApiVersionsRequest, version, framed, correlation_id)
    assert request.header.client_id == client_id
    if version >= 3:
        # Brokers reject names and versions with other characters (INVALID_REQUEST).
        assert request.client_software_name == "pykaproducer"
        assert request.client_software_version[0].isalnum()


@given(versions(ApiKey.METADATA), client_ids, st.lists(names, max_size=4), st.booleans())
def test_metadata_request(
    version: int, client_id: str | None, topics: list[str], allow: bool
) -> None:
    framed = metadata_request(version, 7, client_id, topics, allow)
    request = read_request(theirs.MetadataRequest, version, framed)
    assert [topic.name for topic in request.topics] == topics
    if version >= 4:
        assert request.allow_auto_topic_creation == allow


@given(versions(ApiKey.INIT_PRODUCER_ID), client_ids)
def test_init_producer_id_request(version: int, client_id: str | None) -> None:
    framed = init_producer_id_request(version, 7, client_id)
    request = read_request(theirs.InitProducerIdRequest, version, framed)
    assert request.transactional_id is None
    if version >= 3:
        assert (request.producer_id, request.producer_epoch) == (-1, -1)


@given(st.integers(3, 5), client_ids, names, int32, int64, int16)
def test_init_producer_id_request_with_a_transactional_id(
    version: int, client_id: str | None, name: str, timeout_ms: int, producer_id: int, epoch: int
) -> None:
    framed = init_producer_id_request(version, 7, client_id, name, timeout_ms, producer_id, epoch)
    request = read_request(theirs.InitProducerIdRequest, version, framed)
    assert (request.transactional_id, request.transaction_timeout_ms) == (name, timeout_ms)
    assert (request.producer_id, request.producer_epoch) == (producer_id, epoch)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_versions_cannot_ask_for_the_next_epoch(version: int) -> None:
    framed = init_producer_id_request(version, 7, "c", "t", 9)
    assert read_request(theirs.InitProducerIdRequest, version, framed).transactional_id == "t"
    with pytest.raises(ValueError, match=f"version {version} has no producer id"):
        init_producer_id_request(version, 7, "c", "t", 9, 1, 0)


def test_metadata_of_all_topics() -> None:
    """Null means all topics, but for version 0, in which an empty list does."""
    for version in range(VERSIONS[ApiKey.METADATA][1] + 1):
        framed = metadata_request(version, 7, "c", None, True)
        topics = read_request(theirs.MetadataRequest, version, framed).topics
        assert topics is None if version else topics == []


@given(st.sampled_from(HANDSHAKE_VERSIONS), client_ids, names)
def test_sasl_handshake_request(version: int, client_id: str | None, mechanism: str) -> None:
    framed = handshake_request(version, 7, client_id, mechanism)
    assert read_request(theirs.SaslHandshakeRequest, version, framed).mechanism == mechanism


@given(st.integers(*AUTHENTICATE_VERSIONS), client_ids, st.binary(max_size=300))
def test_sasl_authenticate_request(version: int, client_id: str | None, token: bytes) -> None:
    framed = authenticate_request(version, 7, client_id, token)
    assert read_request(theirs.SaslAuthenticateRequest, version, framed).auth_bytes == token


@given(
    st.integers(2, 6), client_ids, names, int32, int16, st.dictionaries(names, names, max_size=3)
)
def test_create_topic_request(
    version: int,
    client_id: str | None,
    name: str,
    partitions: int,
    replicas: int,
    configs: dict[str, str],
) -> None:
    framed = create_topic_request(
        version, 7, client_id, name, partitions, replicas, configs, timeout_ms=5
    )
    request = read_request(CreateTopicsRequest, version, framed)
    (topic,) = request.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (
        name,
        partitions,
        replicas,
    )
    assert {each.name: each.value for each in topic.configs} == configs
    assert (request.timeout_ms, request.validate_only) == (5, False)


@given(st.integers(2, 6), int16, st.none() | texts)
def test_create_topic_answer(version: int, code: int, message: str | None) -> None:
    topic = CreateTopicsResponse.CreatableTopicResult(
        name="t", error_code=code, error_message=message
    )
    answer = CreateTopicsResponse(version=version, topics=[topic])
    assert decode_create_topic(version, payload(answer)) == (code, message)
    with pytest.raises(WireError, match="not for one topic"):
        decode_create_topic(version, payload(CreateTopicsResponse(version=version)))


def test_golden_bytes() -> None:
    """Version 7 of CreateTopics, which the codec lacks, as kafka-python 3.0.12 encodes it."""
    assert create_topic_request(7, 7, "c", "t", 3, -1, {"a": "b"}, 9) == bytes.fromhex(
        "00000023 0013 0007 00000007 0001 63 00 02 0274 00000003 ffff 01 02 0261 0262 00 00"
        "00000009 00 00"
    )


def test_api_versions_names_the_software() -> None:
    framed = api_versions_request(4, 7, "c")
    name, version = b"pykaproducer", VERSION.encode()
    assert framed[4:] == (
        bytes.fromhex("0012 0004 00000007 0001 63 00")
        + bytes([len(name) + 1, *name, len(version) + 1, *version, 0])
    )


# Answers ------------------------------------------------------------------------------------

ranges = st.dictionaries(st.integers(0, 100), st.tuples(int16, int16), max_size=30)


@given(st.integers(0, 4), ranges)
def test_api_versions_answer(version: int, ranges: dict[int, tuple[int, int]]) -> None:
    answer = theirs.ApiVersionsResponse(
        version=version,
        error_code=0,
        api_keys=[
            theirs.ApiVersionsResponse.ApiVersion(
                version=version, api_key=key, min_version=first, max_version=last
            )
            for key, (first, last) in ranges.items()
        ],
        throttle_time_ms=0,
    )
    decoded = decode_api_versions(version, payload(answer))
    assert (decoded.error_code, decoded.ranges) == (0, ranges)
    assert (decoded.features, decoded.finalized_features_epoch) == ({}, -1)


levels = st.dictionaries(names, st.tuples(int16, int16), max_size=5)


def their_features(version: int, features: dict[str, tuple[int, int]], epoch: int) -> bytes:
    """Return an answer with finalized features: name -> (level, lowest level)."""
    answer = theirs.ApiVersionsResponse(
        version=version,
        api_keys=[theirs.ApiVersionsResponse.ApiVersion(api_key=0, min_version=3, max_version=12)],
        supported_features=[
            theirs.ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=0, max_version=99)
            for name in (*features, "supported.only")
        ],
        finalized_features_epoch=epoch,
        finalized_features=[
            theirs.ApiVersionsResponse.FinalizedFeatureKey(
                name=name, max_version_level=level, min_version_level=lowest
            )
            for name, (level, lowest) in features.items()
        ],
        zk_migration_ready=True,
    )
    return payload(answer)


@given(st.sampled_from([3, 4]), levels, st.integers(0, 2**63 - 1))
def test_finalized_features(version: int, features: dict[str, tuple[int, int]], epoch: int) -> None:
    decoded = decode_api_versions(version, their_features(version, features, epoch))
    assert decoded.features == {name: level for name, (level, _) in features.items()}
    assert decoded.finalized_features_epoch == epoch


def test_features_without_an_epoch_are_not_valid() -> None:
    decoded = decode_api_versions(4, their_features(4, {"transaction.version": (2, 1)}, -1))
    assert (decoded.features, decoded.finalized_features_epoch) == ({}, -1)
    assert decoded.ranges == {0: (3, 12)}


@pytest.mark.parametrize("version", [3, 4])
def test_features_that_are_cut_off_are_an_error(version: int) -> None:
    whole = their_features(version, {"transaction.version": (2, 1), "other": (1, 1)}, 28)
    for cut in range(len(whole)):
        with pytest.raises(WireError):
            decode_api_versions(version, whole[:cut])


def test_a_feature_without_a_name_is_an_error() -> None:
    whole = their_features(4, {"f": (2, 1)}, 28)
    named = b"\x02f" + bytes.fromhex("0002 0001")
    assert whole.count(named) == 1
    # One byte less in the field, whose length precedes the number of its elements.
    at = whole.index(named) - 2
    cut = whole[:at] + bytes([whole[at] - 1]) + whole[at + 1 :].replace(named, b"\0" + named[2:])
    with pytest.raises(WireError, match="required"):
        decode_api_versions(4, cut)


@pytest.mark.parametrize("version", [0, 3, 4])
def test_a_broker_that_does_not_know_the_version_answers_as_in_version_0(version: int) -> None:
    answer = theirs.ApiVersionsResponse(
        version=0,
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[theirs.ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)],
    )
    decoded = decode_api_versions(version, payload(answer))
    assert decoded.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert decoded.ranges == {18: (0, 2)}


brokers = st.lists(st.tuples(int32, hosts, int32, st.none() | names), max_size=3)
metadata_partitions = st.lists(
    st.tuples(int16, st.integers(0, 2**31 - 1), int32, int32, st.lists(int32, max_size=4)),
    max_size=4,
)
topics = st.lists(st.tuples(int16, names, st.booleans(), metadata_partitions), max_size=3)


def their_metadata(
    version: int,
    throttle_ms: int,
    brokers: Any,
    topics: Any,
    topic_id: UUID | None = None,
    error_code: int = 0,
) -> Any:
    topic_kind = theirs.MetadataResponse.MetadataResponseTopic
    partition_kind = topic_kind.MetadataResponsePartition
    return theirs.MetadataResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        brokers=[
            theirs.MetadataResponse.MetadataResponseBroker(
                version=version, node_id=i, host=host, port=port, rack=rack
            )
            for i, host, port, rack in brokers
        ],
        cluster_id="the cluster",
        error_code=error_code,
        controller_id=3,
        topics=[
            topic_kind(
                version=version,
                error_code=code,
                name=name,
                topic_id=topic_id,
                is_internal=internal,
                partitions=[
                    partition_kind(
                        version=version,
                        error_code=partition_code,
                        partition_index=index,
                        leader_id=leader,
                        leader_epoch=epoch,
                        replica_nodes=replicas,
                        isr_nodes=replicas[1:],
                        offline_replicas=replicas[:1],
                    )
                    for partition_code, index, leader, epoch, replicas in partitions
                ],
            )
            for code, name, internal, partitions in topics
        ],
    )


@given(versions(ApiKey.METADATA), int32, brokers, topics, st.none() | st.uuids(), int16)
def test_metadata_answer(
    version: int,
    throttle_ms: int,
    brokers: Any,
    topics: Any,
    topic_id: UUID | None,
    error_code: int,
) -> None:
    decoded = decode_metadata(
        version,
        payload(their_metadata(version, throttle_ms, brokers, topics, topic_id, error_code)),
    )
    assert decoded == MetadataAnswer(
        tuple(BrokerAddress(i, host, port) for i, host, port, _ in brokers),
        tuple(
            TopicAnswer(
                name,
                code,
                tuple(
                    PartitionAnswer(index, code, leader, epoch if version >= 7 else -1)
                    for code, index, leader, epoch, _ in partitions
                ),
                topic_id.bytes if topic_id is not None and topic_id.int and version >= 10 else b"",
            )
            for code, name, _, partitions in topics
        ),
        throttle_ms if version >= 3 else 0,
        error_code if version >= 13 else 0,
        "the cluster" if version >= 2 else None,
    )


@given(versions(ApiKey.INIT_PRODUCER_ID), int32, int16, int64, int16)
def test_init_producer_id_answer(
    version: int, throttle_ms: int, code: int, producer_id: int, epoch: int
) -> None:
    answer = theirs.InitProducerIdResponse(
        version=version,
        throttle_time_ms=throttle_ms,
        error_code=code,
        producer_id=producer_id,
        producer_epoch=epoch,
    )
    expected = ProducerIdAnswer(code, producer_id, epoch, throttle_ms)
    check_answer(decode_init_producer_id, answer, expected)


# Malformed answers ----------------------------------------------------------------------------

DECODERS: list[tuple[Callable[[int, bytes], object], int]] = [
    (decode_api_versions, 4),
    (decode_metadata, 13),
    (decode_init_producer_id, 5),
]


@given(st.sampled_from(DECODERS), st.data(), st.binary(max_size=200))
def test_garbage_is_an_error_or_an_answer_and_nothing_else(
    decoder: tuple[Callable[[int, bytes], object], int], data: st.DataObject, garbage: bytes
) -> None:
    decode, last = decoder
    try:
        decode(data.draw(st.integers(0, last)), garbage)
    except WireError as error:
        assert str(error)  # noqa: PT017 - other garbage makes sense


@given(versions(ApiKey.METADATA), brokers, topics, st.data())
def test_a_metadata_answer_that_is_cut_off_is_an_error(
    version: int, brokers: Any, topics: Any, data: st.DataObject
) -> None:
    whole = payload(their_metadata(version, 0, brokers, topics))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(WireError):
        decode_metadata(version, whole[:cut])


VERSIONS_4 = bytes(2) + b"\1" + bytes(4)  # no error, no ranges, not throttled


@pytest.mark.parametrize(
    ("decode", "answer", "text"),
    [
        (decode_api_versions, VERSIONS_4 + b"\2\0\0\0\0", "tagged field 0 follows 0"),
        (decode_api_versions, VERSIONS_4 + b"\2\5\0\1\0", "tagged field 1 follows 5"),
        (decode_api_versions, bytes(2) + b"\xea\x07" + bytes(9000), "1001 elements where"),
        (decode_metadata, b"\2\5\0\5\0" + bytes(50), "tagged field 5 follows 5"),
        (
            lambda version, payload: decode_handshake(payload),
            bytes(5) + b"\x65" + b"\xff\xff" * 101,
            "101 elements where at most 100",
        ),
    ],
)
def test_lists_that_no_broker_sends(
    decode: Callable[[int, bytes], object], answer: bytes, text: str
) -> None:
    """Each element costs many times its size, and anything may pretend to be a broker."""
    with pytest.raises(WireError, match=text):
        decode(13 if decode is decode_metadata else 4, answer)


def test_a_partition_with_a_negative_number_is_an_error() -> None:
    answer = their_metadata(9, 0, [], [(0, "t", False, [(0, -1, 1, 1, [])])])
    with pytest.raises(WireError, match="partition has the number -1"):
        decode_metadata(9, payload(answer))


def test_a_broker_without_host_is_an_error() -> None:
    answer = their_metadata(9, 0, [(1, "h", 9092, None)], [])
    sent = payload(answer)
    assert decode_metadata(9, sent).brokers == (BrokerAddress(1, "h", 9092),)
    with pytest.raises(WireError, match="has no host name"):
        decode_metadata(9, sent.replace(b"\x02h", b"\x00"))


@pytest.mark.parametrize("host", ["a\nb", "a b", "\x1b[31m", "a\u202eb", "a" * 256])
def test_what_cannot_be_a_host_name_is_an_error(host: str) -> None:
    """It would be in the log, and forge lines of it."""
    with pytest.raises(WireError, match="is not a host name") as raised:
        decode_metadata(9, payload(their_metadata(9, 0, [(1, host, 9092, None)], [])))
    assert str(raised.value).isprintable()


def test_text_that_is_not_utf_8_is_an_error() -> None:
    answer = payload(their_metadata(9, 0, [(1, "host", 9092, None)], []))
    with pytest.raises(WireError, match="UTF-8"):
        decode_metadata(9, answer.replace(b"host", b"h\xff\xfft"))


# Version negotiation ----------------------------------------------------------------------------


def test_the_last_version_that_both_sides_speak_is_chosen() -> None:
    ours = {key: last for key, (_, last) in VERSIONS.items()}
    assert common_versions(dict.fromkeys(VERSIONS, (0, 99))) == ours
    assert common_versions({ApiKey.PRODUCE: (0, 7), ApiKey.METADATA: (4, 6)}) == {
        ApiKey.PRODUCE: 7,
        ApiKey.METADATA: 6,
    }


def test_a_request_without_common_version_is_left_out() -> None:
    assert common_versions({ApiKey.PRODUCE: (0, 2), ApiKey.METADATA: (14, 20)}) == {}
    # Invalid ranges, as a faulty broker may send them.
    assert common_versions({ApiKey.PRODUCE: (9, 3), ApiKey.METADATA: (-1, -1)}) == {}

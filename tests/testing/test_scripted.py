"""The scripted cluster follows its script, and otherwise behaves as Kafka does.

The client here is kafka-python's classes over a bare transport; ``tests/cluster`` checks that the
answers match those of a real broker.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._net.transport import ConnectionFailed
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing._messages import ApiVersionsRequest, MetadataRequest
from pykaproducer.testing.scripted import (
    Action,
    Drop,
    Exchange,
    Hold,
    LoggedBatch,
    Mangle,
    Omit,
    Refuse,
    cut_short,
    garbage,
    huge_length,
    negative_length,
    truncated,
    twice,
    wrong_correlation_id,
)
from tests.testing.helper import Closed, RawClient, produce_request
from tests.wire.helper import NOW_MS, record_batch


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2, {"t": 2}) as made:
        yield made


@pytest.fixture
def client(cluster: ScriptedCluster) -> Iterator[RawClient]:
    """Yield a client of broker 0, which leads partition 0."""
    with RawClient(cluster.network, "broker-0.scripted", 9092) as made:
        yield made


def metadata(client: RawClient, *topics: str, version: int = 12, create: bool = False) -> Any:
    kind = MetadataRequest.MetadataRequestTopic
    return client.ask(
        MetadataRequest(
            version=version,
            topics=[kind(name=topic) for topic in topics],
            allow_auto_topic_creation=create,
        )
    )


def values(cluster: ScriptedCluster, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in cluster.log("t", partition)]


# A healthy cluster --------------------------------------------------------------------------------


def test_records_are_in_the_log_as_they_were_sent(
    cluster: ScriptedCluster, client: RawClient
) -> None:
    assert client.produce(("t", 0, record_batch(b"one", b"two" * 99, codec=1))) == [(0, 0)]
    assert client.produce(("t", 0, record_batch(b"three"))) == [(0, 2)]
    records = cluster.log("t", 0)
    assert [(r.offset, r.value, r.batch) for r in records] == [
        (0, b"one", 0),
        (1, b"two" * 99, 0),
        (2, b"three", 1),
    ]
    assert records[1].key == b"key"
    assert records[1].headers == (("header", b"x"),)
    assert records[1].timestamp == NOW_MS + 1
    assert cluster.batches("t", 0) == [
        LoggedBatch(0, 2, compression=1, producer_id=-1, producer_epoch=-1, base_sequence=-1),
        LoggedBatch(2, 1, compression=0, producer_id=-1, producer_epoch=-1, base_sequence=-1),
    ]


def test_requests_are_remembered(cluster: ScriptedCluster, client: RawClient) -> None:
    client.produce(("t", 0, record_batch()), version=9)
    (received,) = cluster.received("produce")
    assert (received.broker, received.version, received.client_id) == (0, 9, "raw")
    assert received.request.acks == -1
    assert cluster.received("metadata") == []
    with pytest.raises(ValueError, match="unknown request 'fetch'; use one of produce"):
        cluster.received("fetch")


def test_waiting_for_requests(cluster: ScriptedCluster, client: RawClient) -> None:
    thread = threading.Thread(
        target=lambda: [client.produce(("t", 0, record_batch())) for _ in range(3)]
    )
    thread.start()
    assert len(cluster.wait_for("produce", 3)) >= 3
    thread.join()


def test_leaders_are_where_the_metadata_says(cluster: ScriptedCluster, client: RawClient) -> None:
    answer = metadata(client, "t")
    assert [p.leader_id for p in answer.topics[0].partitions] == [0, 1]
    assert client.produce(("t", 1, record_batch())) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    cluster.move_leader("t", 1, 0)
    assert client.produce(("t", 1, record_batch())) == [(0, 0)]
    answer = metadata(client, "t")
    assert answer.topics[0].partitions[1].leader_epoch == 1


def test_the_new_leader_is_named_in_the_answer(client: RawClient) -> None:
    answer = client.ask(produce_request([("t", 1, record_batch())], version=10))
    ((partition,),) = (topic.partition_responses for topic in answer.responses)
    assert partition.current_leader.leader_id == 1
    assert [(n.node_id, n.port) for n in answer.node_endpoints] == [(1, 9093)]


def test_topics_that_are_not_there(cluster: ScriptedCluster, client: RawClient) -> None:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.produce(("u", 0, record_batch()), ("t", 2, record_batch())) == [(code, -1)] * 2
    assert metadata(client, "u", create=True).topics[0].error_code == code
    cluster.add_topic("u", 1)
    assert metadata(client, "u").topics[0].error_code == 0
    assert client.produce(("u", 0, record_batch())) == [(0, 0)]
    with pytest.raises(ValueError, match="'u' already"):
        cluster.add_topic("u")


def test_topics_are_created_when_both_sides_allow_it() -> None:
    with (
        ScriptedCluster(auto_create=True) as cluster,
        RawClient(cluster.network, "broker-0.scripted", 9092) as client,
    ):
        assert metadata(client, "u").topics[0].error_code == 3
        assert metadata(client, "u", create=True).topics[0].error_code == 0
        assert client.produce(("u", 0, record_batch())) == [(0, 0)]


def test_without_acks_there_is_no_answer(cluster: ScriptedCluster, client: RawClient) -> None:
    client.send(produce_request([("t", 0, record_batch(b"v"))], acks=0))
    assert client.produce(("t", 0, record_batch(b"w"))) == [(0, 1)]
    assert values(cluster) == [b"v", b"w"]


def test_a_version_that_is_not_taken_closes_the_connection() -> None:
    with (
        ScriptedCluster(topics={"t": 1}, versions={"produce": (3, 7)}) as cluster,
        RawClient(cluster.network, "broker-0.scripted", 9092) as client,
    ):
        ranges = client.ask(ApiVersionsRequest(version=0)).api_keys
        assert (0, 3, 7) in [(r.api_key, r.min_version, r.max_version) for r in ranges]
        with pytest.raises(Closed):
            client.produce(("t", 0, record_batch()), version=8)


# Stopped and restarted brokers --------------------------------------------------------------------


def test_a_stopped_broker_is_gone(cluster: ScriptedCluster, client: RawClient) -> None:
    client.produce(("t", 0, record_batch(b"kept")))
    cluster.stop(0)
    with pytest.raises(Closed):
        client.read(1)
    with pytest.raises(ConnectionFailed, match="refused"):
        RawClient(cluster.network, "broker-0.scripted", 9092)
    with RawClient(cluster.network, "broker-1.scripted", 9093) as other:
        answer = metadata(other, "t")
        assert [b.node_id for b in answer.brokers] == [1]
        assert [p.leader_id for p in answer.topics[0].partitions] == [-1, 1]
        cluster.move_leader("t", 0, 1)
        assert other.produce(("t", 0, record_batch(b"more"))) == [(0, 1)]
    cluster.start(0)
    with RawClient(cluster.network, "broker-0.scripted", 9092) as again:
        assert again.produce(("t", 0, record_batch())) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert values(cluster) == [b"kept", b"more"]


def test_a_broker_whose_cable_is_pulled_says_nothing(
    cluster: ScriptedCluster, client: RawClient
) -> None:
    cluster.stop(0, silently=True)
    client.send(produce_request([("t", 0, record_batch())]))
    transport = cluster.network.connect(cluster.network.resolve("broker-0.scripted", 9092)[0])
    assert transport.finish_connect()
    transport.close()
    cluster.close()
    assert values(cluster) == []


# Scripts ------------------------------------------------------------------------------------------


def test_each_action_is_for_one_request(cluster: ScriptedCluster, client: RawClient) -> None:
    cluster.next("produce", Refuse(19), Refuse(7))
    codes = [client.produce(("t", 0, record_batch()))[0][0] for _ in range(3)]
    assert codes == [19, 7, 0]
    assert len(values(cluster)) == 1


def test_a_refusal_of_what_was_appended(cluster: ScriptedCluster, client: RawClient) -> None:
    cluster.next("produce", Refuse(20, appended=True))
    assert client.produce(("t", 0, record_batch(b"v"))) == [(20, -1)]
    assert values(cluster) == [b"v"]


def test_a_refusal_of_one_partition(cluster: ScriptedCluster, client: RawClient) -> None:
    cluster.move_leader("t", 1, 0)
    batches = [("t", 0, record_batch(b"v")), ("t", 1, record_batch(b"w"))]
    cluster.next("produce", Refuse(7, only=[("t", 0)]), Refuse(7, only=[("t", 0)], appended=True))
    assert client.produce(*batches) == [(7, -1), (0, 0)]
    assert (values(cluster, 0), values(cluster, 1)) == ([], [b"w"])
    assert client.produce(*batches) == [(7, -1), (0, 1)]
    assert (values(cluster, 0), values(cluster, 1)) == ([b"v"], [b"w", b"w"])


@pytest.mark.parametrize("api", ["metadata", "api_versions", "init_producer_id"])
def test_the_other_requests_can_be_refused(
    cluster: ScriptedCluster, client: RawClient, api: str
) -> None:
    cluster.next(api, Refuse(29))
    match api:
        case "metadata":
            assert metadata(client, "t").topics[0].error_code == 29
            assert metadata(client, "t").topics[0].error_code == 0
        case "api_versions":
            assert client.ask(ApiVersionsRequest(version=0)).error_code == 29
            assert client.ask(ApiVersionsRequest(version=0)).error_code == 0
        case _:
            with pytest.raises(AssertionError, match="29"):
                client.producer_id()
            assert client.producer_id() >= 0


def test_an_action_can_be_for_one_broker(cluster: ScriptedCluster, client: RawClient) -> None:
    cluster.next("produce", Refuse(19), broker=1)
    assert client.produce(("t", 0, record_batch())) == [(0, 0)]
    with RawClient(cluster.network, "broker-1.scripted", 9093) as other:
        assert other.produce(("t", 1, record_batch())) == [(19, -1)]


@pytest.mark.parametrize(("action", "count"), [(Drop(), 0), (Drop(appended=True), 1)])
def test_dropping_the_connection(
    cluster: ScriptedCluster, client: RawClient, action: Action, count: int
) -> None:
    cluster.next("produce", action)
    with pytest.raises(Closed):
        client.produce(("t", 0, record_batch()))
    assert len(values(cluster)) == count


@pytest.mark.parametrize(("action", "count"), [(Omit("t", 0), 0), (Omit("t", 0, True), 1)])
def test_leaving_a_partition_out(
    cluster: ScriptedCluster, client: RawClient, action: Action, count: int
) -> None:
    cluster.next("produce", action)
    answer = client.ask(produce_request([("t", 0, record_batch())]))
    assert [topic.partition_responses for topic in answer.responses] == [[]]
    assert len(values(cluster)) == count


def test_mangled_answers(cluster: ScriptedCluster, client: RawClient) -> None:
    def send() -> None:
        client.send(produce_request([("t", 0, record_batch())], version=3))

    send()
    length = client.read(4)
    size = int.from_bytes(length, "big")
    proper = client.read(size)
    for change, expected in (
        (huge_length, b"\x7f\xff\xff\xff" + proper[:4]),
        (negative_length, b"\xff\xff\xff\xff" + proper[:4]),
        (wrong_correlation_id, length + b"\x7f\xff\xff\xf0"),
        (garbage, length + proper[:4] + b"\xff" * (size - 4)),
    ):
        cluster.next("produce", Mangle(change))
        send()
        assert (client.read(4 + size))[: len(expected)] == expected
    cluster.next("produce", Mangle(truncated))
    send()
    shorter = int.from_bytes(client.read(4), "big")
    assert 4 <= shorter < size
    assert client.read(shorter)[:4] == proper[:4]
    cluster.next("produce", Mangle(twice), Mangle(cut_short, disconnect=True))
    send()
    first = client.read(4 + size)
    assert client.read(4 + size) == first
    send()
    with pytest.raises(Closed):
        client.read(4 + size)


def test_a_custom_action(cluster: ScriptedCluster, client: RawClient) -> None:
    def slowly(exchange: Exchange) -> None:
        for byte in exchange.encoded(exchange.apply()):
            exchange.send(bytes([byte]))

    cluster.next("produce", slowly)
    assert client.produce(("t", 0, record_batch())) == [(0, 0)]


def test_holding_a_request(cluster: ScriptedCluster, client: RawClient) -> None:
    held = Hold()
    cluster.next("produce", held)
    client.send(produce_request([("t", 0, record_batch(b"v"))]))
    held.wait_until_held()
    assert values(cluster) == []
    held.release()
    client.read(4)
    assert values(cluster) == [b"v"]


def test_holding_and_then_something_else(cluster: ScriptedCluster, client: RawClient) -> None:
    held = Hold(then=Refuse(7))
    held.release()
    cluster.next("produce", held)
    assert client.produce(("t", 0, record_batch())) == [(7, -1)]


def test_closing_ends_what_is_held(client: RawClient, cluster: ScriptedCluster) -> None:
    held = Hold()
    cluster.next("produce", held)
    client.send(produce_request([("t", 0, record_batch())]))
    held.wait_until_held()
    cluster.close()
    cluster.close()
    assert values(cluster) == []


# Rejections ---------------------------------------------------------------------------------------


def corrupted(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (corrupted(record_batch(b"value")), ErrorCode.CORRUPT_MESSAGE),
        (record_batch() + record_batch(), ErrorCode.INVALID_RECORD),
        (record_batch()[:-3], ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
    ],
)
def test_records_that_are_not_a_batch(client: RawClient, records: bytes, code: int) -> None:
    assert client.produce(("t", 0, records)) == [(code, -1)]

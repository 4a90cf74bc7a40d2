"""Scripted coordinators answer as Kafka's do, and follow the script.

``tests/transactions/test_coordinators.py`` holds a real broker against the same conversations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing._messages import ApiVersionsRequest
from pykaproducer.testing._transaction_messages import (
    FindCoordinatorRequest,
    ListTransactionsRequest,
)
from pykaproducer.testing.scripted import Drop, Refuse, proceed
from tests.testing.helper import Closed, RawClient
from tests.transactions.conversations import CONVERSATIONS, Conversation, World


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(2, {"t": 3}) as made:
        yield made


@pytest.fixture
def client(cluster: ScriptedCluster) -> Iterator[RawClient]:
    with RawClient(cluster.network, "broker-0.scripted", 9092) as made:
        yield made


def world_of(
    cluster: ScriptedCluster, client: RawClient, server: int = 2, protocol: int = 2
) -> World:
    return World(
        client,
        "t",
        "id",
        server,
        protocol,
        expire=lambda world: cluster.time_out(world.name),
        connect=lambda: RawClient(cluster.network, "broker-0.scripted", 9092),
    )


@pytest.mark.parametrize(
    ("conversation", "server", "protocol"),
    [(each, *protocols) for each, facts in CONVERSATIONS.items() for protocols in facts],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_what_a_coordinator_answers(conversation: Conversation, server: int, protocol: int) -> None:
    features = {"transaction.version": 2 if server == 2 else 0}
    with (
        ScriptedCluster(topics={"t": 3}, features=features) as cluster,
        RawClient(cluster.network, "broker-0.scripted", 9092) as client,
    ):
        world = world_of(cluster, client, server, protocol)
        assert conversation(world) == CONVERSATIONS[conversation][server, protocol]


def test_what_a_reader_of_committed_messages_sees(
    cluster: ScriptedCluster, client: RawClient
) -> None:
    world = world_of(cluster, client)
    producer = world.begin()
    for commit in (True, False):
        world.write(producer)
        assert len(cluster.log("t", committed=True)) == (not commit)
        producer = world.after(producer, world.end(producer, commit=commit))
    world.write(producer)
    assert [each.offset for each in cluster.log("t", committed=True)] == [0]
    assert [each.offset for each in cluster.log("t")] == [0, 2, 4]
    assert [each.transactional for each in cluster.batches("t")] == [True] * 3


def test_offsets_are_seen_by_the_test(cluster: ScriptedCluster, client: RawClient) -> None:
    world = world_of(cluster, client)
    producer = world.begin()
    assert world.write_offset(producer, "g", 5) == "0"
    assert cluster.transaction_state("id") == "Ongoing"
    assert cluster.offsets("g") == {}
    world.end(producer, commit=True)
    assert cluster.offsets("g") == {("t", 0): 5}
    assert cluster.transaction_state("id") == "CompleteCommit"


def test_the_last_epoch_is_followed_by_another_producer_id(
    cluster: ScriptedCluster, client: RawClient
) -> None:
    world = world_of(cluster, client)
    producer = world.begin()
    assert world.text_of(world.init()) == "0 A1"
    cluster._state.coordinators.ids["id"].epoch = last = 2**15 - 2
    for commit in (False, True):
        answer = world.end((producer[0], last), commit=False)
        assert world.text_of(answer) == "0 B0"
        assert world.text_of(world.end((producer[0], last), commit=commit)) == (
            "48" if commit else "0 B0"
        )


def test_the_level_of_the_protocol_can_be_changed(
    cluster: ScriptedCluster, client: RawClient
) -> None:
    for level in (2, 0, 1):
        cluster.set_feature("transaction.version", level)
        answer = client.ask(ApiVersionsRequest(version=4))
        found = {each.name: each.max_version_level for each in answer.finalized_features}
        assert found.get("transaction.version", 0) == level
    for name, level in (("transaction.version", 3), ("kraft.version", 1)):
        with pytest.raises(ValueError, match=f"there is no {name} {level}"):
            cluster.set_feature(name, level)


def found(client: RawClient, kind: int, version: int = 4) -> Any:
    request = FindCoordinatorRequest(
        version=version, key_type=kind, key="id", coordinator_keys=["id"]
    )
    answer = client.ask(request)
    return answer.coordinators[0] if version >= 4 else answer


def test_coordinators_can_be_moved(cluster: ScriptedCluster, client: RawClient) -> None:
    for version in (2, 5):
        assert (found(client, 0, version).node_id, found(client, 1, version).node_id) == (0, 0)
    world = world_of(cluster, client)
    producer = world.begin()
    cluster.move_coordinator("transaction", "id", 1)
    answer = found(client, 1)
    assert (answer.node_id, answer.host, answer.port) == (1, "broker-1.scripted", 9093)
    assert found(client, 0).node_id == 0
    assert world.init(once=True).error_code == 16
    assert world.end(producer, commit=False, once=True).error_code == 16
    with RawClient(cluster.network, "broker-1.scripted", 9093) as other:
        world.client = other
        assert world.text_of(world.init(producer)) == f"0 A{producer[1] + 1}"
    cluster.stop(1)
    assert found(client, 1).error_code == 15
    assert found(client, 7).error_code == 42
    with pytest.raises(ValueError, match="kind must be one of group, transaction, not 'share'"):
        cluster.move_coordinator("share", "id", 1)


def test_transactions_are_listed(cluster: ScriptedCluster, client: RawClient) -> None:
    world = world_of(cluster, client)
    for name in ("a-1", "a-2", "b-1"):
        world.name = name
        producer = world.begin()
    world.write(producer)

    def listed(**filters: Any) -> list[str]:
        answer = client.ask(ListTransactionsRequest(version=2, **filters))
        assert answer.error_code == 0
        return [each.transactional_id for each in answer.transaction_states]

    assert listed() == ["a-1", "a-2", "b-1"]
    assert listed(state_filters=["Ongoing"]) == ["b-1"]
    assert listed(transactional_id_pattern="a-.*", state_filters=["Empty"]) == ["a-1", "a-2"]
    assert listed(producer_id_filters=[producer[0]]) == ["b-1"]
    cluster.move_coordinator("transaction", "a-1", 1)
    assert listed() == ["a-2", "b-1"]
    answer = client.ask(ListTransactionsRequest(version=1, state_filters=["Odd"]))
    assert answer.unknown_state_filters == ["Odd"]
    bad = client.ask(ListTransactionsRequest(version=2, transactional_id_pattern="["))
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_each_request_can_be_refused(cluster: ScriptedCluster, client: RawClient) -> None:
    world = world_of(cluster, client)
    producer = world.begin()
    code = 29
    for api in ("add_partitions_to_txn", "add_offsets_to_txn", "txn_offset_commit", "end_txn"):
        cluster.next(api, Refuse(code))
    for api in ("offset_fetch", "describe_transactions", "list_transactions", "find_coordinator"):
        cluster.next(api, Refuse(code))
    assert world.add(producer, 0, 1) == f"{code} {code}"
    assert world.add_group(producer, "g") == str(code)
    assert world.commit_offset(producer, "g") == str(code)
    assert world.text_of(world.end(producer, commit=True)) == str(code)
    assert found(client, 0).error_code == code
    assert world.describe().error_code == code
    assert client.ask(ListTransactionsRequest(version=0)).error_code == code
    assert world.add(producer, 0, 1) == "0 0"


def test_partitions_can_be_refused(cluster: ScriptedCluster, client: RawClient) -> None:
    world = world_of(cluster, client, protocol=1)
    producer = world.begin()
    cluster.next("add_partitions_to_txn", Refuse(29, only=[("t", 2)]))
    assert world.add(producer, 0, 2) == "0 29"
    assert world.produce(producer) == "0 @0"
    assert world.produce(producer, partition=2) == "120"
    cluster.next("txn_offset_commit", Refuse(29, only=[("t", 0)]))
    world.add_group(producer, "g")
    assert world.commit_offset(producer, "g") == "29"
    world.end(producer, commit=True)
    assert cluster.offsets("g") == {}


def test_an_action_can_be_for_all_requests(cluster: ScriptedCluster, client: RawClient) -> None:
    world = world_of(cluster, client)
    cluster.always("init_producer_id", Refuse(53))
    cluster.next("init_producer_id", Refuse(50))
    codes = [world.init().error_code for _ in range(3)]
    assert codes == [50, 53, 53]
    cluster.always("init_producer_id", proceed)
    assert world.text_of(world.init()) == "0 A0"
    cluster.always("end_txn", Drop(appended=True))
    with pytest.raises(Closed):
        world.end(world.begin(), commit=False)
    with pytest.raises(ValueError, match="unknown request 'fetch'; use one of produce"):
        cluster.always("fetch", proceed)

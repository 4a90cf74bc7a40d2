"""The requests of transactions to a real broker, in every version that this package encodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import kafka
import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.session import Request
from pykaproducer._net.connection import Answered
from pykaproducer._net.transport import Network
from pykaproducer._util.group_offsets import GroupMetadata, GroupOffset, group_metadata
from pykaproducer._wire.messages import (
    VERSIONS,
    ApiKey,
    ProducerIdAnswer,
    decode_init_producer_id,
    init_producer_id_request,
)
from pykaproducer._wire.transaction_queries import (
    CommittedOffset,
    ListedTransaction,
    decode_describe_transactions,
    decode_list_transactions,
    decode_offset_fetch,
    describe_transactions_request,
    list_transactions_request,
    offset_fetch_request,
)
from pykaproducer._wire.transactions import (
    CoordinatorKind,
    EndTxnAnswer,
    add_offsets_to_txn_request,
    add_partitions_to_txn_request,
    decode_add_offsets_to_txn,
    decode_add_partitions_to_txn,
    decode_end_txn,
    decode_find_coordinator,
    decode_txn_offset_commit,
    end_txn_request,
    find_coordinator_request,
    txn_offset_commit_request,
)
from pykaproducer.testing import KafkaCluster
from pykaproducer.testing._processes import tick
from tests.net.helper import Settings, Talk

#: How long a coordinator may take, in seconds; only a hang takes as long.
PATIENCE = 60
#: What a coordinator answers while it is loading its log, or writing the end of a transaction.
SOON = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


class Client:
    """A connection to the only broker, which coordinates everything."""

    def __init__(self, cluster: KafkaCluster) -> None:
        broker = cluster.brokers[0]
        self.talk = Talk(Network(Settings()), (broker.host, broker.port))
        self.features = self.talk.open().features

    def ask(self, key: ApiKey, version: int, encode: Any, decode: Any, *arguments: Any) -> Any:
        """Return the decoded answer to a request in exactly this *version*."""
        self.talk.connection.submit(
            Request(
                key,
                lambda version, number: [encode(version, number, "tester", *arguments)],
                self.talk.clock.monotonic() + 30,
                at_least=version,
                at_most=version,
            )
        )
        event = self.talk.until(Answered)
        assert event.version == version
        return decode(version, event.payload)

    def find(self, version: int, kind: CoordinatorKind, keys: Sequence[str]) -> Any:
        """Find coordinators. The first such request creates the topic of their logs."""
        return soon(
            lambda: self.ask(
                ApiKey.FIND_COORDINATOR,
                version,
                find_coordinator_request,
                lambda version, payload: decode_find_coordinator(version, payload, keys),
                kind,
                keys,
            ),
            lambda answer: max(each.error_code for each in answer.coordinators),
        )

    def initialize(self, version: int, *arguments: Any) -> ProducerIdAnswer:
        def ask() -> Any:
            return self.ask(
                ApiKey.INIT_PRODUCER_ID,
                version,
                init_producer_id_request,
                decode_init_producer_id,
                *arguments,
            )

        answer: ProducerIdAnswer = soon(ask, lambda answer: answer.error_code)
        assert answer.error_code == 0
        return answer

    def offset(self, version: int, group: str, topic: str) -> CommittedOffset:
        """Return the committed offset of the first partition, with ``require_stable``."""
        answer = self.ask(
            ApiKey.OFFSET_FETCH,
            version,
            offset_fetch_request,
            lambda version, payload: decode_offset_fetch(version, payload, [group]),
            {group: [(topic, 0)]},
        )
        found = answer.groups[group]
        assert found.error_code == 0
        return found.offsets[topic, 0]  # type: ignore[no-any-return]


def soon(ask: Callable[[], Any], code: Callable[[Any], int]) -> Any:
    """Return an answer with another code than those of :data:`SOON`."""
    deadline = time.monotonic() + PATIENCE
    while code(answer := ask()) in SOON:
        assert time.monotonic() < deadline, answer
        tick()
    return answer


@pytest.fixture
def client(cluster: KafkaCluster, topic: str) -> Iterator[Client]:
    cluster.create_topic(topic, partitions=1)
    made = Client(cluster)
    for kind in CoordinatorKind:
        made.find(5, kind, [topic])
    yield made
    made.talk.close()


def test_the_cluster_tells_the_version_of_transactions(client: Client) -> None:
    assert client.features["transaction.version"] == 2


@pytest.mark.parametrize("version", range(1, 6))
@pytest.mark.parametrize("kind", CoordinatorKind)
def test_coordinators(
    cluster: KafkaCluster, client: Client, kind: CoordinatorKind, version: int
) -> None:
    keys = ["a", "b"] if version >= 4 else ["a"]
    answer = client.find(version, kind, keys)
    broker = cluster.brokers[0]
    assert [
        (each.key, each.error_code, each.address.host, each.address.port)
        for each in answer.coordinators
    ] == [(key, 0, broker.host, broker.port) for key in keys]


@pytest.mark.parametrize("version", range(5))
def test_a_transaction_of_the_first_protocol(client: Client, topic: str, version: int) -> None:
    """The coordinator is told of each partition and group, before anything is written."""
    name = group = f"{topic}-first-{version}"
    started = client.initialize(version, name, 60_000)
    who = name, started.producer_id, started.producer_epoch
    place = topic, 0
    added = soon(
        lambda: client.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            min(version, 3),
            add_partitions_to_txn_request,
            decode_add_partitions_to_txn,
            *who,
            [place],
        ),
        lambda answer: answer.errors[place],
    )
    assert added.errors == {place: 0}
    grouped = client.ask(
        ApiKey.ADD_OFFSETS_TO_TXN,
        version,
        add_offsets_to_txn_request,
        decode_add_offsets_to_txn,
        *who,
        group,
    )
    assert grouped.error_code == 0
    commit_offset(client, version, who, group, topic)
    end = client.ask(
        ApiKey.END_TXN,
        version,
        lambda *arguments: end_txn_request(*arguments, commit=True),
        decode_end_txn,
        *who,
    )
    assert end == EndTxnAnswer(0)
    check_committed(client, group, topic, leader_epoch=0 if version >= 2 else -1)
    if version >= 3:
        again = client.initialize(version, name, 60_000, *who[1:])
        assert (again.producer_id, again.producer_epoch) == (who[1], who[2] + 1)


def test_a_transaction_of_the_second_protocol(client: Client, topic: str) -> None:
    """The brokers add what is written, and the end is answered with the next epoch (KIP-890)."""
    name = group = f"{topic}-second"
    started = client.initialize(5, name, 60_000)
    for serial in range(2):
        who = name, started.producer_id, started.producer_epoch + serial
        commit_offset(client, 5, who, group, topic)
        check_open(client, *who)
        end = client.ask(
            ApiKey.END_TXN,
            5,
            lambda *arguments: end_txn_request(*arguments, commit=True),
            decode_end_txn,
            *who,
        )
        assert end == EndTxnAnswer(0, who[1], who[2] + 1)
        check_committed(client, group, topic, leader_epoch=0)


def kafka_python_consumer(cluster: KafkaCluster, group: str, topic: str) -> Any:
    if not hasattr(kafka.KafkaConsumer, "group_metadata"):
        pytest.skip("needs kafka-python 3.0's KafkaConsumer.group_metadata()")
    servers = cluster.bootstrap_servers
    consumer = kafka.KafkaConsumer(topic, group_id=group, bootstrap_servers=servers)
    return joined(consumer, lambda: consumer.poll(timeout_ms=100))


def confluent_kafka_consumer(cluster: KafkaCluster, group: str, topic: str) -> Any:
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs confluent-kafka")
    servers = cluster.bootstrap_servers
    consumer = confluent_kafka.Consumer({"group.id": group, "bootstrap.servers": servers})
    consumer.subscribe([topic])
    return joined(consumer, lambda: consumer.poll(0.1))


def joined(consumer: Any, poll: Callable[[], object]) -> Any:
    """Return *consumer* once it has its partition."""
    deadline = time.monotonic() + PATIENCE
    while not consumer.assignment():
        assert time.monotonic() < deadline
        poll()
    return consumer


@pytest.mark.parametrize("join", [kafka_python_consumer, confluent_kafka_consumer])
def test_the_group_checks_the_member(
    cluster: KafkaCluster, client: Client, topic: str, join: Callable[..., Any]
) -> None:
    """A member of an older generation has lost its partitions (KIP-447)."""
    group = f"{topic}-{join.__name__}"
    started = client.initialize(5, group, 60_000)
    who = group, started.producer_id, started.producer_epoch

    def commit(member: GroupMetadata) -> int:
        answer = client.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            5,
            txn_offset_commit_request,
            decode_txn_offset_commit,
            *who,
            member,
            [GroupOffset(topic, 0, 7)],
        )
        return int(answer.errors[topic, 0])

    consumer = join(cluster, group, topic)
    try:
        member = group_metadata(consumer)
        assert member.group_id == group
        assert member.generation > 0
        older = member._replace(generation=member.generation - 1)
        assert soon(lambda: commit(older), int) == ErrorCode.ILLEGAL_GENERATION
        stranger = member._replace(member_id="stranger")
        assert soon(lambda: commit(stranger), int) == ErrorCode.UNKNOWN_MEMBER_ID
        assert soon(lambda: commit(member), int) == 0
    finally:
        consumer.close()
    end = client.ask(
        ApiKey.END_TXN,
        5,
        lambda *arguments: end_txn_request(*arguments, commit=False),
        decode_end_txn,
        *who,
    )
    assert end == EndTxnAnswer(0, who[1], who[2] + 1)


def commit_offset(
    client: Client, version: int, who: tuple[str, int, int], group: str, topic: str
) -> None:
    offset = GroupOffset(topic, 0, 7, 0, "metadata")
    answer = soon(
        lambda: client.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            version,
            txn_offset_commit_request,
            decode_txn_offset_commit,
            *who,
            GroupMetadata(group),
            [offset],
        ),
        lambda answer: answer.errors[topic, 0],
    )
    assert answer.errors == {(topic, 0): 0}
    assert client.offset(9, group, topic).error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT


def check_open(client: Client, name: str, producer_id: int, epoch: int) -> None:
    """Check that the open transaction is found by its transactional id and in the list."""
    described = client.ask(
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        describe_transactions_request,
        decode_describe_transactions,
        [name, f"{name}-unknown"],
    )
    found = {each.transactional_id: each for each in described.transactions}
    assert found[f"{name}-unknown"].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    state = found[name]
    assert (state.error_code, state.state, state.timeout_ms) == (0, "Ongoing", 60_000)
    assert (state.producer_id, state.producer_epoch) == (producer_id, epoch)
    assert state.start_ms > 0
    assert [place for place, _ in state.partitions] == ["__consumer_offsets"]
    for version in range(3):
        answer = client.ask(
            ApiKey.LIST_TRANSACTIONS,
            version,
            lambda *arguments: list_transactions_request(
                *arguments, states=["Ongoing", "Neither"], producer_ids=[producer_id]
            ),
            decode_list_transactions,
        )
        assert (answer.error_code, answer.unknown_states) == (0, ("Neither",))
        assert answer.transactions == (ListedTransaction(name, producer_id, "Ongoing"),)
    bad = client.ask(
        ApiKey.LIST_TRANSACTIONS,
        2,
        lambda *arguments: list_transactions_request(*arguments, pattern="["),
        decode_list_transactions,
    )
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def check_committed(client: Client, group: str, topic: str, leader_epoch: int) -> None:
    for version in range(VERSIONS[ApiKey.OFFSET_FETCH][0], VERSIONS[ApiKey.OFFSET_FETCH][1] + 1):
        found = soon(
            lambda version=version: client.offset(version, group, topic),
            lambda found: found.error_code,
        )
        assert found == CommittedOffset(7, leader_epoch, "metadata")

"""Clusters that change the transaction protocol while a producer is at work.

The producer keeps the protocol of a transaction until its end, and then takes a new epoch
before the first transaction with the other protocol (KIP-890).

Brokers that have left the second protocol refuse whatever begins a transaction with it, and the end
of one in its version. Kafka 4.3 then answers CONCURRENT_TRANSACTIONS to the transactional id until
its coordinator moves. So a downgrade is tested here where the producer learns it in time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from pykaproducer import Producer, Status, TopicPartition, TransactionControl
from pykaproducer.errors import BrokerRejectedError, TransactionAbortableError
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing.scripted import Disconnect, Exchange, Received
from pykaproducer.transaction_control import EndState
from tests.pipeline.helper import SOON

from .helper import PATIENCE, Kafka, own_broker
from .scripted_helper import POSSIBLY, begun, error_of, producer_of, type_of, values

FEATURE = "transaction.version"


@pytest.fixture(scope="module")
def changing() -> Iterator[Kafka]:
    """Yield a broker whose level of the feature the tests change; they leave it at 2."""
    with own_broker("TV2") as started:
        yield started


_numbers = itertools.count()


@pytest.fixture
def place(changing: Kafka) -> Iterator[str]:
    """Yield a topic on that broker."""
    name = f"place-{next(_numbers)}"
    changing.cluster.create_topic(name, partitions=3)
    yield name
    changing.cluster.set_feature(FEATURE, 2)


def state(producer: Producer) -> tuple[int, int]:
    """Return the protocol, and the epoch."""
    found = producer.stats()["transactions"]
    return found["protocol"], found["producer_epoch"]


def protocol(level: int) -> int:
    return 2 if level >= 2 else 1


def set_level(kafka: Kafka, level: int) -> None:
    """Change the level, and close the connections, so that clients learn it."""
    kafka.cluster.set_feature(FEATURE, level)
    kafka.proxy.cut_all()


@pytest.mark.parametrize("levels", [(0, 2, 1, 2), (1, 0, 2)], ids=str)
def test_changes_within_transactions(changing: Kafka, place: str, levels: tuple[int, ...]) -> None:
    expected = []
    with changing.producer(proxied=True) as producer:
        producer.init_transactions()
        for serial, level in enumerate(levels):
            producer.begin_transaction()
            before = state(producer)
            producer.send(place, b"%d, before" % serial, partition=0).result(PATIENCE)
            set_level(changing, level)
            producer.send(place, b"%d, after" % serial, partition=0).result(PATIENCE)
            assert state(producer) == before
            if serial % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                expected += [b"%d, before" % serial, b"%d, after" % serial]
            after = state(producer)
            assert after[0] == protocol(level)
            assert after[0] == before[0] or after[1] > before[1]
            with producer.transaction():
                producer.send(place, b"%d, next" % serial, partition=0)
            expected.append(b"%d, next" % serial)
    assert changing.committed(place) == expected


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_prepared_transaction_is_ended_with_its_protocol(
    changing: Kafka, place: str, level: int, commit: bool
) -> None:
    changing.cluster.set_feature(FEATURE, 2 - level)
    with changing.producer() as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(place, b"prepared", partition=0)
        prepared = producer.prepare_transaction()
        assert prepared.protocol == protocol(2 - level)
    # The last one: the cluster has returned to the protocol of the transaction.
    for now in (level, level, 2 - level):
        changing.cluster.set_feature(FEATURE, now)
        with TransactionControl(bootstrap_servers=changing.cluster.bootstrap_servers) as control:
            ended = control.complete(prepared, commit=commit)
        assert ended.state is (EndState.COMMITTED if commit else EndState.ABORTED)
    assert changing.committed(place) == [b"prepared"] * commit


# Scripted brokers: the versions of the requests ---------------------------------------------------


def conversation(scripted: ScriptedCluster) -> list[Received]:
    """Return the requests of transactions, in order."""
    apis = {"init_producer_id", "add_partitions_to_txn", "produce", "end_txn"}
    return [each for each in scripted._history if each.api in apis]


def assert_never_mixed(scripted: ScriptedCluster) -> list[int]:
    """Check that a transaction has one protocol. Return the protocols of all transactions."""
    protocols: list[int] = []
    here: set[int] = set()
    epochs: list[int] = []
    bumped = True
    for each in conversation(scripted):
        match each.api:
            case "init_producer_id":
                assert not here, "an epoch is never taken within a transaction"
                bumped = True
            case "add_partitions_to_txn":
                here.add(1)
            case "produce":
                here.add(2 if each.version >= 12 else 1)
            case _:
                ended = 2 if each.version >= 5 else 1
                # A coordinator that has left the second protocol ends its transactions so.
                assert here <= {1} or here == {2}
                assert ended == 1 or here <= {2}
                here = here or {ended}
                assert bumped or here == {protocols[-1]}
                protocols += here
                epochs.append(each.request.producer_epoch)
                here, bumped = set(), False
    assert epochs == sorted(epochs)
    return protocols


#: When the level changes, and the connections of the broker are closed.
MOMENTS = ["ready", "begun", "written", "failed"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("levels", [(2, 0), (0, 2)], ids=["downgrade", "upgrade"])
def test_the_requests_of_a_transaction_have_one_protocol(
    levels: tuple[int, int], commit: bool, moment: str
) -> None:
    first, second = levels

    def change(now: str) -> None:
        if now == moment:
            scripted.set_feature(FEATURE, second)
            scripted.stop(0)
            scripted.start(0)

    with (
        ScriptedCluster(topics={"t": 1}, features={FEATURE: first}) as scripted,
        producer_of(scripted) as producer,
    ):
        with producer.transaction():
            producer.send("t", b"first", partition=0)
        change("ready")
        producer.begin_transaction()
        change("begun")
        producer.send("t", b"second", partition=0).result(SOON)
        change("written")
        if moment == "failed":
            failed = producer.send("t", b"nowhere", partition=99)
            assert failed.exception(SOON) is not None
            change("failed")
        else:
            producer.send("t", b"second", partition=0).result(SOON)
        if commit and moment != "failed":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        for _ in range(2):
            with producer.transaction():
                producer.send("t", b"third", partition=0)
        protocols = assert_never_mixed(scripted)
        assert protocols[-1] == protocol(second)
        assert protocols[0] == protocol(first)
        kept = [b"second"] * 2 if commit and moment != "failed" else []
        assert values(scripted) == [b"first", *kept, b"third", b"third"]


@pytest.mark.parametrize("carried_out", [True, False], ids=["carried out", "not carried out"])
@pytest.mark.parametrize("levels", [(2, 0), (0, 2)], ids=["downgrade", "upgrade"])
def test_a_change_while_the_end_is_under_way(levels: tuple[int, int], carried_out: bool) -> None:
    """The answer is lost together with the connection, and the new one has another protocol."""
    first, second = levels

    def restart(exchange: Exchange) -> None:
        if carried_out:
            exchange.apply()
        scripted.set_feature(FEATURE, second)
        raise Disconnect

    with (
        ScriptedCluster(topics={"t": 1}, features={FEATURE: first}) as scripted,
        producer_of(scripted) as producer,
    ):
        begun(producer)
        producer.send("t", b"value", partition=0).result(SOON)
        scripted.next("end_txn", restart)
        if levels == (2, 0) and carried_out:
            # The epoch is another one now, and only the version before the downgrade could tell.
            error = error_of(producer.commit_transaction)
            assert (type_of(error), error.outcome) == ("fenced", POSSIBLY)
            assert values(scripted) == [b"value"]
            return
        producer.commit_transaction()
        with producer.transaction():
            producer.send("t", b"next", partition=0)
        assert state(producer)[0] == protocol(second)
        assert values(scripted) == [b"value", b"next"]
        ends = [each.version >= 5 for each in scripted.received("end_txn")]
        assert ends == [first == 2, False, second == 2]


def test_a_cluster_that_leaves_the_protocol_for_a_while() -> None:
    """The commit is carried out in the older version, and its answer is lost."""
    levels = [0, 2]

    def restart(exchange: Exchange) -> None:
        if levels == [2]:
            exchange.apply()
        scripted.set_feature(FEATURE, levels.pop(0))
        raise Disconnect

    with (
        ScriptedCluster(topics={"t": 1}, features={FEATURE: 2}) as scripted,
        producer_of(scripted) as producer,
    ):
        begun(producer)
        producer.send("t", b"value", partition=0).result(SOON)
        scripted.next("end_txn", restart, restart)
        producer.commit_transaction()
        with producer.transaction():
            producer.send("t", b"next", partition=0)
        assert values(scripted) == [b"value", b"next"]


@pytest.mark.parametrize("api", ["produce", "end_txn", "txn_offset_commit"])
def test_a_proxy_that_offers_older_versions_and_the_feature(api: str) -> None:
    """As Kroxylicious 0.9 before Kafka 4. The brokers have the first protocol, too."""
    newest = {"produce": 11, "end_txn": 4, "txn_offset_commit": 4}[api]
    versions = {api: (3, newest)}
    with (
        ScriptedCluster(topics={"t": 1}, versions=versions) as scripted,
        producer_of(scripted) as producer,
    ):
        begun(producer)
        assert state(producer)[0] == 1
        producer.send("t", b"value", partition=0)
        producer.send_offsets_to_transaction({TopicPartition("t", 0): 1}, "group")
        producer.commit_transaction()
        assert values(scripted) == [b"value"]


def test_a_leader_behind_a_proxy_with_older_versions() -> None:
    """The coordinator offers the second protocol: it is used until the leader turns out not to."""
    with ScriptedCluster(2, topics={"t": 2}) as scripted, producer_of(scripted) as producer:
        begun(producer)
        assert state(producer)[0] == 2
        coordinator = scripted.received("init_producer_id")[0].broker
        leader = 1 - coordinator  # of the partition with its number

        def cut(exchange: Exchange) -> None:
            answer = exchange.apply()
            if exchange.broker == leader:
                answer.api_keys[0].max_version = 11  # of Produce
            exchange.answer(answer)

        scripted.always("api_versions", cut)
        error = producer.send("t", b"refused", partition=leader).exception(SOON)
        assert isinstance(error, BrokerRejectedError)
        assert (error.code, error.status) == (35, Status.NOT_PERSISTED)
        assert f"broker-{leader}.scripted:{9092 + leader} supports Produce up to" in str(error)
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"value", partition=leader)
        assert state(producer)[0] == 1
        assert [each.value for each in scripted.log("t", leader)] == [b"value"]

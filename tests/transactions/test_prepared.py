"""Transactions that a producer prepares, and that another process commits or aborts."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer import (
    Ended,
    EndState,
    KafkaProducer,
    PreparedTransaction,
    Producer,
    TopicPartition,
    TransactionAbortableError,
    TransactionControl,
    TransactionError,
    TransactionStateError,
    TransactionTimeoutError,
)
from pykaproducer.testing import Cut
from pykaproducer.testing._processes import tick
from tests._support.fixtures.cluster import FEATURES
from tests._support.pairs import pairwise
from tests._support.programs import run
from tests._support.threads import Call
from tests.transactions.helper import BOTH, PATIENCE, SHORT_MS, Kafka, calls_of

END_TXN = 26
COMMITTED, ABORTED = Ended(EndState.COMMITTED), Ended(EndState.ABORTED)


@pytest.fixture
def control(kafka: Kafka) -> Iterator[TransactionControl]:
    with TransactionControl(bootstrap_servers=kafka.cluster.bootstrap_servers) as found:
        yield found


def prepared(producer: Producer, topic: str, *values: bytes, **init: Any) -> PreparedTransaction:
    """Prepare a transaction with *values* in partition 0."""
    producer.init_transactions(**init)
    producer.begin_transaction()
    for value in values:
        producer.send(topic, value, partition=0)
    return producer.prepare_transaction()


@BOTH
@pytest.mark.parametrize("commit", [True, False])
def test_somebody_else_ends_it(
    kafka: Kafka,
    topic: str,
    control: TransactionControl,
    commit: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also after the producer was closed, which leaves it alone and logs nothing; and again."""
    with kafka.producer(linger_ms=60_000) as producer:
        found = prepared(producer, topic, b"first", b"second")
    assert not [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]
    assert found.transactional_id == producer.config.transactional_id
    assert found.protocol == (2 if kafka.protocol == "TV2" else 1)
    assert not found.empty
    (described,) = control.describe([found.transactional_id]).values()
    assert described.state == "Ongoing"
    assert (described.producer_id, described.producer_epoch) == found[1:3]
    assert described.partitions == ((topic, 0),)
    copy = pickle.loads(pickle.dumps(found))
    for _ in range(3):
        assert control.complete(copy, commit) == (COMMITTED if commit else ABORTED)
    assert kafka.committed(topic) == ([b"first", b"second"] if commit else [])


def test_another_process_ends_it(kafka: Kafka, topic: str) -> None:
    with kafka.producer() as producer:
        found = prepared(producer, topic, b"value")
        output = run(
            """
            import pickle, sys
            from pykaproducer import TransactionControl
            prepared = pickle.loads(bytes.fromhex(sys.argv[1]))
            with TransactionControl(bootstrap_servers=sys.argv[2]) as control:
                print(control.complete(prepared, commit=True).state.name)
            """,
            pickle.dumps(found).hex(),
            kafka.cluster.bootstrap_servers,
        )
    assert output == "COMMITTED\n"
    assert kafka.committed(topic) == [b"value"]


def test_the_producer_goes_on_with_other_ids(
    kafka: Kafka, topic: str, control: TransactionControl
) -> None:
    """Transactions of one producer are open at the same time, in the same partition."""
    with kafka.producer() as producer:
        found = [
            prepared(producer, topic, b"%d" % n, transactional_id=f"{topic}-{n}") for n in range(4)
        ]
        with pytest.raises(
            TransactionStateError, match=f"'{topic}-3': send.*the last transaction was prepared"
        ):
            producer.send(topic, b"refused")
        producer.init_transactions(transactional_id=f"{topic}-last")
        with producer.transaction():
            producer.send(topic, b"last", partition=0)
    assert len({(each.producer_id, each.producer_epoch) for each in found}) == 4
    assert control.complete_all(found[:1:-1], commit=True) == [COMMITTED, COMMITTED]
    assert control.complete_all(found[:2], commit=False) == [ABORTED, ABORTED]
    assert kafka.committed(topic) == [b"2", b"3", b"last"]


def test_the_next_instance_of_the_same_id_aborts_it(
    kafka: Kafka, topic: str, control: TransactionControl
) -> None:
    with kafka.producer() as producer:
        found = prepared(producer, topic, b"lost")
        again = prepared(producer, topic, b"kept")
        assert again.transactional_id == found.transactional_id
        ended = control.complete(found, commit=True)
        assert (ended.state, ended.code) == (EndState.UNSURE, 90)
        assert ended.reason.startswith("END_TXN returned PRODUCER_FENCED (90); another client")
        assert control.complete(again, commit=True) == COMMITTED
    assert kafka.committed(topic) == [b"kept"]


def test_a_committed_transaction_cannot_be_aborted(
    kafka: Kafka, topic: str, control: TransactionControl
) -> None:
    with kafka.producer() as producer:
        found = prepared(producer, topic, b"kept")
        assert control.complete(found, commit=True) == COMMITTED
        ended = control.complete(found, commit=False)
        assert (ended.state, ended.code) == (EndState.UNSURE, 48)
        assert "may have been committed before" in ended.reason
        producer.init_transactions()  # after that nothing is known of it
        assert control.complete(found, commit=True).state is EndState.UNSURE
    assert kafka.committed(topic) == [b"kept"]


@BOTH
def test_the_coordinator_aborts_it_after_its_timeout(
    kafka: Kafka, topic: str, control: TransactionControl
) -> None:
    with kafka.producer(transaction_timeout_ms=SHORT_MS) as producer:
        found = prepared(producer, topic, b"late")
        assert kafka.committed(topic) == []  # waits until it is aborted
        ended = control.complete(found, commit=True)
        # With TV2 the coordinator still knows this epoch (KIP-890).
        assert ended.state is (EndState.ABORTED if kafka.protocol == "TV2" else EndState.UNSURE)
        assert control.complete(found, commit=False).state in (EndState.ABORTED, EndState.UNSURE)
        producer.init_transactions()  # the timeout of a prepared transaction is not the producer's
        with producer.transaction():
            producer.send(topic, b"next", partition=0)
    assert kafka.committed(topic) == [b"next"]


def test_one_without_messages_needs_no_end(kafka: Kafka, control: TransactionControl) -> None:
    with kafka.begun() as producer:
        found = producer.prepare_transaction()
    assert found.empty
    assert control.complete(found, commit=True) == COMMITTED
    assert control.complete(found, commit=False) == ABORTED


def test_offsets_belong_to_it(kafka: Kafka, topic: str, control: TransactionControl) -> None:
    with kafka.begun() as producer:
        producer.send(topic, b"value", partition=0)
        producer.send_offsets_to_transaction({TopicPartition(topic, 1): 7}, f"group-{topic}")
        found = producer.prepare_transaction()
    assert control.offsets([f"group-{topic}"], stable=False) == {f"group-{topic}": {}}
    control.complete(found, commit=True)
    # Waits until the marker is written, as the partition is named.
    (offsets,) = control.offsets([f"group-{topic}"], {topic: [1]}).values()
    assert {place: each.offset for place, each in offsets.items()} == {TopicPartition(topic, 1): 7}


def test_a_failed_message_prevents_it(kafka: Kafka, topic: str) -> None:
    with kafka.begun() as producer:
        producer.send(topic, b"value", partition=99)
        with pytest.raises(TransactionAbortableError, match="partition 99"):
            producer.prepare_transaction()
        producer.abort_transaction()
        producer.flush()  # the failure was reported


def test_close_reports_one_whose_caller_has_given_up(
    kafka: Kafka, topic: str, control: TransactionControl, caplog: pytest.LogCaptureFixture
) -> None:
    with kafka.begun(proxied=True, transactional_id=topic) as producer:
        producer.send(topic, b"value", partition=0).result(PATIENCE)
        kafka.proxy.black_hole()
        producer.send(topic, b"value", partition=0)
        with pytest.raises(TransactionTimeoutError):
            producer.prepare_transaction(0.2)
        calls = calls_of(producer)
        closing = Call(producer.close)
        while not calls.are_closing:
            tick()
        kafka.proxy.restore()
        assert closing.error() is None
    text = "prepare_transaction() did not return its transaction; a transaction is left open"
    assert text in caplog.text
    assert control.fence([topic]) == (topic,)
    assert kafka.committed(topic) == []


def test_the_drop_in_for_kafka_python(
    kafka: Kafka, topic: str, control: TransactionControl
) -> None:
    """Its init_transactions() has an effect again after a transaction was prepared."""
    servers = kafka.cluster.bootstrap_servers
    with KafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-0") as producer:
        found = prepared(producer, topic, b"first")
        producer.init_transactions(transactional_id=f"{topic}-1")
        producer.init_transactions()  # without effect
        with producer.transaction():
            producer.send(topic, b"second", partition=0)
            producer.init_transactions()  # as kafka-python: without effect
    assert control.complete(found, commit=True) == COMMITTED
    assert kafka.committed(topic) == [b"first", b"second"]


@pytest.mark.parametrize(
    ("kafka", "where", "commit"),
    pairwise(itertools.product(FEATURES, Cut, [True, False])),
    indirect=["kafka"],
)
def test_the_request_to_end_it_is_lost(kafka: Kafka, topic: str, where: Cut, commit: bool) -> None:
    with (
        kafka.producer() as producer,
        TransactionControl(bootstrap_servers=kafka.cluster.proxied_servers) as control,
    ):
        found = prepared(producer, topic, b"value")
        kafka.proxy.cut(where, api_key=END_TXN)
        before = kafka.proxy.cuts
        assert control.complete(found, commit) == (COMMITTED if commit else ABORTED)
        assert kafka.proxy.cuts == before + 1
    assert kafka.committed(topic) == [b"value"] * commit


def test_no_answer_is_unsure(kafka: Kafka, topic: str, control: TransactionControl) -> None:
    with kafka.producer() as producer:
        found = prepared(producer, topic, b"value")
    with TransactionControl(bootstrap_servers=kafka.cluster.proxied_servers) as proxied:
        proxied.describe([found.transactional_id])
        kafka.proxy.black_hole()
        ended = proxied.complete(found, commit=True, timeout=1)
        assert (ended.state, ended.code) == (EndState.UNSURE, None)
        assert ended.reason == f"END_TXN was not answered by {kafka.proxy.address}"
        with pytest.raises(TransactionError, match=r"describe\(\): .* no answer within 1 s"):
            proxied.describe([found.transactional_id], timeout=1)
        kafka.proxy.restore()
        # The same call returns the outcome later.
        assert proxied.complete(found, commit=True, timeout=PATIENCE) == COMMITTED
    assert kafka.committed(topic) == [b"value"]


def test_many_at_once(kafka: Kafka, topic: str) -> None:
    """One that cannot be committed does not prevent the others.

    A broker serves one request of a connection at a time, so several connections are used.
    """
    with kafka.producer() as producer:
        found = [
            prepared(producer, topic, b"%d" % n, transactional_id=f"{topic}-{n}") for n in range(66)
        ]
        producer.init_transactions(transactional_id=f"{topic}-7")
    assert kafka.proxy.connections == 0
    with TransactionControl(bootstrap_servers=kafka.cluster.proxied_servers) as control:
        ended = control.complete_all(found, commit=True, timeout=PATIENCE)
        assert 2 <= kafka.proxy.connections <= 4
        assert control.complete_all(found[8:], commit=True, timeout=PATIENCE) == [COMMITTED] * 58
        assert kafka.proxy.connections <= 4
    assert ended.pop(7).state is EndState.UNSURE
    assert ended == [COMMITTED] * 65
    assert kafka.committed(topic) == [b"%d" % n for n in range(66) if n != 7]
    # The client's connections are closed: the fixture of the topic waits for that.

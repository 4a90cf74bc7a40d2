"""Closing a producer, and the end of a process, with an open transaction."""

from __future__ import annotations

import logging
import threading

import pytest

from pykaproducer import Producer
from pykaproducer.errors import (
    CommitOutcome,
    ProducerClosedError,
    TransactionAbortedError,
    TransactionTimeoutError,
)
from pykaproducer.testing import ScriptedCluster
from pykaproducer.testing._processes import tick
from pykaproducer.testing.scripted import Hold
from tests._support.programs import run
from tests._support.threads import Call
from tests.transactions.helper import BOTH, PATIENCE, SHORT_MS, Kafka, begun, calls_of
from tests.transactions.scripted_helper import producer_of


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    levels = ("WARNING", "ERROR")
    return [each.getMessage() for each in caplog.records if each.levelname in levels]


@BOTH
def test_close_aborts_an_open_transaction(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = kafka.begun(linger_ms=60_000)
    lingers = producer.send(topic, b"lingers", partition=1)
    producer.send(topic, b"written", partition=0)
    producer.flush()
    lost = producer.send(topic, b"lost", partition=0)
    producer.send(topic, b"lost, too", partition=0)
    producer.close(PATIENCE)
    assert lingers.exception(0) is None
    assert isinstance(lost.exception(0), TransactionAbortedError)
    (line,) = warnings(caplog)
    assert line.endswith(
        f"{producer.config.transactional_id!r}: the open transaction was aborted, and 2 messages "
        f"of it failed; call commit_transaction() before close()"
    )
    assert kafka.committed(topic) == []  # it is over: this does not wait for a timeout
    assert kafka.written(topic) == [b"written", b"lingers"]


def test_close_of_a_failed_transaction(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = kafka.begun()
    producer.send(topic, b"written", partition=0).result(PATIENCE)
    assert producer.send(topic, b"nowhere", partition=99).exception(PATIENCE) is not None
    producer.close()
    refused, line = warnings(caplog)
    assert "the transaction must be aborted" in refused
    assert "the open transaction was aborted; call" in line
    assert kafka.committed(topic) == []


def test_close_logs_the_outcome_of_a_commit_that_nobody_waits_for(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pykaproducer.producer")
    producer = kafka.begun(proxied=True, transaction_timeout_ms=600_000)
    producer.send(topic, b"value", partition=0).result(PATIENCE)
    kafka.proxy.black_hole()
    with pytest.raises(TransactionTimeoutError):
        producer.commit_transaction(0.1)
    calls = calls_of(producer)
    closing = Call(producer.close)
    while not calls.are_closing:
        tick()
    kafka.proxy.restore()
    assert closing.error() is None
    texts = [each.getMessage() for each in caplog.records if each.name == "pykaproducer.producer"]
    assert any(
        text.startswith("close(): transactional id ")
        and text.endswith(": the outcome of the last transaction is COMMITTED")
        for text in texts
    )
    assert kafka.committed(topic) == [b"value"]


@BOTH
def test_close_of_a_producer_whose_id_was_taken_over(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = kafka.begun(transactional_id=topic)
    producer.send(topic, b"dropped", partition=0).result(PATIENCE)
    with kafka.producer(transactional_id=topic) as other, other.transaction():
        other.send(topic, b"kept", partition=0)
    producer.close()
    (line,) = [line for line in warnings(caplog) if line.startswith("close(): ")]
    if kafka.protocol == "TV2":
        assert "another producer has taken over the transactional id" in line
    else:  # a coordinator of TV1 gives the same answer after a timeout
        assert "the open transaction was aborted" in line
    assert kafka.committed(topic) == [b"kept"]


def test_close_from_a_callback(kafka: Kafka, topic: str) -> None:
    producer = kafka.begun()
    closed = threading.Event()

    def close(_error: object, _delivery: object) -> None:
        producer.close()
        closed.set()

    producer.send(topic, b"value", on_delivery=close)
    assert closed.wait(PATIENCE)
    with pytest.raises(ProducerClosedError):
        producer.commit_transaction()
    producer.close()
    assert kafka.committed(topic) == []


def test_close_between_transactions_is_quiet(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.producer().close()
    for end in (Producer.commit_transaction, Producer.abort_transaction):
        producer = kafka.begun()
        producer.send(topic, b"value")
        end(producer)
        producer.close()
    unused = kafka.producer()
    unused.init_transactions()
    unused.close()
    assert warnings(caplog) == []
    assert kafka.committed(topic) == [b"value"]


@pytest.mark.parametrize(
    ("last_lines", "warned"),
    [
        (["producer = None", "gc.collect()"], True),
        (["sys.exit()"], True),
        (["1 / 0"], True),
        (["with producer: 1 / 0"], True),
        (["producer.abort_transaction()"], False),
    ],
    ids=["no reference", "exit", "exception", "exception in with", "ended"],
)
def test_how_a_process_may_end(
    kafka: Kafka, topic: str, last_lines: list[str], warned: bool
) -> None:
    script = """
        import gc, logging, sys
        from pykaproducer import Producer

        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
        sys.excepthook = lambda kind, error, trace: print(kind.__name__)
        servers, topic = sys.argv[1:]
        producer = Producer(
            bootstrap_servers=servers,
            transactional_id=f"process {topic}",
            exit_flush_timeout_ms=60_000,
        )
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"dropped", partition=0).result(60)
        """
    lines = "\n".join(f"        {line}" for line in last_lines)
    fails = any("1 / 0" in line for line in last_lines)
    output = run(
        f"{script.rstrip()}\n{lines}\n",
        kafka.cluster.bootstrap_servers,
        topic,
        code=1 if fails else 0,
    )
    assert ("WARNING close(): transactional id" in output) == warned
    assert ("the open transaction was aborted; call commit_transaction()" in output) == warned
    assert ("ZeroDivisionError" in output) == fails
    assert kafka.committed(topic) == []


def test_what_close_leaves_to_the_coordinator(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One timeout is waited for, by readers of all three partitions."""

    def written(partition: int) -> Producer:
        producer = kafka.begun(proxied=True, transaction_timeout_ms=SHORT_MS)
        producer.send(topic, b"written", partition=partition).result(PATIENCE)
        return producer

    aborted, unreachable, committed = (written(partition) for partition in range(3))
    aborted.abort()
    kafka.proxy.black_hole()
    unreachable.close(0.2)
    committing = Call(lambda: committed.commit_transaction(PATIENCE))
    while committed._refused is None:  # until the commit has begun
        committing.join(0.01)
    committed.close(0)
    error = committing.error()
    kafka.proxy.restore()
    assert isinstance(error, ProducerClosedError)
    assert str(error).startswith("commit_transaction(): the producer was closed")
    left = [line for line in warnings(caplog) if "a transaction is left open" in line]
    assert len(left) >= 2
    assert all("its coordinator aborts it" in line for line in left)
    assert all(f"transaction_timeout_ms ({SHORT_MS} ms)" in line for line in left)
    # The coordinator may have got the request for the commit.
    assert kafka.committed(topic) in ([], [b"written"])


@pytest.mark.parametrize("lost", [False, True])
def test_the_outcome_of_a_commit_for_which_close_has_waited(
    scripted: ScriptedCluster, lost: bool
) -> None:
    """``commit_transaction()`` gives it, although the producer is closed."""
    with producer_of(scripted) as producer:
        begun(producer)
        producer.send("t", b"value", partition=0)
        hold = Hold()
        scripted.next("end_txn", hold)
        with pytest.raises(TransactionTimeoutError):
            producer.commit_transaction(timeout=0.01)
        hold.wait_until_held()
        if lost:
            producer.close(0.01)
            hold.release()
        else:
            hold.release()
            producer.close()
        with pytest.raises(ProducerClosedError) as caught:
            producer.commit_transaction()
        expected = CommitOutcome.POSSIBLY_COMMITTED if lost else CommitOutcome.COMMITTED
        assert caught.value.outcome is expected

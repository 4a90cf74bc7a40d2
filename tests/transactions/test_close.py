"""Closing a producer, and the end of a process, with an open transaction."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.errors import (
    DeliveryFailures,
    ProducerClosedError,
    TransactionAbortedError,
    TransactionTimeoutError,
)
from pykaproducer.testing._processes import tick
from pykaproducer.transaction_control import TransactionControl
from tests._support.programs import run
from tests.transactions.helper import PATIENCE, SHORT_MS, Kafka, calls_of


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    levels = ("WARNING", "ERROR")
    return [each.getMessage() for each in caplog.records if each.levelname in levels]


def begun(kafka: Kafka, **settings: Any) -> Producer:
    producer = kafka.producer(**settings)
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def test_close_aborts_an_open_transaction(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = begun(kafka, linger_ms=60_000)
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
    producer = begun(kafka)
    producer.send(topic, b"written", partition=0).result(PATIENCE)
    assert producer.send(topic, b"nowhere", partition=99).exception(PATIENCE) is not None
    producer.close()
    refused, line = warnings(caplog)
    assert "the transaction must be aborted" in refused
    assert "the open transaction was aborted; call" in line
    assert kafka.committed(topic) == []


def test_the_end_of_with_raises_what_failed(kafka: Kafka, topic: str) -> None:
    with (
        pytest.raises(DeliveryFailures, match=r"1 message was not delivered.*was aborted"),
        begun(kafka, linger_ms=60_000) as producer,
    ):
        producer.send(topic, b"never committed")
    assert kafka.written(topic) == []


@pytest.mark.parametrize("close", [Producer.abort, lambda producer: producer.close(0)])
def test_close_at_once_leaves_it_to_the_coordinator(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture, close: Callable[[Producer], None]
) -> None:
    producer = begun(kafka, transaction_timeout_ms=SHORT_MS)
    producer.send(topic, b"written", partition=0).result(PATIENCE)
    close(producer)
    (line,) = warnings(caplog)
    assert "a transaction is left open; its coordinator aborts it" in line
    assert f"transaction_timeout_ms ({SHORT_MS} ms)" in line
    assert kafka.committed(topic) == []


def test_close_while_nothing_is_reachable(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = begun(kafka, proxied=True, transaction_timeout_ms=SHORT_MS)
    producer.send(topic, b"written", partition=0).result(PATIENCE)
    kafka.proxy.black_hole()
    try:
        producer.close(0.2)
    finally:
        kafka.proxy.restore()
    assert any("a transaction is left open" in line for line in warnings(caplog))
    assert kafka.committed(topic) == []


def test_close_waits_for_a_commit(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    in_callback, go_on = threading.Event(), threading.Event()

    def on_delivery(_error: Any, _delivery: Any) -> None:
        in_callback.set()
        go_on.wait(PATIENCE)

    producer = begun(kafka)
    producer.send(topic, b"value", on_delivery=on_delivery)
    ended: list[str] = []

    def commit() -> None:
        producer.commit_transaction()
        ended.append("commit")

    committing = threading.Thread(target=commit)
    committing.start()
    assert in_callback.wait(PATIENCE)
    while producer._refused is None:  # until the commit has begun
        committing.join(0.01)
    closing = threading.Thread(target=producer.close)
    closing.start()
    while not producer._closed:
        closing.join(0.01)
    go_on.set()
    committing.join(PATIENCE)
    closing.join(PATIENCE)
    assert ended == ["commit"]
    assert warnings(caplog) == []
    assert kafka.committed(topic) == [b"value"]


def test_close_logs_the_outcome_of_a_commit_that_nobody_waits_for(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pykaproducer.producer")
    producer = begun(kafka, proxied=True, transaction_timeout_ms=600_000)
    producer.send(topic, b"value", partition=0).result(PATIENCE)
    kafka.proxy.black_hole()
    with pytest.raises(TransactionTimeoutError):
        producer.commit_transaction(0.1)
    calls = calls_of(producer)
    closing = threading.Thread(target=producer.close)
    closing.start()
    while not calls.are_closing:
        tick()
    kafka.proxy.restore()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    texts = [each.getMessage() for each in caplog.records if each.name == "pykaproducer.producer"]
    assert any(
        text.startswith("close(): transactional id ")
        and text.endswith(": the outcome of the last transaction is COMMITTED")
        for text in texts
    )
    assert kafka.committed(topic) == [b"value"]


def test_close_of_a_prepared_transaction_leaves_it_to_others(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = begun(kafka)
    producer.send(topic, b"value", partition=0)
    prepared = producer.prepare_transaction()
    producer.close()
    assert warnings(caplog) == []
    with TransactionControl(bootstrap_servers=kafka.cluster.bootstrap_servers) as control:
        control.complete(prepared, commit=True)
    assert kafka.committed(topic) == [b"value"]


def test_close_while_it_is_initialized(kafka: Kafka, topic: str) -> None:
    producer = kafka.producer(proxied=True)
    reported: list[str] = []

    def initialize() -> None:
        with pytest.raises(ProducerClosedError) as raised:
            producer.init_transactions()
        reported.append(str(raised.value))

    kafka.proxy.black_hole()
    initializing = threading.Thread(target=initialize)
    initializing.start()
    while producer.stats()["transactions"]["state"] != "initializing":
        tick()
    producer.close(0.1)
    initializing.join(PATIENCE)
    kafka.proxy.restore()
    assert reported == ["init_transactions(): the producer was closed"]


def test_close_of_a_producer_whose_id_was_taken_over(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    producer = begun(kafka, transactional_id=topic)
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


def test_an_exception_in_the_block_of_a_producer(
    kafka: Kafka, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.suppress(ZeroDivisionError), begun(kafka) as producer:
        producer.send(topic, b"dropped", partition=0).result(PATIENCE)
        _ = 1 // 0
    (line,) = warnings(caplog)
    assert "the open transaction was aborted" in line
    assert kafka.committed(topic) == []


def test_a_commit_that_close_does_not_wait_for(kafka: Kafka, topic: str) -> None:
    """The call raises, and does not hang."""
    reported: list[Exception] = []

    def commit() -> None:
        try:
            producer.commit_transaction(PATIENCE)
        except ProducerClosedError as error:
            reported.append(error)

    producer = begun(kafka, proxied=True, transaction_timeout_ms=SHORT_MS)
    producer.send(topic, b"written", partition=0).result(PATIENCE)
    kafka.proxy.black_hole()
    committing = threading.Thread(target=commit)
    committing.start()
    while producer._refused is None:  # until the commit has begun
        committing.join(0.01)
    producer.close(0)
    committing.join(PATIENCE)
    kafka.proxy.restore()
    (error,) = reported
    assert str(error).startswith("commit_transaction(): the producer was closed")
    assert kafka.committed(topic) in ([], [b"written"])


def test_close_from_a_callback(kafka: Kafka, topic: str) -> None:
    producer = begun(kafka)
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
        producer = begun(kafka)
        producer.send(topic, b"value")
        end(producer)
        producer.close()
    unused = kafka.producer()
    unused.init_transactions()
    unused.close()
    assert warnings(caplog) == []
    assert kafka.committed(topic) == [b"value"]


def test_the_end_of_a_process_aborts_an_open_transaction(kafka: Kafka, topic: str) -> None:
    output = run(
        """
        import logging, sys
        from pykaproducer import Producer
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
        servers, topic = sys.argv[1:]
        producer = Producer(
            bootstrap_servers=servers,
            transactional_id=f"process {topic}",
            exit_flush_timeout_ms=60_000,
        )
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)
        producer.begin_transaction()
        producer.send(topic, b"dropped", partition=0).result(60)
        """,
        kafka.cluster.bootstrap_servers,
        topic,
    )
    assert "WARNING close(): transactional id" in output
    assert "the open transaction was aborted; call commit_transaction() before close()" in output
    assert kafka.committed(topic) == [b"kept"]
    assert kafka.written(topic) == [b"kept", b"dropped"]


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


@pytest.mark.parametrize(
    "end", ["sys.exit(3)", "raise KeyboardInterrupt", "1 / 0", "transaction.abort()"]
)
def test_how_a_block_may_end(kafka: Kafka, topic: str, end: str) -> None:
    """The block has aborted it, so there is nothing to warn of at the end of the process."""
    script = f"""
        import logging, sys
        from pykaproducer import Producer

        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
        servers, topic = sys.argv[1:]
        producer = Producer(
            bootstrap_servers=servers,
            transactional_id=f"block {{topic}}",
            exit_flush_timeout_ms=60_000,
        )
        try:
            with producer.transaction() as transaction:
                producer.send(topic, b"dropped", partition=0).result(60)
                {end}
        except BaseException as error:
            print(type(error).__name__)
        print(producer.stats()["transactions"]["aborted"])
        """
    output = run(script, kafka.cluster.bootstrap_servers, topic).split()
    assert output.pop() == "1"
    assert output in ([], ["SystemExit"], ["KeyboardInterrupt"], ["ZeroDivisionError"])
    assert kafka.committed(topic) == []

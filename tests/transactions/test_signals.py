"""Signals while a transaction is begun, written and ended: Ctrl-C, and handlers that use it."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.delivery import TopicPartition
from pykaproducer.errors import TransactionStateError
from pykaproducer.testing._processes import tick
from tests._support.programs import run
from tests.transactions.helper import PATIENCE, Kafka

#: The signal that is sent to the main thread; pytest does not use it.
SIGNAL = signal.SIGUSR1

Strike = Callable[[Callable[[], object], Callable[[], object]], None]


def is_waiting(thread: threading.Thread, calls: int = 1) -> bool:
    """Return whether it sleeps in this many calls: Python sees a signal when that ends.

    A thread that waits for the interpreter's lock sleeps, too. Then the coordinator's stage need
    not have the call yet, so the innermost frame has to be that of the wait for it.
    """
    frame = sys._current_frames()[thread.ident]  # type: ignore[index]
    if frame.f_code.co_name != "acquire":
        return False
    found = 0
    while frame is not None:
        found += frame.f_code.co_name == "_control"
        frame = frame.f_back  # type: ignore[assignment]
    state = pathlib.Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
    return found == calls and state.rpartition(")")[2].split()[0] == "S"


@pytest.fixture
def strike() -> Iterator[Strike]:
    """Yield a function: run the first argument, and the second in a signal handler.

    The signal comes when the call waits.
    """
    handlers: list[Callable[[], object]] = []

    def handle(_number: int, _frame: object) -> None:
        if handlers:
            handlers.pop()()

    def struck(call: Callable[[], object], handler: Callable[[], object]) -> None:
        main = threading.main_thread()

        def kill() -> None:
            # A signal that comes just before the main thread blocks does not wake it.
            while handlers:
                if is_waiting(main):
                    os.kill(os.getpid(), SIGNAL)
                tick()

        handlers.append(handler)
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            call()
        finally:
            was_struck = not handlers
            handlers.clear()
            killer.join()
        assert was_struck, "the call did not wait"

    before = signal.signal(SIGNAL, handle)
    yield struck
    signal.signal(SIGNAL, before)


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture
def producer(kafka: Kafka) -> Iterator[Producer]:
    """Yield a producer whose brokers do not answer, in a transaction with a message."""
    with kafka.producer(proxied=True, exit_flush_timeout_ms=200) as made:
        made.init_transactions(PATIENCE)
        yield made
        kafka.proxy.restore()


def begin(producer: Producer, topic: str) -> None:
    producer.begin_transaction()
    producer.send(topic, b"value", partition=0).result(PATIENCE)


def state_of(producer: Producer) -> Any:
    return producer.stats()["transactions"]["state"]


# Ctrl-C ------------------------------------------------------------------------------------------


def test_ctrl_c_in_a_commit(kafka: Kafka, topic: str, producer: Producer, strike: Strike) -> None:
    """It continues, the interrupt has a note about it, and the same call returns the outcome."""
    begin(producer, topic)
    kafka.proxy.black_hole()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as raised:
            strike(producer.commit_transaction, interrupt)
        (note,) = raised.value.__notes__
        assert note == "it continues; call commit_transaction() again to learn its outcome"
        with pytest.raises(TransactionStateError, match=r"commit_transaction\(\) is under way"):
            producer.begin_transaction()
    kafka.proxy.restore()
    producer.commit_transaction(PATIENCE)
    with pytest.raises(TransactionStateError, match="there is no transaction"):
        producer.commit_transaction()
    assert kafka.committed(topic) == [b"value"]


def test_a_commit_that_ends_after_ctrl_c_is_not_missed(
    kafka: Kafka, topic: str, producer: Producer, strike: Strike
) -> None:
    """The next transaction does not begin before its outcome has been read."""
    begin(producer, topic)
    kafka.proxy.black_hole()
    with pytest.raises(KeyboardInterrupt):
        strike(producer.commit_transaction, interrupt)
    kafka.proxy.restore()
    while state_of(producer) != "ready":
        tick()
    with pytest.raises(TransactionStateError, match=r"commit_transaction\(\) is under way"):
        producer.begin_transaction()
    producer.commit_transaction()
    begin(producer, topic)
    producer.commit_transaction()
    assert kafka.committed(topic) == [b"value"] * 2


def test_ctrl_c_in_an_abort(kafka: Kafka, topic: str, producer: Producer, strike: Strike) -> None:
    begin(producer, topic)
    kafka.proxy.black_hole()
    with pytest.raises(KeyboardInterrupt):
        strike(producer.abort_transaction, interrupt)
    kafka.proxy.restore()
    producer.abort_transaction(PATIENCE)
    begin(producer, topic)
    producer.commit_transaction()
    assert kafka.committed(topic) == [b"value"]


def test_ctrl_c_while_it_is_initialized(kafka: Kafka, topic: str, strike: Strike) -> None:
    with kafka.producer(proxied=True) as producer:
        kafka.proxy.black_hole()
        for call in (producer.init_transactions, producer.transaction().__enter__):
            with pytest.raises(KeyboardInterrupt):
                strike(call, interrupt)
            assert state_of(producer) == "initializing"
        kafka.proxy.restore()
        with producer.transaction():
            producer.send(topic, b"value", partition=0)
    assert kafka.committed(topic) == [b"value"]


def test_ctrl_c_while_offsets_are_sent(
    kafka: Kafka, topic: str, producer: Producer, strike: Strike
) -> None:
    """The same call continues, or the transaction is aborted."""
    offsets = {TopicPartition(topic, 0): 5}
    for end in (producer.commit_transaction, producer.abort_transaction):
        begin(producer, topic)
        kafka.proxy.black_hole()
        with pytest.raises(KeyboardInterrupt):
            strike(
                lambda: producer.send_offsets_to_transaction(offsets, f"group {topic}"), interrupt
            )
        kafka.proxy.restore()
        if end == producer.commit_transaction:
            producer.send_offsets_to_transaction(offsets, f"group {topic}", timeout=PATIENCE)
        end(PATIENCE)
    assert kafka.committed(topic) == [b"value"]


def test_ctrl_c_in_the_body_of_with(kafka: Kafka, topic: str) -> None:
    def write() -> None:
        with producer.transaction():
            producer.send(topic, b"dropped", partition=0).result(PATIENCE)
            interrupt()

    with kafka.producer(exit_flush_timeout_ms=1000 * PATIENCE) as producer:
        with pytest.raises(KeyboardInterrupt) as raised:
            write()
        assert not hasattr(raised.value, "__notes__")
        with producer.transaction():
            producer.send(topic, b"kept", partition=0)
    assert kafka.committed(topic) == [b"kept"]


def test_ctrl_c_in_the_body_of_with_is_not_held_up_for_long(
    kafka: Kafka, topic: str, producer: Producer
) -> None:
    def write() -> None:
        with producer.transaction():
            producer.send(topic, b"dropped", partition=0).result(PATIENCE)
            kafka.proxy.black_hole()
            interrupt()

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as raised:
        write()
    assert time.monotonic() - began < 20  # much earlier than by max_block_ms
    (note,) = raised.value.__notes__
    assert note.startswith("the transaction was not aborted: transactional id ")
    assert "abort_transaction() has not ended within its timeout; it continues" in note
    kafka.proxy.restore()
    producer.abort_transaction(PATIENCE)
    assert kafka.committed(topic) == []


def test_ctrl_c_in_the_commit_at_the_end_of_with(
    kafka: Kafka, topic: str, producer: Producer, strike: Strike
) -> None:
    """It is not aborted: the commit continues."""

    def write() -> None:
        with producer.transaction():
            producer.send(topic, b"value", partition=0).result(PATIENCE)
            kafka.proxy.black_hole()

    with pytest.raises(KeyboardInterrupt) as raised:
        strike(write, interrupt)
    assert "call commit_transaction() again" in raised.value.__notes__[0]
    kafka.proxy.restore()
    producer.commit_transaction(PATIENCE)
    assert kafka.committed(topic) == [b"value"]


# Handlers ----------------------------------------------------------------------------------------


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(TransactionStateError) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_a_handler_may_make_the_same_call(
    kafka: Kafka, topic: str, producer: Producer, strike: Strike, call: str
) -> None:
    """It waits for the same end, and so does the call that it has interrupted."""
    ended: list[str] = []

    def answer() -> None:
        while not is_waiting(threading.main_thread(), calls=2):
            tick()
        kafka.proxy.restore()

    def handler() -> None:
        answering = threading.Thread(target=answer)
        answering.start()
        getattr(producer, call)(PATIENCE)
        answering.join()
        ended.append("handler")

    begin(producer, topic)
    kafka.proxy.black_hole()
    strike(getattr(producer, call), handler)
    assert ended == ["handler"]
    assert state_of(producer) == "ready"
    assert kafka.committed(topic) == ([b"value"] if call == "commit_transaction" else [])


def test_a_handler_that_makes_other_calls_is_refused_at_once(
    kafka: Kafka, topic: str, producer: Producer, strike: Strike
) -> None:
    reported: list[str] = []

    def handler() -> None:
        for call in (
            producer.abort_transaction,
            producer.begin_transaction,
            producer.init_transactions,
        ):
            reported.append(refused(call))
        reported.append(refused(lambda: producer.send(topic, b"refused")))
        kafka.proxy.restore()

    begin(producer, topic)
    kafka.proxy.black_hole()
    strike(producer.commit_transaction, handler)
    assert len(reported) == 4
    assert all("commit_transaction() is under way" in text for text in reported[:3])
    assert kafka.committed(topic) == [b"value"]


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_a_handler_may_close(
    kafka: Kafka, topic: str, producer: Producer, strike: Strike, call: str
) -> None:
    def handler() -> None:
        kafka.proxy.restore()
        producer.close()

    begin(producer, topic)
    kafka.proxy.black_hole()
    strike(getattr(producer, call), handler)
    assert kafka.committed(topic) == ([b"value"] if call == "commit_transaction" else [])


def test_a_handler_may_begin_and_end_a_transaction_between_others(
    kafka: Kafka, topic: str, producer: Producer
) -> None:
    def handler(_number: int, _frame: object) -> None:
        with producer.transaction():
            producer.send(topic, b"handler", partition=1)

    before = signal.signal(SIGNAL, handler)
    try:
        for _ in range(3):
            with producer.transaction():
                producer.send(topic, b"program", partition=0)
            os.kill(os.getpid(), SIGNAL)
    finally:
        signal.signal(SIGNAL, before)
    assert kafka.committed(topic) == [b"program"] * 3 + [b"handler"] * 3


# At random moments -------------------------------------------------------------------------------

STORM = """
    import random, signal, sys
    from pykaproducer import Producer, TransactionStateError

    servers, topic, seed = sys.argv[1:]
    chance, armed, struck = random.Random(int(seed)), False, 0

    def strike(number, frame):
        global struck
        if armed:
            struck += 1
            raise KeyboardInterrupt

    def interrupt(operation, *arguments):
        global armed
        try:
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 1e-2))
                operation(*arguments)
            finally:
                armed = False
        except KeyboardInterrupt:
            return False
        return True

    def write(number):
        with producer.transaction() as transaction:
            for i in range(5):
                producer.send(topic, b"%d" % number, partition=i % 3)
            if number % 3 == 2:
                transaction.abort()

    def settle():
        "Do what the errors say, until there is no transaction."
        calls = {
            "commit_transaction": producer.commit_transaction,
            "abort_transaction": producer.abort_transaction,
            "init_transactions": producer.init_transactions,
        }
        name = "commit_transaction"
        for _ in range(5):
            try:
                calls[name]()
            except TransactionStateError as error:
                if error.under_way is None:
                    return
                name = error.under_way
            else:
                name = "commit_transaction"
        raise AssertionError("it does not end")

    signal.signal(signal.SIGALRM, strike)
    with Producer(
        bootstrap_servers=servers, transactional_id=f"storm {topic}", retry_backoff_ms=20
    ) as producer:
        number = 0
        while struck < 150:
            whole = interrupt(write, number)
            print(number, "whole" if whole else "interrupted")
            if not whole:
                settle()
            number += 1
        write(300_000)
    """


@pytest.mark.parametrize("seed", range(2))
def test_interrupts_at_random_moments(kafka: Kafka, topic: str, seed: int) -> None:
    """Each transaction is visible as a whole or not at all, and the producer remains usable."""
    output = run(STORM, kafka.cluster.bootstrap_servers, topic, str(seed), timeout=300)
    values = [int(value) for value in kafka.committed(topic)]
    counts = {number: values.count(number) for number in set(values)}
    assert set(counts.values()) == {5}
    assert 300_000 in counts
    for number, how in (line.split() for line in output.splitlines()):
        if how == "whole":
            assert (int(number) in counts) == (int(number) % 3 != 2)


def test_a_program_that_is_ended_by_ctrl_c_aborts(kafka: Kafka, topic: str) -> None:
    output = run(
        """
        import contextlib, logging, os, signal, sys
        from pykaproducer import Producer
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
        servers, topic = sys.argv[1:]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with (
            contextlib.suppress(KeyboardInterrupt),
            Producer(
                bootstrap_servers=servers,
                transactional_id=f"ctrl-c {topic}",
                exit_flush_timeout_ms=60_000,
            ) as producer,
        ):
            with producer.transaction():
                producer.send(topic, b"kept", partition=0)
            with producer.transaction():
                producer.send(topic, b"dropped", partition=0).result(60)
                os.kill(os.getpid(), signal.SIGINT)
                producer.send(topic, b"dropped, too", partition=0)
        """,
        kafka.cluster.bootstrap_servers,
        topic,
    )
    assert output == ""  # there is nothing to warn of: the block has aborted it
    assert kafka.committed(topic) == [b"kept"]

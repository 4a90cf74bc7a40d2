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
from pykaproducer.errors import TransactionStateError
from pykaproducer.testing._processes import tick
from tests._support.programs import run
from tests.transactions.helper import PATIENCE, Kafka

#: The signal that is sent to the main thread; pytest does not use it.
SIGNAL = signal.SIGUSR1

Strike = Callable[[Callable[[], object], Callable[[], object]], None]


def is_waiting(thread: threading.Thread) -> bool:
    """Return whether it sleeps in a call: Python sees a signal when that ends.

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
    return found == 1 and state.rpartition(")")[2].split()[0] == "S"


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


# Handlers ----------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
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

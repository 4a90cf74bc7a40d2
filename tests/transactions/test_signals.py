"""Ctrl-C while a transaction is begun, written and ended, on a real broker.

``tests/process`` has Ctrl-C at each place of each call, in each wait, and handlers.
"""

from __future__ import annotations

import textwrap
import time

import pytest

from tests._support.programs import INTERRUPTS, run
from tests.transactions.helper import PATIENCE, Kafka


def test_ctrl_c_in_the_body_of_with_is_not_held_up_for_long(kafka: Kafka, topic: str) -> None:
    with kafka.producer(proxied=True, exit_flush_timeout_ms=200) as producer:
        producer.init_transactions(PATIENCE)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt) as raised, producer.transaction():  # noqa: PT012
            producer.send(topic, b"dropped", partition=0).result(PATIENCE)
            kafka.proxy.black_hole()
            raise KeyboardInterrupt
        assert time.monotonic() - began < 20  # much earlier than by max_block_ms
        (note,) = raised.value.__notes__
        assert note.startswith("the transaction was not aborted: transactional id ")
        assert "abort_transaction() has not ended within its timeout; it continues" in note
        kafka.proxy.restore()
        producer.abort_transaction(PATIENCE)
        assert kafka.committed(topic) == []


STORM = """
    from pykaproducer import Producer, TransactionStateError

    servers, topic = sys.argv[1:3]

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

    with Producer(
        bootstrap_servers=servers, transactional_id=f"storm {topic}", retry_backoff_ms=20
    ) as producer:
        number = 0
        while struck < 150:
            whole = interrupt(write, number, within=1e-2)
            print(number, "whole" if whole else "interrupted")
            if not whole:
                settle()
            number += 1
        write(300_000)
    """


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_interrupts_at_random_moments(kafka: Kafka, topic: str, seed: int) -> None:
    """Each transaction is visible as a whole or not at all, and the producer remains usable."""
    program, servers = INTERRUPTS + textwrap.dedent(STORM), kafka.cluster.bootstrap_servers
    output = run(program, servers, topic, str(seed), timeout=300)
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
        import logging, os, signal, sys
        from pykaproducer import Producer
        logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
        servers, topic = sys.argv[1:]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        settings = {"transactional_id": f"ctrl-c {topic}", "exit_flush_timeout_ms": 60_000}
        try:
            with Producer(bootstrap_servers=servers, **settings) as producer:
                with producer.transaction():
                    producer.send(topic, b"kept", partition=0)
                with producer.transaction():
                    producer.send(topic, b"dropped", partition=0).result(60)
                    os.kill(os.getpid(), signal.SIGINT)
                    producer.send(topic, b"dropped, too", partition=0)
        except KeyboardInterrupt as error:
            assert not hasattr(error, "__notes__")
        """,
        kafka.cluster.bootstrap_servers,
        topic,
    )
    assert output == ""  # there is nothing to warn of: the block has aborted it
    assert kafka.committed(topic) == [b"kept"]

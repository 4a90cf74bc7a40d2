"""Forks, pickles and pools: each process has its own transactions, and its own id."""

from __future__ import annotations

import copy
import os
import pathlib
import pickle
import textwrap

import pytest

from pykaproducer import KafkaProducer, Producer
from pykaproducer.errors import TransactionStateError
from pykaproducer.testing import MockProducer
from tests._support import programs
from tests.transactions.helper import PATIENCE, Kafka

PROLOGUE = """
    import multiprocessing
    from pykaproducer import Producer, TransactionStateError

    servers, topic = sys.argv[1:3]
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")

    def make():
        return Producer(bootstrap_servers=servers, transactional_id=f"parent {topic}")

    def write(producer, value, partition=0):
        with producer.transaction():
            producer.send(topic, value, partition=partition)

    def is_refused(producer):
        "Check that there are no transactions without an id of its own."
        for call in (producer.init_transactions, producer.transaction().__enter__):
            try:
                call()
            except TransactionStateError as error:
                assert "this producer is a copy" in str(error), error
                assert f"parent {topic}" in str(error), error
            else:
                raise AssertionError(call)
        try:
            producer.send(topic, b"refused")
        except TransactionStateError as error:
            assert "init_transactions() has not been called" in str(error), error
        else:
            raise AssertionError("sent")
    """


def run(script: str, kafka: Kafka, topic: str) -> str:
    text = programs.FORKS + textwrap.dedent(PROLOGUE) + textwrap.dedent(script)
    return programs.run(text, kafka.cluster.bootstrap_servers, topic)


# Forks -------------------------------------------------------------------------------------------


def test_a_fork_in_a_transaction(kafka: Kafka, topic: str) -> None:
    """The child is empty, and the parent's transaction continues."""
    output = run(
        """
        def child():
            found = producer.stats()["transactions"]
            assert (found["state"], found["serial"]) == ("uninitialized", 0), found
            assert (found["committed"], producer.accepted) == (0, 0)
            for call in (producer.commit_transaction, producer.abort_transaction):
                try:
                    call()
                except TransactionStateError as error:
                    assert "init_transactions() has not been called" in str(error), error
                else:
                    raise AssertionError(call)
            is_refused(producer)
            producer.close()

        def child_with_an_id():
            is_refused(producer)
            producer.init_transactions(transactional_id=f"child {topic}")
            write(producer, b"child", partition=1)
            producer.init_transactions()
            write(producer, b"child again", partition=1)
            join(fork(grandchild))
            producer.close()

        def grandchild():
            for name in (f"parent {topic}", f"child {topic}"):
                try:
                    producer.init_transactions(transactional_id=name)
                except TransactionStateError as error:
                    assert name in str(error), error
                else:
                    raise AssertionError(name)
            producer.init_transactions(transactional_id=f"grandchild {topic}")
            write(producer, b"grandchild", partition=2)
            producer.close()

        producer = make()
        write(producer, b"before")
        producer.begin_transaction()
        producer.send(topic, b"first").result(60)
        pending = producer.send(topic, b"second")
        join(fork(child))
        join(fork(child_with_an_id))
        producer.send(topic, b"third")
        producer.commit_transaction()
        assert pending.result(0).offset >= 0
        write(producer, b"after")
        producer.close()
        """,
        kafka,
        topic,
    )
    assert output == ""
    values = set(kafka.committed(topic))
    parent = {b"before", b"first", b"second", b"third", b"after"}
    assert values == parent | {b"child", b"child again", b"grandchild"}


def test_a_child_that_ends_does_not_end_the_transaction_of_its_parent(
    kafka: Kafka, topic: str
) -> None:
    """Neither close() nor abort() nor the exit of the child sends anything."""
    output = run(
        """
        producer = make()
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"first", partition=0).result(60)
        for work in (producer.close, producer.abort):
            join(fork(work))
        if not os.fork():
            sys.exit()
        assert os.wait()[1] == 0
        context = multiprocessing.get_context("fork")
        child = context.Process(target=producer.stats)
        child.start()
        child.join(60)
        assert child.exitcode == 0
        producer.send(topic, b"second", partition=0)
        producer.commit_transaction()
        producer.close()
        """,
        kafka,
        topic,
    )
    assert "WARNING" not in output
    assert kafka.committed(topic) == [b"first", b"second"]


def test_a_fork_in_a_mock() -> None:
    producer = MockProducer(transactional_id="mine")
    with producer.transaction():
        producer.send("events", b"parent")
    child = os.fork()
    if not child:
        passed = False
        try:
            with pytest.raises(TransactionStateError, match="this producer is a copy"):
                producer.init_transactions()
            producer.init_transactions(transactional_id="another")
            with producer.transaction():
                producer.send("events", b"child")
            passed = [record.value for record in producer.history()] == [b"child"]
        finally:
            os._exit(not passed)
    assert os.waitpid(child, 0)[1] == 0
    assert len(producer.history()) == 1


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_a_signal_handler_that_forks_within_a_call(call: str) -> None:
    """The call goes on in the parent. In the child nothing would ever end it."""
    script = """
        import sys
        from pykaproducer import TransactionStateError
        from pykaproducer.testing import ScriptedCluster

        call = sys.argv[1]
        with ScriptedCluster(topics={"t": 1}) as cluster:
            producer = cluster.producer(transactional_id="mine")
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"value", partition=0).result(30)
            cluster.next("end_txn", answer)
            try:
                getattr(producer, call)()
            except TransactionStateError as error:
                assert children == [0]
                text = f"{call}(): a signal handler has forked; the call goes on in the parent"
                os._exit(7 if text in str(error) else 8)
            producer.close()
            print(len(cluster.log("t", committed=True)))
        """
    script = programs.FORKING_HANDLER + textwrap.dedent(script)
    assert programs.run(script, call) == f"child: 7\n{int(call == 'commit_transaction')}\n"


# Pickles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Producer, KafkaProducer, MockProducer])
@pytest.mark.parametrize("remade", [lambda each: pickle.loads(pickle.dumps(each)), copy.copy])
def test_a_copy_needs_an_id_of_its_own(kind: type[Producer], remade: object) -> None:
    original = kind(bootstrap_servers="127.0.0.1:9", transactional_id="mine")
    made = remade(original)  # type: ignore[operator]
    again = remade(made)  # type: ignore[operator]
    for each in (made, again):
        with pytest.raises(
            TransactionStateError, match=r"this producer is a copy, made by"
        ) as reported:
            each.init_transactions()
        assert "'mine'" in str(reported.value)
        with pytest.raises(TransactionStateError):
            each.init_transactions(transactional_id="mine")
    for each in (made, again, original):
        each.close()


def test_a_copy_without_transactions_is_not_concerned() -> None:
    made = pickle.loads(pickle.dumps(Producer(bootstrap_servers="127.0.0.1:9")))
    with pytest.raises(TransactionStateError, match="set transactional_id"):
        made.init_transactions()


def test_a_pickle_in_the_same_process(kafka: Kafka, topic: str) -> None:
    with kafka.begun(transactional_id=f"original {topic}") as producer:
        producer.send(topic, b"original", partition=0)
        with pickle.loads(pickle.dumps(producer)) as made:
            assert made.stats()["transactions"]["state"] == "uninitialized"
            made.init_transactions(PATIENCE, transactional_id=f"copy {topic}")
            with made.transaction():
                made.send(topic, b"copy", partition=1)
        producer.commit_transaction()
    assert kafka.committed(topic) == [b"original", b"copy"]


POOL = """
    def work(task):
        number, producer = task
        found = producer.stats()["transactions"]
        if found["state"] == "uninitialized":
            is_refused(producer)
            producer.init_transactions(transactional_id=f"worker {os.getpid()} {topic}")
        write(producer, b"%d" % number)

    if __name__ == "__main__":
        with make() as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"parent", partition=1)
            with multiprocessing.get_context(sys.argv[3]).Pool(2) as pool:
                pool.map(work, [(number, producer) for number in range(6)], chunksize=1)
                pool.close()
                pool.join()
            producer.commit_transaction()
    """


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.full) for name in ("fork", "forkserver")] + ["spawn"],
)
def test_a_pool_whose_tasks_have_the_producer(
    kafka: Kafka, topic: str, tmp_path: pathlib.Path, method: str
) -> None:
    """Each of its processes has a producer with another id; the parent's is untouched."""
    text = programs.FORKS + textwrap.dedent(PROLOGUE) + textwrap.dedent(POOL)
    programs.run_module(tmp_path, text, kafka.cluster.bootstrap_servers, topic, method)
    values = kafka.committed(topic)
    assert sorted(values[:-1]) == [b"%d" % number for number in range(6)]
    assert values[-1] == b"parent"


def test_a_process_of_multiprocessing_that_ends_aborts_its_transaction(
    kafka: Kafka, topic: str
) -> None:
    output = run(
        """
        def work():
            producer = Producer(
                bootstrap_servers=servers,
                transactional_id=f"child {topic}",
                exit_flush_timeout_ms=60_000,
            )
            write(producer, b"kept")
            producer.begin_transaction()
            producer.send(topic, b"dropped", partition=0).result(60)

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join(60)
        assert child.exitcode == 0
        """,
        kafka,
        topic,
    )
    assert "the open transaction was aborted" in output
    assert kafka.committed(topic) == [b"kept"]

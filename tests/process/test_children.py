"""Children of ``multiprocessing``, by every start method: unflushed messages are delivered.

They run no exit hooks of the interpreter; ``os._exit`` and an unhandled SIGTERM lose unflushed
messages. Each test is a separate program.
"""

from __future__ import annotations

import pathlib
import textwrap

import pytest

from pykaproducer.testing import KafkaCluster
from tests._support.programs import run_module
from tests.cluster.readback import read_log

METHODS = ["fork", "spawn", "forkserver"]

PROLOGUE = textwrap.dedent(
    """
    import multiprocessing, os, sys, threading
    from pykaproducer import Producer

    method, servers, topic = sys.argv[1:]

    def make():
        return Producer(bootstrap_servers=servers, linger_ms=60_000, exit_flush_timeout_ms=60_000)

    def send(name, producer=None):
        producer = producer or make()
        for number in range(100):
            producer.send(topic, b"%s %d" % (name, number))

    def ended(children, code=0):
        for child in children:
            child.start()
        for child in children:
            child.join(30)
            assert child.exitcode == code, child
    """
)


def run(
    directory: pathlib.Path, script: str, method: str, cluster: KafkaCluster, topic: str
) -> str:
    """Return what the program writes to standard error."""
    cluster.create_topic(topic)
    program = PROLOGUE + textwrap.dedent(script)
    return run_module(directory, program, method, cluster.bootstrap_servers, topic)


def assert_delivered(cluster: KafkaCluster, topic: str, counts: dict[bytes, int]) -> None:
    """Check that each sender's messages are in the log once and in order, and no others."""
    values = [bytes(value or b"") for value in read_log(cluster, topic).values]
    for name, count in counts.items():
        mine = [value for value in values if value.startswith(name + b" ")]
        assert mine == [b"%s %d" % (name, number) for number in range(count)]
    assert len(values) == sum(counts.values())


@pytest.mark.parametrize("method", METHODS)
def test_a_process_that_ends_delivers(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, method: str
) -> None:
    """And the parent's producer, used before, keeps working."""
    script = """
        if __name__ == "__main__":
            producer = make()
            producer.send(topic, b"parent 0")
            producer.flush(30)
            pending = producer.send(topic, b"parent 1")
            context = multiprocessing.get_context(method)
            ended([context.Process(target=send, args=(b"child%d" % n,)) for n in range(3)])
            assert not pending.done()
            producer.send(topic, b"parent 2")
            producer.close(30)
            assert pending.result(0).offset > 0
        """
    err = run(tmp_path, script, method, cluster, topic)
    assert err == ""
    children = dict.fromkeys((b"child0", b"child1", b"child2"), 100)
    assert_delivered(cluster, topic, {b"parent": 3, **children})


@pytest.mark.parametrize("method", METHODS)
def test_the_workers_of_a_pool_deliver(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, method: str
) -> None:
    script = """
        if __name__ == "__main__":
            with multiprocessing.get_context(method).Pool(2) as pool:
                pool.map(send, [b"task%d" % number for number in range(4)], chunksize=1)
                pool.close()
                pool.join()
        """
    assert run(tmp_path, script, method, cluster, topic) == ""
    assert_delivered(cluster, topic, {b"task%d" % number: 100 for number in range(4)})


@pytest.mark.parametrize("method", METHODS)
def test_a_callback_at_the_end_of_a_child_may_use_its_queue(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, method: str
) -> None:
    script = """
        def report_to(queue):
            producer = make()
            for number in range(100):
                producer.send(
                    topic,
                    b"child %d" % number,
                    on_delivery=lambda error, delivery: queue.put((error, delivery.offset)),
                )

        if __name__ == "__main__":
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            child = context.Process(target=report_to, args=(queue,))
            child.start()
            told = [queue.get(timeout=30) for _ in range(100)]
            child.join(30)
            assert child.exitcode == 0
            assert told == [(None, offset) for offset in range(100)], told
        """
    assert run(tmp_path, script, method, cluster, topic) == ""
    assert_delivered(cluster, topic, {b"child": 100})


def test_a_forked_child_may_use_its_parents_producer(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    """And so does its own child; each delivers its own messages and no others."""
    script = """
        def pass_on(generations):
            send(b"generation%d" % generations, producer)
            if generations:
                ended([context.Process(target=pass_on, args=(generations - 1,))])

        if __name__ == "__main__":
            context = multiprocessing.get_context(method)
            producer = make()
            pass_on(2)
        """
    assert run(tmp_path, script, "fork", cluster, topic) == ""
    assert_delivered(cluster, topic, {b"generation%d" % number: 100 for number in range(3)})


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(3)", 3), ("raise LookupError('a mistake of the user')", 1)]
)
def test_a_child_that_fails_delivers(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, ending: str, code: int
) -> None:
    script = f"""
        def send_and_fail():
            send(b"child")
            {ending}

        if __name__ == "__main__":
            context = multiprocessing.get_context(method)
            ended([context.Process(target=send_and_fail)], {code})
        """
    err = run(tmp_path, script, "fork", cluster, topic)
    assert err.endswith("LookupError: a mistake of the user\n") == (code == 1)
    assert_delivered(cluster, topic, {b"child": 100})


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_with_an_idle_executor_ends(tmp_path: pathlib.Path, method: str) -> None:
    """Only the shutdown of the interpreter ends the threads of the executor."""
    script = """
        import concurrent.futures, multiprocessing, sys
        from pykaproducer import Producer

        def with_an_executor():
            global executor, producer
            executor = concurrent.futures.ThreadPoolExecutor(2)
            executor.submit(int).result()
            producer = Producer(bootstrap_servers="127.0.0.1:1", exit_flush_timeout_ms=1)
            producer.send("t", b"1")

        if __name__ == "__main__":
            child = multiprocessing.get_context(sys.argv[1]).Process(target=with_an_executor)
            child.start()
            child.join(30)
            if child.is_alive():
                child.kill()
                child.join()
            sys.exit(child.exitcode != 0)
        """
    run_module(tmp_path, script, method)

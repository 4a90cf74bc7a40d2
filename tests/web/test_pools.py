"""Process pools that receive a pickled producer with each task."""

from __future__ import annotations

import pathlib
import sys

import pytest

from pykaproducer.testing import KafkaCluster

from .helper import assert_once, environment, running

pytestmark = pytest.mark.full

PROGRAM = """
import concurrent.futures, multiprocessing, os, sys, threading
from pykaproducer import Producer

TOPIC = os.environ["TOPIC"]

def task(producer, pool, number):
    for part in range(20):
        producer.send(TOPIC, b"%s-%d-%d" % (pool, number, part))
    return sum(thread.name.endswith("-dispatcher") for thread in threading.enumerate())

def once(producer, name):
    producer.send(TOPIC, name)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    # Nothing is delivered before a flush: the workers flush when they end.
    producer = Producer(bootstrap_servers=os.environ["KAFKA_SERVERS"], linger_ms=60_000,
                        exit_flush_timeout_ms=60_000)
    producer.send(TOPIC, b"parent")
    arguments = [(producer, b"pool", number) for number in range(20)]
    with context.Pool(2) as pool:
        started = pool.starmap(task, arguments, chunksize=1)
        pool.close()
        pool.join()
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        futures = [pool.submit(task, producer, b"executor", number) for number in range(20)]
        started += [future.result(60) for future in futures]
    process = context.Process(target=once, args=(producer, b"process"))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert set(started) == {1}, started  # one pipeline in each worker, however many tasks it had
    producer.close(30)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_each_message_that_a_task_sends_is_in_the_log_once(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, method: str
) -> None:
    cluster.create_topic(topic)
    program = tmp_path / "program.py"  # a module that a new interpreter can import
    program.write_text(PROGRAM)
    env = environment(cluster, tmp_path, TOPIC=topic)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(program), method]
    with running(command, tmp_path, env) as running_program:
        assert running_program.wait() == 0, running_program.output
    expected = ["parent", "process"]
    for pool in ("pool", "executor"):
        expected += [f"{pool}-{task}-{part}" for task in range(20) for part in range(20)]
    assert_once(cluster, topic, expected)

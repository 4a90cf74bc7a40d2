"""``os.fork`` without a cluster: at unusual moments, and with producers that are in use."""

from __future__ import annotations

from tests._support.programs import run

PROLOGUE = """
import logging, os, sys, signal, traceback
logging.disable(logging.CRITICAL)
from pykaproducer import Producer
from pykaproducer.testing import ScriptedCluster

def in_a_child(work):
    sys.stdout.flush()
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    leave(work)

def leave(work):
    code = 1
    try:
        signal.alarm(30)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)
"""


def program(script: str) -> str:
    return run(PROLOGUE + script)


def test_a_producer_that_has_trouble_with_a_fork_does_not_harm_the_others() -> None:
    script = """
producers = [Producer(bootstrap_servers="127.0.0.1:1") for _ in range(5)]
for producer in producers:
    producer.send("t", b"v")

def raises():
    raise OSError("no")

for producer in producers[1:4]:
    producer._pipeline.network.forsake = raises

in_a_child(lambda: print([producer.accepted for producer in producers]))
for producer in producers:
    producer.abort()
"""
    assert program(script) == "[0, 0, 0, 0, 0]\n"


def test_a_producer_of_a_scripted_cluster_is_empty_in_a_child() -> None:
    script = """
with ScriptedCluster(topics={"t": 1}) as cluster, cluster.producer() as producer:
    producer.send("t", b"v").result(30)
    in_a_child(lambda: print(producer.accepted, producer._pipeline))
"""
    assert program(script) == "0 None\n"


def test_a_fork_in_a_serializer() -> None:
    """The child's message is separate: it has an outcome there, and its bytes are released."""
    script = """
import threading
child = None

def forks(value):
    global child
    if value == b"fork":
        child = os.fork()
    return value

with ScriptedCluster(topics={"t": 1}) as cluster:
    # No stage takes the parent's chunk: it is open at the fork.
    producer = cluster.producer(value_serializer=forks, linger_ms=0)
    producer.send("t", b"first").result(30)
    producer._pipeline.dispatcher.wake = lambda **_: None
    producer.send("t", b"the parent's")
    delivery = producer.send("t", b"fork")
    if child == 0:
        leave(lambda: print("child:", producer.accepted, len(delivery.chunk), delivery.row))
    assert os.waitpid(child, 0)[1] == 0
    print("parent:", producer.accepted, len(delivery.chunk), delivery.row)
    del producer._pipeline.dispatcher.wake
    producer.flush(30)
    print([record.value for record in cluster.log("t")])
    producer.close()
"""
    assert program(script) == (
        "child: 1 1 0\nparent: 3 2 1\n[b'first', b\"the parent's\", b'fork']\n"
    )

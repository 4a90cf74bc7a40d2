"""The examples that consume, transform, produce and commit: killed at each point, nothing is lost.

An example runs as a program of its own, whose producer sends the process SIGKILL at a given call.
Then it is started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from pykaproducer import Producer
from pykaproducer.testing import Cut, FaultProxy, KafkaCluster
from pykaproducer.testing._processes import tick
from tests._support.consumer import read_through
from tests._support.pairs import partly
from tests._support.peers import needs_kafka_python_3

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "transactions"
PATIENCE = 60.0
PARTITIONS = (0, 1, 2)
END_TXN = 26

#: Runs an example. Its producer ends the process before or after the nth call of a method.
PROGRAM = """
import os, runpy, signal, sys

import pykaproducer
import pykaproducer.confluent

path, method, when, count = sys.argv[1:5]
left = int(count)

def ends(real):
    def call(*arguments, **named):
        global left
        left -= 1
        if left == 0 and when == "before":
            arguments[0].flush()  # what was sent is in the log, and is to be aborted
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **named)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

kind = pykaproducer.confluent.Producer if "confluent" in path else pykaproducer.Producer
if method:
    setattr(kind, method, ends(getattr(kind, method)))
runpy.run_path(path, run_name="__main__")
"""

#: The points at which the program ends. It has three transactions or more to commit.
POINTS = [
    ("init_transactions", "after", 1),
    ("begin_transaction", "after", 1),
    ("send", "after", 4),
    ("send_offsets_to_transaction", "before", 1),
    ("send_offsets_to_transaction", "after", 1),
    ("commit_transaction", "before", 1),
    ("commit_transaction", "after", 1),
    ("commit_transaction", "after", 2),
]


@pytest.fixture
def kafka() -> Iterator[tuple[KafkaCluster, FaultProxy]]:
    """Yield a broker behind a proxy, and the proxy."""
    with FaultProxy() as proxy, KafkaCluster(proxies=[proxy], fast_start=True) as cluster:
        yield cluster, proxy


def send_orders(servers: str, begin: int, end: int) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(begin, end):
            order = json.dumps({"id": str(number), "parcels": ["tea"] * (number % 3)})
            producer.send("shop-orders", order.encode(), partition=number % len(PARTITIONS))


@contextlib.contextmanager
def program(example: str, servers: str, *end: Any) -> Iterator[subprocess.Popen[str]]:
    """Run an example until the end of the block, unless it ends by itself."""
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(EXAMPLES / example), *map(str, end or ("", "", 0))],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "KAFKA_SERVERS": servers,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        output, _ = started.communicate(timeout=PATIENCE)
        print(output)


def committed(servers: str) -> list[int | None]:
    """Return the offsets of the group, without those of a transaction that is open."""
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id="invoices")
    try:
        return [consumer.committed(TopicPartition("shop-orders", each)) for each in PARTITIONS]
    finally:
        consumer.close()


@needs_kafka_python_3  # earlier versions cannot keep a member's partitions while it restarts
@pytest.mark.parametrize(
    "example", partly(["invoices.py", "invoices_confluent.py"], ["invoices.py"])
)
def test_each_order_has_one_invoice_wherever_the_program_ends(
    kafka: tuple[KafkaCluster, FaultProxy], example: str
) -> None:
    cluster, proxy = kafka
    servers = cluster.bootstrap_servers
    for name in ("shop-orders", "shop-invoices"):
        cluster.create_topic(name, partitions=len(PARTITIONS))
    orders = 0
    for method, when, count in POINTS:
        # More than one batch, and more for each program.
        send_orders(servers, orders, orders + 300)
        orders += 300
        if method == "send" and "confluent" in example:
            method = "produce"
        with program(example, servers, method, when, count) as started:
            assert started.wait(PATIENCE) == -signal.SIGKILL
    # The request for a commit is processed, and the program ends before it gets the answer.
    send_orders(servers, orders, orders + 300)
    orders += 300
    cuts = proxy.cuts
    proxy.cut(Cut.AFTER, api_key=END_TXN)
    with program(example, cluster.proxied_servers):
        assert proxy.wait_for(lambda: proxy.cuts > cuts, PATIENCE)
    deadline = time.monotonic() + PATIENCE
    with program(example, servers):
        while committed(servers) != [orders // len(PARTITIONS)] * len(PARTITIONS):
            assert time.monotonic() < deadline
            tick()
    invoices = read_through(servers, "shop-invoices", PARTITIONS, committed=True)
    found = sorted(int(json.loads(invoice)["order"]) for invoice in invoices)
    assert found == list(range(orders))
    everything = read_through(servers, "shop-invoices", PARTITIONS, committed=False)
    assert len(everything) > orders, "nothing was aborted: the programs ended too early"

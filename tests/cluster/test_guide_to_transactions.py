"""The example of transactions, run as its header says, and the code in their guide."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

from pykaproducer import Producer, TransactionAbortableError
from pykaproducer.testing import KafkaCluster
from tests._support.consumer import read_through
from tests._support.peers import needs_kafka_python_3

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "transactions" / "orders.py"
PATIENCE = 60.0

#: A word of each piece of the guide's code that is run here.
WORDS = ("import KafkaConsumer\nfrom", "import Consumer", "producer.close()", "is_cancelled")
WORDS += ("def write(", "def is_visible(", "def write_part(")

LINES = """\
{"id": "1", "parcels": ["tea", "cups"]}
{"id": "2", "parcels": ["sugar", 5]}
no order
{"id": "3", "parcels": []}
"""


def test_readers_see_whole_orders(cluster: KafkaCluster, topic: str) -> None:
    for name in ("shop-orders", "shop-parcels"):
        cluster.create_topic(name)
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "KAFKA_SERVERS": cluster.bootstrap_servers,
            "ORDERS_ID": topic,
        },
        input=LINES,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    *wrong, last = ended.stdout.splitlines()
    assert [line.partition(" is wrong")[0] for line in wrong] == ["line 2", "line 3"]
    assert last == "committed: 2"
    first, _, _, third = LINES.encode().splitlines()
    servers = cluster.bootstrap_servers
    assert read_through(servers, "shop-orders", committed=True) == [first, third]
    assert read_through(servers, "shop-parcels", committed=True) == [b"tea", b"cups"]


class Order:
    """An order of the documentation."""

    def __init__(self, name: str, *parcels: str, cancelled: bool = False) -> None:
        self.id, self._name, self._cancelled = name.encode(), name, cancelled
        self.parcels = [Order(parcel) for parcel in parcels]

    def encode(self) -> bytes:
        return self._name.encode()

    def is_cancelled(self) -> bool:
        return self._cancelled


@pytest.fixture
def blocks(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    """Return the guide's code by a word that it contains, with names that no other test uses."""
    page = (ROOT / "docs" / "transactions.rst").read_text()
    found = [
        textwrap.dedent(block).replace("127.0.0.1:9092", cluster.bootstrap_servers)
        for block in re.findall(r"\.\. code-block:: python\n\n((?: {4}.*\n|\n)+)", page)
    ]
    for name in ("orders", "parcels", "invoices", "orders-0", "invoices-0"):
        found = [block.replace(f'"{name}"', f'"{topic}-{name}"') for block in found]
    for name in ("orders", "parcels", "invoices"):
        cluster.create_topic(f"{topic}-{name}", config={"max.message.bytes": "2000"})
    return {word: block for word in WORDS for block in found if word in block}


def test_the_guide_s_examples_run(
    cluster: KafkaCluster, topic: str, blocks: dict[str, str]
) -> None:
    servers = cluster.bootstrap_servers
    orders, parcels = f"{topic}-orders", f"{topic}-parcels"
    loop, block, errors, visible, parts = (blocks[word] for word in WORDS[2:])
    names: dict[str, Any] = {"orders": [Order("1", "tea", "cups"), Order("2")]}
    exec(loop, names)
    with Producer(bootstrap_servers=servers, transactional_id=topic) as producer:
        names |= {
            "producer": producer,
            "orders": [Order("3", "sugar"), Order("4", "milk", cancelled=True), Order("5")],
        }
        exec(block, names)
        exec(errors, names)
        names["write"](producer, [(orders, b"6"), (parcels, b"spoons")])
        exec(visible, names)
        with producer.transaction():
            kept = producer.send(parcels, b"forks").result(PATIENCE)
        with producer.transaction() as transaction:
            dropped = producer.send(parcels, b"knives").result(PATIENCE)
            transaction.abort()
        assert names["is_visible"](servers, kept)
        assert not names["is_visible"](servers, dropped)
    names["SERVERS"] = servers
    exec(parts.replace('"results"', repr(parcels)).replace('f"job-', f'f"{topic}-job-'), names)
    prepared = [names["write_part"](number, [b"part"]) for number in range(2)]
    assert names["finish"](prepared, commit=True) == []
    assert read_through(servers, orders, committed=True) == [b"1", b"2", b"3", b"5", b"6"]
    read = read_through(servers, parcels, committed=True)
    assert read == [b"tea", b"cups", b"sugar", b"spoons", b"forks", b"part", b"part"]


@needs_kafka_python_3  # earlier versions have no group metadata
def test_the_guide_s_loops_run(cluster: KafkaCluster, topic: str, blocks: dict[str, str]) -> None:
    servers = cluster.bootstrap_servers
    with Producer(bootstrap_servers=servers) as producer:
        for value in (b"1", b"2", b"3"):
            producer.send(f"{topic}-orders", value)
    done: list[bytes] = []

    def invoice_for(order: bytes) -> bytes:
        if order == b"2" and order not in done:
            done.append(order)
            raise TransactionAbortableError("once", transactional_id=topic)
        done.append(order)
        return order + b"!"

    names: dict[str, Any] = {
        "invoice_for": invoice_for,
        "has_more": lambda: done[-1:] != [b"3"],
        "__name__": "guide",
    }
    by_kafka_python, by_confluent = (blocks[word] for word in WORDS[:2])
    assert by_kafka_python.count("while True:") == 1
    exec(by_kafka_python.replace("while True:", "while has_more():"), names)
    names["consumer"].close()
    assert done == [b"1", b"2", b"1", b"2", b"3"]
    with Producer(bootstrap_servers=servers) as producer:
        producer.send(f"{topic}-orders", b"4")
    exec(by_confluent, names)  # the consumer of the same group
    deadline = time.monotonic() + PATIENCE
    while not (batch := names["consumer"].consume(10, 0.5)):
        assert time.monotonic() < deadline
    names["process"](batch)
    names["consumer"].close()
    names["producer"].close()
    assert read_through(servers, f"{topic}-invoices", committed=True) == [
        b"1!",
        b"2!",
        b"3!",
        b"4!",
    ]


@needs_kafka_python_3
def test_the_guide_s_loop_ends_if_the_reason_remains(
    cluster: KafkaCluster, topic: str, blocks: dict[str, str]
) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(f"{topic}-orders", b"1")
    names: dict[str, Any] = {"invoice_for": lambda order: bytes(3_000)}
    with pytest.raises(TransactionAbortableError, match="MESSAGE_SIZE_TOO_LARGE"):
        exec(blocks[WORDS[0]], names)
    names["consumer"].close()
    names["producer"].close()
    assert names["failures"] == 5

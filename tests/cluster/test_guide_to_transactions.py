"""The example of transactions, run as its header says, and the code in their guide."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import Any

from pykaproducer import Producer
from pykaproducer.testing import KafkaCluster
from tests._support.consumer import read_through

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "transactions" / "orders.py"

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


def test_the_guide_s_examples_run(cluster: KafkaCluster, topic: str) -> None:
    page = (ROOT / "docs" / "transactions.rst").read_text()
    servers = cluster.bootstrap_servers
    orders, parcels = f"{topic}-orders", f"{topic}-parcels"
    blocks = [
        textwrap.dedent(block)
        .replace("127.0.0.1:9092", servers)
        .replace('"orders"', repr(orders))
        .replace('"parcels"', repr(parcels))
        .replace('"orders-0"', repr(topic))
        for block in re.findall(r"\.\. code-block:: python\n\n((?: {4}.*\n|\n)+)", page)
    ]
    for name in (orders, parcels):
        cluster.create_topic(name)
    loop, block, errors = blocks
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
    assert read_through(servers, orders, committed=True) == [b"1", b"2", b"3", b"5", b"6"]
    assert read_through(servers, parcels, committed=True) == [b"tea", b"cups", b"sugar", b"spoons"]

"""The example of transactions, run as its header says."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

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

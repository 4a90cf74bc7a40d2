"""confluent-kafka's own tests of its Producer, with the import changed.

These tests are in its repository only, not in its package. So this is not part of the suite, but is
run by hand with a checkout of the installed version or a similar one. It needs the package avro,
which the tests import::

    python -m tests.confluent.their_tests path/to/confluent-kafka-python
"""

from __future__ import annotations

import ast
import os
import pathlib
import subprocess
import sys
import tempfile

from pykaproducer import confluent
from pykaproducer.testing import KafkaCluster

#: Their test files for features of the drop-in.
FILES = (
    "tests/test_Producer.py",
    "tests/test_kafka_error.py",
    "tests/test_message.py",
    "tests/test_error.py",
    "tests/test_topic_partition.py",
    "tests/test_threads.py",
    "tests/test_misc.py",
    "tests/test_log.py",
    "tests/test_Wakeable.py",
    "tests/integration/producer/test_producer_wakeable_poll_flush.py",
    "tests/integration/producer/test_transactions.py",
)
#: Modules that these import.
HELPERS = (
    "tests/__init__.py",
    "tests/common/__init__.py",
    "tests/common/schema_registry/__init__.py",
)
#: The others of Wakeable test its consumer and functions of its C module.
SELECTED = "(not test_Wakeable or test_producer_wakeable) and not test_consumer and not test_avro"
#: Replaces theirs, which needs another program to start Kafka. Their fixture makes producers of
#: ``SerializingProducer``, which derives from ``Producer``.
CONFTEST = """
import uuid
import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic
from pykaproducer.confluent import Producer

SERVERS = {servers!r}


class Cluster:
    def client_conf(self, conf=None):
        return {{"bootstrap.servers": SERVERS, **(conf or {{}})}}

    def cimpl_producer(self, conf=None):
        return Producer(self.client_conf(conf))

    producer = cimpl_producer

    def seed_topic(self, topic):
        producer = self.producer()
        for number in range(100):
            producer.produce(topic, f"test-data{{number}}")
        producer.flush()

    def create_topic_and_wait_propogation(self, prefix, conf=None, **more):
        name = f"{{prefix}}-{{uuid.uuid4().hex[:8]}}"
        admin = AdminClient(self.client_conf())
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
        return name


@pytest.fixture(scope="session")
def kafka_cluster():
    cluster = Cluster()
    # The first consumer of a cluster waits for the offsets topic, longer than these tests.
    conf = {{"group.id": "first", "auto.offset.reset": "earliest"}}
    consumer = Consumer(cluster.client_conf(conf))
    consumer.subscribe([cluster.create_topic_and_wait_propogation("first")])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.close()
    return cluster
"""


def with_our_import(text: str) -> str:
    """Return a module of theirs that imports from the drop-in what it provides."""
    lines = text.splitlines(keepends=True)
    imports = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ImportFrom) and node.module == "confluent_kafka"
    ]
    for node in reversed(imports):
        ours = [alias.name for alias in node.names if alias.name in confluent.__all__]
        theirs = [alias.name for alias in node.names if alias.name not in confluent.__all__]
        new = f"from confluent_kafka import {', '.join(theirs)}\n" if theirs else ""
        new += f"from pykaproducer.confluent import {', '.join(ours)}\n" if ours else ""
        lines[node.lineno - 1 : node.end_lineno] = [new]
    changed = "".join(lines)
    for name in confluent.__all__:
        changed = changed.replace(f"confluent_kafka.{name}(", f"pykaproducer.confluent.{name}(")
    return "import pykaproducer.confluent\n" + changed


def write(source: pathlib.Path, into: pathlib.Path, servers: str) -> None:
    """Write the changed tests to the directory *into*."""
    for name in (*FILES, *HELPERS):
        text = (source / name).read_text().replace("localhost:9092", servers)
        place = into / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(with_our_import(text) if name in FILES else text)
    conftest = into / "tests" / "integration" / "conftest.py"
    conftest.write_text(CONFTEST.format(servers=servers))


def main(source: pathlib.Path) -> int:
    """Run the tests on a cluster started for them; return pytest's exit status."""
    with KafkaCluster() as cluster, tempfile.TemporaryDirectory() as into:
        write(source, pathlib.Path(into), cluster.bootstrap_servers)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-k", SELECTED, *FILES],
            cwd=into,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))

"""DataFrames to write, and reading their rows from Kafka."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from pykaproducer.testing import KafkaCluster
from tests._support.fixtures.spark import spark_environment
from tests.cluster.readback import PATIENCE, Record, read_log

#: How long a test waits for a program or a query (seconds). On a busy machine, sessions that start
#: together take minutes.
SOON = 600

#: In /proc/net/tcp.
_ESTABLISHED = "01"


def save(df: Any, cluster: KafkaCluster, **options: str) -> None:
    """Write *df* with the sink; ``kafka_x_y`` stands for ``kafka.x.y``."""
    given = {name.replace("_", "."): value for name, value in options.items()}
    given.setdefault("kafka.bootstrap.servers", cluster.bootstrap_servers)
    df.write.format("pykaproducer").options(**given).mode("append").save()


def records(cluster: KafkaCluster, topic: str, partitions: int = 1) -> list[Record]:
    """Return everything in a topic, partition by partition."""
    return [
        record
        for partition in range(partitions)
        for record in read_log(cluster, topic, partition).records
    ]


def values(cluster: KafkaCluster, topic: str, partitions: int = 1) -> list[bytes | None]:
    """Return the values in a topic, in order of their bytes."""
    return sorted(record.value or b"" for record in records(cluster, topic, partitions))


def wait_for_rows(cluster: KafkaCluster, topic: str, numbers: range, partitions: int) -> None:
    """Wait until a row with one of *numbers* as its value is in the log."""
    deadline = time.monotonic() + PATIENCE
    while not any(int(value or b"") in numbers for value in values(cluster, topic, partitions)):
        assert time.monotonic() < deadline, f"none of {numbers} arrives in {topic}"


def connections_to(cluster: KafkaCluster) -> int:
    """Return the number of client connections to the broker, from all processes."""
    port = int(cluster.bootstrap_servers.rpartition(":")[2])
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    states = [(line.split()[2], line.split()[3]) for line in lines]
    return sum(
        int(remote.rpartition(":")[2], 16) == port and state == _ESTABLISHED
        for remote, state in states
    )


def connections_by_worker(cluster: KafkaCluster) -> dict[str, int]:
    """Return the number of connections to the broker of each of Spark's Python workers."""
    port = int(cluster.bootstrap_servers.rpartition(":")[2])
    lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = {
        f"socket:[{line[9]}]"
        for line in lines
        if int(line[2].rpartition(":")[2], 16) == port and line[3] == _ESTABLISHED
    }
    found: dict[str, int] = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it, or a descriptor, is gone
            if b"pyspark" in (process / "cmdline").read_bytes():
                links = [os.readlink(link) for link in (process / "fd").iterdir()]
                found[process.name] = len(ours.intersection(links))
    return {name: count for name, count in found.items() if count}


@contextlib.contextmanager
def application(
    script: str, arguments: dict[str, str], log: pathlib.Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a separate Spark application that writes to *log*; kill it at the end."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).parent / script), json.dumps(arguments)],
            env={**os.environ, **spark_environment()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # Its JVM is in its group; the workers end with the JVM.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Meeting:
    """A point at which an application stops and waits for the test."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._done = path.with_name(f"{path.name}-done")
        for pipe in (path, self._done):
            os.mkfifo(pipe)

    def wait(self, seconds: float) -> None:
        """Wait until the application has arrived."""
        reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            come, _, _ = select.select([reader], [], [], seconds)
            assert come, "the application has not arrived"
        finally:
            os.close(reader)

    def go_on(self) -> None:
        """Let the application continue."""
        self._done.write_text("go on")

    @staticmethod
    def keep(path: str) -> None:
        """Report the arrival from the application, and wait."""
        pathlib.Path(path).write_text("here")
        pathlib.Path(f"{path}-done").read_text()

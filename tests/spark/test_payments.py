"""The example of payments is killed and started again; each line of its files is there once."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from pykaproducer.testing import KafkaCluster
from pykaproducer.testing._processes import tick
from tests._support.fixtures.spark import spark_environment
from tests.transactions.helper import read

from .helper import SOON

pytestmark = pytest.mark.full

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "spark" / "payments.py"
FILES, LINES = 6, 2_000
#: The micro-batches in which the example is killed, as soon as Spark has recorded their beginning.
KILLED_IN = (1, 3)


def line_of(number: int) -> str:
    """Return a line of a file; every tenth is not a payment."""
    amount = "much" if number % 10 == 7 else f"{number + 1}.25"
    return f"{number},account-{number % 13}, {amount},eur,2025-03-01T12:00:00Z"


@contextmanager
def payments(
    cluster: KafkaCluster, directory: pathlib.Path, *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the example; kill it, its Java and its workers at the end."""
    command = [sys.executable, str(EXAMPLE), str(directory / "in"), *arguments]
    command += ["--bootstrap-servers", cluster.bootstrap_servers]
    with open(directory / "log", "ab") as log:
        process = subprocess.Popen(
            [*command, "--checkpoint", str(directory / "checkpoint")],
            cwd=directory,
            env={
                **os.environ,
                **spark_environment(),
                "SPARK_LOCAL_DIRS": str(directory / "local"),
                "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false "
                "pyspark-shell",
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_each_line_is_there_once(cluster: KafkaCluster, tmp_path: pathlib.Path) -> None:
    for topic in ("payments-valid", "payments-rejected"):
        cluster.create_topic(topic, partitions=2)
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        numbers = range(file * LINES, (file + 1) * LINES)
        (tmp_path / "in" / f"{file}.csv").write_text("".join(f"{line_of(n)}\n" for n in numbers))
    for batch in KILLED_IN:
        begun = tmp_path / "checkpoint" / "offsets" / str(batch)
        with payments(cluster, tmp_path) as running:
            deadline = time.monotonic() + SOON
            while not begun.exists():
                assert running.poll() is None, (tmp_path / "log").read_text()[-5000:]
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-5000:]
                tick()
    with payments(cluster, tmp_path, "--once") as running:
        assert running.wait(SOON) == 0, (tmp_path / "log").read_text()[-5000:]

    servers = cluster.bootstrap_servers
    written = read(servers, "payments-valid", "read_committed", range(2))
    valid = [json.loads(each) for each in written]
    rejected = read(servers, "payments-rejected", "read_committed", range(2))
    expected = range(FILES * LINES)
    assert Counter(int(each["id"]) for each in valid) == Counter(
        number for number in expected if number % 10 != 7
    )
    assert {(each["amount"], each["currency"]) for each in valid if each["id"] == "12"} == {
        (13.25, "EUR")
    }
    assert Counter(each.decode() for each in rejected) == Counter(
        line_of(number) for number in expected if number % 10 == 7
    )

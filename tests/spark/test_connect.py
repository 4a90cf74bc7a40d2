"""Spark Connect, and the sink found without registration."""

from __future__ import annotations

import pathlib
import re

import pytest

from pykaproducer.testing import KafkaCluster
from tests.transactions.helper import read

from .helper import SOON, application, values

pytestmark = pytest.mark.full


def test_a_session_of_spark_connect(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    for name in ("batch", "write", "once", "stream"):
        cluster.create_topic(f"{topic}-{name}")
    arguments = {
        "servers": cluster.bootstrap_servers,
        "topic": topic,
        "local": str(tmp_path / "local"),
        "input": str(tmp_path / "in"),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("".join(f"{number}\n" for number in range(100)))
    with application("connect_app.py", arguments, tmp_path / "log") as running:
        assert running.wait(SOON) == 0, (tmp_path / "log").read_text()[-5000:]
    expected = sorted(b"%d" % number for number in range(100))
    for name in ("batch", "write", "stream"):
        assert values(cluster, f"{topic}-{name}") == expected
    assert (
        sorted(read(cluster.bootstrap_servers, f"{topic}-once", "read_committed", [0])) == expected
    )
    log = (tmp_path / "log").read_text()
    # Spark may log between these lines.
    assert re.findall(r"repeated: (\w+)\n", log) == ["False", "True"]
    assert "summary: 100 rows (190 bytes) to 1 partition" in log
    # The driver logs one line per batch.
    assert f"write: 100 rows (190 bytes) to 1 partition; {topic}-batch[0]: 100 rows" in log
    assert "INFO pykaproducer.spark: stream lines batch 0: 100 rows" in log
    # The client has received Spark's progress, and the summary from the sink's process.
    assert "listener: lines 0: 100 in, 100 rows (190 bytes) to 1 partition\n" in log
    assert "left: False\n" in log

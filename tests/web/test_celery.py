"""Celery, whose pool ends its processes without Python's exit hooks."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from pykaproducer.testing import KafkaCluster

from .helper import SOON, assert_once, environment, running, tool

FILL = """
from tasks import send
for number in range({count}):
    send.delay(f"task-{{number}}")
"""


def test_what_tasks_send_is_delivered_when_the_worker_stops(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    """Both by processes that are recycled in the middle and by the last ones."""
    pytest.importorskip("celery")
    cluster.create_topic(topic)
    queue, done = tmp_path / "queue", tmp_path / "done"
    queue.mkdir()
    done.mkdir()
    # A process connects as it ends, which may take more than the default of 5 s.
    flush_ms = str(SOON * 1000)
    env = environment(
        cluster, tmp_path, TOPIC=topic, QUEUE=str(queue), DONE=str(done), FLUSH_MS=flush_ms
    )
    subprocess.run(
        [sys.executable, "-c", FILL.format(count=150)], env=env, check=True, timeout=SOON
    )
    options = ["--concurrency", "3", "--max-tasks-per-child", "40", "--without-mingle"]
    command = [tool("celery"), "--app", "tasks", "worker", *options]
    with running(command, tmp_path, env) as worker:
        worker.until(lambda: len(list(done.iterdir())) == 150, "the end of all tasks")
        worker.terminate()
        assert worker.wait() == 0, worker.output
    names = {file.name: file.read_text() for file in done.iterdir()}
    assert len(set(names.values())) > 3  # processes
    try:
        assert_once(cluster, topic, list(names))
    except AssertionError as problem:
        problem.add_note(f"the worker has printed:\n{worker.output}\nthe tasks ran in: {names}")
        raise

"""Celery, whose pool ends its processes without Python's exit hooks."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from pykaproducer.testing import KafkaCluster
from tests._support.programs import exists

from .helper import SOON, assert_once, environment, running, tool

pytestmark = pytest.mark.full

FILL = """
from tasks import send
for number in range({count}):
    send.delay(f"task-{{number}}")
"""


def processes(done: pathlib.Path) -> dict[str, int]:
    """Return the process in which each task has run."""
    texts = {file.name: file.read_text() for file in done.iterdir()}
    return {name: int(pid) for name, pid in texts.items() if pid}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--concurrency", "3"], id="the last ones"),
        pytest.param(["--concurrency", "1", "--max-tasks-per-child", "40"], id="recycled ones"),
    ],
)
def test_processes_deliver_what_tasks_send(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, options: list[str]
) -> None:
    """When the worker stops, and when they are replaced.

    Not both at once: with this queue, Celery kills processes that replace others when it stops
    (docs/web.rst).
    """
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
        [sys.executable, "-c", FILL.format(count=120)], env=env, check=True, timeout=SOON
    )
    command = [tool("celery"), "--app", "tasks", "worker", "--without-mingle", *options]
    with running(command, tmp_path, env) as worker:
        worker.until(lambda: len(processes(done)) == 120, "the end of all tasks")
        ran_in = processes(done)
        assert len(set(ran_in.values())) > 1
        if "--max-tasks-per-child" in options:
            worker.until(lambda: not any(map(exists, ran_in.values())), "the end of processes")
        worker.terminate()
        assert worker.wait() == 0, worker.output
    try:
        assert_once(cluster, topic, list(ran_in))
    except AssertionError as problem:
        problem.add_note(f"the worker has printed:\n{worker.output}\nthe tasks ran in: {ran_in}")
        raise

"""gunicorn, which forks workers from a master that has loaded the application."""

from __future__ import annotations

import pathlib

import pytest

from pykaproducer.testing import KafkaCluster

from .helper import assert_once, environment, free_port, in_the_log, load, running, stop_after, tool

REQUESTS = 10_000


@pytest.mark.parametrize(
    "options",
    [
        ["--preload", "--worker-class", "sync"],
        ["--preload", "--worker-class", "gthread", "--threads", "4"],
        ["--worker-class", "gevent_worker.Worker"],
    ],
    ids=["preload-sync", "preload-gthread", "gevent-with-threads"],
)
def test_what_it_accepts_is_in_the_log_once_also_when_it_is_stopped_under_load(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path, options: list[str]
) -> None:
    if "gevent_worker.Worker" in options:
        pytest.importorskip("gevent")
    cluster.create_topic(topic)
    before_fork = "--preload" in options
    port = free_port()
    command = [tool("gunicorn"), *options, "-w", "3", "-b", f"127.0.0.1:{port}", "application"]
    env = environment(
        cluster, tmp_path, TOPIC=topic, **({"USE_BEFORE_FORK": "1"} if before_fork else {})
    )
    with running(command, tmp_path, env, port) as server:
        # More than a busy machine serves between the signal and the end.
        answers = load(server, REQUESTS, each=stop_after(server, 600, different=2))
        assert server.wait() == 0, server.output
    assert 600 <= len(answers.accepted) < REQUESTS
    assert len(set(answers.accepted.values())) > 1  # workers
    assert_once(cluster, topic, list(answers.accepted))
    assert in_the_log(cluster, topic)["before the fork"] == before_fork


def test_patched_threads_are_refused_with_a_clear_word(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("gevent")
    port = free_port()
    options = ["--preload", "--worker-class", "gevent", "-w", "1", "-b", f"127.0.0.1:{port}"]
    env = environment(cluster, tmp_path, TOPIC=topic)
    with running([tool("gunicorn"), *options, "application"], tmp_path, env, port) as server:
        answers = load(server, 1)
        server.terminate()
        assert server.wait() == 0, server.output
    (why,) = answers.refused.values()
    assert "gevent has patched Python's threads" in why
    assert "--worker-class gthread" in why

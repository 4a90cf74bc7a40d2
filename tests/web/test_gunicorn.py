"""gunicorn, which forks workers from a master that has loaded the application."""

from __future__ import annotations

import pathlib

import pytest

from pykaproducer.testing import KafkaCluster
from tests.transactions.helper import read

from .helper import assert_once, environment, free_port, in_the_log, load, running, stop_after, tool

REQUESTS = 10_000

#: A transactional id for each worker, as docs/transactions.rst has it.
IDS_OF_WORKERS = """
def post_fork(server, worker):
    from transactional_application import TOPIC, producer

    producer.init_transactions(transactional_id=f"{TOPIC}-{worker.age}")
"""


@pytest.mark.parametrize(
    "options",
    [
        ["--preload", "--worker-class", "sync"],
        pytest.param(
            ["--preload", "--worker-class", "gthread", "--threads", "4"], marks=pytest.mark.full
        ),
        pytest.param(["--worker-class", "gevent_worker.Worker"], marks=pytest.mark.full),
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
    command = [tool("gunicorn"), *options, "-w", "3", "-b", f"127.0.0.1:{port}"]
    command += ["--graceful-timeout", "120", "application"]
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


@pytest.mark.full
def test_workers_that_are_stopped_under_load_leave_no_transaction_half_done(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    """The workers fork off in the middle of a transaction, which remains that of the master."""
    cluster.create_topic(topic, partitions=2)
    port = free_port()
    (tmp_path / "gunicorn.conf.py").write_text(IDS_OF_WORKERS)
    command = [tool("gunicorn"), "--preload", "-w", "3", "-b", f"127.0.0.1:{port}"]
    env = environment(cluster, tmp_path, TOPIC=topic)
    with running([*command, "transactional_application"], tmp_path, env, port) as server:
        answers = load(server, REQUESTS, each=stop_after(server, 300, different=2))
        assert server.wait() == 0, server.output
    assert not [reason for reason in answers.refused.values() if reason.startswith("503")]
    first, second = (
        read(cluster.bootstrap_servers, topic, "read_committed", [partition])
        for partition in (0, 1)
    )
    # The master did not commit: its transaction was aborted when it ended.
    assert sorted(first) == sorted(second)
    assert len(set(first)) == len(first)
    assert {name.encode() for name in answers.accepted} <= set(first)


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

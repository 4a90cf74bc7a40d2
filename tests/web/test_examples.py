"""The examples, each started as its header says, with its real server, and put under load."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

from pykaproducer.testing import KafkaCluster

from .helper import (
    ROOT,
    SOON,
    Program,
    assert_once,
    environment,
    free_port,
    in_the_log,
    load,
    running,
    tool,
)

pytestmark = pytest.mark.full

EXAMPLES = ROOT / "examples"
REQUESTS = 300


@pytest.fixture(scope="module", autouse=True)
def topics(cluster: KafkaCluster) -> None:
    for topic in ("events", "payments", "readings", "orders", "clicks", "greetings"):
        cluster.create_topic(topic)


def stop(server: Program) -> None:
    """Send SIGTERM, as a supervisor does, and check that the server ends."""
    server.terminate()
    server.wait()


def test_flask(cluster: KafkaCluster, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("flask")
    port = free_port()
    command = [tool("gunicorn"), "--preload", "--workers", "3", "--chdir", str(EXAMPLES)]
    command += ["-b", f"127.0.0.1:{port}", "flask_app:create_app()"]
    with running(command, tmp_path, environment(cluster, tmp_path), port) as server:
        sent = load(server, REQUESTS, "/events", method="POST", body="{name}")
        paid = load(server, 20, "/payments", method="POST", body="{name}")
        stop(server)
    assert (len(sent.accepted), len(paid.accepted)) == (REQUESTS, 20), server.output
    assert_once(cluster, "events", list(sent.accepted))
    assert_once(cluster, "payments", list(paid.accepted))


def test_fastapi(cluster: KafkaCluster, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("fastapi")
    port = free_port()
    command = [tool("uvicorn"), "--app-dir", str(EXAMPLES), "--port", str(port), "fastapi_app:app"]
    with running(command, tmp_path, environment(cluster, tmp_path), port) as server:
        answers = load(server, REQUESTS, "/readings/0.5", method="POST")
        stop(server)
    assert len(answers.accepted) == REQUESTS, server.output
    offsets = {json.loads(answer)["offset"] for answer in answers.accepted.values()}
    assert offsets == set(range(REQUESTS))
    assert in_the_log(cluster, "readings") == {"0.5": REQUESTS}


SITE = EXAMPLES / "django_site"


def test_django_under_gunicorn(cluster: KafkaCluster, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("django")
    port = free_port()
    env = environment(cluster, tmp_path, SHOP_DATABASE=str(tmp_path / "shop.db"))
    manage = [sys.executable, str(SITE / "manage.py")]
    subprocess.run([*manage, "migrate", "-v0"], env=env, check=True, timeout=SOON)
    command = [tool("gunicorn"), "--preload", "--workers", "3", "--chdir", str(SITE)]
    command += ["-b", f"127.0.0.1:{port}", "shop.wsgi"]
    with running(command, tmp_path, env, port) as server:
        answers = load(server, REQUESTS, "/order/{name}")
        stop(server)
    assert len(answers.accepted) == REQUESTS, server.output
    kept = [json.loads(message) for message in in_the_log(cluster, "orders").elements()]
    assert sorted(each["item"] for each in kept) == sorted(answers.accepted)
    assert {each["id"] for each in kept} == set(range(1, REQUESTS + 1))


def test_django_under_uvicorn(cluster: KafkaCluster, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("django")
    port = free_port()
    command = [tool("uvicorn"), "--app-dir", str(SITE), "--port", str(port)]
    command += ["shop.asgi:application"]
    with running(command, tmp_path, environment(cluster, tmp_path), port) as server:
        answers = load(server, REQUESTS, "/click/{name}")
        stop(server)
    assert len(answers.accepted) == REQUESTS, server.output
    assert_once(cluster, "clicks", list(answers.accepted))


def test_celery(cluster: KafkaCluster, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("celery")
    env = environment(cluster, tmp_path, CELERY_QUEUE=str(tmp_path / "queue"))
    env["PYTHONPATH"] = f"{EXAMPLES}:{env['PYTHONPATH']}"
    tasks = tmp_path / "queue" / "tasks"
    fill = f"from celery_tasks import greet\nfor n in range({REQUESTS}): greet.delay(str(n))"
    subprocess.run([sys.executable, "-c", fill], env=env, check=True, timeout=SOON)
    assert len(list(tasks.iterdir())) == REQUESTS
    command = [tool("celery"), "--app", "celery_tasks", "worker", "--concurrency", "3"]
    with running(command, tmp_path, env) as worker:
        worker.until(lambda: not list(tasks.iterdir()), "the end of all tasks")
        stop(worker)
    assert_once(cluster, "greetings", [f"hello {number}" for number in range(REQUESTS)])

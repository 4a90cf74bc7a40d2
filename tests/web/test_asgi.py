"""ASGI: a server that ends itself with a signal, so that no exit hook of Python runs."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

from pykaproducer import Producer, ProducerClosedError
from pykaproducer.contrib.asgi import close_at_shutdown
from pykaproducer.testing import KafkaCluster

from .helper import assert_once, environment, free_port, load, running, stop_after, tool


@pytest.mark.full
def test_what_it_accepts_is_in_the_log_once_also_when_it_is_stopped_under_load(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    port = free_port()
    command = [tool("uvicorn"), "--port", str(port), "asgi_application:application"]
    with running(command, tmp_path, environment(cluster, tmp_path, TOPIC=topic), port) as server:
        answers = load(server, 3000, each=stop_after(server, 600))
        server.wait()
    assert 600 <= len(answers.accepted) < 3000, server.output
    assert_once(cluster, topic, list(answers.accepted))


async def _lifespan(application: Any) -> list[str]:
    """Start up and shut down, and return the application's messages."""
    told = iter(["lifespan.startup", "lifespan.shutdown"])
    answers = []

    async def receive() -> dict[str, Any]:
        return {"type": next(told)}

    async def send(message: Any) -> None:
        answers.append(message["type"])

    await application({"type": "lifespan"}, receive, send)
    return answers


async def refuses(scope: Any, receive: Any, send: Any) -> None:
    raise ValueError("no lifespan here")


async def receives_and_refuses(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    raise ValueError("no lifespan here")


async def handles(scope: Any, receive: Any, send: Any) -> None:
    for _ in range(2):
        message = await receive()
        await send({"type": f"{message['type']}.complete"})


@pytest.mark.parametrize("application", [refuses, receives_and_refuses, handles])
def test_the_producer_is_closed_at_the_shutdown(application: Any) -> None:
    """Whether or not the application handles the lifespan itself."""
    producer = Producer(bootstrap_servers="nowhere:1")
    answers = asyncio.run(_lifespan(close_at_shutdown(application, producer)))
    assert answers == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(ProducerClosedError):
        producer.send("topic", b"value")


def test_an_application_that_cannot_start_says_so_itself() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed"})

    producer = Producer(bootstrap_servers="nowhere:1")
    answers = asyncio.run(_lifespan(close_at_shutdown(fails, producer)))
    assert answers == ["lifespan.startup.failed"]

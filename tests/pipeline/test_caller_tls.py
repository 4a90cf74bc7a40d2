"""Callers that encrypt and decrypt themselves, and what may happen in a call of OpenSSL."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.testing import ScriptedCluster, scripted
from tests._support.callers import needs_callers
from tests._support.tls_cluster import tls_files, tls_network

from .helper import SOON, log, numbers, pipeline_of, running, until
from .test_callers import warm

pytestmark = needs_callers


@pytest.fixture
def cluster_and_producer(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ScriptedCluster, Producer]]:
    files = tls_files(tmp_path_factory.mktemp("tls"))
    monkeypatch.setattr(scripted, "ScriptedNetwork", tls_network(*files))
    with running(topics={"t": 1, "u": 1, "v": 1}) as (cluster, producer):
        for topic in "tutu":
            warm(producer, topic=topic)
        yield cluster, producer


class OpenSsl:
    """Calls *after* once after a *method* of the connection's OpenSSL object, in that thread."""

    def __init__(self, producer: Producer, method: str, after: Callable[[], object]) -> None:
        (broker,) = pipeline_of(producer).brokers.all()
        stream: Any = broker.bridge._connection._transport.stream  # type: ignore[union-attr]
        self._real = stream.tls
        self._after: Callable[[], object] | None = after
        setattr(self, method, self._called(getattr(self._real, method)))
        stream.tls = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            found = function(*args)
            after, self._after = self._after, None
            if after is not None:
                after()
            return found

        return call


def test_many_tasks_wait_at_once(cluster_and_producer: tuple[ScriptedCluster, Producer]) -> None:
    cluster, producer = cluster_and_producer
    before = len(log(cluster))

    async def task() -> None:
        for value in numbers(200):
            await producer.send("t", value)

    async def tasks() -> None:
        await asyncio.gather(*(task() for _ in range(8)))

    asyncio.run(tasks())
    assert len(log(cluster)) == before + 1600


@pytest.mark.parametrize("method", ["write", "read"])
def test_a_signal_handler_waits_for_a_message_of_the_connection(
    cluster_and_producer: tuple[ScriptedCluster, Producer], method: str
) -> None:
    """The Bridge gives the connection up after a second."""
    cluster, producer = cluster_and_producer
    before = len(log(cluster))
    former = signal.signal(
        signal.SIGUSR1, lambda *_: producer.send("u", b"from the handler").result(SOON)
    )
    try:
        OpenSsl(producer, method, lambda: signal.raise_signal(signal.SIGUSR1))
        assert producer.send("t", b"it").result(SOON).offset == before
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert producer.send("t", b"next").result(SOON).offset == before + 1


@pytest.mark.parametrize("method", ["write", "read"])
def test_a_signal_handler_raises(
    cluster_and_producer: tuple[ScriptedCluster, Producer], method: str
) -> None:
    cluster, producer = cluster_and_producer
    before = len(log(cluster))
    reported: list[Any] = []

    def interrupt() -> None:
        other = threading.Thread(
            target=producer.send, args=("u", b"beside"), kwargs={"on_delivery": on_delivery}
        )
        other.start()
        other.join()
        raise KeyboardInterrupt

    def on_delivery(error: Any, _: object) -> None:
        reported.append(error)

    OpenSsl(producer, method, interrupt)
    with pytest.raises(KeyboardInterrupt):
        producer.send("t", b"it", on_delivery=on_delivery).result(SOON)
    until(lambda: len(reported) == 2)
    assert reported == [None, None]
    assert log(cluster)[before:] == [b"it"]


def test_another_thread_sends_while_the_bridge_reads(
    cluster_and_producer: tuple[ScriptedCluster, Producer],
) -> None:
    _, producer = cluster_and_producer
    entered, go_on = threading.Event(), threading.Event()
    reported = threading.Event()

    def in_bridge() -> None:
        if "bridge" in threading.current_thread().name:
            entered.set()
            assert go_on.wait(SOON)

    # The timer of a large message wakes the Bridge.
    OpenSsl(producer, "pending", in_bridge)
    deliveries = [producer.send("t", bytes(40_000))]
    assert entered.wait(SOON)
    producer.send("u", b"it", on_delivery=lambda *_: reported.set())
    deliveries.append(producer.send("v", b"through the stages"))
    go_on.set()
    assert reported.wait(SOON)
    for delivery in deliveries:
        delivery.result(SOON)

"""Transactions in an event loop, as ``docs/transactions.rst`` describes them."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer.errors import TransactionAbortableError
from tests.transactions.helper import PATIENCE, Kafka

GUIDE = Path(__file__).parents[2] / "docs" / "transactions.rst"


@pytest.fixture
def transaction() -> Callable[[Producer], contextlib.AbstractAsyncContextManager[None]]:
    """Return the function ``transaction()`` of the guide."""
    (block,) = re.findall(
        r"(?ms)^    @asynccontextmanager\n.*?(?=^    async with)", GUIDE.read_text()
    )
    code = "\n".join(line.removeprefix("    ") for line in block.splitlines())
    names: dict[str, Any] = {
        "asyncio": asyncio,
        "contextlib": contextlib,
        "asynccontextmanager": contextlib.asynccontextmanager,
        "TransactionAbortableError": TransactionAbortableError,
    }
    exec(code, names)
    found: Callable[[Producer], Any] = names["transaction"]
    return found


def test_the_block_of_the_guide(kafka: Kafka, topic: str, transaction: Any) -> None:
    async def main(producer: Producer) -> None:
        await asyncio.to_thread(producer.init_transactions)
        async with transaction(producer):
            delivery = producer.send(topic, b"kept", partition=0)
            assert (await delivery).offset == 0
            await asyncio.gather(
                *(producer.send(topic, b"kept, too", partition=1) for _ in range(3))
            )
        with contextlib.suppress(ZeroDivisionError):
            async with transaction(producer):
                await producer.send(topic, b"dropped", partition=0)
                _ = 1 // 0
        with pytest.raises(TransactionAbortableError, match="partition 99"):
            async with transaction(producer):
                producer.send(topic, b"nowhere", partition=99)
        async with transaction(producer):
            producer.send(topic, b"last", partition=2)

    with kafka.producer() as producer:
        asyncio.run(main(producer))
    assert kafka.committed(topic) == [b"kept", *[b"kept, too"] * 3, b"last"]


def test_a_task_that_is_cancelled_in_the_block_aborts(
    kafka: Kafka, topic: str, transaction: Any
) -> None:
    async def main(producer: Producer) -> None:
        await asyncio.to_thread(producer.init_transactions)
        waits = asyncio.Event()

        async def write() -> None:
            async with transaction(producer):
                await producer.send(topic, b"dropped", partition=0)
                waits.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(write())
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with transaction(producer):
            producer.send(topic, b"kept", partition=0)

    with kafka.producer() as producer:
        asyncio.run(main(producer))
    assert kafka.committed(topic) == [b"kept"]


def test_a_task_that_is_cancelled_in_the_commit(kafka: Kafka, topic: str, transaction: Any) -> None:
    """The commit continues, and the task ends when its outcome is known."""

    async def main(producer: Producer) -> None:
        await asyncio.to_thread(producer.init_transactions, PATIENCE)

        async def write() -> None:
            async with transaction(producer):
                await producer.send(topic, b"value", partition=0)
                kafka.proxy.black_hole()

        task = asyncio.create_task(write())
        while producer.stats()["transactions"]["state"] in ("ready", "open"):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
        assert not task.done()
        kafka.proxy.restore()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with transaction(producer):
            producer.send(topic, b"next", partition=0)

    with kafka.producer(proxied=True) as producer:
        asyncio.run(main(producer))
    assert kafka.committed(topic) == [b"value", b"next"]


def test_the_loop_runs_during_a_commit(kafka: Kafka, topic: str) -> None:
    """Also for what its callbacks need."""

    async def main(producer: Producer) -> None:
        loop, reported = asyncio.get_running_loop(), asyncio.Event()

        def on_delivery(_error: Any, _delivery: Any) -> None:
            asyncio.run_coroutine_threadsafe(reported.wait(), loop)
            loop.call_soon_threadsafe(reported.set)

        await asyncio.to_thread(producer.init_transactions)
        producer.begin_transaction()
        producer.send(topic, b"value", partition=0, on_delivery=on_delivery)
        await asyncio.gather(asyncio.to_thread(producer.commit_transaction), reported.wait())

    with kafka.producer() as producer:
        asyncio.run(main(producer))
    assert kafka.committed(topic) == [b"value"]

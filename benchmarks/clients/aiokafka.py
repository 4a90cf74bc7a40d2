"""aiokafka, which supports asyncio only: its event loop runs during the calls of these methods.

It limits the open batch of each partition, but not the bytes of all partitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaTimeoutError

from benchmarks.clients import Load, OnDelivery, Settings, given

T = TypeVar("T")


class Client:
    buffer_full = KafkaTimeoutError

    def __init__(self, settings: Settings) -> None:
        self._loop = asyncio.new_event_loop()
        self._producer = self.run(self._start(settings))

    async def _start(self, settings: Settings) -> AIOKafkaProducer:
        compression = settings.compression
        producer = AIOKafkaProducer(
            bootstrap_servers=settings.bootstrap_servers,
            compression_type=None if compression == "none" else compression,
            **given(
                acks=int(settings.acks) if settings.acks in ("0", "1") else settings.acks,
                enable_idempotence=settings.idempotence,
                linger_ms=settings.linger_ms,
                max_batch_size=settings.batch_size,
            ),
        )
        await producer.start()
        return producer

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    def send(
        self,
        topic: str,
        value: bytes,
        on_delivery: OnDelivery | None = None,
        key: bytes | None = None,
    ) -> None:
        self.send_all(Load(topic, 1, [value], None if key is None else [key]), on_delivery)

    def served(self) -> AbstractContextManager[None]:
        return nullcontext()

    def append_time(self, report: Any) -> float:
        return float(report.timestamp)

    def awaitable(self) -> Callable[[str, bytes, bytes | None], Awaitable[Any]]:
        return self._producer.send_and_wait

    def send_all(self, load: Load, on_delivery: OnDelivery | None) -> None:
        self.run(self._send_all(load, on_delivery))

    async def _send_all(self, load: Load, on_delivery: OnDelivery | None) -> None:
        send, topic = self._producer.send, load.topic
        if on_delivery is None:
            for value, key in load.rows():
                await send(topic, value, key)
            return

        def on_done(future: asyncio.Future[Any]) -> None:
            on_delivery(future.exception(), None)

        if load.topics:
            for topic, value, key in load.addressed():
                (await send(topic, value, key)).add_done_callback(on_done)
        else:
            for value, key in load.rows():
                (await send(topic, value, key)).add_done_callback(on_done)

    def send_keeping_handles(self, load: Load) -> Callable[[], int]:
        handles = self.run(self._send_keeping_handles(load))
        return lambda: sum(handle.done() and handle.exception() is None for handle in handles)

    async def _send_keeping_handles(self, load: Load) -> list[asyncio.Future[Any]]:
        send, topic = self._producer.send, load.topic
        return [await send(topic, value, key) for value, key in load.rows()]

    def send_one_by_one(self, load: Load) -> list[int]:
        return self.run(self._send_one_by_one(load))

    async def _send_one_by_one(self, load: Load) -> list[int]:
        send_and_wait, topic, now = self._producer.send_and_wait, load.topic, time.perf_counter_ns
        times = []
        for value, key in load.rows():
            start = now()
            await send_and_wait(topic, value, key)
            times.append(now() - start)
        return times

    def flush(self, timeout: float) -> None:
        self.run(asyncio.wait_for(self._producer.flush(), timeout))

    def abandon(self) -> None:
        self.run(self._producer.stop())
        self._loop.close()

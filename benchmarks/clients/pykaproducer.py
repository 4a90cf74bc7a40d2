"""pykaproducer itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from benchmarks.clients import Load, OnDelivery, Settings, given
from pykaproducer import BufferFullError, Producer

T = TypeVar("T")

#: Values and keys of each block.
Blocks = list[tuple[list[bytes], list[bytes] | None]]


class Client:
    buffer_full = BufferFullError
    waits = True

    def __init__(self, settings: Settings, **more: Any) -> None:
        self._producer = Producer(
            bootstrap_servers=settings.bootstrap_servers,
            **more,
            **(settings.security or {}),
            **given(
                acks=int(settings.acks) if settings.acks in ("0", "1") else settings.acks,
                enable_idempotence=settings.idempotence,
                compression_type=settings.compression,
                compression_level=settings.compression_level,
                linger_ms=settings.linger_ms,
                batch_size=settings.batch_size,
                buffer_memory=settings.buffer_memory,
                max_block_ms=settings.max_block_ms,
                max_in_flight_requests_per_connection=settings.max_in_flight,
                transactional_id=settings.transactional_id,
            ),
        )

    def send(
        self,
        topic: str,
        value: bytes,
        on_delivery: OnDelivery | None = None,
        key: bytes | None = None,
    ) -> None:
        self._producer.send(topic, value, key, on_delivery=on_delivery)

    def served(self) -> AbstractContextManager[None]:
        return nullcontext()

    def append_time(self, report: Any) -> float:
        return float(report.timestamp)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(coroutine)

    def awaitable(self) -> Callable[[str, bytes, bytes | None], Awaitable[Any]]:
        return self._producer.send

    def send_all(self, load: Load, on_delivery: OnDelivery | None) -> None:
        send, topic = self._producer.send, load.topic
        if load.topics:
            for topic, value, key in load.addressed():
                send(topic, value, key, on_delivery=on_delivery)
        else:
            for value, key in load.rows():
                send(topic, value, key, on_delivery=on_delivery)

    def send_keeping_handles(self, load: Load) -> Callable[[], int]:
        send, topic = self._producer.send, load.topic
        handles = [send(topic, value, key) for value, key in load.rows()]
        return lambda: sum(handle.succeeded() for handle in handles)

    def send_one_by_one(self, load: Load) -> list[int]:
        send, topic, now = self._producer.send, load.topic, time.perf_counter_ns
        more: dict[str, Any] = {"on_delivery": _ignore} if load.callback else {}
        times = []
        for value, key in load.rows():
            start = now()
            send(topic, value, key, **more).result()
            times.append(now() - start)
        return times

    def prepare_bulk(self, load: Load) -> Blocks:
        return list(load.blocks())

    def send_bulk(self, load: Load, blocks: Blocks) -> Callable[[], int]:
        # Any: older versions do not have it.
        producer: Any = self._producer
        handles = [producer.send_many(load.topic, values, keys) for values, keys in blocks]
        return lambda: sum(_rows_of(handle) for handle in handles)

    def prepare_arrow(self, load: Load) -> list[Any]:
        import pyarrow

        return [
            pyarrow.record_batch(
                {
                    name: pyarrow.array(column, pyarrow.binary())
                    for name, column in (("value", values), ("key", keys))
                    if column is not None
                }
            )
            for values, keys in load.blocks()
        ]

    def send_arrow(self, load: Load, blocks: list[Any]) -> Callable[[], int]:
        producer: Any = self._producer
        handles = [producer.send_arrow(block, load.topic) for block in blocks]
        return lambda: sum(_rows_of(handle) for handle in handles)

    def init_transactions(self, timeout: float) -> None:
        self._producer.init_transactions(timeout)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def offset_sender(self, group: str, topic: str) -> Callable[[int], None]:
        from kafka import TopicPartition

        send, place = self._producer.send_offsets_to_transaction, TopicPartition(topic, 0)
        return lambda offset: send({place: offset}, group)

    def commit(self, timeout: float) -> None:
        self._producer.commit_transaction(timeout)

    def flush(self, timeout: float) -> None:
        self._producer.flush(timeout)

    def abandon(self) -> None:
        self._producer.abort()


def _ignore(error: object, report: object) -> None:
    pass


def _rows_of(handle: Any) -> int:
    """Return how many rows of a block were delivered; it is already flushed."""
    metadata = handle.result(60)
    return int(metadata.rows)

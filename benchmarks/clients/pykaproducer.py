"""pykaproducer itself."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.clients import Load, OnDelivery, Settings, given
from pykaproducer import BufferFullError, Producer


class Client:
    buffer_full = BufferFullError

    def __init__(self, settings: Settings) -> None:
        self._producer = Producer(
            bootstrap_servers=settings.bootstrap_servers,
            **given(
                acks=int(settings.acks) if settings.acks in ("0", "1") else settings.acks,
                enable_idempotence=settings.idempotence,
                compression_type=settings.compression,
                linger_ms=settings.linger_ms,
                batch_size=settings.batch_size,
                buffer_memory=settings.buffer_memory,
                max_block_ms=settings.max_block_ms,
            ),
        )

    def send(self, topic: str, value: bytes, on_delivery: OnDelivery | None = None) -> None:
        self._producer.send(topic, value, on_delivery=on_delivery)

    def send_all(self, load: Load, on_delivery: OnDelivery | None) -> None:
        send, topic = self._producer.send, load.topic
        for value, key in load.rows():
            send(topic, value, key, on_delivery=on_delivery)

    def send_keeping_handles(self, load: Load) -> Callable[[], int]:
        send, topic = self._producer.send, load.topic
        handles = [send(topic, value, key) for value, key in load.rows()]
        return lambda: sum(handle.succeeded() for handle in handles)

    def flush(self, timeout: float) -> None:
        self._producer.flush(timeout)

    def abandon(self) -> None:
        self._producer.abort()

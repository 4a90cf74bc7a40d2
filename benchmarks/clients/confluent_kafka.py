"""confluent-kafka: librdkafka under a Python module.

It runs callbacks in the thread that polls: the loop polls now and then, and when the queue is
full. It returns no handles; the callback stands for them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import confluent_kafka

from benchmarks.clients import Load, OnDelivery, Settings, given

#: The most that it allows: the bound in bytes shall govern.
_MAX_MESSAGES = 10_000_000


class Client:
    buffer_full = BufferError

    def __init__(self, settings: Settings) -> None:
        bound = settings.buffer_memory
        config = {
            "acks": settings.acks,
            "enable.idempotence": settings.idempotence,
            "compression.type": settings.compression,
            "linger.ms": settings.linger_ms,
            "batch.size": settings.batch_size,
            "queue.buffering.max.kbytes": None if bound is None else bound // 1024,
            "queue.buffering.max.messages": None if bound is None else _MAX_MESSAGES,
        }
        self._poll_every = settings.poll_every
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": settings.bootstrap_servers, **given(**config)}
        )

    def send(self, topic: str, value: bytes, on_delivery: OnDelivery | None = None) -> None:
        self._producer.produce(topic, value, on_delivery=on_delivery)

    def send_all(self, load: Load, on_delivery: OnDelivery | None) -> None:
        produce, poll, topic = self._producer.produce, self._producer.poll, load.topic
        rows, every = load.rows(), self._poll_every
        for _ in range(0, load.count, every):
            for value, key in itertools.islice(rows, every):
                while True:
                    try:
                        produce(topic, value, key, on_delivery=on_delivery)
                        break
                    except BufferError:
                        poll(0.01)
            poll(0)

    def send_keeping_handles(self, load: Load) -> Callable[[], int]:
        delivered = 0

        def on_delivery(error: object, message: object) -> None:
            nonlocal delivered
            if error is None:
                delivered += 1

        self.send_all(load, on_delivery)
        return lambda: delivered

    def flush(self, timeout: float) -> None:
        left = self._producer.flush(timeout)
        if left:
            raise TimeoutError(f"{left} messages without outcome after {timeout:.0f} s")

    def abandon(self) -> None:
        self._producer.purge()
        self._producer.flush(1)

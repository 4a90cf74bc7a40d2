"""kafka-python: pure Python. Its buffer is unbounded, so it ignores ``buffer_memory``."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaTimeoutError

from benchmarks.clients import Load, OnDelivery, Settings, given


class Client:
    buffer_full = KafkaTimeoutError
    waits = True
    #: Ours has the same interface.
    producer_class: Any = KafkaProducer

    def __init__(self, settings: Settings) -> None:
        compression = settings.compression
        self._producer = self.producer_class(
            bootstrap_servers=settings.bootstrap_servers,
            **(settings.security or {}),
            compression_type=None if compression == "none" else compression,
            **given(
                acks=int(settings.acks) if settings.acks in ("0", "1") else settings.acks,
                enable_idempotence=settings.idempotence,
                linger_ms=settings.linger_ms,
                batch_size=settings.batch_size,
                max_block_ms=settings.max_block_ms,
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
        future = self._producer.send(topic, value, key)
        if on_delivery is not None:
            future.add_callback(lambda metadata: on_delivery(None, metadata))
            future.add_errback(lambda error: on_delivery(error, None))

    def served(self) -> AbstractContextManager[None]:
        return nullcontext()

    def append_time(self, report: Any) -> float:
        return float(report.timestamp)

    def send_all(self, load: Load, on_delivery: OnDelivery | None) -> None:
        send, topic = self._producer.send, load.topic
        if on_delivery is None:
            for value, key in load.rows():
                send(topic, value, key)
            return

        def on_success(metadata: object) -> None:
            on_delivery(None, metadata)

        def on_error(error: object) -> None:
            on_delivery(error, None)

        if load.topics:
            for topic, value, key in load.addressed():
                send(topic, value, key).add_callback(on_success).add_errback(on_error)
        else:
            for value, key in load.rows():
                send(topic, value, key).add_callback(on_success).add_errback(on_error)

    def send_keeping_handles(self, load: Load) -> Callable[[], int]:
        send, topic = self._producer.send, load.topic
        handles = [send(topic, value, key) for value, key in load.rows()]
        return lambda: sum(handle.succeeded() for handle in handles)

    def send_one_by_one(self, load: Load) -> list[int]:
        send, topic, now = self._producer.send, load.topic, time.perf_counter_ns
        times = []
        for value, key in load.rows():
            start = now()
            send(topic, value, key).get()
            times.append(now() - start)
        return times

    def init_transactions(self, timeout: float) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def offset_sender(self, group: str, topic: str) -> Callable[[int], None]:
        send, place = self._producer.send_offsets_to_transaction, TopicPartition(topic, 0)
        return lambda offset: send({place: OffsetAndMetadata(offset, "", -1)}, group)

    def commit(self, timeout: float) -> None:
        self._producer.commit_transaction()

    def flush(self, timeout: float) -> None:
        self._producer.flush(timeout)

    def abandon(self) -> None:
        self._producer.close(timeout=0)

"""confluent-kafka: librdkafka with a Python module.

It runs callbacks in the polling thread: the loop polls at intervals, and when the queue is full. It
returns no handles; the callback serves instead.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka

from benchmarks.child import RunFailed
from benchmarks.clients import Load, OnDelivery, Settings, given

#: The maximum that it allows, so that the limit in bytes applies.
_MAX_MESSAGES = 10_000_000

_SECURITY = {
    "security_protocol": "security.protocol",
    "ssl_cafile": "ssl.ca.location",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
}


class Client:
    buffer_full = BufferError
    waits = True
    #: Ours has the same interface.
    producer_class: Any = confluent_kafka.Producer

    def __init__(self, settings: Settings) -> None:
        bound = settings.buffer_memory
        config = {
            "acks": settings.acks,
            "enable.idempotence": settings.idempotence,
            "compression.type": settings.compression,
            "compression.level": settings.compression_level,
            "linger.ms": settings.linger_ms,
            "batch.size": settings.batch_size,
            "max.in.flight": settings.max_in_flight,
            "transactional.id": settings.transactional_id,
            "queue.buffering.max.kbytes": None if bound is None else bound // 1024,
            "queue.buffering.max.messages": None if bound is None else _MAX_MESSAGES,
        }
        self._poll_every = settings.poll_every
        self._lingers = bool(settings.linger_ms)
        self._servers = settings.bootstrap_servers
        security = {_SECURITY[name]: text for name, text in (settings.security or {}).items()}
        self._producer = self.producer_class(
            {"bootstrap.servers": settings.bootstrap_servers, **given(**config), **security}
        )

    def send(
        self,
        topic: str,
        value: bytes,
        on_delivery: OnDelivery | None = None,
        key: bytes | None = None,
    ) -> None:
        self._producer.produce(topic, value, key, on_delivery=on_delivery)

    @contextmanager
    def served(self) -> Iterator[None]:
        """Poll in a thread: it is there for the callbacks."""
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                self._producer.poll(0.1)

        thread = threading.Thread(target=serve, name="poll")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def append_time(self, report: Any) -> float:
        return float(report.timestamp()[1])

    def send_all(self, load: Load, on_delivery: OnDelivery | None) -> None:
        if load.topics:
            self._send_to_topics(load, on_delivery)
            return
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

    def _send_to_topics(self, load: Load, on_delivery: OnDelivery | None) -> None:
        produce, poll = self._producer.produce, self._producer.poll
        rows, every = load.addressed(), self._poll_every
        for _ in range(0, load.count, every):
            for topic, value, key in itertools.islice(rows, every):
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

    def send_one_by_one(self, load: Load) -> list[int]:
        produce, poll, now = self._producer.produce, self._producer.poll, time.perf_counter_ns
        # flush() ends lingering, which a caller that waits would not want to wait for, too.
        wait = self._producer.flush if self._lingers else poll
        topic, failures = load.topic, []
        waiting = False

        def on_delivery(error: object, message: object) -> None:
            nonlocal waiting
            waiting = False
            if error is not None:
                failures.append(error)

        times = []
        for value, key in load.rows():
            start = now()
            waiting = True
            produce(topic, value, key, on_delivery=on_delivery)
            while waiting:
                wait(1)
            times.append(now() - start)
        if failures:
            raise RunFailed(f"{len(failures)} messages failed; first error: {failures[0]}")
        return times

    def prepare_bulk(self, load: Load) -> list[list[dict[str, Any]]]:
        """Return lists of dicts, as ``produce_batch`` accepts them."""
        return [
            [{"value": value} for value in values]
            if keys is None
            else [{"value": value, "key": key} for value, key in zip(values, keys, strict=True)]
            for values, keys in load.blocks()
        ]

    def send_bulk(self, load: Load, blocks: list[list[dict[str, Any]]]) -> Callable[[], int]:
        produce_batch, poll, topic = self._producer.produce_batch, self._producer.poll, load.topic
        queued = 0
        for block in blocks:
            rest = block
            while True:
                accepted = produce_batch(topic, rest)
                queued += accepted
                if accepted == len(rest):
                    break
                # The queue was full: messages that were not accepted are marked.
                rest = [message for message in rest if message.pop("_error", None) is not None]
                poll(0.01)
        return lambda: queued

    def init_transactions(self, timeout: float) -> None:
        self._producer.init_transactions(timeout)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def offset_sender(self, group: str, topic: str) -> Callable[[int], None]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._servers, "group.id": group})
        metadata = consumer.consumer_group_metadata()
        consumer.close()  # its threads would run beside the producer
        send, place = self._producer.send_offsets_to_transaction, confluent_kafka.TopicPartition
        return lambda offset: send([place(topic, 0, offset)], metadata)

    def commit(self, timeout: float) -> None:
        self._producer.commit_transaction(timeout)

    def flush(self, timeout: float) -> None:
        left = self._producer.flush(timeout)
        if left:
            raise TimeoutError(f"{left} messages without outcome after {timeout:.0f} s")

    def abandon(self) -> None:
        self._producer.purge()
        self._producer.flush(1)

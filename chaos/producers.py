"""The clients under load, each with the same interface and the same settings.

Only the requested client is imported.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from chaos import shortage
from chaos.audit import Status

#: Called with each outcome: the client's status, and the offset or -1.
Told = Callable[[Status, int], None]

#: A topic of which the brokers reject every batch. Only pykaproducer sends to it.
REFUSED = "chaos-refused"

#: Many small batches, so that several of a partition are in flight.
_BATCH_MESSAGES = 50
_BATCH_BYTES = 8 * 1024
#: With ``waiting``: of this many messages in a row, the first few are not waited for.
_TURN, _NOT_AWAITED = 64, 8
#: Short enough that there is nearly always something in flight.
_LINGER_MS = 1
#: How long a broken producer may take to close (seconds).
_CLOSE_BROKEN = 5.0


@dataclass(frozen=True)
class Settings:
    """The settings of all clients."""

    bootstrap_servers: str
    topic: str
    #: Seconds.
    delivery_timeout: float
    #: Seconds.
    request_timeout: float
    acks: str
    idempotence: bool
    #: The limit of in-flight requests per broker.
    in_flight: int
    #: Applies to pykaproducer only.
    stage_threads: str
    #: Applies to pykaproducer only: wait for most messages before the next is sent.
    waiting: bool = False
    #: Applies to pykaproducer only: the settings of TLS.
    tls: dict[str, str] = field(default_factory=dict)
    #: The topic's partitions. Further numbers are partitions of the topic ``REFUSED``.
    partitions: int = 0


class Refused(Exception):
    """``send()`` has not accepted the message."""


class Client(Protocol):
    def send(self, partition: int, value: bytes, told: Told) -> None:
        """Send a message, or raise :class:`Refused`."""

    def flush(self, timeout: float) -> None:
        """Return when each message has its outcome, or after *timeout* seconds."""

    def transitions(self) -> dict[str, int]:
        """Return how often each transition of the client's ordering machine was taken."""
        return {}

    def exercised(self) -> dict[str, int]:
        """Return what the faults have caused in the client, as far as it counts that."""
        return {}

    def close(self, timeout: float) -> None: ...


class Pykaproducer(Client):
    """A client whose errors carry a status, which is checked against the log."""

    def __init__(self, settings: Settings) -> None:
        from pykaproducer import (
            BufferFullError,
            FlushTimeoutError,
            Producer,
            ProducerBrokenError,
            ProducerClosedError,
        )

        self._topic, self._partitions = settings.topic, settings.partitions
        self._full, self._flush_timeout = BufferFullError, FlushTimeoutError
        # Closed: there was no memory to replace the broken one.
        self._broken, self._replaced = (ProducerBrokenError, ProducerClosedError), 0
        self._waiting, self._turn = settings.waiting, 0
        self._make: Callable[[], Any] = lambda: Producer(
            bootstrap_servers=settings.bootstrap_servers,
            acks="all" if settings.acks == "all" else int(settings.acks),
            enable_idempotence=settings.idempotence,
            delivery_timeout_ms=int(settings.delivery_timeout * 1000),
            request_timeout_ms=int(settings.request_timeout * 1000),
            # A caller that waits sends its message itself only without these limits.
            batch_max_messages=0 if settings.waiting else _BATCH_MESSAGES,
            linger_ms=0 if settings.waiting else _LINGER_MS,
            max_in_flight_requests_per_connection=settings.in_flight,
            stage_threads=settings.stage_threads,
            max_block_ms=0,
            **settings.tls,
        )
        self._producer = self._make()

    def send(self, partition: int, value: bytes, told: Told) -> None:
        def on_delivery(error: Any, delivery: Any) -> None:
            shortage.pause()
            try:
                if error is None:
                    told(Status.PERSISTED, delivery.offset)
                else:
                    told(Status[error.status.name], -1)
            finally:
                shortage.resume()

        self._turn += 1
        waits = self._waiting and self._turn % _TURN >= _NOT_AWAITED
        callback = None if waits else on_delivery
        topic = self._topic if partition < self._partitions else REFUSED
        try:
            sent = self._producer.send(topic, value, partition=partition, on_delivery=callback)
        except self._full as error:
            raise Refused from error
        except self._broken as error:
            shortage.pause()
            try:
                self._producer.close(_CLOSE_BROKEN)
                self._producer = self._make()
                self._replaced += 1
            except RuntimeError:
                pass  # no lock could be allocated: the next call tries again
            finally:
                shortage.resume()
            raise Refused from error
        if waits:
            on_delivery(sent.exception(), sent)

    def flush(self, timeout: float) -> None:
        try:
            self._producer.flush(timeout)
        except (self._flush_timeout, *self._broken):
            pass  # the audit reports messages without an outcome

    def transitions(self) -> dict[str, int]:
        from pykaproducer._machines.ordering import Transition

        pipeline = self._producer._pipeline
        assert pipeline is not None, "nothing has been sent"
        taken = pipeline.transitions()
        return {transition.value: taken[transition] for transition in Transition}

    def exercised(self) -> dict[str, int]:
        stats = self._producer.stats()
        requests, metrics = stats["requests"], self._producer._metrics
        return {
            "Produce requests": requests["sent"],
            "Produce requests lost": requests["lost"],
            "batches retried": requests["retried_batches"],
            "connections made": sum(link.made.count for link in list(metrics.links.values())),
            "connections for metadata made": metrics.metadata.made.count,
            "producers broken and replaced": self._replaced,
        }

    def close(self, timeout: float) -> None:
        self._producer.close(timeout)


class ConfluentKafka(Client):
    """A client that reports outcomes to a polling thread, without a message status."""

    def __init__(self, settings: Settings) -> None:
        import confluent_kafka

        self._topic = settings.topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "acks": settings.acks,
                "enable.idempotence": settings.idempotence,
                "delivery.timeout.ms": int(settings.delivery_timeout * 1000),
                "socket.timeout.ms": int(settings.request_timeout * 1000),
                "batch.num.messages": _BATCH_MESSAGES,
                "linger.ms": _LINGER_MS,
                "max.in.flight": settings.in_flight if settings.idempotence else 1,
            }
        )
        self._ended = False
        self._thread = threading.Thread(target=self._poll, name="poll", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._ended:
            self._producer.poll(0.05)

    def send(self, partition: int, value: bytes, told: Told) -> None:
        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                told(Status.PERSISTED, message.offset())
            else:
                told(Status.POSSIBLY_PERSISTED, -1)

        try:
            self._producer.produce(self._topic, value, partition=partition, on_delivery=on_delivery)
        except BufferError as error:
            raise Refused from error

    def flush(self, timeout: float) -> None:
        self._producer.flush(timeout)

    def close(self, timeout: float) -> None:
        self._ended = True
        self._thread.join(timeout)
        self._producer.purge()
        self._producer.flush(timeout)
        # There is no close(): its threads end with the object.
        del self._producer


class KafkaPython(Client):
    def __init__(self, settings: Settings) -> None:
        from kafka import KafkaProducer
        from kafka.errors import KafkaError

        self._error, self._topic = KafkaError, settings.topic
        self._producer = KafkaProducer(
            bootstrap_servers=settings.bootstrap_servers,
            acks="all" if settings.acks == "all" else int(settings.acks),
            enable_idempotence=settings.idempotence,
            delivery_timeout_ms=int(settings.delivery_timeout * 1000),
            request_timeout_ms=int(settings.request_timeout * 1000),
            max_block_ms=int(settings.delivery_timeout * 1000),
            batch_size=_BATCH_BYTES,
            linger_ms=_LINGER_MS,
            max_in_flight_requests_per_connection=(
                settings.in_flight if settings.idempotence else 1
            ),
        )

    def send(self, partition: int, value: bytes, told: Told) -> None:
        try:
            future = self._producer.send(self._topic, value, partition=partition)
        except self._error as error:
            raise Refused from error
        future.add_callback(lambda metadata: told(Status.PERSISTED, metadata.offset))
        future.add_errback(lambda error: told(Status.POSSIBLY_PERSISTED, -1))

    def flush(self, timeout: float) -> None:
        try:
            self._producer.flush(timeout)
        except self._error:
            pass  # the audit reports messages without an outcome

    def close(self, timeout: float) -> None:
        try:
            self._producer.close(timeout)
        except self._error:
            pass  # it flushes first, and raises for messages without an outcome


class Aiokafka(Client):
    """An asyncio-only client, with an event loop in a thread.

    Its ``request_timeout_ms`` is the lifetime of a batch.
    """

    def __init__(self, settings: Settings) -> None:
        import aiokafka
        from aiokafka.errors import KafkaError

        self._error, self._topic = KafkaError, settings.topic
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)
        self._thread.start()

        async def start() -> Any:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=settings.bootstrap_servers,
                acks="all" if settings.acks == "all" else int(settings.acks),
                enable_idempotence=settings.idempotence,
                request_timeout_ms=int(settings.delivery_timeout * 1000),
                max_batch_size=_BATCH_BYTES,
                linger_ms=_LINGER_MS,
            )
            await producer.start()
            return producer

        self._producer = self._run(start(), settings.delivery_timeout)

    def _run(self, coroutine: Any, timeout: float | None) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    def send(self, partition: int, value: bytes, told: Told) -> None:
        async def send() -> None:
            future = await self._producer.send(self._topic, value, partition=partition)
            future.add_done_callback(settled)

        def settled(future: Any) -> None:
            if future.cancelled() or future.exception() is not None:
                told(Status.POSSIBLY_PERSISTED, -1)
            else:
                told(Status.PERSISTED, future.result().offset)

        try:
            self._run(send(), None)
        except self._error as error:
            raise Refused from error

    def flush(self, timeout: float) -> None:
        try:
            self._run(self._producer.flush(), timeout)
        except TimeoutError:
            pass  # the audit reports messages without an outcome

    def close(self, timeout: float) -> None:
        try:
            self._run(self._producer.stop(), timeout)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout)
            if not self._thread.is_alive():
                self._loop.close()


#: By the names under which they are installed; ours first.
CLIENTS: dict[str, Callable[[Settings], Client]] = {
    "pykaproducer": Pykaproducer,
    "confluent-kafka": ConfluentKafka,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}

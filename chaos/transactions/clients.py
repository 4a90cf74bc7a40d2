"""The clients under load, each with the same interface and the same settings.

Only the requested client is imported.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from chaos.audit import Status
from chaos.transactions.history import Reported

#: Called with each outcome of a message: its status, and the offset or -1.
OnOutcome = Callable[[Status, int], None]

#: Many small batches, so that several of a partition are in flight.
_BATCH_MESSAGES = 50
_LINGER_MS = 1
_BACKOFF_MS = 50


@dataclass(frozen=True)
class TransactionSettings:
    """The settings of all clients; times are in seconds."""

    bootstrap_servers: str
    transactional_id: str
    topic: str
    #: Of the inputs.
    input_topic: str
    group: str
    transaction_timeout: float
    delivery_timeout: float
    request_timeout: float
    max_block: float


class Trouble(Exception):
    """A control call, or ``send()``, has failed."""

    def __init__(self, error: BaseException, *, reported: Reported | None = None) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = type(error).__name__
        #: What it says about the transaction; None: nothing.
        self.reported = reported


class Unfinished(Trouble):
    """The same call must be repeated."""


class MustAbort(Trouble):
    """The transaction must be aborted."""


class Unusable(Trouble):
    """The producer cannot be used any more."""


class TransactionalClient(Protocol):
    """A producer. All its methods but ``close()`` raise :class:`Trouble`; None: no time limit."""

    #: Whether its outcomes of messages, and of transactions, are what is audited.
    has_status: bool

    def init(self, timeout: float | None) -> None: ...
    def begin(self) -> None: ...
    def send(self, partition: int, value: bytes, on_outcome: OnOutcome) -> None: ...
    def offsets(self, offsets: Mapping[int, int], timeout: float | None) -> None: ...
    def flush(self, timeout: float) -> None: ...
    def commit(self, timeout: float | None) -> None: ...
    def abort(self, timeout: float | None) -> None: ...
    def close(self, timeout: float) -> None: ...


class TransactionalPykaproducer(TransactionalClient):
    has_status = True

    def __init__(self, settings: TransactionSettings) -> None:
        import pykaproducer
        from pykaproducer import errors

        self._errors, self._settings = errors, settings
        self._place = pykaproducer.TopicPartition
        self._producer = pykaproducer.Producer(
            bootstrap_servers=settings.bootstrap_servers,
            transactional_id=settings.transactional_id,
            transaction_timeout_ms=int(settings.transaction_timeout * 1000),
            delivery_timeout_ms=int(settings.delivery_timeout * 1000),
            request_timeout_ms=int(settings.request_timeout * 1000),
            max_block_ms=int(settings.max_block * 1000),
            retry_backoff_ms=_BACKOFF_MS,
            batch_max_messages=_BATCH_MESSAGES,
            linger_ms=_LINGER_MS,
        )

    def _call(self, function: Callable[..., Any], *arguments: Any, **names: Any) -> Any:
        errors = self._errors
        try:
            return function(*arguments, **names)
        except errors.TransactionTimeoutError as error:
            raise Unfinished(error) from error
        except errors.TransactionFatalError as error:
            reported = None if error.outcome is None else Reported[error.outcome.name]
            raise Unusable(error, reported=reported) from error
        except (errors.TransactionAbortableError, errors.BufferFullError) as error:
            raise MustAbort(error, reported=Reported.NOT_COMMITTED) from error
        except errors.MetadataTimeoutError as error:
            raise MustAbort(error, reported=Reported.NOT_COMMITTED) from error
        except errors.TransactionStateError:
            raise  # a defect of the load
        except errors.TransactionError as error:
            raise Unusable(error) from error  # init_transactions() was refused

    def init(self, timeout: float | None) -> None:
        self._call(self._producer.init_transactions, timeout)

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, partition: int, value: bytes, on_outcome: OnOutcome) -> None:
        def on_delivery(error: Any, delivery: Any) -> None:
            if error is None:
                on_outcome(Status.PERSISTED, delivery.offset)
            else:
                on_outcome(Status[error.status.name], -1)

        self._call(
            self._producer.send,
            self._settings.topic,
            value,
            partition=partition,
            on_delivery=on_delivery,
        )

    def offsets(self, offsets: Mapping[int, int], timeout: float | None) -> None:
        given = {
            self._place(self._settings.input_topic, partition): offset
            for partition, offset in offsets.items()
        }
        self._call(
            self._producer.send_offsets_to_transaction,
            given,
            self._settings.group,
            timeout=timeout,
        )

    def flush(self, timeout: float) -> None:
        try:
            self._producer.flush(timeout)
        except (self._errors.FlushTimeoutError, self._errors.DeliveryFailures):
            pass  # the end of the transaction reports it

    def commit(self, timeout: float | None) -> None:
        self._call(self._producer.commit_transaction, timeout)

    def abort(self, timeout: float | None) -> None:
        self._call(self._producer.abort_transaction, timeout)

    def close(self, timeout: float) -> None:
        self._producer.close(timeout)


class TransactionalConfluentKafka(TransactionalClient):
    """A client whose errors do not say what is known of a commit."""

    has_status = False

    def __init__(self, settings: TransactionSettings) -> None:
        import confluent_kafka

        self._library, self._settings = confluent_kafka, settings
        self._timeout = settings.max_block + settings.delivery_timeout
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "transactional.id": settings.transactional_id,
                "transaction.timeout.ms": int(settings.transaction_timeout * 1000),
                "delivery.timeout.ms": int(settings.delivery_timeout * 1000),
                "socket.timeout.ms": int(settings.request_timeout * 1000),
                "retry.backoff.ms": _BACKOFF_MS,
                "batch.num.messages": _BATCH_MESSAGES,
                "linger.ms": _LINGER_MS,
            }
        )
        self._ended = False
        self._thread = threading.Thread(target=self._poll, name="poll", daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._ended:
            self._producer.poll(0.05)

    def _call(self, function: Callable[..., Any], *arguments: Any, **names: Any) -> Any:
        try:
            return function(*arguments, **names)
        except BufferError as error:
            raise MustAbort(error, reported=Reported.NOT_COMMITTED) from error
        except self._library.KafkaException as error:
            code = error.args[0]
            if code.txn_requires_abort():
                raise MustAbort(error, reported=Reported.NOT_COMMITTED) from error
            if code.retriable():
                raise Unfinished(error) from error
            raise Unusable(error, reported=Reported.POSSIBLY_COMMITTED) from error

    def init(self, timeout: float | None) -> None:
        self._call(self._producer.init_transactions, self._limit(timeout))

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, partition: int, value: bytes, on_outcome: OnOutcome) -> None:
        def on_delivery(error: Any, message: Any) -> None:
            if error is None:
                on_outcome(Status.PERSISTED, message.offset())
            else:
                on_outcome(Status.POSSIBLY_PERSISTED, -1)

        self._call(
            self._producer.produce,
            self._settings.topic,
            value,
            partition=partition,
            on_delivery=on_delivery,
        )

    def offsets(self, offsets: Mapping[int, int], timeout: float | None) -> None:
        place = self._library.TopicPartition
        given = [
            place(self._settings.input_topic, partition, offset)
            for partition, offset in offsets.items()
        ]
        group = _group_metadata(self._settings.group)
        self._call(self._producer.send_offsets_to_transaction, given, group, self._limit(timeout))

    def flush(self, timeout: float) -> None:
        with suppress(self._library.KafkaException):  # a fatal error, once more
            self._producer.flush(timeout)

    def commit(self, timeout: float | None) -> None:
        self._call(self._producer.commit_transaction, self._limit(timeout))

    def abort(self, timeout: float | None) -> None:
        self._call(self._producer.abort_transaction, self._limit(timeout))

    def _limit(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else timeout

    def close(self, timeout: float) -> None:
        self._ended = True
        self._thread.join(timeout)
        self._producer.purge()
        self.flush(timeout)
        # There is no close(): its threads end with the object, which tracebacks of errors may have.
        del self._producer
        gc.collect()


def _group_metadata(group: str) -> Any:
    """Return the metadata of a consumer that is no member, as confluent-kafka encodes it."""
    generation = (-1).to_bytes(4, sys.byteorder, signed=True)
    return b"CGMDv2:" + generation + group.encode() + b"\0\0\1"


#: By the names under which they are installed; ours first.
CLIENTS: dict[str, Callable[[TransactionSettings], TransactionalClient]] = {
    "pykaproducer": TransactionalPykaproducer,
    "confluent-kafka": TransactionalConfluentKafka,
}

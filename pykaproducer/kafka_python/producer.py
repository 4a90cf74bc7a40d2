"""``KafkaProducer``: for code written for kafka-python, in which only the import changes.

It is a :class:`Producer` except where that library differs: its futures; ``flush()`` and the end of
a ``with`` block, which log failures instead of raising them; and messages with neither key nor
value, which are rejected.
``docs/migration-kafka-python.rst`` has the table of every setting and method.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple, Self

from pykaproducer._config.schema import shown
from pykaproducer._config.serializers import ObjectSerializer
from pykaproducer._kernel import Delivery, Intercepted
from pykaproducer._machines.cluster import ClusterView
from pykaproducer._pipeline.unreported import Taken
from pykaproducer._process import closing
from pykaproducer._util.clock import in_seconds
from pykaproducer.config import SETTINGS, Config, canonical_name
from pykaproducer.delivery import RecordMetadata, metadata
from pykaproducer.errors import ConfigurationError, ProducerClosedError
from pykaproducer.kafka_python.partitioners import Cluster, PartitionerCallable, callable_or_setting
from pykaproducer.producer import Producer
from pykaproducer.transactions import NEEDS_INIT

log = logging.getLogger("pykaproducer.config")

#: Brokers support sequence numbers from this version on.
_IDEMPOTENT_SINCE = (0, 11)


class FutureRecordMetadata:
    """kafka-python's future, which ``KafkaProducer.send()`` returns.

    ``is_done``, ``value`` and ``exception`` are attributes; :meth:`get` waits. Can be awaited.
    ``delivery`` is the underlying :class:`pykaproducer.Delivery`.
    """

    __slots__ = ("__weakref__", "_header_size", "_value", "delivery")

    def __init__(self, delivery: Delivery, header_size: int = -1) -> None:
        self.delivery = delivery
        self._header_size = header_size
        self._value: RecordMetadata | None = None

    @property
    def is_done(self) -> bool:
        """True if the message has its outcome."""
        return self.delivery.is_done

    @property
    def value(self) -> RecordMetadata | None:
        """The position of the message; None if it is pending or has failed."""
        if self._value is None and self.delivery.succeeded():
            self._value = metadata(self.delivery, self._header_size)
        return self._value

    @property
    def exception(self) -> BaseException | None:
        """The message's error if it has failed, else None."""
        return self.delivery.error

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for at most *timeout* seconds and return the message's position.

        Raises:
            KafkaTimeoutError: no outcome by then, or the message has failed at its deadline.
            KafkaError: the message's own error.
        """
        self.delivery.result(timeout)
        value = self.value
        assert value is not None, "result() has returned"
        return value

    def succeeded(self) -> bool:
        """Return whether the message is delivered."""
        return self.delivery.succeeded()

    def failed(self) -> bool:
        """Return whether the message has failed."""
        return self.delivery.failed()

    def retriable(self) -> bool:
        """Return whether the message has failed and sending it again could succeed."""
        return bool(getattr(self.exception, "retriable", False))

    def add_callback(self, f: Callable[..., object], *args: object, **kwargs: object) -> Self:
        """Call ``f(*args, record_metadata, **kwargs)`` if the message is delivered."""
        function = functools.partial(f, *args, **kwargs) if args or kwargs else f
        self.delivery.add_done_callback(functools.partial(self._call_if_delivered, function))
        return self

    def add_errback(self, f: Callable[..., object], *args: object, **kwargs: object) -> Self:
        """Call ``f(*args, error, **kwargs)`` if the message fails."""
        self.delivery.add_errback(f, *args, **kwargs)
        return self

    def add_both(self, f: Callable[..., object], *args: object, **kwargs: object) -> Self:
        """Call the same function as with :meth:`add_callback` and :meth:`add_errback`."""
        self.add_callback(f, *args, **kwargs)
        return self.add_errback(f, *args, **kwargs)

    def chain(self, future: Any) -> Self:
        """Also pass the outcome to *future*: ``success(value)`` or ``failure(error)``."""
        self.add_callback(future.success)
        return self.add_errback(future.failure)

    def _call_if_delivered(self, function: Callable[..., object], _: Delivery) -> None:
        if (value := self.value) is not None:
            function(value)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        yield from self.delivery.__await__()
        return self.get()

    def __repr__(self) -> str:
        return repr(self.delivery).replace("<Delivery", "<FutureRecordMetadata", 1)


class KafkaPythonConfig(Config, Mapping[str, Any]):
    """The configuration, which can also be read as a dict with kafka-python's names.

    It rejects values that kafka-python rejects and Producer accepts.
    """

    @classmethod
    def from_kwargs(cls, settings: Mapping[str, object]) -> Self:
        given = {canonical_name(name): value for name, value in settings.items()}
        version = _broker_version(given.get("api_version"))
        old = version is not None and version < _IDEMPOTENT_SINCE
        transactional = given.get("transactional_id") is not None
        if old and given.get("enable_idempotence") is None and not transactional:
            log.warning("idempotence is off because of api_version=%r", version)
            kept = {n: v for n, v in settings.items() if canonical_name(n) != "enable_idempotence"}
            settings = {**kept, "enable_idempotence": False}
        config = super().from_kwargs(settings)
        if old and config.idempotent:
            found = "transactional_id" if transactional else "enable_idempotence: True"
            raise ConfigurationError(
                f"setting {found} conflicts with api_version={version!r}; it requires brokers of "
                f"version 0.11 or later: remove api_version"
            )
        if config.delivery_timeout_ms < config.linger_ms + config.request_timeout_ms:
            raise ConfigurationError(
                f"setting delivery_timeout_ms: {config.delivery_timeout_ms} was given; allowed: at "
                f"least linger_ms + request_timeout_ms, which is "
                f"{config.linger_ms + config.request_timeout_ms} (as in kafka-python; "
                f"pykaproducer.Producer needs linger_ms only)"
            )
        return config

    def __getitem__(self, name: str) -> Any:
        """Return a setting's value; the default if it has no effect here."""
        if name == "enable_idempotence":
            return self.idempotent
        if name not in KafkaProducer.DEFAULT_CONFIG:
            raise KeyError(name)
        return getattr(self, name, KafkaProducer.DEFAULT_CONFIG[name])

    def __iter__(self) -> Iterator[str]:
        return iter(KafkaProducer.DEFAULT_CONFIG)

    def __len__(self) -> int:
        return len(KafkaProducer.DEFAULT_CONFIG)


def _broker_version(given: object) -> tuple[int, ...] | None:
    """Return the version in ``api_version``, or None for None or ``"auto"``."""
    if given is None or (isinstance(given, str) and given == "auto"):
        return None
    parts = given.split(".") if isinstance(given, str) else given
    try:
        return tuple(int(part) for part in parts)  # type: ignore[attr-defined]  # or TypeError
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(
            f"setting api_version: {shown(given)} was given; allowed: a tuple such as (0, 11), None"
        ) from None


class _Ready(NamedTuple):
    """Data that is already serialized, because a custom partitioner required it."""

    data: Any


class KafkaProducer(Producer):
    """A Kafka producer with the interface of kafka-python's ``KafkaProducer``.

    ``KafkaProducer(**settings)`` accepts its settings and those of :class:`Producer`. Unlike in
    kafka-python, the constructor does not connect, and :meth:`send` never waits for metadata
    (unless a custom partitioner object is used). An unreachable cluster is reported in the log and
    by the errors of the messages.
    """

    #: The settings and their defaults.
    DEFAULT_CONFIG: Mapping[str, Any] = {row.name: row.default for row in SETTINGS}

    _config_type = KafkaPythonConfig
    config: KafkaPythonConfig

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        if str(getattr(settings.get("kafka_client"), "__module__", "")).startswith("kafka."):
            del settings["kafka_client"]  # kafka-python's default
        self._partitioner: PartitionerCallable | None = None
        if "partitioner" in settings:
            self._partitioner, settings["partitioner"] = callable_or_setting(
                settings["partitioner"]
            )
        self._bootstrap_timeout = 30_000.0
        # Taken, and never released, by the thread that closes the serializers.
        self._closing_serializers = threading.Lock()
        super().__init__(*arguments, **settings)
        for name, value in settings.items():
            if canonical_name(name) == "bootstrap_timeout_ms":
                self._bootstrap_timeout = float(value)

    def _reset(self) -> None:
        super()._reset()
        # Whether bootstrap_connected() has already waited.
        self._bootstrapped = False

    def send(  # type: ignore[override]  # this class exists to return another kind of handle
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        on_delivery: Callable[[BaseException | None, Delivery], object] | None = None,
        delivery_timeout_ms: int | None = None,
    ) -> FutureRecordMetadata:
        """Accept one message and return its future, like :meth:`Producer.send`.

        Raises:
            ValueError: key and value are both None.
        """
        self._check_not_closed()
        if value is None and key is None:
            raise ValueError(
                "a message needs a value or a key; pykaproducer.Producer accepts it without both"
            )
        headers = [] if headers is None else headers
        if self._partitioner is not None and partition is None and not self._intercepting:
            began = self._transaction
            key, value, partition = self._choose(self._partitioner, topic, key, value, headers)
            if self._transaction != began:
                self._is_too_late()
        delivery = super().send(
            topic,
            value,
            key,
            headers,
            partition,
            timestamp_ms,
            on_delivery=on_delivery,
            delivery_timeout_ms=delivery_timeout_ms,
        )
        return FutureRecordMetadata(delivery, _size(headers) if headers else -1)

    def _accept(self, record: Any, past: Intercepted, delivery_timeout_ms: Any) -> Delivery:
        """Choose a partition and accept *record*, after the interceptors have changed it."""
        if self._partitioner is not None and record.partition is None:
            headers = [] if record.headers is None else record.headers
            key, value, partition = self._choose(
                self._partitioner, record.topic, record.key, record.value, headers
            )
            record = record.replace(key=key, value=value, headers=headers, partition=partition)
        return super()._accept(record, past, delivery_timeout_ms)

    def _choose(
        self, partitioner: PartitionerCallable, topic: str, key: Any, value: Any, headers: Any
    ) -> tuple[Any, Any, int]:
        """Return the serialized key and value and the partition that the partitioner chooses."""
        partitions = self.partitions_for(topic)
        packed, data = super()._serialize(topic, key, value, headers)
        cluster = Cluster(self._view())
        partition = partitioner(topic, key, packed, value, data, cluster)
        if partition not in partitions:
            raise ValueError(
                f"topic {topic!r}: the partitioner returned {partition!r}, which is not a "
                f"partition of the topic (0 to {len(partitions) - 1})"
            )
        config = self.config
        if config.key_serializer is not None or config.value_serializer is not None:
            packed, data = _Ready(packed), _Ready(data)
        return packed, data, partition

    def _view(self) -> ClusterView:
        pipeline = self._pipeline
        if pipeline is None:
            raise ProducerClosedError("the producer is closed")
        return pipeline.metadata.view

    def _serialize(self, topic: str, key: Any, value: Any, headers: Any) -> tuple[Any, Any]:
        if isinstance(key, _Ready):
            return key.data, value.data
        return super()._serialize(topic, key, value, headers)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all messages accepted so far have their outcome.

        Failures that neither a callback nor a read outcome has reported are logged, not raised.

        Raises:
            KafkaTimeoutError: some messages have no outcome after *timeout* seconds; they are still
                being sent.
        """
        super().flush(timeout)

    def _flushed(self, taken: Taken) -> None:
        closing.report(taken, "flush()")

    def _leave(self) -> None:
        self.close()  # it logs the failures that Producer raises

    def close(self, timeout: float | None = None, null_logger: bool = False) -> None:
        """Close like :meth:`Producer.close`, including serializers that have a ``close()``.

        Raises:
            ValueError: *timeout* is negative, or longer than the platform can wait.
        """
        timeout = in_seconds(timeout)
        if timeout is not None and not 0 <= timeout <= threading.TIMEOUT_MAX:
            raise ValueError(f"Invalid timeout: {timeout}")
        was_closing = self._closed
        super().close(timeout)
        if was_closing and self._ref.in_own_thread():
            return  # the thread that closes the producer still lets callbacks send
        if not self._closing_serializers.acquire(blocking=False):
            return
        for serializer in (self.config.key_serializer, self.config.value_serializer):
            if isinstance(serializer, ObjectSerializer):
                serializer.close()

    def init_transactions(
        self, timeout: float | None = None, *, transactional_id: str | None = None
    ) -> None:
        """Call :meth:`Producer.init_transactions`, unless it has succeeded before.

        As in kafka-python it can be called again at any time, also in a transaction.
        """
        refused = self._refused
        needed = refused is not None and refused.state in NEEDS_INIT
        if transactional_id is not None or needed:
            super().init_transactions(timeout, transactional_id=transactional_id)

    def send_offsets_to_transaction(
        self,
        offsets: object,
        group_metadata: object,
        *,
        timeout: float | None = None,
        wait: bool = True,
    ) -> None:
        """Call :meth:`Producer.send_offsets_to_transaction`, with kafka-python's names."""
        super().send_offsets_to_transaction(offsets, group_metadata, timeout=timeout, wait=wait)

    def bootstrap_connected(self) -> bool:
        """Return whether a server of the cluster has answered.

        The first call connects and waits for the answer for at most ``bootstrap_timeout_ms``, as
        kafka-python's constructor does.
        """
        if self._closed or super().bootstrap_connected():
            return not self._closed
        if self._ref.in_own_thread():
            return False
        if not self._ready:
            self._ensure_started()
        pipeline = self._pipeline
        if pipeline is None or self._bootstrapped:
            return False
        self._bootstrapped = True
        deadline = self._clock.monotonic() + self._bootstrap_timeout / 1000
        process = os.getpid()
        if pipeline.metadata.wait_for_brokers(deadline, self._ensure_started):
            return True
        # A signal handler may have forked: in the child, this is the first call.
        return os.getpid() != process and self.bootstrap_connected()

    @classmethod
    def max_usable_produce_magic(cls, api_version: object = None) -> int:
        """Return the message format that is written, which is always 2."""
        return 2

    def __repr__(self) -> str:
        return super().__repr__().replace("<Producer", "<KafkaProducer", 1)


def _size(headers: list[tuple[str, Any]]) -> int:
    """Return the bytes of names and values, as kafka-python counts them."""
    return sum(
        len(name.encode()) + (0 if value is None else memoryview(value).nbytes)
        for name, value in headers
    )

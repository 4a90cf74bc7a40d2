"""The producer's configuration: one frozen, validated object with all the defaults.

Names and meanings are those of kafka-python's ``KafkaProducer``. Each setting can also be given
by its dotted name, including the aliases of the Java client and librdkafka. Under a dotted name,
numbers and flags may be strings (``{"linger.ms": "5"}``), as is usual in such configurations.

The fields of :class:`Config` are the settings that have an effect. ``SETTINGS`` lists every
setting, including those that are accepted without effect and those that are not supported. The
settings table in the README and the mapping of dotted names are generated from it.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pykaproducer import partitioners
from pykaproducer._config.network import NetworkSettings, in_order
from pykaproducer._config.properties_file import read_properties
from pykaproducer._config.resolve import Resolved, ignored_settings, resolve_settings
from pykaproducer._config.schema import (
    ACKS,
    CLIENT_ID,
    COMPRESSION,
    COMPRESSION_LEVEL,
    FLAG,
    INT_MAX,
    INTERCEPTORS,
    RETRIES,
    SERIALIZER,
    SERVERS,
    TEXT,
    WIRE_TEXT,
    Host,
    Setting,
    choice,
    differ,
    integer,
    milliseconds,
    named,
    named_or_callable,
    optional,
    setting,
)
from pykaproducer._config.security import NAMES as SECURITY
from pykaproducer._config.security import SecuritySettings, without_context
from pykaproducer._config.serializers import Serializer
from pykaproducer._config.unsupported import NOT_HONOURED
from pykaproducer._config.validation import idempotence_conflicts, validate_combination
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

log = logging.getLogger("pykaproducer.config")

#: Numbers for generated client ids.
_numbers = itertools.count(1)
#: A maximum below its first value is raised to it: NAME_ms and NAME_max_ms.
_BACKOFFS = (
    "retry_backoff",
    "reconnect_backoff",
    "socket_connection_setup_timeout",
    "sasl_login_retry_backoff",
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Config(SecuritySettings, NetworkSettings):
    """The settings of one producer, validated. Times are in milliseconds, sizes in bytes.

    Picklable if the callables in it are. The repr contains no secrets.
    """

    # Identity and bootstrap
    bootstrap_servers: tuple[Host, ...] = setting(
        "localhost",
        SERVERS,
        "Servers used to fetch the initial cluster metadata. One reachable server is enough.",
        aliases=("metadata.broker.list",),
    )
    client_id: str = setting(
        None,
        CLIENT_ID,
        "Name of this client in broker logs and quotas.",
    )

    # Delivery of messages
    acks: int = setting(
        "all",
        ACKS,
        "Which replicas must acknowledge a message before it counts as delivered: none (0), the "
        "leader (1), or all in-sync replicas ('all').",
        aliases=("request.required.acks",),
    )
    enable_idempotence: bool | None = setting(
        None,
        optional(FLAG, "None: automatic"),
        "Prevent retries from writing a message twice. None enables it unless acks, retries or "
        "max_in_flight_requests_per_connection rule it out (a warning is logged). True raises in "
        "that case.",
    )
    retries: int = setting(
        INT_MAX,
        RETRIES,
        "How many times to retry a batch that the broker rejected with a retriable error. Lost "
        "connections and leader changes do not count. By default, only delivery_timeout_ms limits "
        "retries.",
        aliases=("message.send.max.retries",),
    )
    delivery_timeout_ms: float = setting(
        120_000,
        milliseconds(1),
        "Upper bound on the time between send() and success or failure being reported. At least "
        "linger_ms. Unlike in kafka-python, it may be less than linger_ms + request_timeout_ms: "
        "a message expires on time even if its request is still in flight.",
        unit="ms",
        aliases=("message.timeout.ms",),
    )
    transactional_id: str | None = setting(
        None,
        optional(WIRE_TEXT),
        "Makes the producer transactional. The id names the producer across restarts, and only one "
        "producer at a time may use it. Implies idempotence. See docs/transactions.rst.",
    )
    transaction_timeout_ms: float = setting(
        60_000,
        milliseconds(1),
        "How long a transaction may be open after its first message before the coordinator aborts "
        "it. The broker's transaction.max.timeout.ms is an upper bound.",
        unit="ms",
    )
    key_serializer: Serializer | None = setting(
        None,
        optional(SERIALIZER),
        "Converts keys to bytes: a callable f(key), or an object with a method serialize(topic, "
        "headers, key).",
    )
    value_serializer: Serializer | None = setting(
        None,
        optional(SERIALIZER),
        "Converts values to bytes: a callable f(value), or an object with a method "
        "serialize(topic, headers, value).",
    )
    partitioner: str | Callable[..., int] = setting(
        "murmur2",
        named_or_callable(partitioners.NAMES),
        "How to choose the partition of a message: a name, or a callable f(key_bytes, all, "
        "available).",
    )
    partitioner_adaptive_partitioning_enable: bool = setting(
        True,
        FLAG,
        "Send fewer messages without a key to partitions with a long queue, for example while "
        "their broker is slow (KIP-794). Applies to the partitioners murmur2, consistent_random "
        "and sticky.",
    )
    allow_auto_create_topics: bool = setting(
        True,
        FLAG,
        "Create a topic when its metadata is requested, if the brokers are configured to allow it.",
    )

    # Batches
    linger_ms: float = setting(
        0,
        milliseconds(),
        "How long a batch that is not full may wait for more messages. Ignored while a flush is "
        "in progress or buffer_memory is full, and while a thread waits for a message, if no other "
        "thread or task waits for one of the producer's messages, or has waited for one in the "
        "last 100 ms.",
        unit="ms",
        aliases=("queue.buffering.max.ms",),
    )
    batch_size: int = setting(
        1_000_000,
        integer(0),
        "Maximum size of a batch before compression. 0 sends each message in its own batch.",
        unit="bytes",
    )
    batch_max_messages: int = setting(
        0,
        integer(0),
        "Maximum number of messages in a batch. 0 means that only batch_size limits it.",
        unit="messages",
        aliases=("batch.num.messages",),
    )
    compression_type: str | None = setting(
        None,
        COMPRESSION,
        "Compression of batches. zstd requires the extra pykaproducer[zstd] and Kafka 2.1 or "
        "newer: messages for an older broker fail at once.",
        aliases=("compression.codec",),
    )
    compression_level: int | None = setting(
        None,
        COMPRESSION_LEVEL,
        "Compression level for compression_type. None uses the codec's default.",
    )
    max_request_size: int = setting(
        1_048_576,
        integer(1),
        "Maximum size of a message that send() accepts, and maximum total size of the batches in "
        "one request.",
        unit="bytes",
        aliases=("message.max.bytes",),
    )

    # Memory
    buffer_memory: int = setting(
        64 << 20,
        integer(1, 2**62),
        "Maximum memory for messages that are not yet delivered or failed. send() blocks when it "
        "is full. Topics of which nothing is delivered for a second, while other topics are, can "
        "together use half of it.",
        unit="bytes",
        scaled={"queue.buffering.max.kbytes": 1024},
    )
    max_block_ms: float = setting(
        60_000,
        milliseconds(),
        "How long send() may wait for buffer_memory before it raises BufferFullError, and "
        "partitions_for() for metadata. 0 means not to wait.",
        unit="ms",
    )

    # Requests and connections
    request_timeout_ms: int = setting(
        30_000,
        integer(1),
        "If a request is not answered within this time, the connection is considered lost. The "
        "time is measured from writing the request, or from the previous response if that is "
        "later. A Produce request waits less if all of its messages expire before that: until the "
        "last of them expires, but at least 3 seconds, and longer on a slow connection.",
        unit="ms",
        aliases=("socket.timeout.ms",),
    )
    max_in_flight_requests_per_connection: int = setting(
        5,
        integer(1, 1_000_000),
        "Maximum number of in-flight requests per broker, each with at most one batch per "
        "partition. Without idempotence, or with a broker before Kafka 1.0, a partition never has "
        "more than one batch in flight, to preserve ordering.",
        aliases=("max.in.flight",),
    )
    retry_backoff_ms: float = setting(
        100,
        milliseconds(),
        "Initial backoff before a batch is retried or metadata is requested again.",
        unit="ms",
    )
    retry_backoff_max_ms: float = setting(
        1_000,
        milliseconds(),
        "Maximum of that backoff, which doubles with each attempt (with jitter). At least "
        "retry_backoff_ms.",
        unit="ms",
    )
    reconnect_backoff_ms: float = setting(
        50,
        milliseconds(),
        "Initial backoff before reconnecting to a broker.",
        unit="ms",
    )
    reconnect_backoff_max_ms: float = setting(
        # One attempt per second costs nothing. With the 30 s of kafka-python, a broker that is
        # back would stay unused for a quarter of the default delivery_timeout_ms.
        1_000,
        milliseconds(),
        "Maximum of that backoff, which doubles with each attempt (with jitter). At least "
        "reconnect_backoff_ms. Lower than kafka-python's 30000, so that a broker is used again "
        "soon after it is back.",
        unit="ms",
    )
    metadata_max_age_ms: float = setting(
        300_000,
        milliseconds(1),
        "Maximum age of metadata before it is refreshed, to discover new partitions.",
        unit="ms",
        aliases=("topic.metadata.refresh.interval.ms",),
    )
    metadata_max_idle_ms: float = setting(
        300_000,
        milliseconds(5_000),
        "Forget the metadata of a topic that has had no messages for this long. The next message "
        "requests it again.",
        unit="ms",
    )
    receive_message_max_bytes: int = setting(
        100_000_000,
        integer(1_000),
        "Maximum size of a response. A larger one is considered malformed and the connection lost. "
        "Until a connection is ready, the maximum is 1 MiB.",
        unit="bytes",
    )
    exit_flush_timeout_ms: float = setting(
        5_000,
        milliseconds(),
        "How long a producer that was not closed may flush when the interpreter exits, and how "
        "long a with block waits that an exception ends.",
        unit="ms",
    )
    stage_threads: str = setting(
        "shared",
        choice("shared", "own"),
        "'shared': an idle TopicWorker or PartitionWorker runs in the thread that brings it a "
        "message, so a producer needs few threads. 'own': each has a separate thread, which "
        "costs a switch of threads for each batch.",
    )

    # Observability and interceptors
    interceptors: tuple[Any, ...] = setting(
        (),
        INTERCEPTORS,
        "Objects, or classes of such objects, whose on_send(record) may change each message "
        "before it is serialized, and whose on_acknowledgement(metadata, exception) is called "
        "with its outcome (pykaproducer.interceptors).",
        aliases=("interceptor.classes",),
    )
    stats_socket: str | None = setting(
        None,
        optional(TEXT),
        "Path of a Unix socket on which the producer, from its first message on, answers each "
        "connection from the same user with stats() as one line of JSON. %p in the path is "
        "replaced by the process id.",
    )
    metrics_enabled: bool = setting(
        True,
        FLAG,
        "Whether metrics() returns data. stats() is always available; its counters cost next to "
        "nothing.",
    )
    metrics_num_samples: int = setting(
        2,
        integer(1, 1000),
        "Number of samples used for averages, rates and percentiles, including the current one.",
        unit="samples",
    )
    metrics_sample_window_ms: float = setting(
        30_000, milliseconds(1), "Length of a sample.", unit="ms"
    )

    def __post_init__(self) -> None:
        for row in _FIELDS:
            object.__setattr__(self, row.name, row.parse(getattr(self, row.name)))
        if self.client_id is None:
            object.__setattr__(self, "client_id", f"pykaproducer-{next(_numbers)}")
        self.choose_proxy()
        if self.given_security():
            # Imported here, with all that it needs: most producers have none of these settings.
            from pykaproducer._config import security_validation

            security_validation.complete(self)
            security_validation.check(self)
        validate_combination(self)
        # Last, so that no error names a maximum that was not given.
        for kind in _BACKOFFS:
            first, most = f"{kind}_ms", f"{kind}_max_ms"
            if getattr(self, most) < getattr(self, first):
                object.__setattr__(self, most, getattr(self, first))

    def __getstate__(self) -> dict[str, Any]:
        return without_context(self.__dict__)

    @property
    def idempotent(self) -> bool:
        """Whether batches are numbered: ``enable_idempotence``, with None resolved."""
        if self.enable_idempotence is None:
            return not idempotence_conflicts(self)
        return self.enable_idempotence

    @classmethod
    def from_kwargs(cls, settings: Mapping[str, object]) -> Self:
        """Return the configuration for a user's settings, and log warnings about them."""
        resolved = resolve_settings(settings, _NAMES, texts=False, file=False)
        found = resolved.values
        config = cls(**_fields_of(found))
        resolved.log_without_effect(f"{config.client_id}: ")
        for warning in ignored_settings(found, _NAMES, lambda name: getattr(config, name, None)):
            log.warning("%s: %s", config.client_id, warning)
        conflicts = idempotence_conflicts(config)
        if conflicts and config.enable_idempotence is None:
            log.warning(
                "%s: idempotence is off because of %s, so that a retry may write a message twice; "
                "set enable_idempotence=False to silence this warning",
                config.client_id,
                " and ".join(conflicts),
            )
        if config.in_the_clear is not None:
            log.warning("%s: %s", config.client_id, config.in_the_clear)
        return config

    @classmethod
    def from_strings(cls, settings: Mapping[str, str]) -> Config:
        """Return the configuration for names and strings, as given on a command line."""
        return cls.from_kwargs(resolve(settings, texts=True))

    def __repr__(self) -> str:
        """Show the settings that differ from their defaults, without secrets."""
        changed = [
            f"{row.name}="
            + ("<not shown>" if row.secret else repr(row.kind.without_secrets(value)))
            for row in _FIELDS
            if differ(value := getattr(self, row.name), row.parse(row.default))
        ]
        return f"Config({', '.join(changed)})"


# The inherited settings come last.
_FIELDS = named(in_order(dataclasses.fields(Config), SECURITY))

_FIELD_NAMES = frozenset(row.name for row in _FIELDS)

#: Every known setting, in the order of the settings table.
SETTINGS: tuple[Setting, ...] = (*_FIELDS, *NOT_HONOURED)

#: The setting for each of its names.
_NAMES = {name: row for row in SETTINGS for name in (*row.dotted, row.name)}


def shown_settings(config: Config) -> dict[str, Any]:
    """Return the settings by name, without secrets."""
    return {
        row.name: row.kind.without_secrets(getattr(config, row.name))
        for row in _FIELDS
        if not row.secret
    }


def canonical_name(name: str) -> str | None:
    """Return our name of the setting that *name* or one of its aliases denotes, or None."""
    row = _NAMES.get(name)
    return None if row is None else row.name


def resolve(
    settings: Mapping[str, Any], *, texts: bool = False, file: bool = False
) -> dict[str, Any]:
    """Return the fields of :class:`Config` that *settings* gives, by our own names, validated.

    With *texts*, all values are strings, as on a command line; otherwise only those of dotted
    names may be. With *file*, they come from a properties file, where names that belong to other
    programs are not errors.
    """
    resolved = resolve_settings(settings, _NAMES, texts=texts, file=file)
    resolved.log_without_effect()
    return _fields_of(resolved.values)


def resolve_options(texts: Mapping[str, str]) -> Resolved:
    """Return *texts*, as on a command line, by our own names; ``given`` has the texts."""
    found = resolve_settings(texts, _NAMES, texts=True, file=False)
    return Resolved(_fields_of(found.values), _fields_of(found.given), found.without_effect)


def _fields_of(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name in _FIELD_NAMES}


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a properties file in Java's format, and return valid settings: ``Producer(**settings)``.

    Names that are not settings of this producer are ignored, with a warning.

    Raises:
        ConfigurationError, UnsupportedFeatureError: the text names the file and the problem.
    """
    texts = read_properties(path)
    try:
        return resolve(texts, texts=True, file=True)
    except (ConfigurationError, UnsupportedFeatureError) as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from None

"""The configuration: one frozen, validated object, and the only place with defaults.

Names and meanings are those of kafka-python's ``KafkaProducer``. Each setting can also be given
by its dotted name, with the aliases that the Java client and librdkafka have for it; a dotted
name takes texts for numbers and flags (``{"linger.ms": "5"}``), as such configurations are
written.

The fields of :class:`Config` are the settings that do something; ``SETTINGS`` is the table of
all, with those that are accepted without effect or refused. The settings table of the README and
the mapping of dotted names come from it.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pykaproducer import _security_checks as security
from pykaproducer import partitioners
from pykaproducer._names import idle, settings_of
from pykaproducer._not_honoured import NOT_HONOURED
from pykaproducer._properties import read_properties
from pykaproducer._security_settings import NAMES as SECURITY
from pykaproducer._security_settings import SecuritySettings
from pykaproducer._serializers import Serializer
from pykaproducer._settings import (
    ACKS,
    BYTES,
    COMPRESSION,
    COMPRESSION_LEVEL,
    FLAG,
    INT_MAX,
    INTERCEPTORS,
    RETRIES,
    SERIALIZER,
    SERVERS,
    SOCKET_OPTIONS,
    TEXT,
    Host,
    Setting,
    integer,
    milliseconds,
    named,
    named_or_callable,
    optional,
    setting,
)
from pykaproducer._together import check_together, conflicts_of
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

log = logging.getLogger("pykaproducer.config")

#: Numbers for the client ids that this process makes up.
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True, repr=False)
class Config(SecuritySettings):
    """All settings of one producer, checked; times in milliseconds, sizes in bytes.

    Can be pickled when the callables in it can. Its repr has no secrets.
    """

    # Who we are and whom we ask
    bootstrap_servers: tuple[Host, ...] = setting(
        "localhost",
        SERVERS,
        "The servers that are asked for the cluster's metadata first; one that answers is enough.",
        aliases=("metadata.broker.list",),
    )
    client_id: str = setting(
        None,
        optional(TEXT, "None: pykaproducer-N"),
        "The name of this client in the brokers' logs and quotas.",
    )

    # What becomes of a message
    acks: int = setting(
        "all",
        ACKS,
        "Which replicas must have a message before it counts as delivered: none, the leader, or "
        "all in sync.",
        aliases=("request.required.acks",),
    )
    enable_idempotence: bool | None = setting(
        None,
        optional(FLAG, "None: automatic"),
        "No message is written twice by a retry. Automatic: on, but for acks other than all, "
        "retries=0 or more than 5 requests in flight, which turn it off with a warning; True with "
        "one of these is an error.",
    )
    retries: int = setting(
        INT_MAX,
        RETRIES,
        "How often a batch goes again that a broker refused for a reason that may pass. Lost "
        "connections and moved leaders do not count; by default time alone governs.",
        aliases=("message.send.max.retries",),
    )
    delivery_timeout_ms: float = setting(
        120_000,
        milliseconds(1),
        "The time from send() by which a message has its outcome, wherever it waits. At least "
        "linger_ms; unlike in kafka-python it may be less than linger_ms + request_timeout_ms, "
        "for a request waits no longer than its messages may.",
        unit="ms",
        aliases=("message.timeout.ms",),
    )
    key_serializer: Serializer | None = setting(
        None,
        optional(SERIALIZER),
        "Makes bytes of a key: called as f(key), or serialize(topic, headers, key) of an object.",
    )
    value_serializer: Serializer | None = setting(
        None,
        optional(SERIALIZER),
        "Makes bytes of a value: called as f(value), or serialize(topic, headers, value).",
    )
    partitioner: str | Callable[..., int] = setting(
        "murmur2",
        named_or_callable(partitioners.NAMES),
        "Which partition a message goes to: a name, or f(key_bytes, all, available).",
    )
    partitioner_adaptive_partitioning_enable: bool = setting(
        True,
        FLAG,
        "With the partitioners murmur2, consistent_random and sticky: of the messages without a "
        "key, partitions with a long queue, as of a broker that is slow for a while, get fewer "
        "(KIP-794).",
    )
    allow_auto_create_topics: bool = setting(
        True, FLAG, "Asking for a topic may create it, if the brokers are set up so."
    )

    # Batches
    linger_ms: float = setting(
        0,
        milliseconds(),
        "How long a batch that is not full may wait for more messages; not while a flush waits or "
        "buffer_memory is full.",
        unit="ms",
        aliases=("queue.buffering.max.ms",),
    )
    batch_size: int = setting(
        1_000_000,
        integer(0),
        "The most that a batch may grow to, before compression; 0: each message alone.",
        unit="bytes",
    )
    batch_max_messages: int = setting(
        0,
        integer(0),
        "The most messages in a batch; 0: batch_size alone governs.",
        unit="messages",
        aliases=("batch.num.messages",),
    )
    compression_type: str | None = setting(
        None,
        COMPRESSION,
        "How batches are compressed. zstd needs the extra pykaproducer[zstd].",
        aliases=("compression.codec",),
    )
    compression_level: int | None = setting(
        None,
        COMPRESSION_LEVEL,
        "The level of compression_type; None: its own default.",
    )
    max_request_size: int = setting(
        1_048_576,
        integer(1),
        "The largest message that send() accepts, and the largest total size of the batches in "
        "one request.",
        unit="bytes",
        aliases=("message.max.bytes",),
    )

    # Memory
    buffer_memory: int = setting(
        64 << 20,
        integer(1, 2**62),
        "The most memory for messages that have no outcome; send() waits when it is full.",
        unit="bytes",
        scaled={"queue.buffering.max.kbytes": 1024},
    )
    max_block_ms: float = setting(
        60_000,
        milliseconds(),
        "How long send() may wait for buffer_memory before it raises BufferFullError, and "
        "partitions_for() for metadata; 0: not at all.",
        unit="ms",
    )

    # Requests and connections
    request_timeout_ms: int = setting(
        30_000,
        integer(1),
        "If a request is not answered within this time, the connection is considered lost. The "
        "time counts from when the request is written, or from the answer before it.",
        unit="ms",
        aliases=("socket.timeout.ms",),
    )
    max_in_flight_requests_per_connection: int = setting(
        5,
        integer(1, 1_000_000),
        "Maximum number of unanswered requests per broker, each with at most one batch of a "
        "partition. Without idempotence a partition has at most one unanswered batch, whatever is "
        "set, to preserve the order.",
        aliases=("max.in.flight",),
    )
    retry_backoff_ms: float = setting(
        100,
        milliseconds(),
        "The first pause before a batch goes again or metadata is asked for again.",
        unit="ms",
    )
    retry_backoff_max_ms: float = setting(
        1_000,
        milliseconds(),
        "The longest such pause (it doubles each time, with jitter); at least retry_backoff_ms.",
        unit="ms",
    )
    reconnect_backoff_ms: float = setting(
        50,
        milliseconds(),
        "The first pause before a broker is connected to again.",
        unit="ms",
    )
    reconnect_backoff_max_ms: float = setting(
        # One attempt a second costs nothing; with the 30 s of kafka-python a broker that is back
        # stays unused for a quarter of the default delivery_timeout_ms.
        1_000,
        milliseconds(),
        "The longest such pause (it doubles each time, with jitter); at least "
        "reconnect_backoff_ms. Lower than kafka-python's 30000, so that a broker that is back "
        "is used at once.",
        unit="ms",
    )
    connections_max_idle_ms: float = setting(
        540_000,
        milliseconds(-1),
        "Close a connection that has been unused for this long; the next message opens a new one. "
        "Set it below the idle timeout of a NAT or load balancer that drops connections silently "
        "(Azure: 180000). 0 or -1: never.",
        unit="ms",
    )
    metadata_max_age_ms: float = setting(
        300_000,
        milliseconds(1),
        "Metadata older than this is asked for again, to see new partitions.",
        unit="ms",
        aliases=("topic.metadata.refresh.interval.ms",),
    )
    metadata_max_idle_ms: float = setting(
        300_000,
        milliseconds(5_000),
        "A topic without a message for this long is forgotten, and looked up again with its next "
        "message.",
        unit="ms",
    )
    receive_message_max_bytes: int = setting(
        100_000_000,
        integer(1_000),
        "An answer that claims to be longer is taken for garbage and the connection for lost.",
        unit="bytes",
    )
    send_buffer_bytes: int | None = setting(
        None,
        BYTES,
        "The socket's SO_SNDBUF.",
        unit="bytes",
        aliases=("socket.send.buffer.bytes",),
    )
    receive_buffer_bytes: int | None = setting(
        None,
        BYTES,
        "The socket's SO_RCVBUF.",
        unit="bytes",
        aliases=("socket.receive.buffer.bytes",),
    )
    socket_options: tuple[tuple[int, int, int], ...] = setting(
        ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),),
        SOCKET_OPTIONS,
        "Options for each socket, as socket.setsockopt() takes them.",
    )
    exit_flush_timeout_ms: float = setting(
        5_000,
        milliseconds(),
        "How long a producer that was not closed may flush when the interpreter exits.",
        unit="ms",
    )

    # To look at, and to look in
    interceptors: tuple[Any, ...] = setting(
        (),
        INTERCEPTORS,
        "Objects whose on_send(record) sees, and may change, each message before it is "
        "serialized, and whose on_acknowledgement(metadata, exception) is told its outcome "
        "(pykaproducer.interceptors); or classes of such.",
        aliases=("interceptor.classes",),
    )
    stats_socket: str | None = setting(
        None,
        optional(TEXT),
        "A path at which the producer, from its first message on, answers whoever connects (of "
        "the same user) with one line of JSON: stats(). A Unix socket; %p in it stands for the "
        "process id.",
    )
    metrics_enabled: bool = setting(
        True,
        FLAG,
        "Whether metrics() tells anything. What stats() tells is counted in any case: it costs "
        "next to nothing.",
    )
    metrics_num_samples: int = setting(
        2,
        integer(1, 1000),
        "Over how many samples averages, rates and percentiles go, the one under way included.",
        unit="samples",
    )
    metrics_sample_window_ms: float = setting(
        30_000, milliseconds(1), "How long a sample is.", unit="ms"
    )

    def __post_init__(self) -> None:
        for row in _FIELDS:
            object.__setattr__(self, row.name, row.parse(getattr(self, row.name)))
        if self.client_id is None:
            object.__setattr__(self, "client_id", f"pykaproducer-{next(_numbers)}")
        for kind in ("retry", "reconnect"):
            first, most = f"{kind}_backoff_ms", f"{kind}_backoff_max_ms"
            if getattr(self, most) < getattr(self, first):
                object.__setattr__(self, most, getattr(self, first))
        security.complete(self)
        check_together(self)
        security.check(self)

    def __getstate__(self) -> dict[str, Any]:
        return security.without_context(self.__dict__)

    @property
    def idempotent(self) -> bool:
        """Whether this producer numbers its batches: ``enable_idempotence``, decided."""
        if self.enable_idempotence is None:
            return not conflicts_of(self)
        return self.enable_idempotence

    @classmethod
    def from_kwargs(cls, settings: Mapping[str, object]) -> Self:
        """The configuration from what the user gave; logs what he may not expect."""
        found = settings_of(settings, _NAMES, texts=False, file=False)
        config = cls(**_fields_of(found))
        for said in idle(found, _NAMES, lambda name: getattr(config, name, None)):
            log.warning("%s: %s", config.client_id, said)
        conflicts = conflicts_of(config)
        if conflicts and config.enable_idempotence is None:
            log.warning(
                "%s: idempotence is off because of %s: a retry may write a message twice; "
                "enable_idempotence=False says that this is meant",
                config.client_id,
                " and ".join(conflicts),
            )
        if config.in_the_clear is not None:
            log.warning("%s: %s", config.client_id, config.in_the_clear)
        return config

    @classmethod
    def from_strings(cls, settings: Mapping[str, str]) -> Config:
        """The configuration from names and texts, as a command line has them."""
        return cls.from_kwargs(resolve(settings, texts=True))

    def __repr__(self) -> str:
        """What differs from the defaults, without secrets."""
        changed = [
            f"{row.name}=<not shown>" if row.secret else f"{row.name}={value!r}"
            for row in _FIELDS
            if (value := getattr(self, row.name)) != row.parse(row.default)
        ]
        return f"Config({', '.join(changed)})"


# Those of security, which it inherits, come last.
_FIELDS = named(sorted(dataclasses.fields(Config), key=lambda each: each.name in SECURITY))

_FIELD_NAMES = frozenset(row.name for row in _FIELDS)

#: Every setting that is known, in the order of the settings table.
SETTINGS: tuple[Setting, ...] = (*_FIELDS, *NOT_HONOURED)

#: Every name of every setting.
_NAMES = {name: row for row in SETTINGS for name in (*row.dotted, row.name)}


def shown_settings(config: Config) -> dict[str, Any]:
    """The settings by their names, without secrets."""
    return {row.name: getattr(config, row.name) for row in _FIELDS if not row.secret}


def own_name(name: str) -> str | None:
    """Our own name of a setting, whichever of its names is given; None: nobody knows it."""
    row = _NAMES.get(name)
    return None if row is None else row.name


def resolve(
    settings: Mapping[str, Any], *, texts: bool = False, file: bool = False
) -> dict[str, Any]:
    """The fields of :class:`Config` that *settings* gives, by their own names, checked.

    With *texts* all values are texts, as on a command line; else those of dotted names may be.
    With *file* they come from a properties file, where names of other programs are no error.
    """
    found = settings_of(settings, _NAMES, texts=texts, file=file)
    return _fields_of(found)


def _fields_of(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name in _FIELD_NAMES}


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings of a properties file in Java's format, checked: ``Producer(**settings)``.

    Names that are no settings here are left out, with a warning.

    Raises:
        ConfigurationError, UnsupportedFeatureError: the text names the file, and what is wrong.
    """
    texts = read_properties(path)
    try:
        return resolve(texts, texts=True, file=True)
    except (ConfigurationError, UnsupportedFeatureError) as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from None

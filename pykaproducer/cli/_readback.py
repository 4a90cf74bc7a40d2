"""Reading a topic back with an independent consumer, kafka-python's."""

from __future__ import annotations

import dataclasses
import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from pykaproducer._errors.kafka_python import TopicPartition, errors
from pykaproducer.cli.common import CommandError, servers_text
from pykaproducer.config import Config

# Keep kafka-python's warnings off the terminal unless logging is configured.
logging.getLogger("kafka").addHandler(logging.NullHandler())

#: Prefixes of the settings for connection security. The consumer gets those that it knows. Values
#: given under Java's names have been copied to the corresponding kafka-python names, unless
#: kafka-python has none (_OURS).
_ACCESS = ("security_", "ssl_", "sasl_")
#: Settings without which a connection may fail, and which kafka-python does not have, or not in
#: every supported version.
_OURS = (
    "proxy_url",
    "socks5_proxy",
    "ssl_ca_pem",
    "ssl_certificate_pem",
    "ssl_truststore_location",
    "ssl_keystore_location",
    "sasl_kerberos_keytab",
    "sasl_kerberos_principal",
    "sasl_oauthbearer_token_endpoint_url",
    "sasl_oauthbearer_metadata_authentication_type",
)
#: A store in PEM format has been copied to these.
_COPIED = {"ssl_truststore_location": "ssl_cafile", "ssl_keystore_location": "ssl_certfile"}


class Record(NamedTuple):
    """One record of the log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def refuse_unreadable(config: Config) -> None:
    """Raise CommandError if kafka-python's consumer cannot connect with these settings."""
    if not __debug__:
        raise CommandError(
            "the topic cannot be read back: kafka-python's consumer, which reads it, does not "
            "connect without assertions; run Python without -O, and unset PYTHONOPTIMIZE"
        )
    for name in _OURS:
        copied = name in _COPIED and getattr(config, _COPIED[name]) is not None
        if getattr(config, name) is not None and not copied:
            raise CommandError(
                f"the topic cannot be read back: kafka-python's consumer, which reads it, does not "
                f"support setting {name}"
            )


def _consumer_for(config: Config) -> Any:
    """Return a consumer that connects as a producer with *config* does."""
    # Imported here, because it takes longer than all that the other commands import.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised by kafka-python at import
        from kafka import KafkaConsumer
    access = {
        each.name: value
        for each in dataclasses.fields(config)
        if each.name.startswith(_ACCESS)
        and each.name in KafkaConsumer.DEFAULT_CONFIG
        and (value := getattr(config, each.name)) is not None
    }
    servers = servers_text(config.bootstrap_servers).split(",")
    return KafkaConsumer(bootstrap_servers=servers, check_crcs=True, **access)


class LogReader:
    """A consumer of a cluster, for one topic at a time.

    Raises :class:`CommandError` in place of kafka-python's own errors.
    """

    def __init__(self, config: Config) -> None:
        #: (partition, offset) where reading stopped before the last offset requested.
        self.unread: list[tuple[int, int]] = []
        self._config = config

    def __enter__(self) -> Self:
        refuse_unreadable(self._config)
        try:
            self._consumer = _consumer_for(self._config)
        except errors.KafkaError as error:
            raise CommandError(f"reading back failed: {error}") from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._consumer.close()

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the first and the next offset of each partition."""
        places = [TopicPartition(topic, number) for number in partitions]
        try:
            first = self._consumer.beginning_offsets(places)
            after = self._consumer.end_offsets(places)
        except errors.KafkaError as error:
            raise CommandError(f"topic {topic!r}: cannot fetch offsets: {error}") from None
        return {place.partition: (first[place], after[place]) for place in places}

    def read(
        self, topic: str, ranges: Mapping[int, tuple[int, int]], timeout: float
    ) -> Iterator[Record]:
        """Yield every record of *topic* between the first and the last offset of each range.

        Records of a partition are in order. Stops when all have been read, or after *timeout*
        seconds without a record.
        """
        try:
            yield from self._read(topic, ranges, timeout)
        except errors.KafkaError as error:
            raise CommandError(f"topic {topic!r} could not be read back: {error}") from None

    def _read(
        self, topic: str, ranges: Mapping[int, tuple[int, int]], timeout: float
    ) -> Iterator[Record]:
        consumer, deadline = self._consumer, time.monotonic() + timeout
        left = {TopicPartition(topic, number): last for number, (_, last) in ranges.items()}
        consumer.assign(list(left))
        for number, (first, _) in ranges.items():
            consumer.seek(TopicPartition(topic, number), first)
        while left and time.monotonic() < deadline:
            for place, records in consumer.poll(timeout_ms=500, max_records=20_000).items():
                for record in records:
                    if record.offset <= ranges[place.partition][1]:
                        yield Record(*(getattr(record, name) for name in Record._fields))
                deadline = time.monotonic() + timeout
            # Check the position: the last offset may be a control record, which is not returned.
            left = {place: last for place, last in left.items() if consumer.position(place) <= last}
        self.unread = [(place.partition, consumer.position(place)) for place in left]


def read_back(
    config: Config, topic: str, ranges: Mapping[int, tuple[int, int]], timeout: float
) -> Iterator[Record]:
    """Read *ranges* once; see :meth:`LogReader.read`."""
    with LogReader(config) as reader:
        yield from reader.read(topic, ranges, timeout)

"""The options of an exactly-once write, checked when the write is planned.

========================= ==========================================================================
``exactlyOnce``           ``true``: write in transactions; default ``false``
``transactionalIdPrefix`` required: the beginning of the transactional ids and groups of the write.
                          Each query, and each concurrent batch write, requires another one
``stateTopic``            an existing topic, to whose partitions the offsets of the state belong;
                          default: ``topic``. Nothing is written to it
``writeId``               batch writes: if the last write had the same id, nothing is written
``startWithoutState``     streams: begin although Kafka has no state of the batch before
``onPartialCommit``       ``fail`` (default), ``duplicate`` or ``skip``
========================= ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pykaproducer._errors.formatting import check_topic
from pykaproducer._exactly_once.names import Names, check_prefix
from pykaproducer._exactly_once.records import LONGEST_QUERY
from pykaproducer._exactly_once.setup import OnPartialCommit, Setup, WriteKind
from pykaproducer.config import Config
from pykaproducer.spark.option_texts import boolean

#: The options, in lower case, and their spelling for users.
SPELLED = {
    name.lower(): name
    for name in (
        "exactlyOnce",
        "transactionalIdPrefix",
        "stateTopic",
        "writeId",
        "startWithoutState",
        "onPartialCommit",
    )
}
#: ``kafka.transaction.timeout.ms`` by default: the brokers' usual ``transaction.max.timeout.ms``.
DEFAULT_TIMEOUT_MS = 900_000


@dataclass(frozen=True)
class OnceOptions:
    """The sink's options of an exactly-once write."""

    names: Names
    #: Whether ``stateTopic`` differs from ``topic``. It must exist; ``topic`` may be created by the
    #: brokers.
    has_state_topic: bool
    write_id: str | None
    start_without_state: bool
    on_partial_commit: OnPartialCommit

    @classmethod
    def of(cls, options: Mapping[str, str], topic: str | None) -> OnceOptions | None:
        """Parse the sink's options. Return None unless ``exactlyOnce`` is true.

        Args:
            options: by their names in lower case.
            topic: the topic of all rows; None if rows name their topics.

        Raises:
            ValueError: an option is missing or invalid.
        """
        if not boolean(options, "exactlyonce", "exactlyOnce"):
            given = [SPELLED[name] for name in SPELLED if name in options]
            if given and given != ["exactlyOnce"]:
                raise ValueError(f"option {given[-1]} has an effect only with exactlyOnce=true")
            return None
        prefix = options.get("transactionalidprefix")
        if prefix is None:
            raise ValueError(
                "option transactionalIdPrefix is missing: set it to a name that no other query or "
                "concurrent write uses, such as shop.orders"
            )
        try:
            check_prefix(prefix)
        except ValueError as error:
            raise ValueError(f"option transactionalIdPrefix: {error}") from None
        state_topic = _state_topic(options.get("statetopic", topic))
        return cls(
            Names(prefix, state_topic),
            state_topic != topic,
            _write_id(options.get("writeid")),
            boolean(options, "startwithoutstate", "startWithoutState"),
            _on_partial_commit(options.get("onpartialcommit", "fail")),
        )

    def setup(self, kind: WriteKind, timeout_ms: int) -> Setup:
        """Return the options of the protocol; *timeout_ms* is that of the tasks' transactions."""
        return Setup(
            self.names,
            kind,
            may_create_state_topic=not self.has_state_topic,
            start_without_state=self.start_without_state,
            on_partial_commit=self.on_partial_commit,
            timeout_ms=timeout_ms,
        )


def check_transactional(config: Config) -> None:
    """Check that the producer's settings permit transactions.

    Raises:
        ValueError: one does not; the text names the option.
    """
    in_flight = config.max_in_flight_requests_per_connection
    for name, is_good, needed in (
        ("enable.idempotence", config.enable_idempotence is not False, "idempotence"),
        ("acks", config.acks == -1, "acks=all"),
        ("retries", config.retries > 0, "retries above 0"),
        ("max.in.flight.requests.per.connection", in_flight <= 5, "at most 5 requests in flight"),
    ):
        if not is_good:
            raise ValueError(f"option kafka.{name}: exactlyOnce needs {needed}; remove the option")


def _state_topic(name: str | None) -> str:
    if name is None:
        raise ValueError(
            "option stateTopic is missing: set it, because rows name their topics. Any existing "
            "topic will do; nothing is written to it"
        )
    try:
        check_topic(name)
    except ValueError as error:
        raise ValueError(f"option stateTopic: {error}") from None
    return name


def _write_id(text: str | None) -> str | None:
    if text is not None and not 0 < len(text.encode()) <= LONGEST_QUERY:
        raise ValueError(
            f"option writeId: {len(text.encode())} bytes were given; use 1 to {LONGEST_QUERY}"
        )
    return text


def _on_partial_commit(text: str) -> OnPartialCommit:
    try:
        return OnPartialCommit(text.lower())
    except ValueError:
        allowed = ", ".join(each.value for each in OnPartialCommit)
        raise ValueError(
            f"option onPartialCommit: {text!r} was given; allowed: {allowed}"
        ) from None

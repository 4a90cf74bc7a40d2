"""``KafkaError`` and ``KafkaException`` as confluent-kafka has them, and our errors as theirs.

They are classes of their own: with confluent-kafka installed beside, its ``KafkaException`` does
not catch these, nor the other way round, whichever was imported first.
"""

from __future__ import annotations

from typing import Any, Final

from pykaproducer.confluent.codes import Codes
from pykaproducer.errors import (
    AbortedError,
    BrokerRejectedError,
    BufferFullError,
    DeliveryTimeoutError,
    MessageTooLargeError,
    PartitionerError,
    ProducerBrokenError,
    Status,
    UnsupportedFeatureError,
)

#: code -> name, as ``name()`` gives it.
NAMES: Final[dict[int, str]] = {
    code: name for name, code in vars(Codes).items() if isinstance(code, int)
}

#: What is not said by the name: the texts of librdkafka that programs compare with.
_TEXTS: Final[dict[int, str]] = {
    Codes.NO_ERROR: "Success",
    Codes.UNKNOWN: "Unknown broker error",
    Codes.UNKNOWN_TOPIC_OR_PART: "Broker: Unknown topic or partition",
    Codes.MSG_SIZE_TOO_LARGE: "Broker: Message size too large",
    Codes.TOPIC_EXCEPTION: "Broker: Invalid topic",
    Codes.NOT_ENOUGH_REPLICAS: "Broker: Not enough in-sync replicas",
    Codes._FAIL: "Local: Communication failure with broker",
    Codes._TRANSPORT: "Local: Broker transport failure",
    Codes._RESOLVE: "Local: Host resolution failure",
    Codes._MSG_TIMED_OUT: "Local: Message timed out",
    Codes._ALL_BROKERS_DOWN: "Local: All broker connections are down",
    Codes._INVALID_ARG: "Local: Invalid argument or configuration",
    Codes._SSL: "Local: SSL error",
    Codes._CONFLICT: "Local: Conflicting use",
    Codes._STATE: "Local: Erroneous state",
    Codes._AUTHENTICATION: "Local: Authentication failure",
    Codes._UNSUPPORTED_FEATURE: "Local: Required feature not supported",
    Codes._KEY_SERIALIZATION: "Local: Key serialization error",
    Codes._VALUE_SERIALIZATION: "Local: Value serialization error",
    Codes._PURGE_QUEUE: "Local: Purged in queue",
    Codes._PURGE_INFLIGHT: "Local: Purged in flight",
    Codes._FATAL: "Local: Fatal error",
    Codes._NOT_CONFIGURED: "Local: Functionality not configured",
}


def text_of(code: int) -> str:
    """A code in words."""
    known = _TEXTS.get(code)
    if known is None and code in NAMES:
        words = NAMES[code].strip("_").replace("_", " ").capitalize()
        known = f"{'Local' if code < -1 else 'Broker'}: {words}"
    return known or f"Err-{code}?"


class KafkaException(Exception):
    """What is raised; ``args[0]`` is the :class:`KafkaError`."""


class KafkaError(KafkaException, Codes):
    """An error, or an event, with its code: what callbacks are given, and exceptions hold.

    Somebody who raises it has raised a :class:`KafkaException` that holds it. Compares with codes
    and with others of its kind, by the code alone. *origin*, of an error that came from the
    producer below, is that one's exception, with ``status`` and cause.
    """

    def __init__(
        self,
        error: int,
        reason: str | None = None,
        fatal: bool = False,
        retriable: bool = False,
        txn_requires_abort: bool = False,
    ) -> None:
        if isinstance(error, bool) or not isinstance(error, int):
            raise TypeError(f"{type(error).__name__!r} object cannot be interpreted as an integer")
        self._code = error
        self._reason = reason
        self._fatal = bool(fatal)
        self._retriable = bool(retriable)
        self._txn_requires_abort = bool(txn_requires_abort)
        #: The exception of pykaproducer that it stands for, if there is one.
        self.origin: BaseException | None = None

    @property
    def args(self) -> tuple[KafkaError]:  # type: ignore[override]
        """As of an exception that holds it. (Not kept: it would be a cycle.)"""
        return (self,)

    def code(self) -> int:
        """The number, one of this class's constants."""
        return self._code

    def name(self) -> str:
        """The constant's name."""
        return NAMES.get(self._code) or f"ERR_{self._code}?"

    def str(self) -> str:
        """In words."""
        return text_of(self._code) if self._reason is None else self._reason

    def fatal(self) -> bool:
        """Whether the producer is of no use any more."""
        return self._fatal

    def retriable(self) -> bool:
        """Whether to try the same once more."""
        return self._retriable

    def txn_requires_abort(self) -> bool:
        """Always false but in errors that others made: transactions are not built."""
        return self._txn_requires_abort

    def _number(self, other: object) -> int | None:
        if isinstance(other, KafkaError):
            return other._code
        return other if isinstance(other, int) else None

    def __eq__(self, other: object) -> bool:
        return self._code == self._number(other)

    def __hash__(self) -> int:
        return self._code

    def __lt__(self, other: object) -> bool:
        number = self._number(other)
        return NotImplemented if number is None else self._code < number

    def __le__(self, other: object) -> bool:
        number = self._number(other)
        return NotImplemented if number is None else self._code <= number

    def __gt__(self, other: object) -> bool:
        number = self._number(other)
        return NotImplemented if number is None else self._code > number

    def __ge__(self, other: object) -> bool:
        number = self._number(other)
        return NotImplemented if number is None else self._code >= number

    def __repr__(self) -> Any:
        fatal = "FATAL," if self._fatal else ""
        return f'KafkaError{{{fatal}code={self.name()},val={self._code},str="{self.str()}"}}'

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        flags = (self._fatal, self._retriable, self._txn_requires_abort)
        return (type(self), (self._code, self._reason, *flags))


def exception(code: int, reason: str | None = None, *, fatal: bool = False) -> KafkaException:
    """An exception to raise."""
    return KafkaException(KafkaError(code, reason, fatal=fatal))


def kafka_error(error: BaseException) -> KafkaError:
    """What became of a message, in librdkafka's terms."""
    code = _code_of(error)
    made = KafkaError(code, f"{text_of(code)}: {error}", fatal=code == Codes._FATAL)
    made.origin = error
    return made


def _code_of(error: BaseException) -> int:
    match error:
        case BrokerRejectedError():
            return error.code
        case DeliveryTimeoutError():
            return Codes._MSG_TIMED_OUT
        case PartitionerError():
            return Codes._UNKNOWN_PARTITION
        case AbortedError(status=Status.NOT_PERSISTED):
            return Codes._PURGE_QUEUE
        case AbortedError():
            return Codes._PURGE_INFLIGHT
        case ProducerBrokenError():
            return Codes._FATAL
        case BufferFullError():
            return Codes._QUEUE_FULL
        case MessageTooLargeError():
            return Codes.MSG_SIZE_TOO_LARGE
        case UnsupportedFeatureError():
            return Codes._NOT_IMPLEMENTED
        case _:
            return Codes._FAIL


def trouble_code(reason: str) -> int:
    """The code for why a broker cannot be reached, of the words of ``pykaproducer``."""
    lowered = reason.lower()
    if "cannot be resolved" in lowered or "no address" in lowered:
        return Codes._RESOLVE
    if "certificate" in lowered or "tls" in lowered:
        return Codes._SSL
    if "authentic" in lowered or "sasl" in lowered or "password" in lowered:
        return Codes._AUTHENTICATION
    return Codes._TRANSPORT

"""``KafkaError`` and ``KafkaException`` as in confluent-kafka, and the translation of our errors.

They are separate classes: if confluent-kafka is also installed, its ``KafkaException`` does not
catch these, nor the other way round, regardless of which was imported first.
"""

from __future__ import annotations

from typing import Any, Final

from pykaproducer._errors.codes import ErrorCode
from pykaproducer.confluent.codes import Codes
from pykaproducer.errors import (
    AbortedError,
    BrokerRejectedError,
    BufferFullError,
    DeliveryTimeoutError,
    MessageTooLargeError,
    PartitionerError,
    ProducerBrokenError,
    ProducerFencedError,
    Status,
    TransactionError,
    TransactionStateError,
    TransactionTimeoutError,
    UnsupportedFeatureError,
)

#: code -> name, as returned by ``name()``.
NAMES: Final[dict[int, str]] = {
    code: name for name, code in vars(Codes).items() if isinstance(code, int)
}

#: librdkafka's texts that differ from the names and that programs compare with.
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
    Codes._FENCED: "Local: This instance has been fenced by a newer instance",
    Codes._INCONSISTENT: "Local: Inconsistent state",
    Codes._NOT_CONFIGURED: "Local: Functionality not configured",
}


def text_of(code: int) -> str:
    """Return the text for a code."""
    known = _TEXTS.get(code)
    if known is None and code in NAMES:
        words = NAMES[code].strip("_").replace("_", " ").capitalize()
        known = f"{'Local' if code < -1 else 'Broker'}: {words}"
    return known or f"Err-{code}?"


class KafkaException(Exception):
    """The exception that is raised; ``args[0]`` is the :class:`KafkaError`."""


class KafkaError(KafkaException, Codes):
    """An error or event with its code, passed to callbacks and contained in exceptions.

    Raising it is equivalent to raising a :class:`KafkaException` that contains it. It compares
    with codes and with other errors by code. If the error came from the producer below, *origin* is
    that exception, with ``status`` and cause.
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
        #: The pykaproducer exception from which this was translated, or None.
        self.origin: BaseException | None = None

    @property
    def args(self) -> tuple[KafkaError]:  # type: ignore[override]
        """The arguments of an exception that contains it; not stored, as that would be a cycle."""
        return (self,)

    def code(self) -> int:
        """Return the number, one of this class's constants."""
        return self._code

    def name(self) -> str:
        """Return the constant's name."""
        return NAMES.get(self._code) or f"ERR_{self._code}?"

    def str(self) -> str:
        """Return the text."""
        return text_of(self._code) if self._reason is None else self._reason

    def fatal(self) -> bool:
        """Return whether the producer can no longer be used."""
        return self._fatal

    def retriable(self) -> bool:
        """Return whether trying again could succeed."""
        return self._retriable

    def txn_requires_abort(self) -> bool:
        """Return whether the transaction has failed, so that ``abort_transaction()`` is next."""
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
        return (type(self), (self._code, self._reason, *flags), {"origin": self.origin})


def exception(code: int, reason: str | None = None, *, fatal: bool = False) -> KafkaException:
    """Return an exception to raise."""
    return KafkaException(KafkaError(code, reason, fatal=fatal))


def kafka_error(error: BaseException) -> KafkaError:
    """Translate the outcome of a message to librdkafka's terms."""
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


def transaction_error(error: TransactionError, code: int | None = None) -> KafkaError:
    """Translate an error of a call for transactions to librdkafka's terms.

    *code* replaces the one that librdkafka has for the error.
    """
    if code is None:
        code = _transaction_code_of(error)
    made = KafkaError(
        code,
        f"{text_of(code)}: {error}",
        fatal=error.fatal,
        # librdkafka's word for both: the call may be repeated.
        retriable=code in (Codes._TIMED_OUT, Codes._CONFLICT) and not error.abortable,
        txn_requires_abort=error.abortable,
    )
    made.origin = error
    return made


def _transaction_code_of(error: TransactionError) -> int:
    match error:
        case TransactionTimeoutError():
            return Codes._TIMED_OUT
        case TransactionStateError():
            return Codes._STATE if error.under_way is None else Codes._CONFLICT
        case ProducerFencedError():
            return Codes._FENCED
        case _ if error.code == ErrorCode.UNSUPPORTED_VERSION:
            return Codes._UNSUPPORTED_FEATURE
        case _ if error.code is not None:
            return error.code
        case _ if error.abortable:
            return _code_of_first(error.__cause__)
        case _:
            return Codes._FATAL if error.fatal else Codes._FAIL


def _code_of_first(failed: BaseException | None) -> int:
    """Return librdkafka's code for a transaction of which *failed* is the first failed message.

    It is that of the Produce request, if there was one.
    """
    match failed:
        case BrokerRejectedError():
            return failed.code
        case DeliveryTimeoutError(status=Status.POSSIBLY_PERSISTED):
            return Codes._TIMED_OUT
        case _:
            return Codes._INCONSISTENT


def error_code_for(reason: str) -> int:
    """Return the code for the text in which ``pykaproducer`` reports an unreachable broker."""
    lowered = reason.lower()
    if "no token from" in lowered:
        return Codes._AUTHENTICATION
    if "cannot be resolved" in lowered or "no address" in lowered:
        return Codes._RESOLVE
    if "certificate" in lowered or "tls" in lowered:
        return Codes._SSL
    if "authentic" in lowered or "sasl" in lowered or "password" in lowered:
        return Codes._AUTHENTICATION
    return Codes._TRANSPORT

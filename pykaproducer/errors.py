"""Everything the library raises: one root, few classes.

Each class is also the class of :mod:`kafka.errors` that kafka-python raises in the same
situation, so code written for kafka-python keeps its ``except`` clauses. Each error can be
pickled, whole: its attributes, its notes and the chain of its causes travel along, also out
of a worker process.

Who made the mistake? :class:`ConfigurationError`, :class:`UnsupportedFeatureError`,
:class:`MessageTooLargeError`, :class:`ProducerClosedError` and :class:`CallbackThreadError`
are raised in the caller's face and are the caller's to repair. :class:`DeliveryError` and what
derives from it is what may become of a message that was accepted: its ``status`` says whether
the log may hold the message, its ``retriable`` whether sending it again could succeed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Self

from kafka.errors import (
    IllegalStateError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
)

from pykaproducer._advice import ADVICE
from pykaproducer._frames import bare_copy, without_frames
from pykaproducer._pickling import chain_causes, picklable_chain
from pykaproducer._texts import code_text, kafka_class, place


class Status(enum.Enum):
    """Whether a message is in the log, as far as this client can know."""

    #: It was never written: sending it again cannot make it appear twice.
    NOT_PERSISTED = 0
    #: It was written to the network (or more) and no broker confirmed it: it may be in the log.
    POSSIBLY_PERSISTED = 1
    #: A broker confirmed it.
    PERSISTED = 2


_STATUS_TEXT = {
    Status.NOT_PERSISTED: "the message was not written",
    Status.POSSIBLY_PERSISTED: "the message may have been written",
    Status.PERSISTED: "the message was written",
}


class PykaproducerError(KafkaError):
    """The root of all errors of this library. Catch it to catch them all, and nothing else."""

    __cause__: BaseException | None

    def __str__(self) -> str:
        # kafka-python puts the class name in front, which a traceback does as well.
        return Exception.__str__(self)

    # By value, as kafka-python's: a message's error is a new object each time it is asked for.
    # With a hash, which kafka-python's lack.
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or self.args != other.args:
            return False
        return _without_notes(self) == _without_notes(other)

    def __hash__(self) -> int:
        return hash((type(self), str(self)))

    def __copy__(self) -> Self:
        found = bare_copy(self)
        found.__cause__ = self.__cause__
        found.__suppress_context__ = self.__suppress_context__
        return found

    def _recipe(self) -> tuple[Any, ...]:
        """What :func:`_rebuild` makes the class of this error from."""
        return (type(self),)

    def __reduce__(self) -> tuple[Any, ...]:
        chain = picklable_chain(self.__cause__, PykaproducerError)
        return (_rebuild, (self._recipe(), self.args, dict(self.__dict__), chain))


class ConfigurationError(PykaproducerError, KafkaConfigurationError, ValueError):
    """A setting has an unknown name, a wrong type or a value out of range.

    Raised by the constructor. The text names the setting, what was given and what is allowed.
    """


class UnsupportedFeatureError(PykaproducerError):
    """A setting or a method of kafka-python asks for something that is not built.

    Raised at once where it is asked for; the text names it. Leave it out, or use what the text
    proposes.
    """


class ProducerClosedError(PykaproducerError, IllegalStateError):
    """The producer has been closed: it accepts no more messages.

    Raised by ``send()`` and the like after ``close()``. Make a new producer, or close later.
    """


class CallbackThreadError(PykaproducerError, IllegalStateError):
    """A callback asked to wait for something that only the callback's own thread can do.

    Raised at once by ``flush()``, ``partitions_for()`` and ``result()`` of a pending handle inside
    a callback or a partitioner, which would wait for itself for ever. Use ``add_done_callback``,
    or wait in another thread.
    """


class MessageTooLargeError(PykaproducerError, MessageSizeTooLargeError, ValueError):
    """A message is larger than ``max_request_size``; nothing was accepted.

    Raised by ``send()`` at once. Send less, or raise ``max_request_size`` and the topic's
    ``max.message.bytes`` together. ``row`` is its number in a block, None outside of blocks.
    ``status`` is ``NOT_PERSISTED``, as nothing was accepted.
    """

    status = Status.NOT_PERSISTED

    def __init__(self, about: str, *, row: int | None = None) -> None:
        super().__init__(about if row is None else f"row {row}: {about}")
        self.row = row
        #: The text without the number.
        self.about_row = about


class MetadataTimeoutError(PykaproducerError, KafkaTimeoutError):
    """No metadata of a topic had come when ``max_block_ms`` had passed.

    Raised by ``partitions_for()``, the one call that waits for the network. The text says why.
    """


class OutcomeTimeoutError(PykaproducerError, KafkaTimeoutError, TimeoutError):
    """A message had no outcome when the time given to ``result()``, or ``get()``, had passed.

    It goes on and has its outcome by its own deadline: that would be a
    :class:`DeliveryTimeoutError`, which is no ``TimeoutError`` of Python's, so that the two can be
    told apart.
    """


class FlushTimeoutError(PykaproducerError, KafkaTimeoutError, TimeoutError):
    """Some messages had no outcome when the time given to ``flush()`` had passed.

    They are not lost: they go on and get their outcome by their own deadline. Flush again to
    wait on. ``pending`` says how many they were.
    """

    def __init__(self, message: str, *, pending: int = 0) -> None:
        super().__init__(message)
        self.pending = pending


class DeliveryFailures(PykaproducerError):
    """Messages failed and nobody had been told.

    Raised by ``flush()``, once, for messages that had no callback and whose handles' outcomes
    nobody has read. ``count`` says how many, ``errors`` holds the first of them.
    """

    def __init__(self, count: int, errors: Iterable[BaseException] = ()) -> None:
        self.count = count
        self.errors = tuple(errors)
        super().__init__(_failures_text(count, self.errors))
        if self.errors:
            self.__cause__ = self.errors[0]


class DeliveryError(PykaproducerError):
    """A message that was accepted was not delivered.

    The base of all such outcomes: what ``result()`` raises and callbacks are given.
    ``status`` says whether the log may hold the message, ``retriable`` whether sending it again
    could succeed, ``topic`` and ``partition`` where it was bound (``None``: not known), and
    ``__cause__`` why (without its traceback: an outcome is kept for as long as the message's
    handle). Each call, and each callback, gets an object of its own.
    """

    def __init__(
        self,
        message: str,
        *,
        status: Status,
        topic: str | None = None,
        partition: int | None = None,
        retriable: bool | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.topic = topic
        self.partition = partition
        if retriable is not None:
            self.retriable = retriable
        if cause is not None:
            # Messages and their handles keep this error: no frame may be reached through it.
            self.__cause__ = without_frames(cause)

    def __str__(self) -> str:
        return f"{super().__str__()} ({_STATUS_TEXT[self.status]})"


class DeliveryTimeoutError(DeliveryError, KafkaTimeoutError):
    """A message's deadline (``delivery_timeout_ms``) passed before a broker confirmed it.

    The text says how long it waited and the last known reason. Repair what it names (the
    address, the credentials, the cluster) or allow more time. ``waited`` is in seconds.
    """

    def __init__(
        self,
        *,
        topic: str,
        waited: float,
        status: Status,
        partition: int | None = None,
        reason: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        text = f"{place(topic, partition)}: not delivered within {waited:.3g} s"
        if reason:
            text += f": {reason}"
        super().__init__(text, status=status, topic=topic, partition=partition, cause=cause)
        self.waited = waited
        self.reason = reason


class BufferFullError(DeliveryError, KafkaTimeoutError):
    """There was no room in ``buffer_memory`` within ``max_block_ms``; nothing was accepted.

    Raised by ``send()``, and the outcome of a block's rows that found no room. Slow down, send
    it again later, or raise ``buffer_memory``.
    """

    def __init__(
        self, message: str, *, topic: str | None = None, partition: int | None = None
    ) -> None:
        super().__init__(message, status=Status.NOT_PERSISTED, topic=topic, partition=partition)


class AbortedError(DeliveryError):
    """The message was given up on request: by ``abort()``, or when ``close()`` ran out of time.

    Give ``close()`` more time if it should have been delivered.
    """


class PartitionerError(DeliveryError, ValueError):
    """No partition could be chosen for the message.

    The partition asked for does not exist, or the partitioner failed (its own exception is the
    cause, and a note says where it was raised) or returned what is not a partition of the topic.
    Other messages are not harmed.
    """


class ForkedProducerError(DeliveryError):
    """The message was pending in the parent process when this process was forked.

    Raised in the child by ``result()`` and the like. The parent delivers the message and knows
    what became of it; in the child it has no outcome.
    """

    def __init__(self, message: str, *, topic: str | None = None) -> None:
        super().__init__(message, status=Status.POSSIBLY_PERSISTED, topic=topic)


class ProducerBrokenError(DeliveryError):
    """A part of the producer died of an error in the library itself, which is the cause.

    The outcome of all messages it held, and raised by every later ``send()``. Report the cause;
    make a new producer to go on.
    """


class BrokerRejectedError(DeliveryError):
    """The broker refused the message.

    ``code`` is Kafka's error code. The object is at the same time an instance of the class that
    kafka-python has for the code, so ``except kafka.errors.TopicAuthorizationFailedError`` catches
    it. Made by :func:`delivery_error_for` only.
    """

    code: int

    def _recipe(self) -> tuple[Any, ...]:
        base = RetriesExhaustedError if isinstance(self, RetriesExhaustedError) else None
        return (base or BrokerRejectedError, self.code)


class RetriesExhaustedError(BrokerRejectedError):
    """The broker refused the message, for a reason that may pass, ``retries`` times in a row.

    Raise ``retries`` (by default time alone governs) or find out why the broker keeps refusing.
    """


def delivery_error_for(
    code: int,
    *,
    topic: str,
    partition: int | None = None,
    status: Status,
    detail: str | None = None,
    retries_used: int | None = None,
) -> BrokerRejectedError:
    """The error for a message that a broker refused with Kafka's error *code*.

    *detail* is what the broker said beside the code. With *retries_used* it is a
    :class:`RetriesExhaustedError`.
    """
    base = BrokerRejectedError if retries_used is None else RetriesExhaustedError
    kind = kafka_class(code)
    text = f"{place(topic, partition)}: the broker refused it: {code_text(code)}"
    if detail:
        text += f": {detail}"
    if retries_used is not None:
        text += f" (still so after {retries_used} retries)"
    if code in ADVICE:
        text += f"; {ADVICE[code]}"
    error = _combined(base, code)(
        text,
        status=status,
        topic=topic,
        partition=partition,
        retriable=bool(kind.retriable),
        cause=kind(detail or kind.description or code_text(code)),
    )
    error.code = code
    return error


#: The classes made by _combined(). Two threads may make one at the same time: setdefault()
#: lets the first of them win for both.
_COMBINED: dict[tuple[type[BrokerRejectedError], int], type[BrokerRejectedError]] = {}


def _combined(base: type[BrokerRejectedError], code: int) -> type[BrokerRejectedError]:
    """The class that is both *base* and kafka-python's class for *code*."""
    made = _COMBINED.get((base, code))
    if made is None:
        kind = kafka_class(code)
        body = {"__module__": __name__, "__doc__": base.__doc__, "errno": code}
        name = base.__name__ if base is RetriesExhaustedError else kind.__name__
        made = _COMBINED.setdefault((base, code), type(name, (base, kind), body))
    return made


def _without_notes(error: PykaproducerError) -> dict[str, Any]:
    return {name: value for name, value in vars(error).items() if name != "__notes__"}


def _failures_text(count: int, errors: tuple[BaseException, ...]) -> str:
    text = "1 message was" if count == 1 else f"{count} messages were"
    text += " not delivered, and no callback or read outcome has reported it"
    return text + reasons(errors)


def reasons(errors: Iterable[BaseException], most: int = 3) -> str:
    """Return the first *most* distinct *errors* as the end of a sentence; "" without any."""
    texts = dict.fromkeys(f"{type(error).__name__}: {error}" for error in errors)
    return f"; first: {'; '.join([*texts][:most])}" if texts else ""


def _rebuild(
    recipe: tuple[Any, ...],
    args: tuple[Any, ...],
    attributes: dict[str, Any],
    chain: list[BaseException],
) -> PykaproducerError:
    """Make a pickled error again: class, text, attributes and causes as they were."""
    kind = recipe[0] if len(recipe) == 1 else _combined(*recipe)
    error: PykaproducerError = kind.__new__(kind, *args)
    error.args = args  # which an OSError, as a TimeoutError is one, takes in __init__ only
    error.__dict__.update(attributes)
    chain_causes(error, chain)
    return error

"""All exceptions that the library raises.

Each class is also the class of :mod:`kafka.errors` that kafka-python raises in the same
situation, so code written for kafka-python keeps its ``except`` clauses. Errors can be pickled
completely, including their attributes, notes and chain of causes, and so leave a worker process.

:class:`ConfigurationError`, :class:`UnsupportedFeatureError`, :class:`MessageTooLargeError`,
:class:`ProducerClosedError` and :class:`CallbackThreadError` are raised synchronously by the
offending call, for the caller to fix. :class:`DeliveryError` and its subclasses are the outcomes
of messages whose delivery was not confirmed: ``status`` says whether the log may contain the
message, ``retriable`` whether sending it again could succeed.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Any, Self

from pykaproducer._errors.base import PykaproducerError as PykaproducerError
from pykaproducer._errors.base import new_timeout
from pykaproducer._errors.combined import combined, combined_again
from pykaproducer._errors.commit_outcome import CommitOutcome as CommitOutcome
from pykaproducer._errors.formatting import format_error_code, format_partition, kafka_class
from pykaproducer._errors.hints import ADVICE
from pykaproducer._errors.kafka_python import TheirAbortedError
from pykaproducer._errors.kafka_python import errors as kafka_errors
from pykaproducer._errors.tracebacks import without_frames


class Status(enum.Enum):
    """The state of a message in the log, as far as this client knows."""

    #: It was never written. Sending it again cannot duplicate it.
    NOT_PERSISTED = 0
    #: It was written to the network, but no broker confirmed it. It may be in the log.
    POSSIBLY_PERSISTED = 1
    #: A broker confirmed it.
    PERSISTED = 2


_STATUS_TEXT = {
    Status.NOT_PERSISTED: "the message was not written",
    Status.POSSIBLY_PERSISTED: "the message may have been written",
    Status.PERSISTED: "the message was written",
}


class ConfigurationError(PykaproducerError, kafka_errors.KafkaConfigurationError, ValueError):
    """A setting has an unknown name, a wrong type or a value out of range.

    Raised by the constructor. The text names the setting, the given value and the allowed values.
    """


class UnsupportedFeatureError(PykaproducerError):
    """A setting or method of kafka-python requires a feature that is not supported.

    Raised immediately by the offending call; the text names the feature. Do without it, or use
    what the text suggests. Also raised by calls for transactions if the brokers are too old.
    """


class ProducerClosedError(PykaproducerError, kafka_errors.IllegalStateError):
    """The producer has been closed and accepts no more messages.

    Raised by ``send()`` and similar methods after ``close()``. Create a new producer, or close
    this one later. If a call for a transaction raises it, ``outcome`` says what is known about the
    last transaction.
    """

    outcome: CommitOutcome | None = None


class CallbackThreadError(PykaproducerError, kafka_errors.IllegalStateError):
    """A callback tried to wait for something that only its own thread can do.

    Raised immediately by ``flush()``, ``partitions_for()`` and ``result()`` of a pending handle
    when they are called from a callback or a partitioner, where they would deadlock. Use
    ``add_done_callback``, or wait in another thread.

    The calls for transactions also raise it in serializers and interceptors. The transaction of a
    message must not change while they handle it.
    """


class MessageTooLargeError(PykaproducerError, kafka_errors.MessageSizeTooLargeError, ValueError):
    """A message is larger than ``max_request_size``; nothing was accepted.

    Raised immediately by ``send()``. Send smaller messages, or increase ``max_request_size`` and
    the topic's ``max.message.bytes`` together. ``row`` is the row number in a block, or None
    outside of blocks. ``status`` is ``NOT_PERSISTED``, as nothing was accepted.
    """

    status = Status.NOT_PERSISTED

    def __init__(self, about: str, *, row: int | None = None) -> None:
        super().__init__(about if row is None else f"row {row}: {about}")
        self.row = row
        #: The text without the row number.
        self.about_row = about


class MetadataTimeoutError(PykaproducerError, kafka_errors.KafkaTimeoutError):
    """The metadata of a topic was not available within ``max_block_ms``.

    Raised by ``partitions_for()``, the only call that waits for the network. The text says why.
    """


class OutcomeTimeoutError(PykaproducerError, kafka_errors.KafkaTimeoutError, TimeoutError):
    """A message had no outcome within the timeout of ``result()`` or ``get()``.

    The message is still being sent, and has an outcome by its own deadline. If that passes, the
    outcome is a :class:`DeliveryTimeoutError`, which is not a ``TimeoutError``, so that ``except``
    clauses can distinguish the two.
    """

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        return new_timeout(cls, *args)


class FlushTimeoutError(PykaproducerError, kafka_errors.KafkaTimeoutError, TimeoutError):
    """Some messages had no outcome within the timeout of ``flush()``.

    They are not lost: each is still being sent and has an outcome by its own deadline. Call
    ``flush()`` again to keep waiting. ``pending`` is the number of such messages.
    """

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        return new_timeout(cls, *args)

    def __init__(self, message: str, *, pending: int = 0) -> None:
        super().__init__(message)
        self.pending = pending


class DeliveryFailures(PykaproducerError):
    """Messages failed and the failures had not been reported.

    Raised by ``flush()`` for messages that had no callback and whose outcome has not been read from
    their handle. Each failure is raised only once. ``count`` is the number of such messages,
    ``errors`` has the first of their errors.
    """

    def __init__(self, count: int, errors: Iterable[BaseException] = ()) -> None:
        self.count = count
        self.errors = tuple(errors)
        super().__init__(_failures_text(count, self.errors))
        if self.errors:
            self.__cause__ = self.errors[0]


class DeliveryError(PykaproducerError):
    """The outcome of a message whose delivery was not confirmed.

    The base class of all such outcomes: ``result()`` raises it, and callbacks receive it.
    ``send()`` raises its subclasses :class:`BufferFullError` and :class:`ProducerBrokenError` for a
    message that it does not accept.

    ``status`` says whether the log may contain the message, ``retriable`` whether sending it again
    could succeed. ``topic`` and ``partition`` are its destination, None if unknown. ``__cause__``
    is the reason, without its traceback, because an outcome is kept for as long as the message's
    handle. Each call and each callback gets a separate object.
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
            # Messages and their handles keep this error, so it must not refer to any frame.
            self.__cause__ = without_frames(cause)

    def __str__(self) -> str:
        return f"{super().__str__()} ({_STATUS_TEXT[self.status]})"


class DeliveryTimeoutError(DeliveryError, kafka_errors.KafkaTimeoutError):
    """A message's deadline (``delivery_timeout_ms``) passed before a broker confirmed it.

    The text has the time waited and the last known reason. Fix what the reason names (the address,
    the credentials, the cluster) or allow more time. ``waited`` is in seconds.
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
        text = f"{format_partition(topic, partition)}: not delivered within {waited:.3g} s"
        if reason:
            text += f": {reason}"
        super().__init__(text, status=status, topic=topic, partition=partition, cause=cause)
        self.waited = waited
        self.reason = reason


class BufferFullError(DeliveryError, kafka_errors.KafkaTimeoutError):
    """``buffer_memory`` stayed full for ``max_block_ms``; the message was not accepted.

    Raised by ``send()``, and the outcome of a block's rows that were not accepted. Send more
    slowly, retry later, or increase ``buffer_memory``.
    """

    def __init__(
        self, message: str, *, topic: str | None = None, partition: int | None = None
    ) -> None:
        super().__init__(message, status=Status.NOT_PERSISTED, topic=topic, partition=partition)


class AbortedError(DeliveryError):
    """The message was given up because of ``abort()``, or because ``close()`` timed out.

    Give ``close()`` a longer timeout if the message should have been delivered.
    """


class PartitionerError(DeliveryError, ValueError):
    """No partition could be chosen for the message.

    The requested partition does not exist (every known server has denied it, over at least two
    seconds), or the partitioner raised (its exception is the cause, and a note says where it was
    raised) or returned something that is not a partition of the topic. Other messages are not
    affected.
    """


class ForkedProducerError(DeliveryError):
    """The message was pending in the parent process when this process was forked.

    Raised in the child by ``result()`` and similar methods. The parent delivers the message and
    has its outcome; the child never learns it.
    """

    def __init__(self, message: str, *, topic: str | None = None) -> None:
        super().__init__(message, status=Status.POSSIBLY_PERSISTED, topic=topic)


class ProducerBrokenError(DeliveryError):
    """A part of the producer stopped because of an internal error, which is the cause.

    The outcome of all messages that the part held, and raised by every later ``send()``. Report
    the cause as a bug, and create a new producer to continue. If a call for a transaction raises
    it, ``outcome`` says what is known about the last transaction.
    """

    outcome: CommitOutcome | None = None

    def __str__(self) -> str:
        return super().__str__() if self.outcome is None else Exception.__str__(self)


class TransactionAbortedError(AbortedError, TheirAbortedError):
    """The message's transaction was aborted before it was delivered.

    On request, or by ``close()`` because it was not committed, or because another message of the
    transaction failed; then that failure is the cause. Readers with
    ``isolation.level=read_committed`` never see the message, whatever its ``status`` is.
    """


class BrokerRejectedError(DeliveryError):
    """The broker rejected the message.

    ``code`` is Kafka's error code. The object is also an instance of kafka-python's class for the
    code, so ``except kafka.errors.TopicAuthorizationFailedError`` catches it. Created by
    :func:`delivery_error_for` only.
    """

    code: int
    made_of: tuple[type[BrokerRejectedError], int, bool]

    def _recipe(self) -> tuple[Any, ...]:
        return (combined_again, *self.made_of)


class RetriesExhaustedError(BrokerRejectedError):
    """The broker rejected the message ``retries`` times with a retriable error.

    Increase ``retries`` (by default only ``delivery_timeout_ms`` limits retries), or find out why
    the broker keeps rejecting the message.
    """


class TransactionError(PykaproducerError):
    """The base class of the errors of transactions.

    ``transactional_id`` is that of the producer, or the one that a call of ``TransactionControl``
    was about, if any. ``code`` is Kafka's error code, None if no broker sent one. ``outcome`` says
    what is known about the transaction, None if the error is not about one. ``abortable``: call
    ``abort_transaction()``, and begin again. ``fatal``: close the producer. ``retriable``: repeat
    the same call. With a ``code`` the object is also an instance of kafka-python's class for it.
    """

    abortable = False
    fatal = False
    retriable = False
    #: See ``combined()``; None: the class is not made for a code.
    made_of: tuple[type[TransactionError], int, bool] | None = None

    def __init__(
        self,
        message: str,
        *,
        transactional_id: str | None = None,
        code: int | None = None,
        outcome: CommitOutcome | None = None,
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.code = code
        self.outcome = outcome
        if cause is not None:
            self.__cause__ = without_frames(cause)

    def _recipe(self) -> tuple[Any, ...]:
        return super()._recipe() if self.made_of is None else (combined_again, *self.made_of)


class TransactionStateError(TransactionError, kafka_errors.IllegalStateError):
    """A call does not fit the state of the producer; nothing has changed.

    Raised immediately. The text names the state and the call that would fit. ``under_way`` is the
    name of another call that has to be repeated first, because its result is not known yet; None
    if there is none.
    """

    under_way: str | None = None


class TransactionTimeoutError(TransactionError, kafka_errors.KafkaTimeoutError, TimeoutError):
    """A call of a transaction took longer than its timeout. The operation continues.

    Repeat the same call to wait for it; no other is accepted, except ``abort_transaction()`` after
    ``send_offsets_to_transaction()``. For a commit, ``outcome`` is ``POSSIBLY_COMMITTED`` if the
    coordinator may have received the request. ``NOT_COMMITTED`` holds only so far: the commit
    continues, also while ``close()`` waits.
    """

    retriable = True

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        return new_timeout(cls, *args)


class TransactionAbortableError(TransactionError):
    """The transaction cannot be committed: a message failed, or the coordinator refused something.

    The first reason is the cause. Call ``abort_transaction()``, and begin a new transaction.
    """

    abortable = True


class TransactionFatalError(TransactionError):
    """The producer cannot be used any more: close it.

    ``outcome`` is ``POSSIBLY_COMMITTED`` if a commit was requested and it is unknown whether it
    was carried out. ``init_transactions()`` of the next producer with the same id settles it.
    """

    fatal = True


class ProducerFencedError(TransactionFatalError, kafka_errors.ProducerFencedError):
    """The transactional id was taken over, or the transaction took too long.

    Either another producer uses the id, or an administrator has fenced this one, for example with
    ``pykaproducer transactions fence``. Close this producer. Create a new one with the same
    id only if no other producer is to use it.
    """


def delivery_error_for(
    code: int,
    *,
    topic: str,
    partition: int | None = None,
    status: Status,
    detail: str | None = None,
    retries_used: int | None = None,
    advice: str | None = None,
) -> BrokerRejectedError:
    """Return the error for a message that a broker rejected with Kafka's error *code*.

    *detail* is the broker's message besides the code, *advice* what to do. With *retries_used* the
    error is a :class:`RetriesExhaustedError`.
    """
    base = BrokerRejectedError if retries_used is None else RetriesExhaustedError
    kind = kafka_class(code)
    where = format_partition(topic, partition)
    text = f"{where}: the broker rejected it: {format_error_code(code)}"
    if detail:
        text += f": {detail}"
    if retries_used is not None:
        text += f" (after {retries_used} retries)"
    if advice := advice or ADVICE.get(code):
        text += f"; {advice}"
    error = combined(base, code, named_by_code=base is BrokerRejectedError)(
        text,
        status=status,
        topic=topic,
        partition=partition,
        retriable=bool(kind.retriable),
        cause=kind(detail or kind.description or format_error_code(code)),
    )
    error.code = code
    return error


def _failures_text(count: int, errors: tuple[BaseException, ...]) -> str:
    text = "1 message was" if count == 1 else f"{count} messages were"
    text += " not delivered, and no callback or read outcome has reported it"
    return text + reasons(errors)


_SECONDS = re.compile(r"\b\d+(?:\.\d+)? s\b")


def reasons(errors: Iterable[BaseException], most: int = 3) -> str:
    """Return the first *most* distinct *errors* as the end of a sentence; "" without any."""
    texts: dict[str, str] = {}
    for error in errors:
        text = f"{type(error).__name__}: {error}"
        # Timeouts with one reason differ in the time that each message waited.
        texts.setdefault(_SECONDS.sub("s", text), text)
    return f"; first: {'; '.join([*texts.values()][:most])}" if texts else ""

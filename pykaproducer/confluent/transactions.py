"""The methods of a producer for transactions, with confluent-kafka's arguments and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pykaproducer._config.schema import INT_MAX
from pykaproducer._util.group_offsets import group_metadata as read_group
from pykaproducer.confluent.arguments import seconds
from pykaproducer.confluent.cluster import refuse_closed
from pykaproducer.confluent.errors import (
    KafkaError,
    KafkaException,
    exception,
    text_of,
    transaction_error,
)
from pykaproducer.errors import (
    AbortedError,
    ProducerBrokenError,
    ProducerClosedError,
    Status,
    TransactionError,
    UnsupportedFeatureError,
)

if TYPE_CHECKING:
    from pykaproducer._kernel import PolledOutcomes
    from pykaproducer._util.clock import Clock
    from pykaproducer.confluent.delivery_queue import Events
    from pykaproducer.producer import Producer as Core

#: How long purge() waits for the stages, which need milliseconds (seconds).
_SOON: Final = 30.0

#: The longest timeout (seconds); the producer below has another default.
_UNLIMITED: Final = INT_MAX / 1000


class TransactionMethods:
    """The methods for transactions, from which ``Producer`` derives."""

    # Of PolledAdmission and Producer.
    _core: Core | None
    _clock: Clock
    _events: Events
    _outcomes: PolledOutcomes
    #: The producer below whose ``init_transactions()`` has succeeded.
    _initialized: Core | None = None

    if TYPE_CHECKING:

        def flush(self, timeout: float = -1) -> int: ...
        def _serve(self) -> int: ...

    def init_transactions(self, timeout: float | None = -1) -> None:
        """Register the ``transactional.id``, and end what an earlier producer with it has left.

        Args:
            timeout: seconds; a negative number or None: twice ``transaction.timeout.ms``.

        Raises:
            KafkaException: ``_TIMED_OUT`` (``retriable()``: call it again), ``_STATE``, or the
                reason for which the brokers refused it.
        """
        core = self._transactional()
        allowed = _seconds(timeout)
        if allowed is None:  # as in librdkafka, since no broker limits this call
            allowed = 2 * core.config.transaction_timeout_ms / 1000
        self._translated(lambda: core.init_transactions(allowed))
        if self._initialized is core:
            raise exception(KafkaError._STATE, "init_transactions() has been called before")
        self._initialized = core

    def begin_transaction(self) -> None:
        """Begin a transaction, to which the messages that are produced from now on belong.

        Raises:
            KafkaException: ``_STATE``, ``_CONFLICT``, or the error of a producer that cannot be
                used any more (``fatal()``).
        """
        core = self._transactional()
        self._translated(core.begin_transaction)

    def commit_transaction(self, timeout: float | None = -1) -> None:
        """Wait until all messages are delivered, and commit the transaction.

        Serves events during the wait, as :meth:`flush` does. An exception that a callback raises
        does not prevent the commit; it is raised afterwards.

        Args:
            timeout: seconds; a negative number or None waits for the messages'
                ``message.timeout.ms``, and then for the brokers.

        Raises:
            KafkaException: ``_TIMED_OUT`` (``retriable()``: call it again), the code with which a
                broker refused a message or offsets, or ``_INCONSISTENT`` if a message failed for
                another reason (``txn_requires_abort()``: call ``abort_transaction()``), ``_STATE``,
                or ``_FENCED`` and others that are ``fatal()``.
        """
        core = self._transactional()
        allowed = _seconds(timeout)
        end = None if allowed is None else self._clock.monotonic() + allowed
        try:
            self.flush(-1 if allowed is None else allowed)
        except Exception:  # of a callback
            self._commit(core, end)
            raise
        self._commit(core, end)

    def _commit(self, core: Core, end: float | None) -> None:
        try:
            self._translated(lambda: core.commit_transaction(self._left(end)))
        finally:
            self._serve()

    def abort_transaction(self, timeout: float | None = -1) -> None:
        """Fail the messages that are not delivered, serve their callbacks, and abort.

        The messages' error is ``_PURGE_QUEUE``, or ``_PURGE_INFLIGHT`` if they may be in the log,
        where read_committed consumers do not see them.

        Args:
            timeout: seconds; a negative number or None waits for the brokers.

        Raises:
            KafkaException: ``_TIMED_OUT`` (``retriable()``: call it again), ``_STATE``, or an
                error that is ``fatal()``.
        """
        core = self._transactional()
        allowed = _seconds(timeout)
        end = None if allowed is None else self._clock.monotonic() + allowed
        try:
            self._translated(lambda: core.abort_transaction(self._left(end)))
        finally:
            self._serve()

    def send_offsets_to_transaction(
        self, positions: object, group_metadata: object, timeout: float | None = -1
    ) -> None:
        """Commit offsets of a consumer together with the messages of the transaction.

        Args:
            positions: a list of ``TopicPartition``; those with a negative offset are left out.
            group_metadata: ``consumer.consumer_group_metadata()``, taken anew for each transaction.
            timeout: seconds; a negative number or None waits for the brokers.

        Raises:
            TypeError: *group_metadata* are not bytes, or *positions* is something else.
            KafkaException: ``_TIMED_OUT`` (``retriable()``: call it again), ``_STATE``,
                ``_BAD_MSG`` if *group_metadata* cannot be read, the reason of a broker
                (``txn_requires_abort()``), or an error that is ``fatal()``.
        """
        core = self._transactional()
        allowed = _seconds(timeout)
        if not isinstance(group_metadata, bytes):
            raise TypeError(f"expected bytes, {type(group_metadata).__name__} found")
        try:
            group = read_group(group_metadata)
        except ValueError as error:
            reason = f"{text_of(KafkaError._BAD_MSG)}: {error}"
            raise exception(KafkaError._BAD_MSG, reason) from error
        left = self._left(None if allowed is None else self._clock.monotonic() + allowed)
        self._translated(lambda: core.send_offsets_to_transaction(positions, group, timeout=left))

    def _transactional(self) -> Core:
        """Return the producer below, or raise if there are no transactions."""
        core = self._core
        if core is None:
            refuse_closed()
        if core.config.transactional_id is None:
            raise exception(
                KafkaError._NOT_CONFIGURED,
                "The Transactional API requires transactional.id to be configured",
            )
        return core

    def _left(self, end: float | None) -> float:
        return _UNLIMITED if end is None else max(0.0, end - self._clock.monotonic())

    def _translated(self, call: Callable[[], None]) -> None:
        try:
            call()
        except TransactionError as error:
            raise KafkaException(transaction_error(error)) from error
        except UnsupportedFeatureError as error:
            raise exception(KafkaError._UNSUPPORTED_FEATURE, str(error)) from error
        except ProducerBrokenError as error:
            raise exception(KafkaError._FATAL, str(error), fatal=True) from error
        except ProducerClosedError as error:
            raise RuntimeError("Producer has been closed") from error

    def _purge_transaction(self, core: Core) -> None:
        """Fail all messages without an outcome, after which the transaction must be aborted."""

        def all_finished() -> bool:
            return core.accepted == self._outcomes.finished

        if all_finished():
            return
        core.fail_transaction(AbortedError("purge() was called", status=Status.NOT_PERSISTED))
        deadline = self._clock.monotonic() + _SOON
        while not all_finished() and self._clock.monotonic() < deadline:
            self._events.wait(all_finished, deadline)


def _seconds(timeout: float | None) -> float | None:
    return None if timeout is None else seconds(timeout)

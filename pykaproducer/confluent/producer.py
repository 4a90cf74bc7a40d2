"""``Producer`` with the methods and behaviour of confluent-kafka's.

A message is sent by the :class:`pykaproducer.Producer` below, with a callback that queues its
outcome (``delivery_queue.py``). ``poll()`` and ``flush()`` serve the queue on the calling thread,
so that the program's callbacks run where they run with confluent-kafka.
"""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from pykaproducer._kernel import PolledAdmission, ReportTo
from pykaproducer._util.clock import Clock
from pykaproducer.confluent import lifecycle
from pykaproducer.confluent.arguments import (
    check_batch,
    checked_rows,
    headers_of,
    seconds,
)
from pykaproducer.confluent.callbacks import CallbackWatch
from pykaproducer.confluent.cluster import ClusterMethods, refuse_closed
from pykaproducer.confluent.delivery_queue import Events
from pykaproducer.confluent.errors import KafkaError, KafkaException, exception, text_of
from pykaproducer.confluent.rejections import RejectionHandling
from pykaproducer.confluent.settings import log, translate
from pykaproducer.confluent.transactions import TransactionMethods
from pykaproducer.errors import (
    BufferFullError,
    ConfigurationError,
    DeliveryFailures,
    FlushTimeoutError,
    ProducerBrokenError,
    ProducerClosedError,
    TransactionAbortedError,
    TransactionError,
    UnsupportedFeatureError,
)
from pykaproducer.producer import Producer as Core

#: How often callbacks are served during a flush (seconds).
_SERVE_EVERY: Final = 0.1


class Producer(RejectionHandling, ClusterMethods, TransactionMethods, PolledAdmission):
    """A producer with the interface of confluent-kafka's.

    ``Producer(config)`` or ``Producer(config, logger=...)``: a dictionary of librdkafka's settings.
    Settings given as keywords take precedence.

    Raises:
        TypeError: there is no dictionary.
        KafkaException: a setting is unknown or invalid, or requires an unsupported feature.
    """

    #: The errors of ``send()`` that ``produce()`` translates.
    _refusals = (
        TypeError,
        ValueError,
        RuntimeError,
        BufferFullError,
        ProducerBrokenError,
        ProducerClosedError,
        TransactionError,
    )
    #: Replaced by tests.
    _core_type: type[Core] = Core

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        if len(arguments) > 1:
            raise TypeError("expected tuple containing single dict")
        if not (arguments or settings) or not isinstance((*arguments, {})[0], dict):
            raise TypeError("expected configuration dict")
        given = {**(arguments[0] if arguments else {}), **settings}
        self._settings = translate(given)
        self._clock = Clock()
        self._events = Events(self._clock)
        self._on_delivery = self._settings.on_delivery
        # Messages without a callback of a purged producer that poll() has not yet counted.
        self._uncounted = 0
        self._begin()
        lifecycle.register(self)

    def _begin(self) -> None:
        """Create the producer below, at construction and after purge()."""
        try:
            core = self._core_type(**self._settings.ours)
        except (ConfigurationError, UnsupportedFeatureError) as error:
            raise exception(KafkaError._INVALID_ARG, str(error)) from error
        self._outcomes = self._events.outcomes(only_errors=self._settings.only_errors)
        self._counted = 0
        self._sure = self._settings.max_messages
        self._watch = CallbackWatch(self._settings, self._events, self._clock, core)
        # A garbage-collected producer delivers its messages; with librdkafka they are lost.
        self._farewell = weakref.finalize(self, lifecycle.close_in_background, core)
        self._farewell.atexit = False
        self._connect(core, ReportTo(self._outcomes, None))

    # Producing ------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        def produce(
            self,
            topic: str,
            value: Any = None,
            key: Any = None,
            partition: int = -1,
            callback: Any = None,
            on_delivery: Any = None,
            timestamp: int = 0,
            headers: Any = None,
        ) -> None:
            """Accept one message without waiting.

            Args:
                topic: topic name.
                value, key: str, which is encoded as UTF-8, bytes, or None.
                partition: -1 lets the partitioner choose.
                callback, on_delivery: ``f(error, message)``, called by :meth:`poll` or
                    :meth:`flush`.
                timestamp: milliseconds since the epoch; 0 means now.
                headers: a dict or a list of ``(name, str, bytes or None)``.

            Raises:
                BufferError: ``queue.buffering.max.messages`` or ``.kbytes`` is reached: call
                    poll().
                KafkaException: the message or the topic's name is too large.
                TypeError: an argument has a wrong type.
                RuntimeError: the producer was closed.
            """

    else:
        produce = PolledAdmission.produce

    def _refuse_closed(self) -> NoReturn:
        refuse_closed()

    def _headers_of(self, headers: Any) -> Any:
        return headers_of(headers)

    def _check_room(self, core: Core) -> None:
        """Count the messages after the limit may be reached; raise BufferError if it is."""
        # Messages in use are those accepted minus finished, plus events that are not yet served.
        # The events are counted after the finished ones: otherwise a message that finishes in
        # between would be in neither. `_sure` is the number of accepted messages with room.
        finished = self._outcomes.finished
        self._sure = self._settings.max_messages + finished - self._events.queue.count
        if core.accepted >= self._sure:
            raise BufferError(
                f"{text_of(KafkaError._QUEUE_FULL)}: {self._settings.max_messages} messages "
                f"(queue.buffering.max.messages) wait for their outcome or for poll()"
            )

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
    ) -> int:
        """Accept many messages and return how many were accepted.

        Args:
            messages: dicts with the optional keys ``value``, ``key``, ``partition``, ``headers``,
                ``callback`` (or ``on_delivery``). A message that is not accepted gets ``_error``, a
                :class:`KafkaError`.
            partition, callback, on_delivery: for messages without their own.

        Raises:
            TypeError: a message is invalid; none is accepted.
            NotImplementedError: a message has a timestamp, as in confluent-kafka.
        """
        check_batch(topic, messages, partition)
        if self._core is None:
            refuse_closed()
        count = 0
        rows = checked_rows(messages, partition, (on_delivery, callback))
        for message, row in zip(messages, rows, strict=True):
            try:
                self.produce(topic, *row)
                count += 1
            except BufferError as error:
                message["_error"] = KafkaError(KafkaError._QUEUE_FULL, str(error))
            except KafkaException as error:
                message["_error"] = error.args[0]
        return count

    # Events ---------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> int:
        """Serve events by calling the callbacks on this thread.

        Args:
            timeout: seconds to wait for the first event; a negative number waits forever.

        Returns:
            int: the number of events, including messages without a callback.

        Raises:
            RuntimeError: the producer was closed.
            Exception: raised by a callback.
        """
        allowed = seconds(timeout)
        if self._core is None:
            refuse_closed()
        deadline = self._deadline(allowed)
        while True:
            self._watch.check()
            served = self._serve()
            if served or timeout == 0:
                return served
            now = self._clock.monotonic()
            if deadline is not None and now >= deadline:
                return 0
            until = self._watch.next_check(now)
            if until is None or (deadline is not None and deadline < until):
                until = deadline
            self._events.wait(self._has_events, until)

    def _has_events(self) -> bool:
        return (
            self._events.queue.count > 0
            or self._outcomes.settled != self._counted
            or self._uncounted > 0
        )

    def _serve(self) -> int:
        with self._events.counting:
            channel = self._outcomes
            settled = channel.settled
            count = self._uncounted + settled - self._counted
            self._counted, self._uncounted = settled, 0
        failed, failure = channel.take_failures()
        # The call that has ended their transaction reports aborted messages.
        if failed and not isinstance(failure, TransactionAbortedError):
            log.error("%d messages without a callback failed: %s", failed, failure)
        return count + self._events.serve()

    def _deadline(self, allowed: float | None) -> float | None:
        return None if allowed is None else self._clock.monotonic() + allowed

    def flush(self, timeout: float = -1) -> int:
        """Wait until every message has its outcome, and serve events during the wait.

        Lingering is ignored.

        Args:
            timeout: seconds; a negative number waits until the last message's
                ``message.timeout.ms``.

        Returns:
            int: the number of messages without an outcome and of unserved events.
        """
        allowed = seconds(timeout)
        if self._core is None:
            refuse_closed()
        deadline = self._deadline(allowed)
        while True:
            core = self._core
            if core is None:  # a callback has closed it
                return 0
            accepted = core.accepted
            done = self._flush_a_while(core, deadline)
            self._watch.check()
            self._serve()
            if done and (core.accepted == accepted or not len(self)):
                self._forget_callback()
                return len(self)
            if deadline is not None and self._clock.monotonic() >= deadline:
                return len(self)

    def _flush_a_while(self, core: Core, deadline: float | None) -> bool:
        """Wait briefly for the outcomes, and return whether all have arrived."""
        left = _SERVE_EVERY
        if deadline is not None:
            left = max(0.0, min(left, deadline - self._clock.monotonic()))
        try:
            core.flush(left)
        except FlushTimeoutError:
            return False
        except DeliveryFailures as error:  # unexpected: each message has a callback of ours
            log.error("%s", error)
        return True

    def __len__(self) -> int:
        """Return the number of messages without an outcome and of unserved events."""
        core = self._core
        if core is None:
            return 0
        return max(0, core.accepted - self._outcomes.finished) + self._events.queue.count

    def __bool__(self) -> bool:
        return True

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Fail all messages without an outcome; poll() then serves their callbacks.

        Messages that were never sent fail with ``_PURGE_QUEUE``. Those in flight fail with
        ``_PURGE_INFLIGHT``, and may be in the log. If there were any in a transaction, that can
        only be aborted.

        Args:
            in_queue: False purges nothing; messages in flight get their outcome.
            in_flight: must be true together with *in_queue*, as both are purged together here.
            blocking: ignored; purging takes milliseconds.

        Raises:
            KafkaException: *in_flight* is false.
        """
        core = self._core
        if core is None:
            refuse_closed()
        if not in_queue:
            return
        if not in_flight:
            raise exception(
                KafkaError._NOT_IMPLEMENTED,
                "purge(in_flight=False): messages in the queue and in flight are purged together",
            )
        if core.config.transactional_id is not None:
            self._purge_transaction(core)  # its id and state must not be lost
            return
        self._farewell.detach()
        with self._events.counting:  # for poll() in another thread
            old, counted = self._outcomes, self._counted
            self._begin()
        core.abort()
        with self._events.counting:
            self._uncounted += old.settled - counted

    # Closing --------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Flush and close. Idempotent; all other methods raise RuntimeError afterwards."""
        core = self._core
        if core is None:
            return True
        try:
            self.flush()
        finally:
            # If a callback has raised, the rest is delivered in the background.
            self._end()
        return True

    def _end(self) -> None:
        core, self._core = self._core, None
        if core is None:
            return
        self._farewell.detach()
        if core.accepted == self._outcomes.finished:
            lifecycle.close(core)
        else:
            lifecycle.close_in_background(core)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close. On KeyboardInterrupt or SystemExit, do not wait for the messages."""
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:
            self._end()

    def _forked(self) -> None:
        """Start empty in the child of a fork; accepted messages are the parent's."""
        if self._core is None:
            return
        self._farewell.detach()
        self._events = self._events.renewed()
        self._uncounted = 0
        self._begin()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "cannot pickle a pykaproducer.confluent.Producer; a pykaproducer.Producer can be"
        )

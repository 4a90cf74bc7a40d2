"""``Producer`` with the methods and the manners of confluent-kafka's.

A message goes to the :class:`pykaproducer.Producer` below with a callback of ours, which puts its
outcome into a queue (``reports.py``); ``poll()`` and ``flush()`` serve it, in the thread that calls
them. So a program that was written for that library finds its callbacks where it expects them.
"""

from __future__ import annotations

import functools
import weakref
from time import monotonic
from types import MethodType, TracebackType
from typing import Any, Final, NoReturn, Self

from pykaproducer._clock import Clock
from pykaproducer.confluent import leaving
from pykaproducer.confluent.arguments import (
    check_batch,
    checked_rows,
    headers_of,
    seconds,
)
from pykaproducer.confluent.cluster import ClusterMethods, refuse_closed
from pykaproducer.confluent.errors import KafkaError, KafkaException, exception, text_of
from pykaproducer.confluent.refused import Refusing
from pykaproducer.confluent.reports import Channel, Events
from pykaproducer.confluent.settings import log, translate
from pykaproducer.confluent.watch import Watch
from pykaproducer.errors import (
    BufferFullError,
    ConfigurationError,
    DeliveryFailures,
    FlushTimeoutError,
    ProducerClosedError,
    UnsupportedFeatureError,
)
from pykaproducer.producer import Producer as Core

#: While it flushes, callbacks are served so often (seconds).
_SERVE_EVERY: Final = 0.1


class Producer(Refusing, ClusterMethods):
    """A producer that is used as confluent-kafka's is.

    ``Producer(config)``, ``Producer(config, logger=...)``: a dictionary of librdkafka's settings,
    and more of them by keyword, which count more.

    Raises:
        TypeError: there is no dictionary.
        KafkaException: a setting is unknown, wrong, or asks for what is not built.
    """

    #: What tests put another in place of.
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
        # Of a purged producer: messages without a callback that poll() has not counted.
        self._uncounted = 0
        self._begin()
        leaving.watch(self)

    def _begin(self) -> None:
        """A producer below, at construction and after purge()."""
        try:
            core = self._core_type(**self._settings.ours)
        except (ConfigurationError, UnsupportedFeatureError) as error:
            raise exception(KafkaError._INVALID_ARG, str(error)) from error
        self._channel = Channel(self._events, only_errors=self._settings.only_errors)
        #: A callback, and what calls it back; replaced together.
        self._last: tuple[Any, Any] = (None, None)
        self._settle = self._channel.settle
        self._counted = 0
        self._sure = self._settings.max_messages
        self._watch = Watch(self._settings, self._events, self._clock, core)
        # A producer that is dropped delivers what it has and ends; there it would be lost.
        self._farewell = weakref.finalize(self, leaving.end_behind, core)
        self._farewell.atexit = False
        self._core = core

    # Producing ------------------------------------------------------------------------------------

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
        """Accept one message; never waits.

        Args:
            topic: topic name.
            value, key: text, which is encoded as UTF-8, bytes, or None.
            partition: -1: the partitioner decides.
            callback, on_delivery: ``f(error, message)``, called by :meth:`poll` or :meth:`flush`.
            timestamp: milliseconds since the epoch; 0: now.
            headers: a dict or a list of ``(name, text, bytes or None)``.

        Raises:
            BufferError: ``queue.buffering.max.messages`` or ``.kbytes`` is reached: poll() first.
            KafkaException: it is too large (MSG_SIZE_TOO_LARGE), or the topic's name is.
            TypeError: an argument is of a wrong type.
            RuntimeError: the producer was closed.
        """
        core = self._core
        if core is None:
            refuse_closed()
        if value.__class__ is str:
            value = value.encode()
        if key.__class__ is str:
            key = key.encode()
        if headers is not None:
            headers = headers_of(headers)
        if partition is None or timestamp is None:
            raise TypeError("'NoneType' object cannot be interpreted as an integer")
        if core.accepted >= self._sure:
            self._make_sure(core)
        if on_delivery is not None:
            callback = on_delivery
        elif callback is None:
            callback = self._on_delivery
        report = self._settle
        if callback is not None:
            report = self._report_to(callback, timestamp)
        try:
            core.send(
                topic,
                value,
                key,
                headers,
                None if partition == -1 else partition,
                timestamp or None,
                on_delivery=report,
            )
        except (TypeError, ValueError, RuntimeError, BufferFullError, ProducerClosedError) as error:
            self._refused(error, core, callback, topic, value, key, partition, timestamp, headers)

    def _report_to(self, callback: Any, timestamp: int) -> Any:
        """What calls *callback* back.

        One for all messages with the same callback: an object for each message costs the garbage
        collector several times what the message costs us.
        """
        channel = self._channel
        if timestamp:
            return functools.partial(channel.report_since, callback, monotonic())
        last, report = self._last
        # A method is another object each time that it is asked for.
        if last is callback or (last.__class__ is MethodType and last == callback):
            return report
        report = functools.partial(channel.report, callback)
        self._last = (callback, report)
        return report

    def _make_sure(self, core: Core) -> None:
        """There may be as many messages as may be: count them."""
        # What is accepted less what has finished, and (asked behind it: else what ends in between
        # is in neither) what was not served. Up to so many accepted ones there will be room.
        finished = self._channel.finished
        self._sure = self._settings.max_messages + finished - len(self._events.queue)
        if core.accepted >= self._sure:
            raise BufferError(
                f"{text_of(KafkaError._QUEUE_FULL)}: {self._settings.max_messages} messages "
                f"(queue.buffering.max.messages) wait for their outcome, or for poll()"
            )

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
    ) -> int:
        """Accept many messages; returns how many were.

        Args:
            messages: dicts with, all optional, ``value``, ``key``, ``partition``, ``headers``,
                ``callback`` (or ``on_delivery``). One that is not accepted gets ``_error``, a
                :class:`KafkaError`.
            partition, callback, on_delivery: for messages without their own.

        Raises:
            TypeError: one of them can never be right; none is accepted then.
            NotImplementedError: one has a timestamp, which there is refused as well.
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
        """Serve what has happened: call the callbacks, in this thread.

        Args:
            timeout: seconds to wait for the first event, if there is none; below 0: for ever.

        Returns:
            int: how many events there were; messages without a callback count as well.

        Raises:
            RuntimeError: the producer was closed.
            Exception: what a callback raises.
        """
        allowed = seconds(timeout)
        if self._core is None:
            refuse_closed()
        deadline = self._deadline(allowed)
        while True:
            self._watch.look()
            served = self._serve()
            if served or timeout == 0:
                return served
            now = self._clock.monotonic()
            if deadline is not None and now >= deadline:
                return 0
            until = self._watch.next_look(now)
            if until is None or (deadline is not None and deadline < until):
                until = deadline
            self._events.wait(self._has_events, until)

    def _has_events(self) -> bool:
        return (
            bool(self._events.queue)
            or self._channel.settled != self._counted
            or self._uncounted > 0
        )

    def _serve(self) -> int:
        with self._events.counting:
            channel = self._channel
            settled = channel.settled
            count = self._uncounted + settled - self._counted
            self._counted, self._uncounted = settled, 0
        if channel.failed:
            failed, channel.failed = channel.failed, 0
            log.error("%d messages without a callback failed: %s", failed, channel.failure)
            channel.failure = None
        return count + self._events.serve()

    def _deadline(self, allowed: float | None) -> float | None:
        return None if allowed is None else self._clock.monotonic() + allowed

    def flush(self, timeout: float = -1) -> int:
        """Wait until every message has its outcome, and serve what happens meanwhile.

        Lingering is ignored.

        Args:
            timeout: seconds; below 0: until the last message's ``message.timeout.ms``.

        Returns:
            int: how many have none, or were not served.
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
            self._watch.look()
            self._serve()
            if done and (core.accepted == accepted or not len(self)):
                return len(self)
            if deadline is not None and self._clock.monotonic() >= deadline:
                return len(self)

    def _flush_a_while(self, core: Core, deadline: float | None) -> bool:
        """Wait a little for the outcomes; whether all are there."""
        left = _SERVE_EVERY
        if deadline is not None:
            left = max(0.0, min(left, deadline - self._clock.monotonic()))
        try:
            core.flush(left)
        except FlushTimeoutError:
            return False
        except DeliveryFailures as error:  # all have a callback of ours, which tells
            log.error("%s", error)
        return True

    def __len__(self) -> int:
        """Messages without outcome, and outcomes that were not served."""
        core = self._core
        if core is None:
            return 0
        return max(0, core.accepted - self._channel.finished) + len(self._events.queue)

    def __bool__(self) -> bool:
        return True

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Fail what has no outcome; poll() then serves the callbacks.

        Messages that were never sent get ``_PURGE_QUEUE``, those of which a request is out
        ``_PURGE_INFLIGHT``: they may be in the log.

        Args:
            in_queue: False: nothing is purged; what is in flight gets its outcome.
            in_flight: must be true together with *in_queue*: the two go together here.
            blocking: no matter: it takes milliseconds.
        """
        core = self._core
        if core is None:
            refuse_closed()
        if not in_queue:
            return
        if not in_flight:
            raise exception(
                KafkaError._NOT_IMPLEMENTED,
                "purge(in_flight=False): what is queued and what is in flight are purged together",
            )
        old, counted = self._channel, self._counted
        self._farewell.detach()
        self._begin()
        core.abort()
        self._uncounted += old.settled - counted

    # The end --------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Flush and end. Every other method then raises RuntimeError; may be called again."""
        core = self._core
        if core is None:
            return True
        try:
            self.flush()
        finally:
            # With what a callback has raised, whatever is left goes on behind us.
            self._end()
        return True

    def _end(self) -> None:
        core, self._core = self._core, None
        if core is None:
            return
        self._farewell.detach()
        if core.accepted == self._channel.finished:
            core.close()
        else:
            leaving.end_behind(core)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close. Somebody who presses Ctrl-C, or exits, does not wait for the rest."""
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:
            self._end()

    def _forked(self) -> None:
        """In the child: what was accepted is the parent's."""
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

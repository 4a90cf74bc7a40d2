"""Interceptors: user code that is called for each message and for its outcome.

The interface is that of the Java client's ``ProducerInterceptor``, except that
:meth:`Interceptor.on_acknowledgement` also receives the record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pykaproducer._kernel import Delivery, SentBlock
from pykaproducer._util.guarded_log import GuardedLogger
from pykaproducer.delivery import RecordMetadata, TopicPartition

log = GuardedLogger("pykaproducer.interceptors")


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A message as passed to ``send()``, before serialization; immutable, see :meth:`replace`."""

    topic: Any
    value: Any = None
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    #: For use by interceptors, from ``on_send()`` to ``on_acknowledgement()`` of this message.
    context: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed: ``record.replace(headers=[...])``."""
        return dataclasses.replace(self, **changes)


class Interceptor:
    """The interface of an interceptor. Deriving from this class is optional; it does nothing."""

    def configure(self, configs: dict[str, Any]) -> None:
        """Receive the producer's settings, without secrets, when the producer is created."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """Change a message before it is sent, on the thread of ``send()``, before serialization.

        Returns the record to send instead, or None to send this one. If it raises, the exception
        is logged and the record is sent unchanged.
        """
        return None

    def on_acknowledgement(
        self,
        metadata: RecordMetadata,
        exception: BaseException | None,
        record: ProducerRecord,
    ) -> None:
        """Receive the outcome of a message.

        Runs on the thread that runs callbacks and must not block it. For a message that ``send()``
        did not accept, it runs on the thread of that call.

        *metadata* is the message's position, without an offset (-1) if it failed with *exception*.
        *record* is the message that was sent, with its ``context``. A method that accepts only two
        arguments is called with the first two.
        """

    def close(self) -> None:
        """Release resources when the producer is closed."""


#: Called with the name of a method for transactions, and the id, before it does anything. Returns a
#: function that is called when it has ended, with its error or None.
BeginCall = Callable[[str, str], Callable[[BaseException | None], object]]


class Interceptors:
    """The interceptors of one producer, in order."""

    def __init__(self, given: Iterable[Any], configs: dict[str, Any]) -> None:
        self._all = [each() if isinstance(each, type) else each for each in given]
        # Taken, and never released, by the first thread that closes them.
        self._closing = threading.Lock()
        self._begin_call: list[tuple[Any, BeginCall]] = [
            (each, each.begin_control_call)
            for each in self._all
            if hasattr(each, "begin_control_call")
        ]
        self._acknowledge = [
            (each, _taking_a_record(each.on_acknowledgement))
            for each in self._all
            if hasattr(each, "on_acknowledgement")
        ]
        for each in self._all:
            if hasattr(each, "configure"):
                each.configure(dict(configs))

    def sent(
        self, topic: Any, value: Any, key: Any, headers: Any, partition: Any, timestamp_ms: Any
    ) -> ProducerRecord:
        """Return the record to send for a message with these fields."""
        record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
        for each in self._all:
            if not hasattr(each, "on_send"):
                continue
            try:
                changed = each.on_send(record)
                if changed is None:
                    continue
                if not isinstance(changed, ProducerRecord):
                    raise TypeError(f"on_send() returned {type(changed).__name__}")
                # A newly created record lacks the context of the other interceptors.
                record = changed.replace(context=record.context)
            except Exception as error:  # from user code: the message is sent unchanged (P9)
                _log_error(each, "on_send", error)
        return record

    def refused(self, record: ProducerRecord, error: BaseException) -> None:
        """Report *error*, which ``send()`` raised for *record*, to the interceptors."""
        partition = record.partition if isinstance(record.partition, int) else -1
        topic = str(record.topic)
        self._acknowledged(record, _nowhere(topic, partition, record.timestamp_ms), error)

    def watcher(self, record: ProducerRecord) -> Callable[[Delivery], None]:
        """Return a function to be called with the settled message."""

        def settled(delivery: Delivery) -> None:
            self._acknowledged(record, _where(delivery), delivery.peek_failure())

        return settled

    # Transactions --------------------------------------------------------------------------------

    def began(self, call: str, transactional_id: str) -> Callable[[BaseException | None], None]:
        """Report the beginning of a call; return a function that reports its end.

        Only interceptors of this package, for traces, have a method for it.
        """
        ends: list[Any] = []
        for each, begin in self._begin_call:
            try:
                ends.append((each, begin(call, transactional_id)))
            except Exception as failure:  # it must affect nothing else (P9)
                _log_error(each, "begin_control_call", failure)

        def ended(error: BaseException | None) -> None:
            while ends:
                each, end = ends.pop()
                try:
                    end(error)
                except Exception as failure:  # as above
                    _log_error(each, "begin_control_call", failure)

        return ended

    # Blocks --------------------------------------------------------------------------------------

    def sent_rows(self, topic: str, columns: tuple[Any, ...]) -> list[ProducerRecord]:
        """Return the rows of ``send_many()`` after the interceptors have changed them."""
        lists = [_as_list(column, len(columns[0])) for column in columns]
        if len({len(each) for each in lists}) > 1:
            raise ValueError("all columns must have the same length as values")
        values, keys, headers, partitions, timestamps = lists
        rows = []
        for row in zip(values, keys, headers, partitions, timestamps, strict=True):
            record = self.sent(topic, *row)
            if record.topic != topic:
                log.error(
                    "%s: an interceptor changed the topic in send_many(); ignored the change", topic
                )
                record = record.replace(topic=topic)
            rows.append(record)
        return rows

    @staticmethod
    def columns(rows: list[ProducerRecord]) -> tuple[Any, ...]:
        """Return values, keys, headers, partitions and timestamps for ``send_many()``."""
        return (
            [row.value for row in rows],
            _column([row.key for row in rows]),
            _column([row.headers for row in rows]),
            _column([row.partition for row in rows]),
            _column([row.timestamp_ms for row in rows]),
        )

    @contextlib.contextmanager
    def refusing(self, block: SentBlock, rows: list[ProducerRecord]) -> Iterator[None]:
        """Report an exception raised in the block as the outcome of all *rows*.

        After a KeyboardInterrupt, *block* may have been accepted: those rows get their own outcome.
        """
        try:
            yield
        except BaseException as error:
            accepted = block.accepted
            if accepted:
                block.watch_each([self.watcher(row) for row in rows])
            for row in rows[accepted:]:
                self.refused(row, error)
            raise

    def watch_rows(self, block: SentBlock, rows: list[ProducerRecord]) -> None:
        """Report the outcomes of *rows*, which were sent as *block*, to the interceptors."""
        block.watch_each([self.watcher(row) for row in rows])
        if block.refusal is not None:
            for row in rows[block.accepted :]:
                self.refused(row, block.refusal)

    def _acknowledged(
        self, record: ProducerRecord, metadata: RecordMetadata, error: BaseException | None
    ) -> None:
        for each, function in self._acknowledge:
            try:
                function(metadata, error, record)
            except Exception as failure:  # from user code: it must affect nothing else (P9)
                _log_error(each, "on_acknowledgement", failure)

    def close(self) -> None:
        """Close the interceptors. Further calls have no effect."""
        if not self._closing.acquire(blocking=False):
            return
        for each in self._all:
            if not hasattr(each, "close"):
                continue
            try:
                each.close()
            except Exception as error:  # from user code: close the producer anyway
                _log_error(each, "close", error)


def _log_error(interceptor: object, method: str, error: Exception) -> None:
    log.error("exception in %s() of interceptor %r", method, interceptor, exc_info=error)


def _taking_a_record(method: Callable[..., object]) -> Callable[..., object]:
    """Return *method* as a function of three arguments; Java's method takes two."""
    with contextlib.suppress(TypeError, ValueError):  # it has no signature
        try:
            inspect.signature(method).bind(None, None, None)
        except TypeError:
            return lambda metadata, error, _record: method(metadata, error)
    return method


def _where(delivery: Delivery) -> RecordMetadata:
    partition, offset = delivery.partition, delivery.offset
    return _nowhere(
        delivery.topic,
        -1 if partition is None else partition,
        delivery.timestamp,
        offset=-1 if offset is None else offset,
        sizes=(delivery.serialized_key_size, delivery.serialized_value_size),
    )


def _nowhere(
    topic: str,
    partition: int,
    timestamp: int | None,
    *,
    offset: int = -1,
    sizes: tuple[int, int] = (-1, -1),
) -> RecordMetadata:
    place = TopicPartition(topic, partition)
    when = -1 if timestamp is None else timestamp
    return RecordMetadata(topic, partition, place, offset, when, None, *sizes, -1)


def _column(cells: list[Any]) -> list[Any] | None:
    return None if all(cell is None for cell in cells) else cells


def _as_list(column: Any, count: int) -> list[Any]:
    """Return a column as a list; NumPy and Arrow arrays have a method for that."""
    if column is None:
        return [None] * count
    for name in ("to_pylist", "tolist"):
        if hasattr(column, name):
            found: list[Any] = getattr(column, name)()
            return found
    return list(column)

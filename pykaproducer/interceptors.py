"""Interceptors: code of the user's that sees each message on its way in, and its outcome.

The interface is that of the Java client's ``ProducerInterceptor``, with one thing added: the
record is handed to :meth:`Interceptor.on_acknowledgement`, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pykaproducer._kernel import Delivery, SentBlock
from pykaproducer.delivery import RecordMetadata, TopicPartition

log = logging.getLogger("pykaproducer.interceptors")


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A message as ``send()`` was given it, before serializers. :meth:`replace` makes another."""

    topic: Any
    value: Any = None
    key: Any = None
    headers: Sequence[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    #: The interceptors' own, from ``on_send()`` to ``on_acknowledgement()`` of this message.
    context: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def replace(self, **changes: Any) -> Self:
        """The same with other fields: ``record.replace(headers=[...])``."""
        return dataclasses.replace(self, **changes)


class Interceptor:
    """What an interceptor may do; each method does nothing. Deriving from it is not asked for."""

    def configure(self, configs: dict[str, Any]) -> None:
        """The producer is made: its settings, without secrets."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord | None:
        """A message is to be sent: called in the thread of ``send()``, before the serializers.

        Returns the record that is sent in its place; None: this one. If it raises, that is logged,
        and the record goes on as it was.
        """
        return None

    def on_acknowledgement(
        self,
        metadata: RecordMetadata,
        exception: BaseException | None,
        record: ProducerRecord,
    ) -> None:
        """The message has its outcome: called in the thread that runs callbacks, where nothing may
        take long. (Of a message that ``send()`` refuses: in the thread of that call.)

        *metadata*: where it is; without an offset (-1) if it failed, with *exception*. *record*:
        what was sent, with its ``context``. A method that takes two arguments gets the first two.
        """

    def close(self) -> None:
        """The producer is closed."""


class Interceptors:
    """The interceptors of one producer, in their order."""

    def __init__(self, given: Iterable[Any], configs: dict[str, Any]) -> None:
        self._all = [each() if isinstance(each, type) else each for each in given]
        self._closed = False
        self._acknowledge = [
            (each, _taking_a_record(each.on_acknowledgement))
            for each in self._all
            if hasattr(each, "on_acknowledgement")
        ]
        for each in self._all:
            if hasattr(each, "configure"):
                each.configure(dict(configs))

    def sent(self, record: ProducerRecord) -> ProducerRecord:
        """What is to be sent in place of *record*."""
        for each in self._all:
            if not hasattr(each, "on_send"):
                continue
            try:
                changed = each.on_send(record)
                if changed is None:
                    continue
                if not isinstance(changed, ProducerRecord):
                    raise TypeError(f"on_send() returned {type(changed).__name__}")
                # One that was made anew has none of what others have left.
                record = changed.replace(context=record.context)
            except Exception as error:  # a user's: the message goes on as it was (P9)
                _tell(each, "on_send", error)
        return record

    def refused(self, record: ProducerRecord, error: BaseException) -> None:
        """``send()`` has raised *error* for it."""
        partition = record.partition if isinstance(record.partition, int) else -1
        topic = str(record.topic)
        self._acknowledged(record, _nowhere(topic, partition, record.timestamp_ms), error)

    def watcher(self, record: ProducerRecord) -> Callable[[Delivery], None]:
        """What is to be called with the settled message."""

        def settled(delivery: Delivery) -> None:
            self._acknowledged(record, _where(delivery), delivery.look())

        return settled

    # Of many -----------------------------------------------------------------------------------

    def sent_rows(self, topic: str, columns: tuple[Any, ...]) -> list[ProducerRecord]:
        """The rows of ``send_many()``, as they are to be sent."""
        lists = [_as_list(column, len(columns[0])) for column in columns]
        if len({len(each) for each in lists}) > 1:
            raise ValueError("the columns must have one length, that of values")
        values, keys, headers, partitions, timestamps = lists
        rows = []
        for row in zip(values, keys, headers, partitions, timestamps, strict=True):
            record = self.sent(ProducerRecord(topic, *row))
            if record.topic != topic:
                log.error("%s: an interceptor names another topic in send_many()", topic)
                record = record.replace(topic=topic)
            rows.append(record)
        return rows

    @contextlib.contextmanager
    def refusing(self, rows: list[ProducerRecord]) -> Iterator[None]:
        """What is raised meanwhile is the outcome of all *rows*."""
        try:
            yield
        except BaseException as error:
            for row in rows:
                self.refused(row, error)
            raise

    def watch_rows(self, block: SentBlock, rows: list[ProducerRecord]) -> None:
        """Tell of the outcomes of *rows*, which were sent as *block*."""
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
            except Exception as failure:  # a user's: it harms nobody else (P9)
                _tell(each, "on_acknowledgement", failure)

    def close(self) -> None:
        """The producer is closed: once, whoever says it first."""
        if self._closed:
            return
        self._closed = True
        for each in self._all:
            if not hasattr(each, "close"):
                continue
            try:
                each.close()
            except Exception as error:  # a user's: the producer is closed all the same
                _tell(each, "close", error)


def _tell(interceptor: object, method: str, error: Exception) -> None:
    log.error("interceptor %r: %s() raised; it goes on", interceptor, method, exc_info=error)


def _taking_a_record(method: Callable[..., object]) -> Callable[..., object]:
    """*method*, called with three arguments; Java's takes two."""
    with contextlib.suppress(TypeError, ValueError):  # it cannot be looked at
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


# Columns ------------------------------------------------------------------------------------------


def columns(rows: list[ProducerRecord]) -> tuple[Any, ...]:
    """What ``send_many()`` takes: values, keys, headers, partitions, timestamps."""
    return (
        [row.value for row in rows],
        _column([row.key for row in rows]),
        _column([row.headers for row in rows]),
        _column([row.partition for row in rows]),
        _column([row.timestamp_ms for row in rows]),
    )


def _column(cells: list[Any]) -> list[Any] | None:
    return None if all(cell is None for cell in cells) else cells


def _as_list(column: Any, count: int) -> list[Any]:
    """A column, as Python has it: NumPy's and Arrow's have a method for that."""
    if column is None:
        return [None] * count
    for name in ("to_pylist", "tolist"):
        if hasattr(column, name):
            found: list[Any] = getattr(column, name)()
            return found
    return list(column)

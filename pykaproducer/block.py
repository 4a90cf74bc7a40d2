"""Many messages in one call: ``send_many()``, ``send_arrow()`` and their outcomes.

The columns are read in place, without an object per message and without the GIL
(``_kernel_parts/columns.pxi``, ``arrow.pxi``, ``block_rows.pxi``). From their topic's slot on, the
messages are handled like those of ``send()``.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pykaproducer._kernel as _kernel
from pykaproducer import delivery
from pykaproducer._util.serializing import serialized
from pykaproducer.delivery import TopicPartition
from pykaproducer.errors import (
    BufferFullError,
    DeliveryFailures,
    ProducerBrokenError,
    ProducerClosedError,
    TransactionError,
)

if TYPE_CHECKING:
    from pykaproducer.config import Config
    from pykaproducer.interceptors import Interceptors

#: Types that are sequences, but of bytes or letters: one message, passed without a list around it.
_ONE_CELL = (str, bytes, bytearray, memoryview)

#: The errors that fail the rest of a block after a part of it has been accepted. ValueError: the
#: memory of a column was modified in the meantime.
_REFUSALS = (
    BufferFullError,
    ProducerClosedError,
    ProducerBrokenError,
    TransactionError,
    ValueError,
    MemoryError,
)


class Delivered(NamedTuple):
    """The messages of a block that were delivered to one partition."""

    #: Number of messages.
    rows: int
    #: Bytes of their keys and values.
    size: int


class BlockMetadata(NamedTuple):
    """The outcome of a block."""

    #: Number of messages in the block.
    rows: int
    #: Offsets of the delivered messages by partition, in the order of the log. Messages for which
    #: the broker returned no offset are missing (``acks=0``, or a retry of a batch that the broker
    #: already had).
    offsets: dict[TopicPartition, list[range]]
    #: Row numbers (from 0) and errors of the failed messages, in order.
    failed: list[tuple[int, BaseException]]
    #: The delivered messages by partition, including those without an offset.
    delivered: dict[TopicPartition, Delivered]


class BlockFailures(DeliveryFailures):
    """Messages of a block were not delivered.

    Raised by :meth:`BlockDelivery.result`. ``metadata`` has every failed row with its error, and
    the offsets of the delivered ones. ``count`` and ``errors`` are as in
    :class:`DeliveryFailures`.
    """

    def __init__(self, metadata: BlockMetadata) -> None:
        failed = metadata.failed
        super().__init__(len(failed), [error for _, error in failed[:10]])
        row, error = failed[0]
        text = f"{len(failed)} of {metadata.rows} messages were not delivered; row {row}: {error}"
        self.args = (text,)
        self.metadata = metadata


class BlockDelivery:
    """The future of a block: returned by ``send_many()`` and ``send_arrow()``."""

    __slots__ = ("__weakref__", "_block", "_on_delivery", "_refused")

    def __init__(
        self, on_delivery: Callable[[BlockFailures | None, BlockDelivery], object] | None = None
    ) -> None:
        self._block = _kernel.SentBlock()
        self._on_delivery = on_delivery
        self._refused: RefusedRows | None = None

    def __len__(self) -> int:
        """Return the number of messages."""
        return self._block.count

    def __bool__(self) -> bool:
        return True  # even without messages

    @property
    def accepted(self) -> int:
        """The number of accepted messages, which are the first ones of the block.

        The others did not fit into ``buffer_memory``, and have failed: no space was free in time,
        or their transaction ended.
        """
        return self._block.accepted

    def done(self) -> bool:
        """Return whether every message has its outcome."""
        return self._block.pending() is None

    def outcome(self, timeout: float | None = None) -> BlockMetadata:
        """Wait for the outcomes of all messages and return them, including failures.

        Args:
            timeout (float): seconds; None waits until the last message's deadline, 0 does not wait.

        Raises:
            OutcomeTimeoutError: some messages have no outcome after *timeout*; they are still
                being sent.
            CallbackThreadError, ForkedProducerError: as for ``Delivery.result``.
        """
        deadline = None
        while (pending := self._block.pending()) is not None:
            clock = pending.chunk.owner.clock
            if deadline is None and timeout is not None:
                deadline = clock.after(timeout)
            delivery.exception(pending, None if deadline is None else deadline - clock.monotonic())
        return self._metadata()

    def result(self, timeout: float | None = None) -> BlockMetadata:
        """Return the outcomes as :meth:`outcome` does, or raise if a message failed.

        Raises:
            BlockFailures: has every failed row with its error.
        """
        found = self.outcome(timeout)
        if found.failed:
            raise BlockFailures(found)
        return found

    def exception(self, timeout: float | None = None) -> BlockFailures | None:
        """Return what :meth:`result` would raise, or None if every message was delivered."""
        found = self.outcome(timeout)
        return BlockFailures(found) if found.failed else None

    def __await__(self) -> Generator[Any, None, BlockMetadata]:
        while (pending := self._block.pending()) is not None:
            yield from delivery.settled_in_event_loop(pending)
        return self.result(0)

    def _metadata(self) -> BlockMetadata:
        if self._refused is not None:
            self._refused.read = True
        found, failed = self._block.outcomes()
        offsets, delivered = {}, {}
        for (topic, partition), (rows, size, ranges) in found.items():
            place = TopicPartition(topic, partition)
            delivered[place] = Delivered(rows, size)
            if ranges:
                offsets[place] = [range(first, last + 1) for first, last in sorted(ranges)]
        return BlockMetadata(self._block.count, offsets, failed, delivered)

    def _on_settled(self, _settled: object = None) -> None:
        """Call back if all messages have their outcome, or wait for the next one.

        Runs on the Reports thread. If that thread would never call it, because no message was
        accepted or the last piece was rejected, it runs on the calling thread.
        """
        while (pending := self._block.pending()) is not None:
            if pending.when_settled(self._on_settled):
                return
        # A block that is kept does not keep the callback, and what that refers to.
        callback, self._on_delivery = self._on_delivery, None
        assert callback is not None, "it is called once"
        try:
            callback(self.exception(0), self)
        except Exception as error:  # from the user's callback: it must affect nothing else (P9)
            delivery.log_callback_error(callback, error)

    def __repr__(self) -> str:
        state = "pending" if not self.done() else f"{self._block.failures()} failed"
        return f"<BlockDelivery of {len(self)} messages, {state}>"


class RefusedRows:
    """The rows of a block that did not fit into the buffer, for ``_pipeline/unreported.py``."""

    __slots__ = ("_made", "count", "error", "read", "topic")

    def __init__(self, made: BlockDelivery, topic: str | None, error: BaseException) -> None:
        self._made = weakref.ref(made)
        self.topic = topic
        self.count = len(made) - made.accepted
        self.error = error
        #: Whether the outcomes have been read.
        self.read = False

    @property
    def handles(self) -> int:
        """Return 1 while the outcomes may still be read, then 0."""
        return int(self._made() is not None)

    def unreported_failures(self) -> int:
        """Return how many rows failed and were not read."""
        return 0 if self.read else self.count

    def first_error(self) -> BaseException:
        """Return the error that all rows have."""
        return self.error


class BlockProducer(_kernel.BlockAdmission):
    """The bulk methods of a producer, from which ``producer.Producer`` derives."""

    config: Config
    _interceptors: Interceptors | None = None

    def send_many(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        headers: Sequence[Any] | None = None,
        partitions: Any = None,
        timestamps_ms: Any = None,
        *,
        on_delivery: Callable[[BlockFailures | None, BlockDelivery], object] | None = None,
        delivery_timeout_ms: int | None = None,
    ) -> BlockDelivery:
        """Accept many messages for one topic at once, in order.

        A block that fits into ``buffer_memory`` is accepted completely or not at all. A larger
        block is accepted in pieces: messages that find no space within ``max_block_ms`` fail, each
        with its row number, and those before them are sent. So do those that wait for space when
        their transaction ends.

        Args:
            topic (str): topic name.
            values: sequence of bytes-like or None; a NumPy array of bytes (whose trailing NULs are
                padding and not sent) or of objects; an Arrow array of binary, string, fixed-size
                binary, their large and view types, or dictionary-encoded; or such an array in
                chunks, as the columns of data frames are. With ``value_serializer``, a sequence of
                anything.
            keys: as *values*; None if no message has a key.
            headers: sequence with a list of ``(str, bytes or None)``, or None, for each message.
            partitions: sequence, NumPy or Arrow array of int, also dictionary-encoded. For None
                the partitioner chooses.
            timestamps_ms: as *partitions*: milliseconds since the epoch, or an Arrow array of
                times. None means now.
            on_delivery: ``on_delivery(error, block)``, called once when all messages have their
                outcome; *error* is None if all were delivered, else ``BlockFailures``.
            delivery_timeout_ms (int): as for ``send()``, for each message.

        Returns:
            BlockDelivery: the block's future.

        Raises:
            TypeError, ValueError: a column or row is invalid; the text names it. An error in a row
                has its number, from 0, as ``row``.
            MessageTooLargeError: a message is larger than ``max_request_size``; the text names its
                row.
            BufferFullError, ProducerClosedError, ProducerBrokenError, TransactionError: as for
                ``send()``.

        If it raises, nothing was accepted.

        The length of a sequence is the number of items that it yields. Arrays are copied, and
        must not be modified until the call returns. bytes objects are not copied, but kept until
        the messages have their outcome, if these have at least 256 bytes on average. Lengths,
        offsets and indices of Arrow arrays are checked, but the sizes of their buffers are known
        to their exporter only and are trusted.
        """
        columns = (values, keys, headers, partitions, timestamps_ms)
        made = self._new_block(on_delivery)
        if self._interceptors is None:
            return self._send_rows(made, topic, columns, delivery_timeout_ms)
        rows = self._interceptors.sent_rows(topic, columns)
        with self._interceptors.refusing(made._block, rows):
            columns = self._interceptors.columns(rows)
            self._send_rows(made, topic, columns, delivery_timeout_ms)
        self._interceptors.watch_rows(made._block, rows)
        return made

    def _new_block(self, on_delivery: Any) -> BlockDelivery:
        """Return the block of a call that has just begun."""
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        if inspect.iscoroutinefunction(on_delivery):
            raise TypeError(
                "on_delivery is an async function, which would never be awaited; await the block "
                "instead, or pass a plain function"
            )
        made = BlockDelivery(on_delivery)
        made._block.transaction = self._transaction  # before user code runs
        return made

    def _send_rows(
        self,
        made: BlockDelivery,
        topic: str,
        columns: tuple[Any, ...],
        delivery_timeout_ms: int | None,
    ) -> BlockDelivery:
        values, keys, headers, partitions, timestamps_ms = columns
        for name, column in (("values", values), ("keys", keys)):
            if isinstance(column, _ONE_CELL):
                raise TypeError(
                    f"{name} must be a sequence with one item for each message, not a single "
                    f"{type(column).__name__}; use send() for a single message"
                )
        keys, values = self._serialized(topic, headers, keys, values)
        found = _kernel.columns_of(values, keys, headers, partitions, timestamps_ms)
        return self._send_columns(made, topic, [found], delivery_timeout_ms)

    def send_arrow(
        self,
        data: Any,
        topic: str | None = None,
        *,
        on_delivery: Callable[[BlockFailures | None, BlockDelivery], object] | None = None,
        delivery_timeout_ms: int | None = None,
    ) -> BlockDelivery:
        """Accept the rows of Arrow data, in order, like :meth:`send_many`.

        Args:
            data: a RecordBatch, a Table, or any object with ``__arrow_c_array__`` or
                ``__arrow_c_stream__`` (Arrow's PyCapsule interface; no Arrow library is needed). A
                stream is first read to its end. The columns are those of Spark's Kafka sink:
                ``value``, and optionally ``key``, ``topic``, ``partition``, ``headers`` (a map, or
                a list of structs with the fields ``key`` and ``value``; names are UTF-8) and
                ``timestamp`` (a time, or milliseconds since the epoch). All except ``headers`` may
                be dictionary-encoded. The structs of a struct array must not be null.
            topic (str): topic of all rows; None uses the column ``topic``.
            on_delivery, delivery_timeout_ms: as for :meth:`send_many`.

        Serializers and interceptors work on Python objects, not on columns: if one is configured,
        ValueError is raised.
        """
        for name in ("key_serializer", "value_serializer", "interceptors"):
            if getattr(self.config, name):
                raise ValueError(f"send_arrow() cannot be used when {name} is set")
        made = self._new_block(on_delivery)
        batches = _kernel.columns_of_arrow(data)
        return self._send_columns(made, topic, batches, delivery_timeout_ms)

    def _serialized(self, topic: str, headers: Any, keys: Any, values: Any) -> tuple[Any, Any]:
        """Serialize each row's key and value separately, as ``send()`` does."""
        config = self.config
        if config.key_serializer is not None and keys is not None:
            keys = _each(topic, headers, keys, "keys", config.key_serializer)
        if config.value_serializer is not None:
            values = _each(topic, headers, values, "values", config.value_serializer)
        return keys, values

    def _send_columns(
        self,
        made: BlockDelivery,
        topic: str | None,
        batches: list[_kernel.Columns],
        delivery_timeout_ms: int | None,
    ) -> BlockDelivery:
        block = made._block
        watch = None if made._on_delivery is None else made._on_settled
        self._send_block(block, topic, batches, delivery_timeout_ms, watch, _REFUSALS)
        if block.refusal is not None:
            self._block_refused(block.refusal, block.transaction)
        if watch is not None and (block.refusal is not None or not block.count):
            watch()
        elif block.refusal is not None:
            # Without its traceback, whose frames refer to the block and would keep it alive.
            made._refused = RefusedRows(made, topic, block.refusal.with_traceback(None))
            self._rows_refused(made._refused)
        return made

    def _block_refused(self, error: BaseException, transaction: int) -> None:
        """React to rows that were not accepted because of *error*.

        *transaction*: the ordinal of that in which the others were accepted.
        """

    def _rows_refused(self, rows: RefusedRows) -> None:
        """Remember *rows* as failed: no callback gets their outcome."""


def _each(topic: str, headers: Any, column: Any, name: str, serializer: Any) -> list[Any]:
    """Serialize each row of *column*, with that row's headers."""
    setting = f"{name.removesuffix('s')}_serializer"
    if headers is None:
        return [
            serialized(setting, serializer, topic, None, cell, row)
            for row, cell in enumerate(column)
        ]
    cells, lists = list(column), list(headers)
    if len(cells) != len(lists):
        raise ValueError(f"headers has {len(lists)} entries, {name} has {len(cells)}")
    return [
        serialized(setting, serializer, topic, own, cell, row)
        for row, (own, cell) in enumerate(zip(lists, cells, strict=True))
    ]

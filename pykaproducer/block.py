"""Many messages in one call: ``send_many()`` and ``send_arrow()``, and what becomes of them.

The columns are read where they lie, without an object for each message, and without the GIL
(``_kernel_parts/columns.pxi``, ``arrow.pxi``, ``block.pxi``). From the slot of their topic on the
messages take the way of those that ``send()`` accepts.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pykaproducer import _kernel, delivery
from pykaproducer import interceptors as _interceptors
from pykaproducer.delivery import TopicPartition
from pykaproducer.errors import (
    BufferFullError,
    DeliveryFailures,
    ProducerBrokenError,
    ProducerClosedError,
)

if TYPE_CHECKING:
    from pykaproducer.config import Config

#: What fails the rest of a block of which a part has been accepted already.
_REFUSALS = (BufferFullError, ProducerClosedError, ProducerBrokenError)


class Delivered(NamedTuple):
    """What of a block was delivered to one partition."""

    #: How many messages.
    rows: int
    #: The bytes of their keys and values.
    size: int


class BlockMetadata(NamedTuple):
    """What became of a block."""

    #: How many messages it has.
    rows: int
    #: The offsets of those that were delivered, by partition, in the order of the log. (Without
    #: those to which the broker gave none: ``acks=0``, or a retry that it knew already.)
    offsets: dict[TopicPartition, list[range]]
    #: Row numbers, from 0, and errors of those that were not, in order.
    failed: list[tuple[int, BaseException]]
    #: How many were delivered, by partition: also those without an offset.
    delivered: dict[TopicPartition, Delivered]


class BlockFailures(DeliveryFailures):
    """Messages of a block were not delivered.

    Raised by :meth:`BlockDelivery.result`. ``metadata`` has every row that failed, with its error,
    and the offsets of those that were delivered; ``count`` and ``errors`` are as for
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
        """How many messages it has."""
        return self._block.count

    def __bool__(self) -> bool:
        return True  # also without messages

    @property
    def accepted(self) -> int:
        """How many of its messages were accepted: the first so many. The others found no space in
        ``buffer_memory``, and have failed."""
        return self._block.accepted

    def done(self) -> bool:
        """Whether every message has its outcome."""
        return self._block.pending() is None

    def outcome(self, timeout: float | None = None) -> BlockMetadata:
        """Wait for every message's outcome, and return them, failures too.

        Args:
            timeout (float): seconds; None: until the last message's deadline. 0: do not wait.

        Raises:
            OutcomeTimeoutError: some have none after *timeout*; they are still on their way.
            CallbackThreadError, ForkedProducerError: as for ``Delivery.result``.
        """
        deadline = None
        while (pending := self._block.pending()) is not None:
            clock = pending.chunk.home.clock
            if deadline is None and timeout is not None:
                deadline = clock.after(timeout)
            delivery.exception(pending, None if deadline is None else deadline - clock.monotonic())
        return self._metadata()

    def result(self, timeout: float | None = None) -> BlockMetadata:
        """As :meth:`outcome`; raises if a message failed.

        Raises:
            BlockFailures: with every row that failed, and its error.
        """
        found = self.outcome(timeout)
        if found.failed:
            raise BlockFailures(found)
        return found

    def exception(self, timeout: float | None = None) -> BlockFailures | None:
        """What :meth:`result` would raise; None: every message was delivered."""
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

    def _go_on(self, _settled: object = None) -> None:
        """A message has its outcome: call back if it is the last, or wait for the next.

        Called in the Reports thread; or, where that would never come to it (no message was
        accepted, or the last piece was refused), in the thread of the call.
        """
        assert self._on_delivery is not None
        while (pending := self._block.pending()) is not None:
            if pending.when_settled(self._go_on):
                return
        try:
            self._on_delivery(self.exception(0), self)
        except Exception as error:  # the user's: it harms nobody else (P9)
            delivery.log_callback_error(self._on_delivery, error)

    def __repr__(self) -> str:
        state = "pending" if not self.done() else f"{self._block.failures()} failed"
        return f"<BlockDelivery of {len(self)} messages, {state}>"


class RefusedRows:
    """The rows of a block that found no space, for ``_pipeline/untold.py``."""

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

    def untold_failures(self) -> int:
        """Return how many rows failed and were not read."""
        return 0 if self.read else self.count

    def first_error(self) -> BaseException:
        """Return the error that all rows have."""
        return self.error


class BlockProducer(_kernel.BlockAdmission):
    """What a producer takes at once. ``producer.Producer`` derives from it."""

    config: Config
    _interceptors: _interceptors.Interceptors | None = None

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

        A block that fits into ``buffer_memory`` is accepted whole, or not at all. A larger one goes
        in by pieces; messages that then find no space for ``max_block_ms`` fail, each with its row
        number, and those before them go on.

        Args:
            topic (str): topic name.
            values: sequence of bytes-like or None; a NumPy array of bytes (trailing NULs are
                padding there, and not sent) or of objects; an Arrow array of binary, string,
                fixed-size binary, their large and view kinds, or dictionary-encoded. Sequences of
                anything with ``value_serializer``.
            keys: as *values*; None: no message has a key.
            headers: sequence with a list of ``(str, bytes or None)``, or None, for each message.
            partitions: sequence, NumPy or Arrow array of int, dictionary-encoded too; None in it:
                the partitioner decides.
            timestamps_ms: as *partitions*; milliseconds since the epoch, or an Arrow array of
                times; None in it: now.
            on_delivery: ``on_delivery(error, block)``, called once when all have their outcome;
                error is None if all are in the log, else ``BlockFailures``.
            delivery_timeout_ms (int): as for ``send()``, for each message.

        Returns:
            BlockDelivery: the block's future.

        Raises:
            TypeError, ValueError: a column or a row can never be right; it is named. An error of
                one row has its number, from 0, as ``row``.
            MessageTooLargeError: a message is larger than ``max_request_size``; its row is named.
            BufferFullError, ProducerClosedError, ProducerBrokenError: as for ``send()``.

        Nothing is accepted then.

        A sequence counts as long as what it yields. Arrays are read where they lie: they must not
        be written to until the call returns. Of Arrow arrays, lengths, offsets and indices are
        checked; how large a buffer is, only their exporter knows, and its word is taken for it.
        """
        columns = (values, keys, headers, partitions, timestamps_ms)
        if self._interceptors is None:
            return self._send_rows(topic, columns, on_delivery, delivery_timeout_ms)
        rows = self._interceptors.sent_rows(topic, columns)
        with self._interceptors.refusing(rows):
            columns = _interceptors.columns(rows)
            made = self._send_rows(topic, columns, on_delivery, delivery_timeout_ms)
        self._interceptors.watch_rows(made._block, rows)
        return made

    def _send_rows(
        self,
        topic: str,
        columns: tuple[Any, ...],
        on_delivery: Any,
        delivery_timeout_ms: int | None,
    ) -> BlockDelivery:
        values, keys, headers, partitions, timestamps_ms = columns
        keys, values = self._serialized(topic, headers, keys, values)
        found = _kernel.columns_of(values, keys, headers, partitions, timestamps_ms)
        return self._send_columns(topic, [found], on_delivery, delivery_timeout_ms)

    def send_arrow(
        self,
        data: Any,
        topic: str | None = None,
        *,
        on_delivery: Callable[[BlockFailures | None, BlockDelivery], object] | None = None,
        delivery_timeout_ms: int | None = None,
    ) -> BlockDelivery:
        """Accept the rows of Arrow data, in order; else as :meth:`send_many`.

        Args:
            data: a RecordBatch, a Table, anything with ``__arrow_c_array__`` or
                ``__arrow_c_stream__`` (Arrow's PyCapsule interface; no Arrow library is needed). A
                stream is read to its end first. Columns as in Spark's Kafka sink: ``value``, and
                if need be ``key``, ``topic``, ``partition``, ``headers`` (list of structs with the
                fields ``key`` and ``value``, or map; the names are UTF-8), ``timestamp`` (a time,
                or milliseconds since the epoch). Any but ``headers`` may be dictionary-encoded.
                The structs of a struct array may not be null.
            topic (str): for all rows; None: column ``topic`` says it.
            on_delivery, delivery_timeout_ms: as for :meth:`send_many`.

        Serializers are for Python's objects, interceptors for records: with one configured,
        ValueError is raised.
        """
        for name in ("key_serializer", "value_serializer", "interceptors"):
            if getattr(self.config, name):
                raise ValueError(f"send_arrow() sends columns as they are, and {name} is set")
        batches = _kernel.columns_of_arrow(data)
        return self._send_columns(topic, batches, on_delivery, delivery_timeout_ms)

    def _serialized(self, topic: str, headers: Any, keys: Any, values: Any) -> tuple[Any, Any]:
        """Each row's key and value by themselves, as ``send()`` would serialize them."""
        config = self.config
        if config.key_serializer is not None and keys is not None:
            keys = _each(config.key_serializer, topic, headers, keys, "keys")
        if config.value_serializer is not None:
            values = _each(config.value_serializer, topic, headers, values, "values")
        return keys, values

    def _send_columns(
        self,
        topic: str | None,
        batches: list[_kernel.Columns],
        on_delivery: Any,
        delivery_timeout_ms: int | None,
    ) -> BlockDelivery:
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        if inspect.iscoroutinefunction(on_delivery):
            raise TypeError(
                "on_delivery is an async function, which no event loop would run; await the block "
                "instead, or give a plain function"
            )
        made = BlockDelivery(on_delivery)
        block, watch = made._block, None if on_delivery is None else made._go_on
        self._send_block(block, topic, batches, delivery_timeout_ms, watch, _REFUSALS)
        if watch is not None and (block.refusal is not None or not block.count):
            watch()
        elif block.refusal is not None:
            # Without its traceback, whose frames hold the block: it would never be let go.
            made._refused = RefusedRows(made, topic, block.refusal.with_traceback(None))
            self._rows_refused(made._refused)
        return made

    def _rows_refused(self, rows: RefusedRows) -> None:
        """Remember *rows* as failed: no callback gets their outcome."""


def _each(serialize: Any, topic: str, headers: Any, column: Any, name: str) -> list[Any]:
    """Serialize each row of *column*, with that row's headers."""
    if headers is None:
        return [serialize(topic, None, cell) for cell in column]
    cells, lists = list(column), list(headers)
    if len(cells) != len(lists):
        raise ValueError(f"headers has {len(lists)} entries, {name} has {len(cells)}")
    return [serialize(topic, own, cell) for own, cell in zip(lists, cells, strict=True)]

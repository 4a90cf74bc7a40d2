"""Types of the compiled kernel, with the documentation of what is public, for editors.

Everything else is described where it is implemented: in ``_kernel.pyx`` and, by subject, in
``_kernel_parts/*.pxi``.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, final

from pykaproducer.delivery import RecordMetadata

CHUNK_ROWS: int
#: A chunk is closed at this many payload bytes.
CHUNK_BYTES: int
#: Bytes of ``buffer_memory`` that a row takes besides its payload.
ROW_COST: int
#: Upper bound on the bytes that the record format adds to a payload.
RECORD_OVERHEAD: int
#: Bytes per record besides its payload, for estimating the size of a batch.
RECORD_ALLOWANCE: int
#: Bytes of the header of a record batch.
BATCH_HEADER: int

#: Hashing: keys are ignored.
NO_HASH: int
#: Hashing: the Java client's murmur2.
MURMUR2: int
#: Hashing: CRC-32, as in librdkafka's consistent partitioners.
CRC32: int
#: Hashing: FNV-1a, as in Sarama's hash partitioner.
FNV1A: int
#: Keyless rows: one partition for a number of bytes, then another (KIP-794).
STICKY: int
#: Keyless rows: a random partition for each row.
RANDOM: int
#: Keyless rows: the next partition for each row.
ROUND_ROBIN: int
#: Keyless rows: hash them as an empty key.
HASH_EMPTY: int

Bytes = bytes | bytearray | memoryview
T = TypeVar("T")

@final
class Budget:
    #: Total bytes.
    limit: int
    used: int
    #: Number of waiting threads, and of those that are not held back.
    waiting: int
    ahead: int
    lingers: bool
    lacking: int
    @property
    def ends_lingering(self) -> bool: ...
    def __init__(self, limit: int, *, patience: int = ..., recent: int = ...) -> None: ...
    def is_held_back(self, account: Account | None, amount: int) -> bool: ...
    def serve(self) -> int: ...
    def fits(self, amount: int) -> bool: ...
    def wake_all(self) -> None: ...

@final
class Account:
    topic: str
    held: int

@final
class Turn:
    #: Bytes that the thread waits for.
    amount: int
    #: Held by the thread; released when the bytes are granted.
    lock: Any
    #: The ordinal of the transaction to which the message belongs; 0: none.
    transaction: int
    #: That of the message's topic; None: that of a new topic.
    account: Account | None
    #: Whether the bytes are reserved for the thread.
    granted: bool

class TaskWaiter:
    loop: Any
    def __init__(self, loop: Any) -> None: ...

@final
class Chunk:
    #: Topic of all rows.
    topic: str
    #: The producer's ``buffer_memory``.
    budget: Budget
    slot: TopicSlot | None
    serial: int
    #: The producer's ``ProducerRef``.
    owner: Any
    #: Errors of failed rows, shared by rows that failed together.
    errors: list[BaseException]
    unconfirmed: bool
    nbytes: int
    unsettled: int
    handles: int
    #: No row expires before this (monotonic seconds).
    next_deadline: float
    #: When the first message arrived (monotonic seconds).
    opened: float
    #: Whether a thread is waiting for one of the rows.
    has_waiters: bool
    is_settled: bool
    def __len__(self) -> int: ...
    def expired(self, now: float) -> list[Slice]: ...
    def overdue(self, now: float) -> None: ...
    def pick(self, rows: Sequence[int], partition: int = ...) -> Slice: ...
    def whole(self) -> Slice: ...
    def key(self, row: int) -> bytes | None: ...
    def value(self, row: int) -> bytes | None: ...
    def unassigned(self) -> list[int]: ...
    def partition_of(self, row: int) -> int: ...
    def accepted(self) -> list[float]: ...
    def assign(self, row: int, partition: int) -> None: ...
    def split(
        self, partitioner: Partitioner | None, partitions: int, available: bytes
    ) -> tuple[list[Slice], Slice | None]: ...

@final
class SampledStat:
    def __init__(self, window: float, samples: int, histogram: bool = ...) -> None: ...
    count: int
    #: Sum since the start.
    sum: float
    #: Maximum since the start.
    largest: float
    def add(self, now: float, value: float, times: int = ...) -> None: ...
    def recent(self, now: float) -> tuple[int, float, float, float]: ...
    def percentiles(self, now: float, *fractions: float) -> list[float | None]: ...
    def histogram(self, bounds: Sequence[float]) -> list[int]: ...

@final
class Slice:
    #: The chunk of the rows.
    chunk: Chunk
    count: int
    #: Their partition, -1 if not partitioned.
    partition: int
    nbytes: int
    level: int
    #: Failed attempts that ended with a retriable broker error.
    retries_used: int
    #: Maximum rows in one batch; 0: as many as fit.
    most: int
    #: Topic of the rows.
    topic: str
    #: Whether a row of the chunk may have a callback to run.
    wants_report: bool
    is_settled: bool
    def __len__(self) -> int: ...
    def row_numbers(self) -> list[int]: ...
    def waiting(self) -> int: ...
    def oldest_deadline(self) -> float | None: ...
    def claim(self, room: int, most: int, at_least_one: bool = ...) -> Slice | None: ...
    def detach_payload(self) -> None: ...
    def mark_ambiguous(self) -> None: ...
    def unclaim(self) -> None: ...
    def deliver(
        self,
        base_offset: int,
        timestamp: int = ...,
        *,
        wake: bool = ...,
        latency: SampledStat | None = ...,
        now: float = ...,
    ) -> Slice | None: ...
    def fail(
        self,
        not_persisted: BaseException,
        possibly_persisted: BaseException,
        *,
        wake: bool = ...,
    ) -> Slice | None: ...
    def report(self, on_error: Callable[[Any, BaseException], None]) -> bool: ...
    def wake_waiters(self) -> None: ...
    def finish(self) -> bool: ...
    def first_error(self) -> BaseException | None: ...
    def unreported_failures(self) -> int: ...

@final
class RecordBatch:
    plain_size: int
    largest_record: int
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Partitioner:
    def __init__(
        self,
        hashing: int,
        keyless: int,
        *,
        empty_is_keyless: bool = ...,
        sticky_bytes: int = ...,
        seed: int = ...,
    ) -> None: ...
    #: Whether rows without a key stick to a partition. If not, set_queue_bounds() has no effect.
    is_sticky: bool
    def set_queue_bounds(self, available: bytes, bounds: bytes | None) -> None: ...

def partition_for(hashing: int, key: bytes, partitions: int) -> int: ...

class WindowState:
    limit: int
    timeout: float
    took: float
    answered_at: float
    sealed_at: float
    round_trip: float
    def __init__(self, limit: int, always: int, pause: float, timeout: float) -> None: ...
    def patience(self, least: float) -> float: ...
    def request_deadline(self, batches: Sequence[BatchState], now: float) -> float: ...
    def opens_at(self, under_way: int, *, full: bool) -> float | None: ...
    def record_answer(self, now: float, sent: float) -> None: ...

class SequencerState:
    #: A ``ProducerId``, or None.
    producer: Any
    next_sequence: int
    #: The numbers after those in flight are invalid: the epoch must be bumped before the next batch
    #: is sealed.
    stale: bool
    #: A producer id that must not be used again: the next id comes from the cluster.
    spent_id: int | None
    #: A broker has confirmed a batch with this id and epoch.
    known: bool
    #: Number of batches sealed so far. A batch's ordinal is this number when it was sealed.
    sealed: int
    #: Ordinal of the youngest batch that was delivered.
    youngest_delivered: int
    #: Ordinal of the youngest batch of this epoch that may be in the log or has no outcome yet.
    youngest_expected: int

    def __init__(
        self, producer: Any = ..., next_sequence: int = ..., known: bool = ...
    ) -> None: ...
    def take(self, count: int) -> int: ...
    def delivered(self, number: int) -> None: ...

class BatchState:
    topic: str
    partition: int
    payload: RecordBatch
    parts: list[Slice]
    count: int
    level: int
    #: Number of retries after temporary broker errors; bounded by ``retries``.
    retries_used: int
    #: Number of retries because the coordinator of its transaction was busy.
    retried_soon: int
    #: An attempt may have been appended, so any later failure is POSSIBLY_PERSISTED.
    possibly_persisted: bool
    producer_id: int
    producer_epoch: int
    #: -1 if it is unsequenced.
    first_sequence: int
    #: Ordinal of the batch within its partition; 0 if it is unsequenced.
    number: int
    #: Maximum number of messages of a batch when sealed again; 0: as many as fit.
    most: int
    #: The buffer in which it was sealed, or from which it was last sent.
    buffer: BufferState | None

    def __init__(
        self,
        topic: str,
        partition: int,
        payload: RecordBatch,
        parts: list[Slice],
        count: int,
        level: int,
        *,
        producer_id: int = ...,
        producer_epoch: int = ...,
        first_sequence: int = ...,
        number: int = ...,
        buffer: BufferState | None = ...,
    ) -> None: ...

class BufferState:
    topic: str
    partition: int
    place: tuple[str, int]
    sequencer: Any
    #: Items to seal or send: a Slice, a Batch, or a Backlog, which is never the first one.
    pending: Any
    #: Bytes and rows of the slices in ``pending``.
    nbytes: int
    rows: int
    #: When each item in ``pending`` was added (monotonic seconds).
    enqueued_at: deque[float]
    #: Batches in flight or sealed ahead, oldest first.
    unanswered: Any
    #: Answered batches to be retried, oldest first.
    failed: Any
    #: The buffer has failed: everything in it, and everything still added, is retried.
    failing: bool
    #: Nothing can be sealed until a producer id arrives.
    waits_for_id: bool
    #: Its items are retried only after a backoff.
    needs_backoff: bool
    #: An index into ``failed``: a sequenced batch will be missing in the log, so the sequence
    #: numbers of the failed batches from here on, and of all that is pending, are invalid.
    invalid_from: int | None
    #: The Chaser that ends it, or None.
    chaser: Any
    #: Its broker's worker knows it.
    attached: bool
    #: As callers use it; None: it was never lent.
    path: CallerPath | None

    def __init__(self, topic: str, partition: int, sequencer: SequencerState) -> None: ...
    def add(self, item: Any, now: float) -> None: ...
    def drop_head(self) -> None: ...
    def requeue_front(self, slices: list[Slice]) -> None: ...
    def sent(self, batch: BatchState) -> None: ...
    def unpack(self) -> None: ...

@final
class PartitionPath:
    ordering: Any

    broker: Any
    #: The partition's buffer there; None: there is no path.
    buffer: Any
    when_at_rest: Callable[[], None] | None

    def __init__(self, inbox: deque[Any], running: Any, ordering: Any) -> None: ...

@final
class BorrowedPaths:
    #: Slices to be put into each BrokerWorker, with their buffers.
    new: dict[Any, list[tuple[Any, Slice]]]
    others: list[Slice]

    def __init__(self, paths: dict[int, PartitionPath], slices: list[Slice]) -> None: ...
    def give_back(self) -> None: ...

B = TypeVar("B", bound=BufferState)

@final
class Batcher:
    #: Maximum size of a batch in bytes, before compression.
    batch_size: int
    #: Maximum number of messages of a batch; the argument 0 means no limit.
    batch_messages: int
    sealed_limit: int
    waiting: dict[Any, None]
    #: A heap of ``(time, ordinal, buffer)``: when buffers have lingered long enough.
    timers: list[tuple[float, int, Any]]

    def __init__(
        self, *, linger: float, batch_size: int, batch_messages: int, sealed_limit: int
    ) -> None: ...
    def fills(self, size: int) -> bool: ...
    def many_fill(self, size: int) -> bool: ...
    def is_small(self, limit: int) -> bool: ...
    def add(self, buffer: BufferState, item: Any, now: float) -> None: ...
    def add_new(self, items: list[tuple[B, Slice]]) -> list[tuple[B, Slice]]: ...
    def lingers_since(self, item: Any, now: float) -> float: ...
    def reschedule(self, buffer: BufferState) -> None: ...
    def next_due(self) -> float | None: ...
    def due(self, now: float, *, flushing: bool) -> Generator[Any]: ...
    def begin_round(self, now: float, *, flushing: bool) -> bool: ...
    def stays_first(self, buffer: BufferState) -> None: ...
    def put_back(self, batch: BatchState) -> None: ...
    def size_of_next(self, buffer: BufferState) -> int: ...
    def take(self, buffer: BufferState) -> Any: ...

BATCH_OVERHEAD: int
TRANSACTIONAL: int

@final
class RequestSealer:
    room: int
    buffer: BufferState
    transaction: Any
    sealed_so_far: int

    def __init__(
        self,
        batcher: Batcher,
        batch_type: type[BatchState],
        checksum: Callable[[Any], int],
        compressor: Any,
        metrics: RequestMetrics,
        *,
        worker: object = ...,
        idempotent: bool,
        transactional: bool = ...,
    ) -> None: ...
    def begin(self, room: int) -> None: ...
    def split(self, batch: BatchState) -> list[Any] | None: ...
    def seal(self, batches: list[Any], now: float) -> BufferState | None: ...
    def fits(self, buffer: BufferState, batches: list[Any]) -> bool: ...
    def seal_next(self, buffer: BufferState, batches: list[Any], now: float) -> bool: ...

def produce_frame(
    head: bytes,
    correlation_id: int,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, Any]],
    flexible: bool,
) -> list[Any]: ...

#: Record batches of at most this many bytes are copied into the buffer before them.
COPIED_BATCH: int
LARGE: int

@final
class ProduceRequest:
    batches: list[Any]
    #: When the connection is considered lost if there is no response (monotonic seconds).
    deadline: float
    #: When it was given to the bridge, or written by a caller (monotonic seconds).
    sent: float
    timeout_ms: int
    size: int
    #: Version of a request that a caller has written.
    version: int
    #: Correlation id of such a request.
    correlation_id: int
    buffers: list[Any]
    #: Bytes of it that the socket has taken.
    written: int
    protocol: int | None
    transactional_id: str | None
    first_of: Any
    #: Set if it adds partitions to a transaction, in this turn.
    turn: Any
    #: The slices of rows that were settled and are to be reported, then None.
    reports: list[Slice | None]
    #: Chunks that are complete and have nothing to report, then None.
    finished: list[Chunk | None]

    def __init__(self, batches: list[Any], *, now: float, deadline: float) -> None: ...
    def frame(self, version: int, correlation_id: int, head: bytes) -> list[Any]: ...
    def read(self, version: int, payload: Any) -> bool: ...
    def prepare_settling(self) -> int: ...
    def drop_report(self) -> None: ...
    def result(self, place: int) -> tuple[int, int]: ...

class TopicMetrics:
    #: Messages of each batch.
    records: SampledStat
    #: Bytes of each batch, as sent.
    batches: SampledStat
    #: Compressed size of each batch as a fraction of its uncompressed size.
    compression: SampledStat
    #: Messages of each retried batch.
    retries: SampledStat
    #: Messages of each failed slice.
    errors: SampledStat
    def __init__(self, window: float, samples: int) -> None: ...

class ConnectionMetrics:
    #: Bytes of each request.
    outgoing: SampledStat
    #: Bytes of each response.
    incoming: SampledStat
    #: Time from giving a request to the connection until its response, for each (seconds).
    latency: SampledStat
    #: Throttle time in each response (seconds).
    throttle: SampledStat
    #: One value for each connection that was established.
    made: SampledStat
    #: One value for each connection that was lost.
    lost: SampledStat
    def __init__(self, window: float, samples: int) -> None: ...

class RequestMetrics:
    #: Age of each delivered message, from send() to its outcome (seconds).
    delivery: SampledStat
    #: Time from giving each Produce request to the connection to its response (seconds).
    request: SampledStat
    #: Of each message, from the opening of the oldest chunk in its batch to the sealing (seconds).
    queue: SampledStat
    #: Messages of each request.
    requests: SampledStat
    #: Size of the largest record of each batch.
    largest: SampledStat
    #: Bytes of the delivered messages, by topic-partition.
    partitions: dict[tuple[str, int], SampledStat]
    #: Records events for ``traced()``; None: off.
    trace: Any
    def __init__(self, window: float, samples: int) -> None: ...
    def batch_sealed(self, batch: BatchState, now: float, topic: TopicMetrics) -> None: ...
    def request_written(
        self, request: ProduceRequest, now: float, size: int, link: ConnectionMetrics
    ) -> None: ...
    def request_answered(
        self, sent: float, now: float, throttle: float, link: ConnectionMetrics
    ) -> None: ...

@final
class RequestSettler:
    def __init__(
        self,
        batcher: Batcher,
        moved: set[Any],
        errors: dict[tuple[str, int], str],
        rejected: dict[str, object],
        metrics: RequestMetrics,
    ) -> None: ...
    def settle(self, request: ProduceRequest, now: float) -> list[int]: ...

def deliver_parts(
    parts: list[Slice],
    base_offset: int,
    timestamp: int,
    latency: SampledStat,
    now: float,
    settled: list[Slice | None],
) -> tuple[int, int]: ...

class CompressionError(Exception):
    parts: Sequence[Slice]

def encode_batch(
    parts: list[Slice],
    checksum: Callable[[Any], int],
    *,
    compress: Callable[[Any], bytes] | None = ...,
    attributes: int = ...,
    producer_id: int = ...,
    producer_epoch: int = ...,
    base_sequence: int = ...,
) -> tuple[RecordBatch, int]: ...
def write_buffers(fd: int, buffers: Sequence[Bytes], patience_ms: int) -> int: ...
def monotonic() -> float: ...
def pause_for_memory() -> None: ...
def lacks_memory(size: int = 32768) -> bool: ...
def call_in_any_case(function: Callable[[T, Any], None], first: T, second: Any) -> None: ...
def poll_events(watched: list[tuple[int, int]], timeout_ms: int) -> list[int]: ...
def read_into(fd: int, into: memoryview) -> int | None: ...

@final
class WakeEvent:
    @property
    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def wait(self, timeout: float = -1) -> bool: ...

@final
class Poker:
    def __init__(self, fd: int) -> None: ...
    def poke(self, *, surely: bool = False) -> None: ...
    def reset(self) -> None: ...
    def close(self) -> None: ...

def drain(fd: int) -> None: ...
def pool_use() -> tuple[int, int]: ...
def limit_next_write(nbytes: int) -> None: ...
def count_fork() -> None: ...
def refuse_memory(after: int, times: int) -> None: ...
def stage_wanted() -> None: ...
def stage_runs() -> None: ...
def register_delivery_functions(functions: object) -> None: ...

@final
class Delivery:
    """One message's future and report: returned by ``send()`` and passed to ``on_delivery``.

    It has the methods of :class:`concurrent.futures.Future` and of kafka-python's
    ``FutureRecordMetadata``, and can be awaited. It cannot be created, copied or pickled.

    In a transaction, delivered is not visible: readers with ``isolation.level=read_committed`` see
    the message after the commit. If the transaction is aborted, a delivered message stays so.
    """

    #: Internal: the chunk of the message.
    chunk: Chunk
    #: Internal: the number of the message in the chunk.
    row: int
    #: Topic that the message was sent to.
    topic: str
    #: Partition; None until it has been chosen.
    partition: int | None
    #: Offset in the partition; None until delivered, -1 if the broker gave none.
    offset: int | None
    #: Milliseconds since the epoch; the broker's with LogAppendTime, once delivered.
    timestamp: int
    #: Serialized key, or None if there is none or it has been released (see ``value``).
    key: bytes | None
    #: Serialized value; released when the message is reported, unless it failed.
    value: bytes | None
    #: Bytes of the serialized key, -1 if there is none.
    serialized_key_size: int
    #: Bytes of the serialized value, -1 if there is none.
    serialized_value_size: int
    #: Whether the message has its outcome (an attribute, as in kafka-python).
    is_done: bool
    #: Error of a failed message, else None.
    error: BaseException | None
    #: :class:`Status`: whether the message is, is not, or may be in the log.
    status: Any
    def settled(self) -> bool:
        """Return whether the message has its outcome."""
    def possibly_persisted(self) -> bool:
        """Return whether an attempt may have appended the message to the log."""
    def failure(self) -> BaseException | None:
        """Return the error of a failed message, else None, and mark the outcome as observed."""
    def peek_failure(self) -> BaseException | None:
        """Return the same as :meth:`failure` without marking the outcome as observed."""
    def watch(self, lock: Any) -> bool:
        """Have *lock* released when the message is settled. Return False if it is already."""
    def unwatch(self, lock: Any) -> None:
        """Cancel :meth:`watch`."""
    def when_settled(self, function: Callable[[Delivery], object]) -> bool:
        """Have ``function(delivery)`` called in the Reports thread when the message is settled.

        Returns False, without calling it, if the message is settled already.
        """
    def result(self, timeout: float | None = ...) -> RecordMetadata:
        """Wait for the outcome and return the topic, partition and offset of the message.

        Args:
            timeout: seconds. None waits for the outcome, which arrives by the message's deadline.
                0 does not wait.

        Returns:
            RecordMetadata: of the delivered message.

        Raises:
            DeliveryError: the message failed; the subclass says why.
            OutcomeTimeoutError: there was no outcome within *timeout*; the message is still
                pending.
            CallbackThreadError: the message is pending, and the caller is a callback or a
                partitioner, which would deadlock waiting for its own thread.
            ForkedProducerError: the message was pending when this process was forked.
        """
    def exception(self, timeout: float | None = ...) -> BaseException | None:
        """Wait for the outcome and return the message's error, or None if it was delivered.

        Args:
            timeout: seconds, as for :meth:`result`.

        Raises:
            OutcomeTimeoutError, CallbackThreadError, ForkedProducerError: as for :meth:`result`.
        """
    def done(self) -> bool:
        """Return whether the message has its outcome."""
    def add_done_callback(self, function: Callable[[Delivery], object]) -> None:
        """Have ``function(delivery)`` called once there is an outcome.

        It runs in the Reports thread, or at once in this thread if the outcome is already there.
        """
    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait for the outcome in an event loop; returns and raises as :meth:`result`."""
    def get(self, timeout: float | None = ...) -> RecordMetadata:
        """Return :meth:`result`, under its name in kafka-python."""
    def add_callback(
        self, function: Callable[..., object], *args: object, **kwargs: object
    ) -> Delivery:
        """Have ``function(*args, record_metadata, **kwargs)`` called on delivery; return self."""
    def add_errback(
        self, function: Callable[..., object], *args: object, **kwargs: object
    ) -> Delivery:
        """Have ``function(*args, error, **kwargs)`` called on failure; return self."""
    def add_both(
        self, function: Callable[..., object], *args: object, **kwargs: object
    ) -> Delivery:
        """Add *function* as both a callback and an errback; return self."""
    def succeeded(self) -> bool:
        """Return whether the message is delivered."""
    def failed(self) -> bool:
        """Return whether the message has failed."""

@final
class Columns:
    count: int

def columns_of(
    values: Any,
    keys: Any = ...,
    headers: Any = ...,
    partitions: Any = ...,
    timestamps_ms: Any = ...,
) -> Columns: ...

@final
class LineFormat:
    #: The error of a line that is too long.
    too_long: str
    def __init__(
        self,
        delimiter: bytes,
        *,
        timestamp_separator: bytes | None = ...,
        headers_separator: bytes | None = ...,
        key_separator: bytes | None = ...,
        null: bytes | None = ...,
        headers: Sequence[tuple[str, bytes]] = ...,
        partition: int | None = ...,
        timestamp_ms: int | None = ...,
        max_request_size: int,
        buffer_memory: int,
        room: int,
    ) -> None: ...
    def split(self, data: bytes, start: int, last: bool) -> Lines: ...

@final
class Lines:
    #: May be set to None once the lines are sent.
    columns: Columns | None
    #: Where the lines are in the data.
    start: int
    end: int
    #: Where to go on: after an invalid line, or at the end.
    resume: int
    #: Why that line is invalid.
    error: str | None
    def __len__(self) -> int: ...
    def raw(self, first: int, last: int) -> bytes: ...

def columns_of_arrow(data: Any) -> list[Columns]: ...
def rows_checksum(data: Any) -> int: ...

@final
class SentBlock:
    """The result of sending a block: the chunks of its rows, and the rows not accepted."""

    #: Number of rows.
    count: int
    #: Number of rows accepted; they come first.
    accepted: int
    #: Error of the rows that were not accepted, or None.
    refusal: BaseException | None
    #: The ordinal of the transaction in which the call began; 0: none. Set by the caller.
    transaction: int
    def pending(self) -> Delivery | None:
        """Return a handle of a row without outcome, or None if all rows are settled."""
    def watch_each(
        self, watchers: list[Callable[[Delivery], object]]
    ) -> list[Callable[[Delivery], object]]:
        """Have ``watchers[row](delivery)`` called for each accepted row when it is settled.

        A watcher runs in the Reports thread, or now if its row is settled already. Returns the
        watchers of the rows that were not accepted.
        """
    def failures(self) -> int:
        """Return the number of rows that have failed, without marking them as observed."""
    def outcomes(
        self,
    ) -> tuple[
        dict[tuple[str, int], tuple[int, int, list[list[int]]]], list[tuple[int, BaseException]]
    ]:
        """Return ``(delivered, failed)`` of the settled rows, and mark their outcomes as observed.

        *delivered* maps (topic, partition) to ``(rows, bytes, [[first, last], ...])``, with the
        offset ranges in row order. *failed* lists ``(row, error)``, in row order.
        """

@final
class TopicSlot:
    topic: str

    def lend_route(self, route: CallerRoute) -> None: ...
    def lend_path(self, partition: int, path: CallerPath) -> None: ...
    @property
    def is_empty(self) -> bool: ...
    @property
    def next_deadline(self) -> float: ...
    def waiting(self) -> tuple[int, int]: ...

def this_thread_runs_stages(runs: bool) -> None: ...

@final
class ReportsInbox:
    is_open: bool
    def __init__(
        self, items: deque[Any], wake_event: WakeEvent, incomplete: Any, metrics: RequestMetrics
    ) -> None: ...
    def run_callbacks(
        self, on_error: Callable[[object, BaseException], None], most: int
    ) -> bool: ...

@final
class TlsStream:
    tls: Any
    incoming: Any
    outgoing: Any
    failure: OSError | EOFError | None
    heard: bool
    def __init__(
        self,
        tls: Any,
        incoming: Any,
        outgoing: Any,
        fd: int,
        errors: tuple[type[OSError], type[OSError]],
    ) -> None: ...
    def close(self) -> None: ...
    def send(self, buffers: list[Any], patience_ms: int) -> int: ...
    def receive(self, into: memoryview) -> int: ...
    def take_encrypted(self) -> None: ...
    def flush(self, patience_ms: int) -> bool: ...
    def write_own(self) -> None: ...
    def fill(self) -> int: ...
    def discard(self) -> None: ...

@final
class CallerLink:
    #: A descriptor that becomes readable with the socket, unless a caller waits for the response,
    #: and when the timer expires; -1: none.
    watch: int
    #: The requests in flight that callers have written, oldest first.
    requests: list[ProduceRequest]
    #: Whether a caller waits for the response.
    has_reader: bool
    #: When a caller used it last (monotonic seconds); 0: never.
    used_at: float
    unreported: ProduceRequest | None
    def __init__(self, broker_id: int, inbox: ReportsInbox) -> None: ...
    def close(self) -> None: ...
    def end(self) -> None: ...
    def attach(self, fd: int, wakeup: int, stream: TlsStream | None = None) -> bool: ...
    def detach(self) -> None: ...
    def use(self, version: int, head: bytes, metrics: ConnectionMetrics) -> None: ...
    def poll(self, watched: list[tuple[int, int]], timeout_ms: int) -> list[int]: ...
    def lend(self) -> None: ...
    def withhold(self) -> bool: ...
    def wait_for_stream(self) -> bool: ...
    def take_back(self) -> list[ProduceRequest]: ...
    def forget_request(self) -> None: ...
    def take_received(self) -> bytes: ...
    @property
    def is_handed_over(self) -> bool: ...
    def settle(self) -> bool: ...
    def rest(self, slot: TopicSlot, path: CallerPath, until: float) -> None: ...
    def end_lingering(self) -> None: ...
    def end_rest(self) -> None: ...
    @property
    def rest_ends(self) -> float | None: ...
    def announce_waiting(
        self, announce: Callable[[TopicSlot], object], *, all: bool = False
    ) -> None: ...
    def stop_timer(self) -> None: ...

@final
class CallerRoute:
    used_at: float
    def __init__(
        self,
        partitioner: Partitioner,
        metadata: Any,
        view: Any,
        metrics: RequestMetrics,
        *,
        drives: bool,
        linger: float,
        used_at: float,
    ) -> None: ...

@final
class CallerPath:
    n_sent: int
    def __init__(
        self,
        link: CallerLink,
        buffer: BufferState,
        sealer: RequestSealer,
        settler: RequestSettler,
        window: WindowState,
    ) -> None: ...
    def lend(self, view: Any, topic_metrics: TopicMetrics) -> None: ...
    def withdraw(self) -> list[ProduceRequest]: ...

@final
class Intercepted:
    #: Whether the message is accepted, so that *watcher* will be called.
    accepted: bool
    def __init__(
        self, on_delivery: Any, watcher: Callable[[Delivery], object], transaction: int = ...
    ) -> None: ...

class Admission:
    #: Number of messages accepted.
    accepted: int
    #: Bytes of their keys, values and headers.
    accepted_bytes: int
    #: Whether ``send()`` calls ``_intercept()``.
    _intercepting: bool
    @property
    def _ready(self) -> bool: ...
    @property
    def _transaction(self) -> int: ...
    @property
    def _closing(self) -> bool: ...
    def _admit(self, transaction: int = 0) -> None: ...
    def _pause(self) -> None: ...
    def _begin_to_close(self) -> None: ...
    def _shut(self) -> None: ...
    def send(
        self,
        topic: str,
        value: Any = ...,
        key: Any = ...,
        headers: Sequence[tuple[str, Bytes | None]] | None = ...,
        partition: int | None = ...,
        timestamp_ms: int | None = ...,
        *,
        on_delivery: Callable[[BaseException | None, Delivery], object] | None = ...,
        delivery_timeout_ms: int | None = ...,
    ) -> Delivery: ...
    def _open(
        self,
        budget: Budget,
        announce: Callable[[TopicSlot | list[TopicSlot]], bool | None],
        owner: Any,
        *,
        delivery_timeout: float,
        max_request_size: int,
        serializing: bool,
        unconfirmed: bool,
        fake_clock: Any = ...,
    ) -> None: ...
    def _take(self, slot: TopicSlot) -> list[Chunk]: ...
    def _take_all(self, chunks: list[Chunk] | None = None) -> list[Chunk]: ...
    def _send_open(self, seconds: float | None) -> None: ...
    def _is_at_rest(self) -> bool: ...
    def _take_callers(self) -> list[Chunk]: ...
    def _let_go(self, topic: str) -> bool: ...
    def _unannounced(self) -> list[TopicSlot]: ...
    def _open_rows(self) -> tuple[int, int, float | None]: ...
    def _accept(self, record: Any, past: Intercepted, delivery_timeout_ms: Any) -> Delivery: ...

class BlockAdmission(Admission):
    def _send_block(
        self,
        block: SentBlock,
        topic: str | None,
        batches: list[Columns],
        delivery_timeout_ms: int | None,
        watch: Callable[[Delivery], object] | None,
        refusals: tuple[type[BaseException], ...],
    ) -> None: ...

class DeliveryReport:
    """The base class of ``Message``, the argument of delivery callbacks."""

    _fields: tuple[Any, ...]

    def topic(self) -> Any:
        """Return the topic."""
    def partition(self) -> Any:
        """Return the partition, None if none was chosen."""
    def offset(self) -> Any:
        """Return the offset, None if not delivered or not returned by the broker."""
    def key(self) -> Any:
        """Return the key, as bytes."""
    def value(self) -> Any:
        """Return the value, as bytes."""
    def headers(self) -> Any:
        """Return None in a delivery report, as in confluent-kafka."""
    def error(self) -> Any:
        """Return the KafkaError of a failed message; None if it was delivered."""
    def timestamp(self) -> Any:
        """Return ``(type, milliseconds since the epoch)``."""
    def latency(self) -> Any:
        """Return the seconds from produce() to the outcome."""
    def leader_epoch(self) -> Any:
        """Return None in a delivery report."""
    def delivery_count(self) -> Any:
        """Return None: it belongs to consumers."""

@final
class EventQueue:
    count: int
    def put(self, function: Callable[..., object], arguments: tuple[object, ...]) -> None: ...
    def clear(self) -> None: ...
    def serve(self, translate: Callable[[BaseException], object]) -> int: ...

@final
class PolledOutcomes:
    finished: int
    #: Those among them without a callback, for which nothing is queued.
    settled: int
    queue: EventQueue
    def take_failures(self) -> tuple[int, BaseException | None]: ...
    def __init__(
        self,
        queue: EventQueue,
        waiters: list[Any],
        wake: Callable[[], object],
        kind: type[DeliveryReport],
        *,
        only_errors: bool,
    ) -> None: ...

@final
class ReportTo:
    outcomes: PolledOutcomes
    callback: Any
    def __init__(self, outcomes: PolledOutcomes, callback: Any, started: float = ...) -> None: ...
    def __call__(self, error: BaseException | None, delivery: Delivery) -> None: ...

class PolledAdmission:
    """The compiled base class of ``confluent.Producer``: ``produce()`` in one C call."""

    _core: Any
    _sure: int
    _refusals: tuple[type[BaseException], ...]
    _on_delivery: Any
    @property
    def _counted_only(self) -> ReportTo:
        """Return the receiver of the outcomes of messages without a callback."""
    def _connect(self, core: Any, counted_only: ReportTo) -> None:
        """Use *core* from now on, and *counted_only* for its messages without a callback."""
    def _forget_callback(self) -> None:
        """Release the callback that the last message had."""
    def produce(
        self,
        topic: str,
        value: Any = ...,
        key: Any = ...,
        partition: int = ...,
        callback: Any = ...,
        on_delivery: Any = ...,
        timestamp: int = ...,
        headers: Any = ...,
    ) -> None:
        """Accept one message without waiting."""

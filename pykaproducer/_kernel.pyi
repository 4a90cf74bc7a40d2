"""Types of the compiled kernel, with its documentation for editors.

The implementation is in ``_kernel.pyx`` and, by subject, in ``_kernel_parts/*.pxi``.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, final

from pykaproducer.delivery import RecordMetadata

#: A chunk is closed at this many rows.
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
#: Maximum number of buffers that :func:`write_buffers` writes in one call.
MOST_BUFFERS: int

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
    """The bytes of ``buffer_memory``: reserved at admission, released as rows are reported.

    ``used`` never exceeds ``limit``. Waiting threads are served first come, first served, except
    those of stalled topics.
    """

    #: Total bytes.
    limit: int
    #: Bytes reserved now.
    used: int
    #: Number of waiting threads, and of those that are not held back.
    waiting: int
    ahead: int
    #: Whether messages linger, unless a thread waits alone.
    lingers: bool
    #: Number of bytes that must be free before messages linger again; 0: they may linger.
    lacking: int
    @property
    def ends_lingering(self) -> bool:
        """Whether a thread waits alone for an outcome, so that no message lingers."""
    def __init__(self, limit: int, *, patience: int = ..., recent: int = ...) -> None:
        """Create a budget of *limit* bytes.

        *patience*: time without progress after which a topic has stalled. *recent*: time for which
        progress of another topic counts (both ns; default: 1 s).
        """
    def is_held_back(self, account: Account | None, amount: int) -> bool:
        """Return whether *account* must progress before it gets *amount* more bytes."""
    def serve(self) -> int:
        """Grant bytes to the turns at the front of the queue while their amounts fit."""
    def fits(self, amount: int) -> bool:
        """Return whether *amount* bytes are free now."""
    def wake_all(self) -> None:
        """Wake every waiting thread, because nothing more is admitted."""

@final
class Account:
    """The bytes of a :class:`Budget` that the messages of one topic hold."""

    topic: str
    held: int

@final
class Turn:
    """A thread's place in the queue for bytes of a :class:`Budget`."""

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
    """Base class of that for which a task waits, where a thread waits for a lock.

    Those of one event *loop* are released together: ``waiter.release_with(others)``.
    """

    loop: Any
    def __init__(self, loop: Any) -> None: ...

@final
class Chunk:
    """Rows of one topic, in the order of their ``send()``.

    The garbage collector does not track it. Rows are named by their number in the chunk.
    """

    #: Topic of all rows.
    topic: str
    #: The producer's ``buffer_memory``.
    budget: Budget
    #: The slot from which it is, or was, taken; None once all rows are reported.
    slot: TopicSlot | None
    #: Number in order of opening.
    serial: int
    #: The producer's ``ProducerRef``.
    owner: Any
    #: Errors of failed rows, shared by rows that failed together.
    errors: list[BaseException]
    #: acks=0: delivered only means written to the socket.
    unconfirmed: bool
    #: Payload bytes.
    nbytes: int
    #: Number of rows that are not yet settled and reported.
    unsettled: int
    #: Number of live handles.
    handles: int
    #: No row expires before this (monotonic seconds).
    next_deadline: float
    #: When the first message arrived (monotonic seconds).
    opened: float
    #: Whether a thread is waiting for one of the rows.
    has_waiters: bool
    #: Whether all rows have an outcome. Only once the chunk has been taken.
    is_settled: bool
    def __len__(self) -> int:
        """Return the number of rows."""
    def expired(self, now: float) -> list[Slice]:
        """Return slices of the unsettled rows whose deadline is at or before *now*.

        There is one slice per partition (-1: not partitioned yet). *now*: monotonic seconds. This
        does not settle the rows.
        """
    def overdue(self, now: float) -> None:
        """Let ``expired(now)`` return expired rows again, as they could not be settled."""
    def pick(self, rows: Sequence[int], partition: int = ...) -> Slice:
        """Return a slice of these row numbers.

        It is empty once all rows of the chunk are reported. Raises IndexError for a row that does
        not exist.
        """
    def whole(self) -> Slice:
        """Return all rows as one unpartitioned slice; empty once they are reported."""
    def key(self, row: int) -> bytes | None:
        """Return a row's key, or None if it has none or its memory has been released."""
    def value(self, row: int) -> bytes | None:
        """Return a row's value, or None if it has none or its memory has been released."""
    def unassigned(self) -> list[int]:
        """Return the rows with neither partition nor outcome, for a user's partitioner."""
    def partition_of(self, row: int) -> int:
        """Return the partition of a row, -1 if none has been assigned."""
    def accepted(self) -> list[float]:
        """Return when each row was accepted (monotonic seconds).

        For settled rows this is when the chunk was opened.
        """
    def assign(self, row: int, partition: int) -> None:
        """Assign a partition to one row, for a user's partitioner."""
    def split(
        self, partitioner: Partitioner | None, partitions: int, available: bytes
    ) -> tuple[list[Slice], Slice | None]:
        """Partition every row and return ``(slices, unknown)``.

        Args:
            partitioner: None if every row has been assigned already.
            partitions: the topic's number of partitions.
            available: the partitions with a leader, as packed int32. Rows without a key go to
                these.

        Returns:
            One slice per partition with rows in order, and a slice of the rows whose partition the
            topic does not have, or None.
        """

@final
class SampledStat:
    """Count, sum and maximum of recorded values, since the start and over recent samples."""

    def __init__(self, window: float, samples: int, histogram: bool = ...) -> None:
        """Create a stat of *samples* samples, each covering *window* seconds.

        *histogram*: the values are durations in seconds, and percentiles are available. Raises
        ValueError if *window* is not positive or *samples* is less than 1.
        """
    #: Number of values since the start.
    count: int
    #: Sum since the start.
    sum: float
    #: Maximum since the start.
    largest: float
    def add(self, now: float, value: float, times: int = ...) -> None:
        """Record *value* *times* times at *now* (monotonic seconds)."""
    def recent(self, now: float) -> tuple[int, float, float, float]:
        """Return ``(count, sum, largest, seconds)`` of the recent samples.

        *seconds* is the time that they cover.
        """
    def percentiles(self, now: float, *fractions: float) -> list[float | None]:
        """Return the recent durations (seconds) at these fractions, such as 0.99.

        Each is None if there are no recent durations. Accurate within 7 %.
        """
    def histogram(self, bounds: Sequence[float]) -> list[int]:
        """Return the number of durations since the start in each interval between *bounds*.

        *bounds* are in seconds, ascending. The result has one more number: the durations above the
        last bound.
        """

@final
class Slice:
    """Rows of one chunk that are processed together: claimed, settled, reported."""

    #: The chunk of the rows.
    chunk: Chunk
    #: Number of rows.
    count: int
    #: Their partition, -1 if not partitioned.
    partition: int
    #: Payload bytes.
    nbytes: int
    #: Retry level: number of failed attempts.
    level: int
    #: Failed attempts that ended with a retriable broker error.
    retries_used: int
    #: Maximum rows in one batch; 0: as many as fit.
    most: int
    #: Topic of the rows.
    topic: str
    #: Whether a row of the chunk may have a callback to run.
    wants_report: bool
    #: Whether all rows have an outcome.
    is_settled: bool
    def __len__(self) -> int:
        """Return the number of rows."""
    def row_numbers(self) -> list[int]:
        """Return the row numbers in the chunk, in order."""
    def waiting(self) -> int:
        """Return the number of rows without an outcome."""
    def oldest_deadline(self) -> float | None:
        """Return the earliest deadline of the unsettled rows (monotonic seconds), or None."""
    def claim(self, room: int, most: int, at_least_one: bool = ...) -> Slice | None:
        """Remove rows from the front for a batch with *room* bytes and *most* rows left.

        Expired rows are skipped. The claimed rows count as possibly persisted until
        :meth:`unclaim`, and their payload is pinned until :func:`encode_batch` has read it.

        Args:
            room: bytes left in the batch.
            most: rows left in the batch.
            at_least_one: take the first row whatever its size.

        Returns:
            A slice of the claimed rows, or None if there are none or the first does not fit.
        """
    def detach_payload(self) -> None:
        """Copy the payload of these rows out of memory that they share with other rows.

        For a slice that has to wait long. None of its rows may be being encoded.
        """
    def mark_ambiguous(self) -> None:
        """Mark these rows as possibly appended, so that any later failure reports it."""
    def unclaim(self) -> None:
        """Revert :meth:`claim`, because the batch with these rows was not appended."""
    def deliver(
        self,
        base_offset: int,
        timestamp: int = ...,
        *,
        wake: bool = ...,
        latency: SampledStat | None = ...,
        now: float = ...,
    ) -> Slice | None:
        """Settle these rows as delivered.

        Args:
            base_offset: offset of the first row; -1 if offsets are unknown.
            timestamp: the broker's timestamp in ms if the topic uses LogAppendTime, else -1.
            wake: wake the threads that wait for one of the rows. If false, the caller must call
                :meth:`wake_waiters` of the returned slice.
            latency: records the age of each row at *now*.
            now: monotonic seconds.

        Returns:
            A slice of the rows that this call settled, to be passed to :meth:`report`: this one if
            it settled all of them, None if it settled none.
        """
    def fail(
        self,
        not_persisted: BaseException,
        possibly_persisted: BaseException,
        *,
        wake: bool = ...,
    ) -> Slice | None:
        """Settle these rows as failed.

        Args:
            not_persisted: error of the rows that are certainly not in the log.
            possibly_persisted: error of the rows that an attempt may have appended to the log.
            wake: as for :meth:`deliver`.

        Returns:
            A slice of the rows that this call settled, to be passed to :meth:`report`, or None.
        """
    def report(self, on_error: Callable[[Any, BaseException], None]) -> bool:
        """Run the callbacks of these settled rows, then release their memory.

        *on_error* is called as ``on_error(callback, exception)`` if a callback raises. Returns True
        if these were the last rows of the chunk. Raises MemoryError, and may then be called again
        for the rest.
        """
    def wake_waiters(self) -> None:
        """Wake the threads that wait for one of these settled rows.

        Raises MemoryError, and may then be called again: no waiter is lost.
        """
    def finish(self) -> bool:
        """Release the memory of these reported rows. Return True if they were the chunk's last."""
    def first_error(self) -> BaseException | None:
        """Return the error of the first row that failed, or None if none did."""
    def unreported_failures(self) -> int:
        """Return the number of failed rows without a callback whose outcome was never read."""

@final
class RecordBatch:
    """The bytes of a record batch, for a socket or a codec: a read-only buffer."""

    #: Its size without compression, in bytes.
    plain_size: int
    #: Bytes of its largest record, without the length.
    largest_record: int
    def __len__(self) -> int:
        """Return the size in bytes."""
    def __buffer__(self, flags: int, /) -> memoryview:
        """Return a read-only view of the bytes."""

@final
class Partitioner:
    """One topic's partitioner: the hash of keys, and the state for rows without a key."""

    def __init__(
        self,
        hashing: int,
        keyless: int,
        *,
        empty_is_keyless: bool = ...,
        sticky_bytes: int = ...,
        seed: int = ...,
    ) -> None:
        """Create a partitioner, to be used by one thread at a time.

        Args:
            hashing: NO_HASH, MURMUR2, CRC32 or FNV1A.
            keyless: STICKY, RANDOM, ROUND_ROBIN or HASH_EMPTY.
            empty_is_keyless: treat an empty key as no key.
            sticky_bytes: with STICKY, bytes after which another partition is chosen.
            seed: of the random numbers.
        """
    #: Whether rows without a key stick to a partition. If not, set_queue_bounds() has no effect.
    is_sticky: bool
    def set_queue_bounds(self, available: bytes, bounds: bytes | None) -> None:
        """Distribute rows without a key unevenly, as long as exactly *available* is available.

        Args:
            available: the partitions with a leader, as packed int32.
            bounds: cumulative weight of each of them, as packed uint32. None: equal shares.

        Raises:
            ValueError: the lengths differ.
        """

def partition_for(hashing: int, key: bytes, partitions: int) -> int:
    """Return the partition of *key*, hashed by MURMUR2, CRC32 or FNV1A.

    Raises ValueError if *partitions* is less than 1.
    """

class WindowState:
    """The fields of a :class:`~pykaproducer._machines.window.Window` on which its opening depends.

    *limit*: maximum number of requests in flight. *always*: how many may be in flight in any case.
    *pause*: the shortest time between further ones that are not full. *timeout*: how long a request
    may take (seconds).
    """

    limit: int
    timeout: float
    #: Time that the last answered request took after the previous response (seconds).
    took: float
    answered_at: float
    sealed_at: float
    #: Time from the sending of the last answered request to the response.
    round_trip: float
    def __init__(self, limit: int, always: int, pause: float, timeout: float) -> None: ...
    def patience(self, least: float) -> float:
        """Return the timeout of a request whose messages' deadlines leave *least* seconds."""
    def request_deadline(self, batches: Sequence[BatchState], now: float) -> float:
        """Return when a request with *batches*, sent now, counts as lost if it is not answered."""
    def opens_at(self, under_way: int, *, full: bool) -> float | None:
        """Return when the next request may be sealed: 0 for now, None for after a response.

        *under_way*: number of requests that are sealed and not answered. *full*: whether the
        pending items fill a batch or a request. (With a limit of 1, a full request is sealed ahead
        and waits.)
        """
    def record_answer(self, now: float, sent: float) -> None:
        """Record that a request, sent at *sent*, was answered at *now* (monotonic seconds)."""

class SequencerState:
    """The fields of a :class:`~pykaproducer._machines.sequencing.Sequencer`.

    Compiled steps and the classes of ``_machines`` use the same fields.
    """

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
    def take(self, count: int) -> int:
        """Take *count* sequence numbers for a batch; return the first. They wrap at 2**31."""
    def delivered(self, number: int) -> None:
        """Record that a broker has confirmed the *number*-th batch."""

class BatchState:
    """The fields of a :class:`~pykaproducer._machines.batch.Batch`."""

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
    """The fields of a :class:`~pykaproducer._machines.partition_buffer.PartitionBuffer`."""

    topic: str
    partition: int
    #: (topic, partition)
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
    def add(self, item: Any, now: float) -> None:
        """Add *item* as the youngest."""
    def drop_head(self) -> None:
        """Remove the first item, which has been taken."""
    def requeue_front(self, slices: list[Slice]) -> None:
        """Put *slices* before the pending items."""
    def sent(self, batch: BatchState) -> None:
        """Record that *batch* is in flight, or sealed ahead of being sent."""
    def unpack(self) -> None:
        """If a backlog is at the front, put its first slice before it. For a subclass."""

@final
class PartitionPath:
    """A partition's path to its leader, and the state that decides whether messages may take it.

    Owned and updated by its PartitionWorker.
    """

    #: Its ordering machine.
    ordering: Any

    #: The leader's BrokerWorker; None: there is no path.
    broker: Any
    #: The partition's buffer there; None: there is no path.
    buffer: Any
    #: Called when the partition is at rest; None: it was not asked to rest, or has a message since.
    when_at_rest: Callable[[], None] | None

    def __init__(self, inbox: deque[Any], running: Any, ordering: Any) -> None:
        """Create a path.

        *inbox* and *running*: the inbox of the PartitionWorker, and the lock that is held by the
        thread that runs it. *ordering*: its ordering machine.
        """

@final
class BorrowedPaths:
    """PartitionWorkers that a TopicWorker holds while it puts new messages into their paths.

    A PartitionWorker is held if it would only forward its slice: it has a path, no older message is
    being retried, no item waits for it, and no thread runs it. Until :meth:`give_back` no chaser
    can be sent, so the slice comes before any item that is put in the meantime.
    """

    #: Slices to be put into each BrokerWorker, with their buffers.
    new: dict[Any, list[tuple[Any, Slice]]]
    #: Slices to be put into their PartitionWorker.
    others: list[Slice]

    def __init__(self, paths: dict[int, PartitionPath], slices: list[Slice]) -> None:
        """Borrow the PartitionWorkers of *slices*, new messages; at most one for each partition."""
    def give_back(self) -> None:
        """Let other threads run the PartitionWorkers again."""

B = TypeVar("B", bound=BufferState)

@final
class Batcher:
    """The partition buffers of one broker, ordered by when their batches are due.

    A partition buffer's batch is due when it is full in bytes or in messages, has lingered long
    enough, is needed by a flush, or is a retry.
    """

    #: Maximum size of a batch in bytes, before compression.
    batch_size: int
    #: Maximum number of messages of a batch; the argument 0 means no limit.
    batch_messages: int
    #: Maximum number of unanswered batches of a buffer.
    sealed_limit: int
    #: Buffers with pending items that have not failed; changed by this class only.
    waiting: dict[Any, None]
    #: A heap of ``(time, ordinal, buffer)``: when buffers have lingered long enough.
    timers: list[tuple[float, int, Any]]

    def __init__(
        self, *, linger: float, batch_size: int, batch_messages: int, sealed_limit: int
    ) -> None:
        """Create a batcher.

        *linger*: how long a message waits for others (seconds). *sealed_limit*: maximum number of
        unanswered batches of a buffer.
        """
    def fills(self, size: int) -> bool:
        """Return whether the next request is full: waiting would not make it larger.

        That is the case if a batch is full or already sealed, or if *size* bytes are pending.
        """
    def many_fill(self, size: int) -> bool:
        """Return whether many buffers fill the next request of *size* bytes, each with one batch.

        As the buffers take turns, messages that arrive now could not be in it.
        """
    def is_small(self, limit: int) -> bool:
        """Return whether at most *limit* bytes are pending.

        Also False if there are too many buffers to add up cheaply.
        """
    def add(self, buffer: BufferState, item: Any, now: float) -> None:
        """Put *item*, a Slice, a Batch or a Backlog, into *buffer*."""
    def add_new(self, items: list[tuple[B, Slice]]) -> list[tuple[B, Slice]]:
        """Put new slices into their buffers. Return the items that are not ordinary, in order.

        Those of a buffer that has failed, or is not attached yet, are left to the caller.
        """
    def lingers_since(self, item: Any, now: float) -> float:
        """Return since when *item* lingers, which arrives now. A retry does not linger."""
    def reschedule(self, buffer: BufferState) -> None:
        """Update the schedule after *buffer* has changed: its items, its batches, or a failure.

        The cost does not depend on the number of buffers.
        """
    def next_due(self) -> float | None:
        """Return when the next buffer is due: 0 for at once, None if none may send."""
    def due(self, now: float, *, flushing: bool) -> Generator[Any]:
        """Yield the buffers of the next request, each once; none if none is due.

        If one is due, all buffers that may send are included: one request for all partitions costs
        the broker less than a request for each. The buffers take turns.
        """
    def begin_round(self, now: float, *, flushing: bool) -> bool:
        """Begin a request if one is due: each open buffer has a turn. Return whether it is."""
    def stays_first(self, buffer: BufferState) -> None:
        """Keep *buffer* first for the next request, as it did not fit into this one."""
    def put_back(self, batch: BatchState) -> None:
        """Put back *batch*, just sealed, as the first of the next request: it did not fit."""
    def size_of_next(self, buffer: BufferState) -> int:
        """Estimate the size of the next batch of *buffer*, before compression."""
    def take(self, buffer: BufferState) -> Any:
        """Return the next batch of *buffer*: a sealed one, or claimed slices for a new one.

        The list is empty if the pending items have expired. In each case, the caller calls
        :meth:`reschedule` afterwards.
        """

#: Bytes that a request has for each batch in addition to the batch.
BATCH_OVERHEAD: int
#: The bit of a batch's attributes that marks it as part of a transaction (KIP-98).
TRANSACTIONAL: int

@final
class RequestSealer:
    """Seals batches of new messages, each with the next sequence numbers of its partition."""

    #: Bytes left in the request.
    room: int
    #: The buffer in hand when :meth:`seal` returned or raised.
    buffer: BufferState
    #: The ProducerId of the open transaction; None if none is open.
    transaction: Any
    #: Number of batches sealed so far.
    sealed_so_far: int

    def __init__(
        self,
        batcher: Batcher,
        batch_type: type[BatchState],
        checksum: Callable[[Any], int],
        compressor: Any,
        metrics: RequestMetrics,
        *,
        idempotent: bool,
        transactional: bool = ...,
    ) -> None:
        """Create a sealer for the buffers of *batcher*.

        *checksum*: as for :func:`encode_batch`. *compressor*: a ``Compressor``, or None. *metrics*:
        a ``ProducerMetrics``. *idempotent*: batches have sequence numbers. *transactional*: they
        belong to transactions. Then only a partition whose sequencer has the very object
        :attr:`transaction` as its producer id is ordinary.
        """
    def begin(self, room: int) -> None:
        """Begin a request of at most *room* bytes."""
    def split(self, batch: BatchState) -> list[Any] | None:
        """Seal the rows of *batch* again, as two batches over its sequence numbers.

        *batch* has several rows, and was not appended. Returns None if a row has an outcome: then
        its number would be missing. Raises MemoryError; then *batch* is as it was.
        """
    def seal(self, batches: list[Any], now: float, *, only_next: bool = ...) -> BufferState | None:
        """Seal a batch of each ordinary buffer in turn, as far as they fit, into *batches*.

        Return the first buffer that is not ordinary, for the caller to handle before it calls this
        again; None when the request is complete. A buffer is ordinary if new messages are first in
        it, and its sequence numbers are valid. With *only_next*, the next buffer is returned in
        each case.

        Raises:
            MemoryError: there is no memory for a batch of :attr:`buffer`. Its slices are pending
                again, and no sequence number was used.
        """
    def fits(self, buffer: BufferState, batches: list[Any]) -> bool:
        """Return whether *buffer*'s next batch fits behind *batches*. If not, it stays first."""
    def seal_next(self, buffer: BufferState, batches: list[Any], now: float) -> bool:
        """Seal the next batch of *buffer*, and add it to *batches* unless it does not fit.

        *buffer* starts with a slice, and has a producer id if that is needed. Return whether there
        may be room for more. Raises MemoryError as :meth:`seal`.
        """

def produce_frame(
    head: bytes,
    correlation_id: int,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, Any]],
    flexible: bool,
) -> list[Any]:
    """Return the buffers of a framed Produce request.

    *head*: everything between the length and the topics. The correlation id, its bytes 4 to 7, and
    the timeout, its last four, are replaced by *correlation_id* and *timeout_ms*. *batches*: tuples
    (topic, partition, record batch), grouped by topic in the order in which the topics first
    appear. *flexible*: the version has compact lengths and tagged fields. A batch of more than
    COPIED_BATCH bytes is a buffer by itself.
    """

#: Record batches of at most this many bytes are copied into the buffer before them.
COPIED_BATCH: int

@final
class ProduceRequest:
    """Batches for one broker, at most one of each partition."""

    batches: list[Any]
    #: When the connection is considered lost if there is no response (monotonic seconds).
    deadline: float
    #: When it was given to the bridge, or written by a caller (monotonic seconds).
    sent: float
    #: How long the broker may wait for its replicas; sent in the request.
    timeout_ms: int
    #: Bytes of its batches.
    size: int
    #: Version of a request that a caller has written.
    version: int
    #: Correlation id of such a request.
    correlation_id: int
    #: The frame of such a request.
    buffers: list[Any]
    #: Bytes of it that the socket has taken.
    written: int
    #: The protocol of the transaction to which the batches belong; None: to none.
    protocol: int | None
    transactional_id: str | None
    #: Set if it is the first request of this transaction.
    first_of: Any
    #: Set if it adds partitions to a transaction, in this turn.
    turn: Any
    #: The slices of rows that were settled and are to be reported, then None.
    reports: list[Slice | None]
    #: Chunks that are complete and have nothing to report, then None.
    finished: list[Chunk | None]

    def __init__(self, batches: list[Any], *, now: float, deadline: float) -> None: ...
    def frame(self, version: int, correlation_id: int, head: bytes) -> list[Any]:
        """Return the buffers of the framed request; *head*: as for :func:`produce_frame`."""
    def read(self, version: int, payload: Any) -> bool:
        """Read a response. Return whether it confirms every batch, and says nothing else.

        *payload*: the part after the correlation id. False if there is anything else in it: an
        error, throttling, a new leader, a tagged field, another partition, or bytes that are
        missing or left over. Then :func:`~pykaproducer._wire.produce.decode_produce` is to decode
        it.
        """
    def prepare_settling(self) -> int:
        """Make the lists of RequestSettler, so that settling the batches needs no memory."""
    def drop_report(self) -> None:
        """Remove the first of :attr:`reports`, which is reported. Needs no memory."""
    def result(self, place: int) -> tuple[int, int]:
        """Return ``(base offset, timestamp)`` of a confirmed batch, the one at *place*."""

class TopicMetrics:
    """The statistics of one topic."""

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
    """The statistics of the connections to one broker."""

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
    """The statistics of one producer that compiled steps record."""

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
    def batch_sealed(self, batch: BatchState, now: float, topic: TopicMetrics) -> None:
        """Count a batch of *topic* that is ready to be sent, for the first time or for a retry."""
    def request_written(
        self, request: ProduceRequest, now: float, size: int, link: ConnectionMetrics
    ) -> None:
        """Count *request*, *size* bytes in all, which is being written."""
    def request_answered(
        self, sent: float, now: float, throttle: float, link: ConnectionMetrics
    ) -> None:
        """Count the response to a request that was given to the connection at *sent*."""

@final
class RequestSettler:
    """Settles confirmed batches.

    *moved*: buffers that are released after a response. *errors*: the last errors of partitions, by
    (topic, partition), and *rejected*: those of topics, from which confirmed ones are removed.
    """

    def __init__(
        self,
        batcher: Batcher,
        moved: set[Any],
        errors: dict[tuple[str, int], str],
        rejected: dict[str, object],
        metrics: RequestMetrics,
    ) -> None: ...
    def settle(self, request: ProduceRequest, now: float) -> list[int]:
        """Settle the batches of *request*, which is confirmed, unless a buffer is not ordinary.

        No thread is woken. What is to be reported is in ``request.reports`` and
        ``request.finished``.

        Returns:
            The places of the batches that were left as they are, because their buffer has failed or
            is to be released.

        Raises:
            ValueError: *request* is not confirmed.
            MemoryError: what was settled before that is in the lists.
        """

def deliver_parts(
    parts: list[Slice],
    base_offset: int,
    timestamp: int,
    latency: SampledStat,
    now: float,
    settled: list[Slice | None],
) -> tuple[int, int]:
    """Settle *parts*, the slices of one confirmed batch in its order: see :meth:`Slice.deliver`.

    Args:
        settled: has a None for each of *parts*. Gets slices of the rows that this call settled, so
            that they can be reported even if it raises.

    Returns:
        ``(rows, nbytes)``: the number of these rows, and their payload bytes. No thread is woken.
    """

class CompressionError(Exception):
    """A codec raised an exception other than MemoryError, which is the cause."""

    #: The slices of the batch, which are unclaimed, if :class:`RequestSealer` raises it.
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
) -> tuple[RecordBatch, int]:
    """Encode claimed slices as one record batch and return ``(batch, number of records)``.

    Args:
        parts: newly claimed slices of one partition, in order. They are unpinned.
        checksum: CRC-32C of a buffer.
        compress: compresses the records, or None.
        attributes: of the batch; the low bits are the number of the codec.
        producer_id, producer_epoch, base_sequence: -1 without idempotence.

    Raises:
        ValueError: there are no rows, or a slice is not claimed.
        CompressionError: *compress* raised an exception, or did not return bytes.
        MemoryError: there is no memory for the batch.
    """

def write_buffers(fd: int, buffers: Sequence[Bytes], patience_ms: int) -> int:
    """Write *buffers* to a non-blocking socket and return the number of bytes written.

    Waits without the GIL, for at most *patience_ms* after the socket is first full. Uses only the
    first :data:`MOST_BUFFERS` buffers. Raises OSError if nothing could be written.
    """

def monotonic() -> float:
    """Return what ``time.monotonic()`` does, even if a test has replaced that."""

def pause_for_memory() -> None:
    """Let other threads run, which may release memory, for a millisecond. Needs none."""

def lacks_memory() -> bool:
    """Return whether the system refuses the memory that a usual step of a stage needs."""

def call_in_any_case(function: Callable[[T, Any], None], first: T, second: Any) -> None:
    """Call *function* until it has memory to begin, and does not raise MemoryError."""

def poll_events(watched: list[tuple[int, int]], timeout_ms: int) -> list[int]:
    """Wait for one of *watched*, pairs ``(fd, events of poll(2))``.

    Waits without the GIL for at most *timeout_ms*, forever for -1. Returns the events of each
    descriptor, all 0 after a timeout or a signal. Raises ValueError for too many descriptors, and
    OSError.
    """

def read_into(fd: int, into: memoryview) -> int | None:
    """Read from a non-blocking socket into a buffer and return the number of bytes.

    Returns None if no data is available, 0 at the end of the stream. Raises OSError.
    """

@final
class WakeEvent:
    """An auto-reset event on which a stage's thread sleeps."""

    @property
    def is_set(self) -> bool:
        """Whether it is set and has not been consumed yet."""
    def set(self) -> None:
        """Set the event: wake the waiting thread, or let its next wait return at once."""
    def wait(self, timeout: float = -1) -> bool:
        """Wait until it is set, for at most *timeout* seconds. Called by ``Clock.wait()``."""

@final
class Poker:
    """Sends a byte to the non-blocking socket *fd*, unless one has been sent and not read yet."""

    def __init__(self, fd: int) -> None: ...
    def poke(self, *, surely: bool = False) -> None:
        """Send a byte, unless the flag is set, and set it. *surely*: ignore the flag."""
    def reset(self) -> None:
        """Clear the flag."""
    def close(self) -> None:
        """Send nothing any more. Called before the socket is closed."""

def drain(fd: int) -> None:
    """Read and discard all available data of a non-blocking socket."""

def pool_use() -> tuple[int, int]:
    """Return ``(mapped, in use)``: bytes of the memory pool of this process."""

def limit_next_write(nbytes: int) -> None:
    """Let the next write of a caller take at most *nbytes* bytes, for tests."""

def count_fork() -> None:
    """Record that this process is the child of a fork, to whose parent all messages belong."""

def refuse_memory(after: int, times: int) -> None:
    """Let the kernel's next *after* allocations succeed, then fail *times* of them, for tests."""

def stage_wanted() -> None:
    """Note that a stage has work to do, so its thread will soon want the GIL."""

def stage_runs() -> None:
    """Note that a stage's thread, which was woken, has acquired the GIL."""

def register_delivery_functions(functions: object) -> None:
    """Register the functions that implement the methods of Delivery that wait."""

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
    """The columns of one block, with a cell of each for each row."""

    #: Number of rows.
    count: int

def columns_of(
    values: Any,
    keys: Any = ...,
    headers: Any = ...,
    partitions: Any = ...,
    timestamps_ms: Any = ...,
) -> Columns:
    """Return the columns of ``send_many()``.

    Args:
        values, keys: sequences of bytes-like objects or None, or NumPy or Arrow arrays.
        headers: a sequence of lists of ``(str, bytes or None)``, or of None.
        partitions, timestamps_ms: sequences or Arrow arrays of integers or None.

    Raises:
        TypeError, ValueError: a column is invalid; the text names the column and the row.
    """

def columns_of_arrow(data: Any) -> list[Columns]:
    """Return the columns of each record batch of *data*, for ``send_arrow()``.

    *data*: a RecordBatch, a Table, or any object with ``__arrow_c_array__`` or
    ``__arrow_c_stream__``. A stream is read to its end. Raises TypeError or ValueError.
    """

def rows_checksum(data: Any) -> int:
    """Return the sum, modulo 2**64, of a hash of each row of a record batch.

    *data*: as for ``send_arrow()``, with ``__arrow_c_array__``. Rows that it would refuse have a
    hash as well. A column that is missing counts as one of nulls.
    """

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
    """One topic's open chunk, and the full chunks that wait ahead of it."""

    #: The topic.
    topic: str

    def lend_route(self, route: CallerRoute) -> None:
        """Let callers partition the messages of this topic."""
    def lend_path(self, partition: int, path: CallerPath) -> None:
        """Let callers send to *partition*, as long as ``path.offered``."""
    @property
    def is_empty(self) -> bool:
        """Return whether there is no message to take."""
    @property
    def next_deadline(self) -> float:
        """Return the time before which no row of the open chunk expires (monotonic seconds)."""
    def waiting(self) -> tuple[int, int]:
        """Return ``(rows, bytes)`` of the chunks not taken. May be slightly out of date."""

def this_thread_runs_stages(runs: bool) -> None:
    """Record whether the calling thread belongs to a stage. Its callbacks must not wait."""

@final
class ReportsInbox:
    """The inbox of the stage Reports, for compiled steps."""

    #: Whether the stage is known to have a thread, and calls callbacks.
    is_open: bool
    def __init__(
        self, items: deque[Any], wake_event: WakeEvent, incomplete: Any, metrics: RequestMetrics
    ) -> None: ...
    def run_callbacks(self, on_error: Callable[[object, BaseException], None], most: int) -> bool:
        """Run the callbacks of at most *most* slices in the inbox, up to an item not ordinary.

        A slice is ordinary if no row of its chunk has failed, and there is no trace. *on_error*: as
        for :meth:`Slice.report`. Returns whether there was a slice, and all were ordinary.
        """

@final
class TlsStream:
    """The OpenSSL object of a connection, its memory buffers, and its socket.

    *tls*: the ``_ssl._SSLSocket`` of an :class:`ssl.SSLObject`. *fd*: the non-blocking socket.
    *errors*: ``SSLError`` and ``SSLWantReadError``.

    After a failure, :attr:`failure` is set: an ``SSLError``, an ``OSError`` of the socket, or an
    ``EOFError`` if the broker has closed the connection. Raises MemoryError, and what a signal
    handler raises.
    """

    tls: Any
    incoming: Any
    outgoing: Any
    failure: OSError | EOFError | None
    #: Whether the broker has sent application data.
    heard: bool
    def __init__(
        self,
        tls: Any,
        incoming: Any,
        outgoing: Any,
        fd: int,
        errors: tuple[type[OSError], type[OSError]],
    ) -> None: ...
    def close(self) -> None:
        """Forget the socket, which is about to be closed."""
    def send(self, buffers: list[Any], patience_ms: int) -> int:
        """Encrypt and write from the beginning of *buffers*. Return the number of bytes taken.

        A byte counts as taken when its entire record has been given to the socket. Bytes that were
        not taken must be at the start of the next call. *patience_ms*: how long to wait for room.
        """
    def receive(self, into: memoryview) -> int:
        """Receive into a buffer and return the number of bytes.

        If they do not fill the buffer, there is no more data now.
        """
    def take_encrypted(self) -> None:
        """Take what OpenSSL has encrypted, to be written by :meth:`flush`."""
    def flush(self, patience_ms: int) -> bool:
        """Write encrypted bytes. Return whether all are written."""
    def write_own(self) -> None:
        """Write TLS's own messages, such as an alert; ignore failures."""
    def fill(self) -> int:
        """Pass received bytes to OpenSSL. Return their number, 0: there are none, -1: failed."""
    def discard(self) -> None:
        """Read and discard everything up to a failure, or until there is no more."""

@final
class CallerLink:
    """The connection of a Bridge, as callers use it."""

    #: A descriptor that becomes readable with the socket, unless a caller waits for the response,
    #: and when the timer expires; -1: none.
    watch: int
    #: The requests in flight that callers have written, oldest first.
    requests: list[ProduceRequest]
    #: Whether a caller waits for the response.
    has_reader: bool
    #: When a caller used it last (monotonic seconds); 0: never.
    used_at: float
    #: A request that was settled and is not reported yet.
    unreported: ProduceRequest | None
    def __init__(self, broker_id: int, inbox: ReportsInbox) -> None:
        """*inbox*: for what is settled by callers, or while the Bridge waits in :meth:`poll`."""
    def close(self) -> None:
        """Close the descriptors. For the child of a fork: no other thread uses them there."""
    def end(self) -> None:
        """Close the descriptors for the Bridge, which has ended; if a caller waits, later."""
    def attach(self, fd: int, wakeup: int, stream: TlsStream | None = None) -> bool:
        """Watch the socket *fd* of a new connection. Return False if the system refuses that.

        *wakeup*: a socket; writing to it wakes the Bridge. *stream*: what encrypts its bytes; None:
        they are not encrypted.
        """
    def detach(self) -> None:
        """Forget the socket, which is about to be closed."""
    def use(self, version: int, head: bytes, metrics: ConnectionMetrics) -> None:
        """Have callers write requests of *version* with *head*, and count them in *metrics*."""
    def poll(self, watched: list[tuple[int, int]], timeout_ms: int) -> list[int]:
        """Wait as :func:`poll_events`, and settle and report callers' requests. For the Bridge.

        Returns when anything else happens.
        """
    def forget_unreported(self) -> None:
        """Forget the request that was settled and not reported."""
    def lend(self) -> None:
        """Let a caller use the socket, until :meth:`take_back`. No request is in flight."""
    def withhold(self) -> bool:
        """Let no caller begin to use the socket. Return whether none is using it."""
    def wait_for_stream(self) -> bool:
        """Wait until no caller uses the TLS stream. Return False if that takes too long."""
    def take_back(self) -> list[ProduceRequest]:
        """Let no caller use the socket. Return the requests in flight, to be adopted, oldest first.

        After each, :meth:`forget_request` is to be called, and at last :meth:`take_received`.
        """
    def forget_request(self) -> None:
        """Forget the oldest request that :meth:`take_back` has returned: it was adopted."""
    def take_received(self) -> bytes:
        """Return the bytes of responses that were read, and forget them."""
    @property
    def is_handed_over(self) -> bool:
        """Return whether requests, or a part of a response, wait to be adopted."""
    def settle(self) -> bool:
        """Settle the oldest request if its response is here and confirms it. For the Bridge.

        Return whether it is settled. What is to be reported is in the request.
        """
    def rest(self, slot: TopicSlot, path: CallerPath, until: float) -> None:
        """Let the messages of *slot* wait until the stages' requests in flight are answered.

        For a topic with a message now and then, each of which would find the one before in flight.
        Then the socket can be lent, and they are sent. *until*: at most (monotonic seconds).
        """
    def end_lingering(self) -> None:
        """Have the messages that linger in their slots sent."""
    def end_rest(self) -> None:
        """Send or announce the waiting slots, because a path was lent or will not be."""
    @property
    def rest_ends(self) -> float | None:
        """When messages have waited long enough, if that is all that ends their rest."""
    def drive_waiting(self, in_bridge: bool) -> TopicSlot | None:
        """Send the messages of the slots that wait, in order, until one has to wait longer.

        Return a slot whose messages cannot be sent here: it is to be announced, and then to be
        forgotten. Return None if there is none. *in_bridge*: large messages are sent, too.
        """
    def forget_waiting(self, slot: TopicSlot) -> None:
        """Forget a slot that was announced, or whose messages were sent."""
    def stop_timer(self) -> None:
        """Stop the timer, which may have expired."""

@final
class CallerRoute:
    """A topic's partitioner, with what it needs, as callers use it."""

    #: When a caller sent last (monotonic seconds); 0: never.
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
    ) -> None:
        """Create a route that is valid while *metadata* has this *view* of the topic.

        *drives*: ``send()`` itself sends, too, not only a caller that waits. *linger*: how long
        messages linger (seconds).
        """

@final
class CallerPath:
    """A partition of which the stages have nothing, as callers use it."""

    #: Requests since it was lent.
    n_sent: int
    def __init__(
        self,
        link: CallerLink,
        buffer: BufferState,
        sealer: RequestSealer,
        settler: RequestSettler,
        window: WindowState,
    ) -> None:
        """Create a path that is not lent yet.

        *buffer*: its partition buffer. *sealer*, *settler*, *window*: those of its broker.
        """
    def lend(self, view: Any, topic_metrics: TopicMetrics) -> None:
        """Let callers use the partition. *view*: of its topic."""
    def withdraw(self) -> list[ProduceRequest]:
        """Let no caller use the partition. Return its requests in flight.

        They are handed over: the Bridge adopts them before it writes another one.
        """

@final
class Intercepted:
    """A replacement for ``on_delivery`` of a message that has been through the interceptors."""

    #: Whether the message is accepted, so that *watcher* will be called.
    accepted: bool
    def __init__(
        self, on_delivery: Any, watcher: Callable[[Delivery], object], transaction: int = ...
    ) -> None:
        """Wrap the user's callback *on_delivery*, or None.

        *watcher*: called as ``watcher(delivery)`` once there is an outcome. *transaction*: the
        ordinal of that in which ``send()`` was called; 0: none.
        """

class Admission:
    """The compiled base class of ``Producer``: :meth:`send` in one C call.

    A subclass implements these hooks, which are not called for every message:

    - ``_start()``: called while not ``_ready``. Starts the pipeline on first use. Raises if
      messages, or this message, are not accepted any more.
    - ``_check_topic(topic)``: called for a new topic. Raises if the name is invalid.
    - ``_serialize(topic, key, value, headers)``: returns the key and the value as bytes. Called if
      ``_open()`` was called with *serializing*.
    - ``_intercept(...)``: called in place of ``send()`` while ``_intercepting``. Calls
      ``_accept()``, which does the rest of ``send()``.
    - ``_too_large(topic, size)``: raises.
    - ``_may_wait(size)``: called if *size* bytes are not available. Returns a held lock, or None if
      this thread must not wait. Raises if there can never be enough space.
    - ``_wait_for_space(turn)``: returns when *turn* is granted or messages are not accepted any
      more. Raises after the maximum waiting time.
    - ``_buffer_is_full(size, account)``: raises. Called in a thread that must not wait.
    - ``_is_too_late()``: raises. Called for a message whose transaction has ended.
    """

    #: Number of messages accepted.
    accepted: int
    #: Bytes of their keys, values and headers.
    accepted_bytes: int
    #: Whether ``send()`` calls ``_intercept()``.
    _intercepting: bool
    @property
    def _ready(self) -> bool:
        """Whether the producer is started and accepts messages."""
    @property
    def _transaction(self) -> int:
        """The ordinal of the transaction that is, or was, open; 0: none."""
    @property
    def _closing(self) -> bool:
        """Whether only messages for which ``_start()`` does not raise are accepted."""
    def _admit(self, transaction: int = 0) -> None:
        """Accept messages, unless ``_begin_to_close()`` or ``_shut()`` was called before.

        *transaction*: the ordinal of that to which they belong. A message whose ``send()`` began in
        another one is not accepted: ``_is_too_late()`` is called, which raises.
        """
    def _pause(self) -> None:
        """Call ``_start()`` for each message until ``_admit()`` is called again.

        On return, no more messages are appended: those accepted before have been.
        """
    def _begin_to_close(self) -> None:
        """Call ``_start()`` for each message from now on. Has no effect after ``_shut()``."""
    def _shut(self) -> None:
        """Accept no more messages, permanently. On return the last one has been appended."""
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
    ) -> Delivery:
        """Accept one message for sending and return its :class:`Delivery` immediately.

        Never waits for the network. If ``buffer_memory`` has no space for the message, waits up to
        ``max_block_ms`` for it (KIP-286).

        Args:
            topic: topic name.
            value: bytes-like, or None (a tombstone). Any object if ``value_serializer`` is set.
            key: bytes-like, or None; decides the partition. Any object if ``key_serializer`` is
                set.
            headers: list of ``(str, bytes or None)``, or None.
            partition: partition to send to. None: the partitioner decides.
            timestamp_ms: milliseconds since the epoch. None: the current time.
            on_delivery: called once as ``on_delivery(error, delivery)`` in the Reports thread. The
                error is None if the message was delivered.
            delivery_timeout_ms: milliseconds until this message is delivered or fails. None: the
                setting ``delivery_timeout_ms``.

        Returns:
            The message's future and report.

        Raises:
            TypeError, ValueError: invalid argument (type, topic name, negative partition).
            MessageTooLargeError: larger than ``max_request_size`` or ``buffer_memory``.
            BufferFullError: no space within ``max_block_ms``; immediately in a callback.
            ProducerClosedError: after ``close()``.
            ProducerBrokenError: an internal error stopped the producer; the cause is chained.
            Exception: any exception of a serializer.

        If it raises, the message was not accepted. After an asynchronous exception such as
        ``KeyboardInterrupt`` it may have been accepted, and will then be sent.
        """
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
    ) -> None:
        """Set up without any messages: at construction, and again in a forked child.

        Args:
            announce: called as ``announce(slot)`` when a topic has an open chunk to take, or with a
                list of slots. Returns False if the next message must announce it again.
            owner: a reference for each handle, as ``chunk.owner``.
            delivery_timeout: seconds.
            max_request_size: bytes.
            serializing: call ``_serialize()``.
            unconfirmed: acks=0.
            fake_clock: a clock object to use instead of the system clock, for tests.

        Raises:
            ValueError: *delivery_timeout* is out of range.
        """
    def _take(self, slot: TopicSlot) -> list[Chunk]:
        """Close the topic's open chunk and return all waiting chunks, in order."""
    def _take_all(self, chunks: list[Chunk] | None = None) -> list[Chunk]:
        """Take the chunks of all topics, also those of callers, and return them. Lend no more.

        They are added to *chunks*, if it is given: after a MemoryError, it has what was taken.
        """
    def _send_open(self, seconds: float | None) -> None:
        """Send, in this thread, the messages that no stage has taken, if all are in one open chunk.

        Only if no others are in progress. *seconds*: how long to wait at most; None: no limit.
        """
    def _is_at_rest(self) -> bool:
        """Return whether all accepted messages are settled and reported."""
    def _take_callers(self) -> list[Chunk]:
        """Take the requests of callers that are in flight, and return their chunks."""
    def _let_go(self, topic: str) -> bool:
        """Remove the topic's slot. Return False, and keep it, if it has messages."""
    def _unannounced(self) -> list[TopicSlot]:
        """Return slots with rows of which the dispatcher may not have been notified."""
    def _open_rows(self) -> tuple[int, int, float | None]:
        """Return ``(rows, bytes, time)`` of the chunks not yet taken.

        The time is when the oldest was opened (monotonic seconds), or None.
        """
    def _accept(self, record: Any, past: Intercepted, delivery_timeout_ms: Any) -> Delivery:
        """Send *record*, the message as modified by ``_intercept()``."""

class BlockAdmission(Admission):
    """Admission of many messages at once: ``send_many()`` and ``send_arrow()``."""

    def _send_block(
        self,
        block: SentBlock,
        topic: str | None,
        batches: list[Columns],
        delivery_timeout_ms: int | None,
        watch: Callable[[Delivery], object] | None,
        refusals: tuple[type[BaseException], ...],
    ) -> None:
        """Accept the rows of *batches* as *block*.

        Args:
            topic: None if each row names its topic.
            delivery_timeout_ms: as for :meth:`send`.
            watch: called in the Reports thread with the handle of the last row once that is
                settled.
            refusals: exceptions that are recorded as ``block.refusal`` if a part of the block has
                been accepted already. The rest of the block then fails.

        Raises:
            Exception: as :meth:`send`, naming the row. Then nothing is accepted.
        """

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
    """The events for poll(): outcomes, and other calls. Any thread may add and serve them."""

    count: int
    def put(self, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        """Add a call of ``function(*arguments)``."""
    def clear(self) -> None:
        """Remove all events, in the child of a fork: they are the parent's."""
    def serve(self, translate: Callable[[BaseException], object]) -> int:
        """Serve all events that are there now, and return their number."""

@final
class PolledOutcomes:
    """The receiver of a producer's outcomes, in its Reports thread or in a caller's thread.

    Args:
        queue: the events that poll() serves.
        waiters: if it is not empty, *wake* is called after each outcome.
        kind: the subclass of :class:`DeliveryReport` that is queued.
        only_errors: do not queue delivered messages.
    """

    #: Messages of which the outcome has been received.
    finished: int
    #: Those among them without a callback, for which nothing is queued.
    settled: int
    queue: EventQueue
    def take_failures(self) -> tuple[int, BaseException | None]:
        """Return how many of the latter failed since the last call, and the first error."""
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
    """The ``on_delivery`` of messages whose outcome goes to a :class:`PolledOutcomes`.

    Args:
        callback: called by poll() with the error and the report. None: the outcome is only counted.
        started: when produce() was called (monotonic seconds); negative: the message's timestamp.
    """

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

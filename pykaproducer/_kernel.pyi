"""Types of the compiled kernel.

What each thing does is written in ``_kernel.pyx`` and, by subject, in ``_kernel_parts/*.pxi``.
"""

from collections.abc import Callable, Generator, Sequence
from socket import socket
from typing import Any, final

CHUNK_ROWS: int
CHUNK_BYTES: int
ROW_COST: int
RECORD_OVERHEAD: int
RECORD_ALLOWANCE: int
BATCH_HEADER: int
MOST_BUFFERS: int

NO_HASH: int
MURMUR2: int
CRC32: int
FNV1A: int
STICKY: int
RANDOM: int
ROUND_ROBIN: int
HASH_EMPTY: int

Bytes = bytes | bytearray | memoryview

@final
class Budget:
    limit: int
    used: int
    waiting: int
    def __init__(self, limit: int) -> None: ...
    def fits(self, amount: int) -> bool: ...
    def wake_all(self) -> None: ...

@final
class Turn:
    amount: int
    lock: Any
    granted: bool

@final
class Chunk:
    topic: str
    serial: int
    home: Any
    errors: list[BaseException]
    unconfirmed: bool
    nbytes: int
    unsettled: int
    handles: int
    next_deadline: float
    opened: float
    has_waiters: bool
    def __len__(self) -> int: ...
    def expired(self, now: float) -> list[Slice]: ...
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
class Series:
    def __init__(self, window: float, samples: int, spread: bool = ...) -> None: ...
    count: int
    sum: float
    largest: float
    def add(self, now: float, value: float, times: int = ...) -> None: ...
    def lately(self, now: float) -> tuple[int, float, float, float]: ...
    def percentiles(self, now: float, *fractions: float) -> list[float | None]: ...
    def spread(self, bounds: Sequence[float]) -> list[int]: ...

@final
class Slice:
    chunk: Chunk
    count: int
    partition: int
    nbytes: int
    level: int
    retries_used: int
    most: int
    topic: str
    wants_report: bool
    is_settled: bool
    def __len__(self) -> int: ...
    def row_numbers(self) -> list[int]: ...
    def waiting(self) -> int: ...
    def oldest_deadline(self) -> float | None: ...
    def claim(self, room: int, most: int, at_least_one: bool = ...) -> Slice | None: ...
    def take_along(self) -> None: ...
    def doubt(self) -> None: ...
    def unclaim(self) -> None: ...
    def deliver(
        self,
        base_offset: int,
        timestamp: int = ...,
        *,
        wake: bool = ...,
        latency: Series | None = ...,
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
    def untold_failures(self) -> int: ...

@final
class RecordBatch:
    plain_size: int
    largest_record: int
    def __len__(self) -> int: ...
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
    is_sticky: bool
    def favour(self, available: bytes, bounds: bytes | None) -> None: ...

def partition_for(hashing: int, key: bytes, partitions: int) -> int: ...
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
def poll_events(watched: list[tuple[int, int]], timeout_ms: int) -> list[int]: ...
def read_into(fd: int, into: memoryview) -> int | None: ...
def poke(sock: socket) -> None: ...
def drain(fd: int) -> None: ...
def pool_use() -> tuple[int, int]: ...
def stage_wanted() -> None: ...
def stage_runs() -> None: ...
def set_behaviour(behaviour: object) -> None: ...

@final
class Delivery:
    chunk: Chunk
    row: int
    topic: str
    partition: int | None
    offset: int | None
    timestamp: int
    key: bytes | None
    value: bytes | None
    serialized_key_size: int
    serialized_value_size: int
    is_done: bool
    error: BaseException | None
    status: Any
    def settled(self) -> bool: ...
    def possibly_persisted(self) -> bool: ...
    def failure(self) -> BaseException | None: ...
    def look(self) -> BaseException | None: ...
    def watch(self, lock: Any) -> bool: ...
    def unwatch(self, lock: Any) -> None: ...
    def when_settled(self, function: Callable[[Delivery], object]) -> bool: ...
    def result(self, timeout: float | None = ...) -> Any: ...
    def exception(self, timeout: float | None = ...) -> BaseException | None: ...
    def done(self) -> bool: ...
    def add_done_callback(self, function: Callable[[Delivery], object]) -> None: ...
    def __await__(self) -> Generator[Any, None, Any]: ...
    def get(self, timeout: float | None = ...) -> Any: ...
    def add_callback(
        self, function: Callable[..., object], *args: object, **kwargs: object
    ) -> Delivery: ...
    def add_errback(
        self, function: Callable[..., object], *args: object, **kwargs: object
    ) -> Delivery: ...
    def add_both(
        self, function: Callable[..., object], *args: object, **kwargs: object
    ) -> Delivery: ...
    def succeeded(self) -> bool: ...
    def failed(self) -> bool: ...

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
def columns_of_arrow(data: Any) -> list[Columns]: ...

@final
class SentBlock:
    count: int
    accepted: int
    refusal: BaseException | None
    def pending(self) -> Delivery | None: ...
    def watch_each(
        self, watchers: list[Callable[[Delivery], object]]
    ) -> list[Callable[[Delivery], object]]: ...
    def failures(self) -> int: ...
    def outcomes(
        self,
    ) -> tuple[
        dict[tuple[str, int], tuple[int, int, list[list[int]]]], list[tuple[int, BaseException]]
    ]: ...

@final
class TopicSlot:
    topic: str

@final
class Intercepted:
    accepted: bool
    def __init__(self, on_delivery: Any, watcher: Callable[[Delivery], object]) -> None: ...

class Admission:
    accepted: int
    accepted_bytes: int
    _intercepting: bool
    @property
    def _ready(self) -> bool: ...
    @property
    def _closing(self) -> bool: ...
    def _admit(self) -> None: ...
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
        announce: Callable[[TopicSlot], bool | None],
        home: Any,
        *,
        delivery_timeout: float,
        max_request_size: int,
        serializing: bool,
        unconfirmed: bool,
        fake_clock: Any = ...,
    ) -> None: ...
    def _take(self, slot: TopicSlot) -> list[Chunk]: ...
    def _take_all(self) -> list[Chunk]: ...
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

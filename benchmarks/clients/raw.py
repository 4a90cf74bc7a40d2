"""The limit of the broker and its socket: one prebuilt request, sent repeatedly.

There is one connection to one partition, and only this thread. The record batch of ``batch_size``
is built before the clock starts; up to five requests are in flight. No producer can be faster on
one connection, and none of the work of a producer is done: no callbacks, no sequence numbers (even
with idempotence), no second partition.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.child import RunFailed
from benchmarks.clients import Load, OnDelivery, Settings
from benchmarks.door import record_batch
from pykaproducer._errors.formatting import format_error_code
from pykaproducer._kernel import produce_frame
from pykaproducer._util.compression import compressor
from pykaproducer._wire.produce import decode_produce, produce_head

#: The last version of Produce that uses topic names.
_VERSION = 12
_IN_FLIGHT = 5
_TIMEOUT_MS = 30_000
_ACKS = {"0": 0, "1": 1, "all": -1}


@dataclass(frozen=True)
class Request:
    """A request that is ready to be written, and the number of its messages."""

    data: bytes
    count: int


class Client:
    #: There is no buffer that could be full.
    buffer_full = BufferError

    def __init__(self, settings: Settings) -> None:
        codec = settings.compression
        self._compressor = compressor(
            None if codec == "none" else codec, settings.compression_level
        )
        self._acks = _ACKS[settings.acks or "all"]
        self._batch_size = settings.batch_size or 1_000_000
        host, _, port = settings.bootstrap_servers.partition(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        #: The number of messages in each request in flight.
        self._waiting: deque[int] = deque()
        self._delivered = 0

    def prepare_batches(self, load: Load) -> list[tuple[Request, int]]:
        """Return requests and their repeat counts: a full one, and one for the remainder."""
        full = self._request(load, load.rows())
        times, left = divmod(load.count, full.count)
        plan = [(full, times)]
        if left:
            plan.append((self._request(load, itertools.islice(load.rows(), left)), 1))
        return plan

    def send_batches(self, load: Load, plan: list[tuple[Request, int]]) -> Callable[[], int]:
        before = self._delivered
        for request, times in plan:
            for _ in range(times):
                self._write(request)
                if len(self._waiting) >= _IN_FLIGHT:
                    self._read_answer()
        return lambda: self._delivered - before

    def send(self, topic: str, value: bytes, on_delivery: OnDelivery | None = None) -> None:
        self.send_all(Load(topic, 1, [value]), on_delivery)

    def send_all(self, load: Load, on_delivery: OnDelivery | None) -> None:
        """Send everything for the warm-up; it is delivered and reported when this returns."""
        self.send_batches(load, self.prepare_batches(load))
        self.flush(60)
        if on_delivery is not None:
            for _ in range(load.count):
                on_delivery(None, None)

    def send_one_by_one(self, load: Load) -> list[int]:
        """Measure round trips: each message is a prebuilt request."""
        requests = [self._request(load, [row]) for row in itertools.islice(load.rows(), 100)]
        times = []
        for request in itertools.islice(itertools.cycle(requests), load.count):
            start = time.perf_counter_ns()
            self._write(request)
            self._read_answer()
            times.append(time.perf_counter_ns() - start)
        return times

    def flush(self, timeout: float) -> None:
        self._socket.settimeout(timeout)
        while self._waiting:
            self._read_answer()

    def abandon(self) -> None:
        self._socket.close()

    def _request(self, load: Load, rows: Iterable[tuple[bytes, bytes | None]]) -> Request:
        batch, count = record_batch(rows, self._batch_size, self._compressor)
        head = produce_head(_VERSION, "raw", self._acks)
        buffers = produce_frame(head, 0, _TIMEOUT_MS, [(load.topic, 0, batch)], True)
        return Request(b"".join(buffers), count)

    def _write(self, request: Request) -> None:
        self._socket.sendall(request.data)
        if self._acks:
            self._waiting.append(request.count)
        else:
            # There is no answer: the log is checked afterwards.
            self._delivered += request.count

    def _read_answer(self) -> None:
        if not self._waiting:
            return
        (size,) = struct.unpack(">i", self._receive(4))
        answer = decode_produce(_VERSION, self._receive(size)[4:])
        for partition in answer.partitions:
            if partition.error_code:
                raise RunFailed(
                    f"the broker rejected the batch: {format_error_code(partition.error_code)}"
                )
        self._delivered += self._waiting.popleft()

    def _receive(self, size: int) -> bytes:
        data = self._socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise RunFailed("the broker closed the connection")
        return data

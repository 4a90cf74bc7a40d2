"""Bridge: one per BrokerWorker. Builds requests, puts them on the wire, takes the answers off it.

In Sarama: the "bridge" goroutine (and the socket's reader with it: here one thread at a time
touches a socket, so TLS is safe by construction). Owns: the connection to its broker.

Guarantees: requests are written in the order in which they came. Each is reported to the
BrokerWorker once: ``Answered``, ``Lost``, or with ``acks=0`` ``Written``. A broker that is down
is connected to again and again, with backoff, as long as the BrokerWorker wants it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pykaproducer._machines.lane import Batch
from pykaproducer._net.connection import Answered as NetAnswered
from pykaproducer._net.connection import Request
from pykaproducer._pipeline.connected import Connected
from pykaproducer._pipeline.meter import Link
from pykaproducer._pipeline.worker import WakingLater
from pykaproducer._wire import WireError
from pykaproducer._wire.kafka_python import ApiKey, BrokerAddress
from pykaproducer._wire.produce import ProduceAnswer, decode_produce, produce_request

#: So many bytes may be sealed, and written, by the thread that brings a slice, or an answer.
SMALL = 16 << 10
#: Bytes of a request's length, which stands before it.
_LENGTH = 4
#: From this version of Produce on a broker that throttles answers at once, and the client is to
#: wait; before it the broker waited itself (KIP-219).
_CLIENT_WAITS = 6


@dataclass(slots=True, eq=False)
class ProduceRequest:
    """Batches for one broker, at most one a partition."""

    batches: list[Batch]
    #: When the connection counts as lost if there is no answer (monotonic seconds).
    deadline: float
    #: What the broker is told: how long it may wait for its replicas.
    timeout_ms: int
    #: When it was given to the bridge (monotonic seconds).
    sent: float

    @property
    def size(self) -> int:
        """Bytes of its batches."""
        return sum(len(batch.payload) for batch in self.batches)


@dataclass(frozen=True, slots=True)
class Up:
    """The connection is there."""


@dataclass(frozen=True, slots=True)
class Down:
    """The connection is lost, or could not be made; the bridge tries again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Idle:
    """The connection was unused for ``connections_max_idle_ms`` and has been closed."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The broker's answer, with an entry for every batch of the request."""

    request: ProduceRequest
    answer: ProduceAnswer


@dataclass(frozen=True, slots=True)
class Written:
    """``acks=0``: the last byte of the request has been given to the socket."""

    request: ProduceRequest


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection was lost with these requests under way."""

    unanswered: list[ProduceRequest]
    unwritten: list[ProduceRequest]


@dataclass(frozen=True, slots=True)
class Connect:
    """The BrokerWorker has something to send."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Treat the connection as lost, because of *reason*."""

    reason: str


class Bridge(Connected):
    """The socket's thread of one broker."""

    # Set by wiring, before the first item.
    broker_id: int
    report: Callable[[Up | Down | Idle | Answered | Written | Lost], None]
    address: Callable[[], BrokerAddress | None]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._wanted = False
        # The connection was closed because it was idle: requests that come now wait for the next.
        self._was_idle = False
        self._waiting: list[ProduceRequest] = []
        # A request whose answer makes no sense, until it is reported as lost.
        self._garbled: list[ProduceRequest] = []
        # What was lost with it, until the answers that came after it have been handled.
        self._rest: tuple[list[Request], list[Request]] | None = None
        # Given to the connection and not reported yet, with the time of that. For a look from
        # outside, and for the meter.
        self._under_way: dict[ProduceRequest, float] = {}

    def connect(self) -> None:
        """Make a connection if there is none. From the BrokerWorker's thread."""
        if not self._wanted:
            self._wanted = True
            self.put(Connect())

    def in_place(self, item: ProduceRequest | Connect | GiveUp) -> bool:
        # Few small requests are under way at most: there is room for another one in the socket.
        return (
            isinstance(item, ProduceRequest)
            and self.ready
            and self.config.acks != 0
            and not self.is_unused_too_long()
            and item.size <= SMALL
            and self.writes_at_once()
        )

    def step(self, item: ProduceRequest | Connect | GiveUp) -> None:
        if isinstance(item, Connect):
            return
        if isinstance(item, GiveUp):
            self.drop(item.reason)
            return
        if self.ready:
            self._submit(item)
            if self.thread is not threading.current_thread():
                self.write_now()
        elif self._was_idle:
            # It was put before the report of the closed idle connection was read.
            self._waiting.append(item)
            self._wanted = True
        else:
            # It crossed the news that the connection is lost.
            self.report(Lost([], [item]))

    def wants_connection(self) -> bool:
        return self._wanted

    def next_address(self) -> tuple[str, int] | str:
        address = self.address()
        if address is None:
            return f"broker {self.broker_id} is not in the metadata of the cluster"
        return address.host, address.port

    def on_ready(self) -> None:
        self._was_idle = False
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._submit(request)
        self.report(Up())

    def held(self) -> Iterable[object]:
        return list(self._under_way)

    def on_answer(self, event: NetAnswered) -> None:
        request: ProduceRequest = event.request.tag
        try:
            answer = decode_produce(event.request.version, event.payload)
            check_complete(request, answer)
            self._count_answer(request, answer)
            if answer.throttle_ms and event.request.version < _CLIENT_WAITS:
                answer = dataclasses.replace(answer, throttle_ms=0)
        except (WireError, MemoryError) as error:
            # The request is out of the connection's books already: it is lost with the rest.
            self._garbled = [request]
            what = "makes no sense" if isinstance(error, WireError) else "there is no memory for"
            self.drop(f"an answer that {what}: {error}")
            if self._garbled:  # the connection had been given up before
                self._report_lost([], [])
            return
        if any(partition.error_code for partition in answer.partitions):
            self.report(Answered(request, answer))  # what is wrong may be logged
            return
        with WakingLater():
            self.report(Answered(request, answer))

    def link(self) -> Link:
        return self.meter.link(self.broker_id)

    def _count_answer(self, request: ProduceRequest, answer: ProduceAnswer) -> None:
        now = self.clock.monotonic()
        latency = now - self._under_way.pop(request, now)
        self.meter.request.add(now, latency)
        link = self.link()
        link.latency.add(now, latency)
        link.throttle.add(now, answer.throttle_ms / 1000)

    def on_written(self, request: Request) -> None:
        self._under_way.pop(request.tag, None)
        self.report(Written(request.tag))

    def on_idle(self) -> None:
        self._wanted = False  # the BrokerWorker asks again if it has something to send
        self._was_idle = True
        self.report(Idle())

    def on_lost(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        self._wanted = self._was_idle = False  # the BrokerWorker asks again if it has to send
        self._under_way.clear()
        # Down before Lost: what Lost gives back must not be sealed again for this connection.
        self.report(Down(reason))
        if self._garbled:
            # Requests are reported in their order, or retried batches would change their order:
            #
            # 1. the answers to requests 1 and 2 come together, 3 is under way;
            # 2. the first makes no sense: the connection is given up, and 1 and 3 are lost;
            # 3. the second, which is handled next, refuses a batch: it would be retried after 3.
            self._rest = unanswered, unwritten
            unanswered, unwritten = [], []
        self._report_lost(unanswered, unwritten)

    def on_all_handled(self) -> None:
        if self._rest is not None:
            rest, self._rest = self._rest, None
            self._report_lost(*rest)

    def _report_lost(self, unanswered: list[Request], unwritten: list[Request]) -> None:
        garbled, self._garbled = self._garbled, []
        waiting, self._waiting = self._waiting, []
        if garbled or unanswered or unwritten or waiting:
            written = [*garbled, *(request.tag for request in unanswered)]
            waiting += [request.tag for request in unwritten]
            self.meter.lost.add(self.clock.monotonic(), 1, len(written) + len(waiting))
            self.report(Lost(written, waiting))

    def _submit(self, request: ProduceRequest) -> None:
        client_id, acks = self.config.client_id, self.config.acks
        batches = [(b.topic, b.partition, b.payload) for b in request.batches]

        def encode(version: int, correlation_id: int) -> list[Any]:
            buffers = produce_request(
                version, correlation_id, client_id, acks, request.timeout_ms, batches
            )
            self.count_outgoing(_LENGTH + int.from_bytes(memoryview(buffers[0])[:_LENGTH], "big"))
            return buffers

        now = self.clock.monotonic()
        if (trace := self.meter.trace) is not None:
            for batch in request.batches:
                trace.note("sent", self, batch, broker=self.broker_id)
        self._under_way[request] = now
        self.meter.requests.add(now, sum(batch.count for batch in request.batches))
        self.submit(
            Request(
                ApiKey.PRODUCE,
                encode,
                deadline=request.deadline,
                expects_answer=acks != 0,
                tag=request,
            )
        )


def check_complete(request: ProduceRequest, answer: ProduceAnswer) -> None:
    """Raise WireError unless *answer* has an entry for every batch of *request*."""
    there = {(p.topic, p.partition) for p in answer.partitions}
    for batch in request.batches:
        if (batch.topic, batch.partition) not in there:
            raise WireError(f"no answer for topic {batch.topic!r} partition {batch.partition}")

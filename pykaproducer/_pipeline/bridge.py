"""Bridge: encodes and sends Produce requests, and decodes the responses. One per BrokerWorker.

In Sarama: the "bridge" goroutine, together with the one that reads the socket. Here, one thread at
a time uses a socket. (With TLS, ``_kernel_parts/tls.pxi`` says how.) Owns: the connection to its
broker.

Guarantees: requests are written in the order in which they arrived. Each one put into the inbox, or
adopted from a caller (``CallerSent``), is reported to the BrokerWorker once: ``ResponseReceived``,
``RequestsLost``, or with ``acks=0`` ``RequestWritten``. Of the others, callers and
``CallerLink.poll`` settle the responses.
After a lost connection, the bridge reconnects, with backoff, while the BrokerWorker wants it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pykaproducer._kernel as _kernel
from pykaproducer._errors.codes import ErrorCode
from pykaproducer._errors.formatting import format_partition
from pykaproducer._kernel import (
    CallerLink,
    Chunk,
    ConnectionMetrics,
    ProduceRequest,
    ReportsInbox,
    Slice,
    TopicSlot,
)
from pykaproducer._machines.coordination import TV1, TV2
from pykaproducer._machines.session import LAST_VERSION
from pykaproducer._net.connection import Answered, Request
from pykaproducer._net.lendable_connection import LendableConnection
from pykaproducer._net.transport import Network
from pykaproducer._pipeline.current_thread import DeferredWakeups
from pykaproducer._pipeline.metadata import Metadata
from pykaproducer._pipeline.socket_worker import SocketWorker
from pykaproducer._pipeline.worker import StageContext
from pykaproducer._util.clock import earlier
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import ApiKey
from pykaproducer._wire.produce import (
    ProduceAnswer,
    ProducedPartition,
    decode_produce,
    produce_head,
)
from pykaproducer.config import Config

#: Maximum number of bytes that another stage's thread may seal and write inline.
SMALL = 16 << 10
#: From this version of Produce on, it adds its partitions to the open transaction.
_ADDS_PARTITIONS = 12
#: From this version of Produce on, batches may be compressed with zstd (KIP-110).
_HAS_ZSTD = 7
#: From this version of Produce on, a broker that throttles responds at once and the client has to
#: wait. In earlier versions the broker itself waited (KIP-219).
_CLIENT_WAITS = 6
#: The largest offset.
_MOST_OFFSET = (1 << 63) - 1
#: The exceptions of a response that cannot be read. (A literal in ``except`` would need memory.)
_UNREADABLE = (WireError, *NO_MEMORY)


class Up(NamedTuple):
    """The connection is ready for requests."""

    #: The newest version of Produce that the broker supports, of those that this client sends.
    version: int


class Down(NamedTuple):
    """The connection was lost, or the attempt to connect failed."""

    reason: str


class Idle:
    """The connection was unused for ``connections_max_idle_ms`` and has been closed."""


class ResponseReceived(NamedTuple):
    """The broker's response, with an entry for every batch of the request."""

    request: ProduceRequest
    #: None: the request is confirmed.
    answer: ProduceAnswer | None


class RequestWritten(NamedTuple):
    """The last byte of a request with ``acks=0`` has been given to the socket."""

    request: ProduceRequest


class RequestsLost(NamedTuple):
    """Requests that were in flight, or not yet written, when the connection was lost."""

    unanswered: list[ProduceRequest]
    unwritten: list[ProduceRequest]


class CallerSent(NamedTuple):
    """A caller has handed *request* over. The bridge continues with it, or reports it as lost."""

    request: ProduceRequest


BridgeEvent = Up | Down | Idle | ResponseReceived | RequestWritten | RequestsLost | CallerSent


class Connect:
    """The BrokerWorker has something to send."""


class CheckFirst:
    """Check the unused connection, and report ``Up`` when it may be used."""


class GiveUp(NamedTuple):
    """Close the connection because of *reason*, and treat it as lost."""

    reason: str


class CallerHooks(NamedTuple):
    """Functions with which the Bridge passes a caller's messages to the other stages."""

    #: Makes a chunk, which a caller has taken, known to the stages.
    enter: Callable[[Chunk], None]
    #: Announces a slot with messages, which no caller could send.
    announce: Callable[[TopicSlot], object]
    #: Adds a chunk to those for which a flush waits.
    track: Callable[[Chunk], None]
    #: Reports what was settled of a request; see ``Settler``.
    report_settled: Callable[[Iterator[Slice | None], Sequence[Chunk | None]], None]
    #: Reports what is settled while the Bridge waits.
    inbox: ReportsInbox


BridgeItem = ProduceRequest | Connect | CheckFirst | GiveUp


class Bridge(SocketWorker[BridgeItem]):
    """The stage that owns the connection to one broker.

    *report* puts an event into the inbox of the BrokerWorker.
    """

    _connection_type = LendableConnection
    _connection: LendableConnection | None

    def __init__(
        self,
        context: StageContext,
        config: Config,
        network: Network,
        metadata: Metadata,
        report: Callable[[BridgeEvent], None],
        callers: CallerHooks,
        broker_id: int,
    ) -> None:
        super().__init__(f"bridge-{broker_id}", context, config, network)
        self.broker_id = broker_id
        self._metadata = metadata
        self._report = report
        self._callers = callers
        #: The connection, as callers use it.
        self.caller_link = CallerLink(broker_id, callers.inbox)
        network.close_in_child(self.caller_link)
        #: Whether callers may write requests.
        self.lends = False
        self._wanted = False
        # Of Produce, on the present connection: see Up.
        self._version = 0
        # The connection was closed because it was idle: requests now wait for the next one.
        self._was_idle = False
        self._waiting: list[ProduceRequest] = []
        # A request with a malformed response, until it is reported as lost.
        self._garbled: list[ProduceRequest] = []
        # Requests lost with it, until the responses that arrived after that one have been handled.
        self._rest: tuple[list[Request], list[Request]] | None = None
        # Requests given to the connection and not reported yet, with the time when they were given.
        # For snapshots and metrics.
        self._under_way: dict[ProduceRequest, float] = {}
        # When a caller used the connection last, as far as is known.
        self._last_caller = 0.0

    def connect(self) -> None:
        """Connect if there is no connection. Called from the BrokerWorker's thread."""
        if not self._wanted:
            self._wanted = True
            self.put(Connect())

    def check_first(self) -> bool:
        """Start to check the connection if it was unused too long; return whether it was.

        Called from the BrokerWorker's thread before it seals messages, because sealed ones would
        count as possibly persisted if they expired during the check. ``Up`` or ``Down`` follows.
        """
        connection = self._connection
        if not self.ready or connection is None or self.clock.monotonic() < connection.stale_at:
            return False
        self._wanted = True
        self.put(CheckFirst())
        return True

    def can_run_inline(self, item: BridgeItem) -> bool:
        # Only few small requests are in flight, so the socket has space for another one. A caller's
        # request must be adopted first, by this stage's own thread.
        return (
            self.caller_link.withhold()
            and isinstance(item, ProduceRequest)
            and self.ready
            and self._config.acks != 0
            and not self.is_unused_too_long(item.sent)
            and item.size <= SMALL
            and self.writes_at_once()
        )

    def handle(self, item: BridgeItem) -> None:
        if isinstance(item, Connect):
            return
        if isinstance(item, CheckFirst):
            if self.ready and self._connection is not None and not self._connection.check():
                self._report(Up(self._version))
            return
        if isinstance(item, GiveUp):
            self.drop(item.reason)
            return
        if self.ready:
            self._submit(item)
            if self.thread is not threading.current_thread():
                self.write_now()
        elif self._was_idle:
            # It was put before the BrokerWorker had read that the idle connection was closed.
            self._waiting.append(item)
            self._wanted = True
        else:
            # It was put before the BrokerWorker had read that the connection was lost.
            self._report(RequestsLost([], [item]))

    def wants_connection(self) -> bool:
        return self._wanted

    def next_address(self) -> tuple[str, int] | str:
        address = self._metadata.view.brokers.get(self.broker_id)
        if address is None:
            return f"broker {self.broker_id} is not in the metadata of the cluster"
        return address.host, address.port

    def on_ready(self) -> None:
        self._was_idle = False
        self._version = self.versions.get(ApiKey.PRODUCE, 0)
        if (reason := self.refuses(ApiKey.PRODUCE)) is not None:
            # Before anything is sealed, which would count as possibly persisted.
            self.drop(f"the broker is incompatible with this client: {reason}")
            return
        if self._connection is not None:
            version = self._connection.attach(self.caller_link, ApiKey.PRODUCE)
            if version is not None:
                head = produce_head(version, self._config.client_id, self._config.acks)
                self.caller_link.use(version, head, self.connection_metrics())
            self.lends = version is not None and not self._lacks_codec()
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self._submit(request)
        self._report(Up(self._version))

    def on_stop(self) -> None:
        self.caller_link.announce_waiting(self._callers.announce, all=True)
        self.caller_link.end()

    def on_checked(self) -> None:
        self._report(Up(self._version))

    def held_items(self) -> Iterable[object]:
        return [*self._under_way, *self.caller_link.requests]

    def on_answer(self, event: Answered) -> None:
        request: ProduceRequest = event.request.tag
        try:
            answer = self._decoded(event, request)
            throttle_ms = 0 if answer is None else answer.throttle_ms
            now = self.clock.monotonic()
            sent = self._under_way.pop(request, now)
            self.metrics.request_answered(sent, now, throttle_ms / 1000, self.connection_metrics())
            if answer is not None and throttle_ms and event.request.version < _CLIENT_WAITS:
                answer = answer._replace(throttle_ms=0)
        except _UNREADABLE as error:
            # The connection no longer counts the request as unanswered; report it as lost too.
            self._garbled = [request]
            if isinstance(error, WireError):
                self.drop(f"malformed response: {error}")
            else:
                self.drop(f"no memory for the response: {error}")
            if self._garbled:  # the connection was closed before
                self._report_lost([], [])
            return
        with DeferredWakeups(self.shortage):
            self._report(ResponseReceived(request, answer))

    def _decoded(self, event: Answered, request: ProduceRequest) -> ProduceAnswer | None:
        """Decode the response to *request*; None: it confirms the request.

        Raises :exc:`WireError` if it is malformed.
        """
        version = event.request.version
        if request.read(version, event.payload):
            return None
        answer = decode_produce(version, event.payload)
        check_complete(request, answer)
        return answer

    def connection_metrics(self) -> ConnectionMetrics:
        return self.metrics.link(self.broker_id)

    def on_written(self, request: Request) -> None:
        self._under_way.pop(request.tag, None)
        self._report(RequestWritten(request.tag))

    def on_connection_idle(self) -> None:
        self._wanted = False  # the BrokerWorker calls connect() again if it has something to send
        self._was_idle = True
        self.lends = False
        self._report(Idle())

    def on_lost(self, reason: str, unanswered: list[Request], unwritten: list[Request]) -> None:
        self._wanted = self._was_idle = False  # as in on_connection_idle()
        self.lends = False
        self._under_way.clear()
        # Down before RequestsLost: the lost batches must not be sealed again for this connection.
        self._report(Down(reason))
        if self._garbled:
            # Report requests in their order, or retried batches would be reordered:
            #
            # 1. the responses to requests 1 and 2 arrive together, and 3 is in flight;
            # 2. the first is malformed: the connection is closed, and 1 and 3 are lost;
            # 3. the second, which is handled next, rejects a batch: it would be retried after 3.
            self._rest = unanswered, unwritten
            unanswered, unwritten = [], []
        self._report_lost(unanswered, unwritten)

    # Callers -------------------------------------------------------------------------------------

    def lend(self) -> float | None:
        self._report_settled()  # again, if there was no memory for it
        if self.caller_link.is_handed_over:
            self._take_over()  # again: there was no memory for it
            if self._connection is not None:
                self._connection.wakeup.poke()  # it has something to write or to report
        until = self._lendable_until()
        self.is_lent = until is not None
        if self.is_lent:
            self.caller_link.lend()
        self.caller_link.announce_waiting(self._callers.announce)
        until = None if until == math.inf else until
        return earlier(until, self.caller_link.rest_ends)

    def _lendable_until(self) -> float | None:
        """Return until when callers may use the connection; None: they may not."""
        connection = self._connection
        if not self.lends or connection is None or not connection.is_idle:
            return None
        until = connection.stale_at
        # A caller's message would be written to a connection that may be dead.
        return None if self.clock.monotonic() >= until else until

    def take_back(self) -> bool:
        link = self.caller_link
        link.withhold()
        if not link.wait_for_stream():
            self.drop("a signal handler blocks in a thread that was using the connection")
        self._report_settled()
        settled = False
        while link.requests:
            # A flush must find its chunk, from before it is settled until it is reported.
            chunk = link.requests[0].batches[0].parts[0].chunk
            self._callers.track(chunk)
            if link.settle():
                settled = True
                self._report_settled()
                continue
            self._take_over()
            settled = False
            break
        if link.is_handed_over:  # there are bytes after the last response
            self._take_over()
            settled = False
        if self.lends and not link.requests:
            link.stop_timer()
        if link.used_at > self._last_caller:
            self._last_caller = link.used_at
            self._used_at(self._last_caller)
            if self._connection is not None:
                self._connection.used(self._last_caller)
        return settled

    def _report_settled(self) -> None:
        if (request := self.caller_link.unreported) is not None:
            report, reports = self._callers.report_settled, iter(request.reports)
            _kernel.call_in_any_case(report, reports, request.finished)
            self.caller_link.unreported = None

    def _take_over(self) -> None:
        """Adopt the requests in flight."""
        link = self.caller_link
        for request in link.take_back():
            self._adopt(request)
            # Not before: there may be no memory for the steps above.
            link.forget_request()
        if (connection := self._connection) is not None and self.ready:
            connection.received(link.take_received())
        else:
            link.take_received()

    def _adopt(self, request: ProduceRequest) -> None:
        """Continue with a request that a caller has begun, as if it had been put into the inbox."""
        self._callers.enter(request.batches[0].parts[0].chunk)
        # Before its response.
        self._report(CallerSent(request))
        if self._connection is None or not self.ready:
            self._report(RequestsLost([request], []))
            return
        self._under_way[request] = request.sent
        self._busy = True
        self._connection.adopt(
            Request(
                ApiKey.PRODUCE,
                _encoded_already,
                deadline=request.deadline,
                tag=request,
                version=request.version,
            ),
            request,
        )

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
            self.metrics.lost.add(self.clock.monotonic(), 1, len(written) + len(waiting))
            self._report(RequestsLost(written, waiting))

    def _lacks_codec(self) -> bool:
        """Return whether the broker is too old for the compression of the batches."""
        return self._config.compression_type == "zstd" and self._version < _HAS_ZSTD

    def _refusal(self, request: ProduceRequest) -> ProduceAnswer | None:
        """Return what the broker should answer to *request*, which it does not support, or None.

        A broker without zstd returns UNKNOWN, and with ``acks=0`` loses the messages silently.
        """
        if self._lacks_codec():
            code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            why = "is older than Kafka 2.1, which zstd requires"
        elif request.protocol == TV2 and self._version < _ADDS_PARTITIONS:
            code = ErrorCode.UNSUPPORTED_VERSION
            why = f"supports Produce up to version {self._version}, not {_ADDS_PARTITIONS}"
        else:
            return None
        assert self._connection is not None
        text = "the broker at {}:{} {}".format(*self._connection.address, why)
        return ProduceAnswer(
            0,
            [
                ProducedPartition(batch.topic, batch.partition, code, -1, error_message=text)
                for batch in request.batches
            ],
        )

    def _submit(self, request: ProduceRequest) -> None:
        if (refusal := self._refusal(request)) is not None:
            self._report(ResponseReceived(request, refusal))
            return
        client_id, acks = self._config.client_id, self._config.acks
        # From version 12 on, Produce adds its partitions to the transaction (KIP-890).
        at_least = _ADDS_PARTITIONS if request.protocol == TV2 else 0
        at_most = _ADDS_PARTITIONS - 1 if request.protocol == TV1 else LAST_VERSION

        def encode(version: int, correlation_id: int) -> list[Any]:
            head = produce_head(version, client_id, acks, request.transactional_id)
            buffers = request.frame(version, correlation_id, head)
            self.metrics.request_written(
                request, now, sum(map(len, buffers)), self.connection_metrics()
            )
            return buffers

        now = self.clock.monotonic()
        if (trace := self.metrics.trace) is not None:
            for batch in request.batches:
                trace.note("sent", self, batch, broker=self.broker_id)
        self._under_way[request] = now
        self.submit(
            Request(
                ApiKey.PRODUCE,
                encode,
                deadline=request.deadline,
                expects_answer=acks != 0,
                tag=request,
                at_least=at_least,
                at_most=at_most,
            )
        )


def check_complete(request: ProduceRequest, answer: ProduceAnswer) -> None:
    """Raise :exc:`WireError` unless *answer* has a possible entry for each batch of *request*."""
    offsets = {(p.topic, p.partition): p.base_offset for p in answer.partitions}
    for batch in request.batches:
        where = format_partition(batch.topic, batch.partition)
        offset = offsets.get((batch.topic, batch.partition))
        if offset is None:
            raise WireError(f"no result for {where}")
        if offset + batch.count - 1 > _MOST_OFFSET:
            raise WireError(f"{where}: the base offset {offset} is too large")


def _encoded_already(version: int, correlation_id: int) -> list[Any]:
    raise AssertionError("a caller has encoded this request")

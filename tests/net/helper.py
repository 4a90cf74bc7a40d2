"""Transports and connections, and helpers for talking over them."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pykaproducer._config.network import Proxy
from pykaproducer._kernel import TlsStream
from pykaproducer._net.connection import Answered, Connection, Event, Lost, Ready, Request
from pykaproducer._net.transport import ConnectionFailed, Endpoint, Network, Transport
from pykaproducer._util.clock import Clock
from pykaproducer._wire.messages import ApiKey, metadata_request
from pykaproducer._wire.produce import ProduceAnswer, decode_produce
from pykaproducer.config import Config
from tests._support.produce import produce_request

E = TypeVar("E")


@dataclass
class Settings:
    """The part of the configuration that a connection reads."""

    bootstrap_servers: Sequence[tuple[str, int]] = (("broker-0.scripted", 9092),)
    client_id: str | None = "tester"
    request_timeout_ms: int = 30_000
    receive_message_max_bytes: int = 2_000_000
    send_buffer_bytes: int | None = None
    receive_buffer_bytes: int | None = None
    socket_options: Sequence[tuple[int, int, int]] = ()
    proxy_url: Proxy | None = None
    socket_connection_setup_timeout_ms: float = 10_000
    socket_connection_setup_timeout_max_ms: float = 30_000
    connections_check_idle_ms: float = 5_000
    tcp_user_timeout_ms: float = 10_000


def wait(transport: Transport, events: int) -> None:
    """Wait until the system reports that it is readable or writable."""
    with selectors.DefaultSelector() as selector:
        selector.register(transport, events)
        selector.select()


def connect(network: Network, endpoint: Endpoint) -> Transport:
    """Return a transport that is connected and has finished its handshake."""
    transport = network.connect(endpoint)
    try:
        while wanted := transport.finish_connect():
            wait(transport, wanted)
    except ConnectionFailed:
        transport.close()
        raise
    return transport


class Wrapped:
    """A transport that passes each call on, for tests that change one of them."""

    def __init__(self, real: Transport) -> None:
        self.real = real

    @property
    def doing(self) -> str:
        return self.real.doing

    @property
    def stream(self) -> TlsStream | None:
        return self.real.stream

    @property
    def reached(self) -> bool:
        return self.real.reached

    def unacknowledged(self) -> float | None:
        return self.real.unacknowledged()

    def fileno(self) -> int:
        return self.real.fileno()

    def finish_connect(self) -> int:
        return self.real.finish_connect()

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        return self.real.send(buffers, patient=patient)

    def receive(self, into: memoryview) -> int:
        return self.real.receive(into)

    def close(self) -> None:
        self.real.close()


W = TypeVar("W", bound=Wrapped)


class WrappedNetwork(Network, Generic[W]):
    """The network *real*, with transports that *wrap* makes; the last one is ``made``."""

    made: W

    def __init__(self, real: Network, wrap: Callable[[Transport], W]) -> None:
        super().__init__(Config())
        self.real = real
        self.wrap = wrap

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        return self.real.resolve(host, port)

    def connect(self, endpoint: Endpoint) -> Transport:
        self.made = self.wrap(self.real.connect(endpoint))
        return self.made


class Refusing:
    """Wraps a function: its next *times* calls raise *error*."""

    def __init__(self, real: Any, times: int = 0, error: Exception | None = None) -> None:
        self.real = real
        self.times = times
        self.error = error or MemoryError()

    def __call__(self, *args: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            raise self.error
        return self.real(*args, **options)


class Full(list[Any]):
    """A list that cannot grow."""

    def append(self, item: Any) -> None:
        raise MemoryError

    def __iadd__(self, more: Any) -> Any:  # type: ignore[misc]
        raise MemoryError


class Talk:
    """A connection that is polled until an expected event."""

    def __init__(
        self,
        network: Network,
        address: tuple[str, int] = ("broker-0.scripted", 9092),
        clock: Clock | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.connection = Connection(
            address, config=settings or Settings(), clock=self.clock, network=network
        )
        self.seen: list[Event] = []

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def until(self, kind: type[E]) -> E:
        """Return the next event of *kind*, skipping events other than the end."""
        while True:
            while self.seen:
                event = self.seen.pop(0)
                if isinstance(event, kind):
                    return event
                assert not isinstance(event, Lost), event
            self.seen = self.connection.poll(None)

    def open(self) -> Ready:
        self.connection.open()
        return self.until(Ready)

    def submit(
        self,
        *batches: tuple[str, int, bytes],
        acks: int = -1,
        seconds: float = 1000.0,
        tag: Any = None,
    ) -> Request:
        """Submit a Produce request."""

        def encode(version: int, correlation_id: int) -> Sequence[Any]:
            return produce_request(version, correlation_id, "tester", acks, 1000, batches)

        return self.request(ApiKey.PRODUCE, encode, acks != 0, seconds, tag)

    def ask_metadata(self, *topics: str, seconds: float = 1000.0) -> Request:
        return self.request(
            ApiKey.METADATA,
            lambda version, number: [metadata_request(version, number, "tester", topics, False)],
            True,
            seconds,
            None,
        )

    def request(
        self,
        key: int,
        encode: Callable[[int, int], Sequence[Any]],
        expects_answer: bool,
        seconds: float,
        tag: Any,
    ) -> Request:
        request = Request(key, encode, self.clock.monotonic() + seconds, expects_answer, tag)
        self.connection.submit(request)
        return request

    def produced(self) -> ProduceAnswer:
        """Return the next answer to a Produce request."""
        event = self.until(Answered)
        return decode_produce(event.version, event.payload)

    def close(self) -> None:
        self.connection.close()

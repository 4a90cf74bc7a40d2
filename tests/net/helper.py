"""Transports and connections, and helpers for talking over them."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pykaproducer._net.connection import Answered, Connection, Event, Lost, Ready, Request
from pykaproducer._net.transport import ConnectionFailed, Endpoint, Network, Transport
from pykaproducer._util.clock import Clock
from pykaproducer._wire.messages import ApiKey, metadata_request
from pykaproducer._wire.produce import ProduceAnswer, decode_produce, produce_request

E = TypeVar("E")


@dataclass
class Settings:
    """The part of the configuration that a connection reads."""

    client_id: str | None = "tester"
    request_timeout_ms: int = 30_000
    receive_message_max_bytes: int = 1_000_000
    send_buffer_bytes: int | None = None
    receive_buffer_bytes: int | None = None
    socket_options: Sequence[tuple[int, int, int]] = ()


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

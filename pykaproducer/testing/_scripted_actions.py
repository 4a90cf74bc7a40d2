"""What a scripted broker can be told to do with a request instead of answering it properly.

An action is called with the :class:`Exchange` of one request, in the thread of its connection.
The ones here do what brokers and networks have been seen to do. A test can write its own: any
callable that takes an Exchange.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any


class Disconnect(Exception):
    """Ends a connection from the broker's side."""


@dataclass(eq=False)
class Exchange:
    """One request that a scripted broker has received, and what may be done with it."""

    #: Which broker received it.
    broker: int
    #: kafka-python's object for the request.
    request: Any
    _perform: Callable[[Collection[tuple[str, int]]], Any]
    _refuse: Callable[[int], Any]
    _send: Callable[[bytes], None]
    _wait: Callable[[threading.Event], bool]

    def apply(self, skip: Collection[tuple[str, int]] = ()) -> Any:
        """Do what is asked for and return the proper answer, as kafka-python's object.

        Batches for the (topic, partition) pairs in *skip* are not appended.
        """
        return self._perform(skip)

    def refusal(self, code: int) -> Any:
        """The answer that refuses the whole request with *code*; nothing is done."""
        return self._refuse(code)

    def encoded(self, answer: Any) -> bytes:
        """*answer* as it would be sent, framed."""
        answer.API_VERSION = self.request.API_VERSION
        answer.with_header(correlation_id=self.request.header.correlation_id)
        return bytes(answer.encode(header=True, framed=True))

    @property
    def expects_answer(self) -> bool:
        """False for Produce with ``acks=0``."""
        return bool(self.request.expect_response())

    def answer(self, answer: Any) -> None:
        """Send *answer*, if one is expected.

        With ``acks=0`` an error has no other way to be told than the end of the connection.
        """
        if self.expects_answer:
            self.send(self.encoded(answer))
        elif any(p.error_code for topic in answer.responses for p in topic.partition_responses):
            raise Disconnect

    def send(self, data: bytes) -> None:
        """Send *data*, whatever it is."""
        self._send(data)

    def wait(self, released: threading.Event) -> bool:
        """Wait until *released* is set; false if the cluster was closed meanwhile."""
        return self._wait(released)


Action = Callable[[Exchange], None]


def proceed(exchange: Exchange) -> None:
    """Answer properly."""
    exchange.answer(exchange.apply())


@dataclass(frozen=True)
class Refuse:
    """Answer with an error code.

    For a Produce request *only* can name the (topic, partition) pairs that are refused; the
    others are appended. With *appended* all of them are, and the error is told all the same.
    """

    code: int
    only: Collection[tuple[str, int]] | None = None
    appended: bool = False

    def __call__(self, exchange: Exchange) -> None:
        if self.only is None:
            if self.appended:
                exchange.apply()
            exchange.answer(exchange.refusal(self.code))
            return
        answer = exchange.apply(() if self.appended else self.only)
        for topic in answer.responses:
            for partition in topic.partition_responses:
                if (topic.name, partition.index) in self.only:
                    partition.error_code = self.code
                    partition.base_offset = -1
        exchange.answer(answer)


@dataclass(frozen=True)
class Drop:
    """Close the connection: before anything is done, or after (*appended*), without an answer."""

    appended: bool = False

    def __call__(self, exchange: Exchange) -> None:
        if self.appended:
            exchange.apply()
        raise Disconnect


@dataclass(frozen=True)
class Omit:
    """Leave one partition out of the answer to a Produce request."""

    topic: str
    partition: int
    appended: bool = False

    def __call__(self, exchange: Exchange) -> None:
        answer = exchange.apply(() if self.appended else [(self.topic, self.partition)])
        for topic in answer.responses:
            if topic.name == self.topic:
                topic.partition_responses = [
                    p for p in topic.partition_responses if p.index != self.partition
                ]
        exchange.answer(answer)


@dataclass(frozen=True)
class Mangle:
    """Do what is asked for and send something else than the answer.

    *change* is given the framed answer and returns what is sent. Ready-made ones: :func:`garbage`,
    :func:`truncated`, :func:`wrong_correlation_id`, :func:`huge_length`, :func:`negative_length`,
    :func:`twice`. With *disconnect* the connection is closed behind it.
    """

    change: Callable[[bytes], bytes]
    disconnect: bool = False

    def __call__(self, exchange: Exchange) -> None:
        exchange.send(self.change(exchange.encoded(exchange.apply())))
        if self.disconnect:
            raise Disconnect


def garbage(framed: bytes) -> bytes:
    """A frame that belongs to the request and holds nothing sensible."""
    return framed[:8] + b"\xff" * (len(framed) - 8)


def truncated(framed: bytes) -> bytes:
    """A frame that is well-formed and holds only a half of the answer."""
    half = framed[4 : 4 + max(4, (len(framed) - 4) // 2)]
    return len(half).to_bytes(4, "big") + half


def cut_short(framed: bytes) -> bytes:
    """The first half of a frame; the rest never comes."""
    return framed[: len(framed) // 2]


def wrong_correlation_id(framed: bytes) -> bytes:
    """The answer to a request that was never sent."""
    return framed[:4] + (0x7FFF_FFF0).to_bytes(4, "big") + framed[8:]


def huge_length(framed: bytes) -> bytes:
    """A length of 2 GiB in front of the answer."""
    return (2**31 - 1).to_bytes(4, "big") + framed[4:]


def negative_length(framed: bytes) -> bytes:
    """A length below zero in front of the answer."""
    return b"\xff" * 4 + framed[4:]


def twice(framed: bytes) -> bytes:
    """The answer, and the same answer again, which nobody asked for."""
    return framed * 2


@dataclass(eq=False)
class Hold:
    """Keep the request until :meth:`release`, then go on with another action.

    A broker handles the requests of one connection one after the other: those behind a held one
    wait with it.
    """

    then: Action = proceed
    _arrived: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, exchange: Exchange) -> None:
        self._arrived.set()
        if exchange.wait(self._released):
            self.then(exchange)

    def wait_until_held(self) -> None:
        """Wait until the request is here."""
        self._arrived.wait()

    def release(self) -> None:
        """Let the request go on; may be called before it has come."""
        self._released.set()

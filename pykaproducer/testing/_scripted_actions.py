"""Actions with which a scripted broker can respond to a request instead of a proper answer.

An action is called with the :class:`Exchange` of one request, in the thread of its connection. The
actions here reproduce observed behaviour of brokers and networks. A test can define its own, as a
callable that takes an Exchange.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any


class Disconnect(Exception):
    """Raised to close a connection from the broker's side."""


@dataclass(eq=False)
class Exchange:
    """A request that a scripted broker has received, with the possible reactions."""

    #: The broker that received it.
    broker: int
    #: The decoded request, with the attributes of kafka-python 3's classes.
    request: Any
    _perform: Callable[[Collection[tuple[str, int]]], Any]
    _refuse: Callable[[int], Any]
    _send: Callable[[bytes], None]
    _wait: Callable[[threading.Event], bool]

    def apply(self, skip: Collection[tuple[str, int]] = ()) -> Any:
        """Execute the request and return the proper answer, as an object.

        Batches for the (topic, partition) pairs in *skip* are not appended.
        """
        return self._perform(skip)

    def refusal(self, code: int) -> Any:
        """Return the answer that rejects the whole request with *code*, without executing it."""
        return self._refuse(code)

    def encoded(self, answer: Any) -> bytes:
        """Encode *answer* as a frame."""
        answer.API_VERSION = self.request.API_VERSION
        answer.with_header(correlation_id=self.request.header.correlation_id)
        return bytes(answer.encode(header=True, framed=True))

    @property
    def expects_answer(self) -> bool:
        """False for Produce with ``acks=0``."""
        return bool(self.request.expect_response())

    def answer(self, answer: Any) -> None:
        """Send *answer*, if one is expected.

        With ``acks=0`` an error can only be reported by closing the connection.
        """
        if self.expects_answer:
            self.send(self.encoded(answer))
        elif any(p.error_code for topic in answer.responses for p in topic.partition_responses):
            raise Disconnect

    def send(self, data: bytes) -> None:
        """Send arbitrary *data*."""
        self._send(data)

    def wait(self, released: threading.Event) -> bool:
        """Wait until *released* is set. Return false if the cluster was closed first."""
        return self._wait(released)


Action = Callable[[Exchange], None]


def proceed(exchange: Exchange) -> None:
    """Answer properly."""
    exchange.answer(exchange.apply())


@dataclass(frozen=True)
class Refuse:
    """Answer with an error code.

    For Produce, AddPartitionsToTxn and TxnOffsetCommit *only* can name the (topic, partition) pairs
    that are rejected; the others are executed. With *appended*, all of them are executed, and the
    error is returned nevertheless. *base_offset*: of the partitions in *only*; Kafka returns -1.
    """

    code: int
    only: Collection[tuple[str, int]] | None = None
    appended: bool = False
    base_offset: int = -1

    def __call__(self, exchange: Exchange) -> None:
        if self.only is None:
            if self.appended:
                exchange.apply()
            exchange.answer(exchange.refusal(self.code))
            return
        answer = exchange.apply(() if self.appended else self.only)
        for place, partition, name in _answered(answer):
            if place in self.only:
                setattr(partition, name, self.code)
                if hasattr(partition, "base_offset"):
                    partition.base_offset = self.base_offset
        exchange.answer(answer)


def _answered(answer: Any) -> Iterator[tuple[tuple[str, int], Any, str]]:
    """Return each partition in an answer, its part of the answer, and the field of its code."""
    if hasattr(answer, "responses"):
        for topic in answer.responses:
            for each in topic.partition_responses:
                yield (topic.name, each.index), each, "error_code"
    elif hasattr(answer, "results_by_topic_v3_and_below"):
        for topic in answer.results_by_topic_v3_and_below:
            for each in topic.results_by_partition:
                yield (topic.name, each.partition_index), each, "partition_error_code"
    else:
        for topic in answer.topics:
            for each in topic.partitions:
                yield (topic.name, each.partition_index), each, "error_code"


@dataclass(frozen=True)
class Drop:
    """Close the connection without an answer, before or after (*appended*) executing."""

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
    """Execute the request and send modified data instead of the answer.

    *change* receives the framed answer and returns the data to send. Available are :func:`garbage`,
    :func:`truncated`, :func:`wrong_correlation_id`, :func:`huge_length`, :func:`negative_length`,
    :func:`twice`. With *disconnect* the connection is closed afterwards.
    """

    change: Callable[[bytes], bytes]
    disconnect: bool = False

    def __call__(self, exchange: Exchange) -> None:
        exchange.send(self.change(exchange.encoded(exchange.apply())))
        if self.disconnect:
            raise Disconnect


def garbage(framed: bytes) -> bytes:
    """Return a frame with the request's correlation id and otherwise invalid content."""
    return framed[:8] + b"\xff" * (len(framed) - 8)


def truncated(framed: bytes) -> bytes:
    """Return a well-formed frame with only the first half of the answer."""
    half = framed[4 : 4 + max(4, (len(framed) - 4) // 2)]
    return len(half).to_bytes(4, "big") + half


def cut_short(framed: bytes) -> bytes:
    """Return the first half of a frame; the rest is never sent."""
    return framed[: len(framed) // 2]


def wrong_correlation_id(framed: bytes) -> bytes:
    """Return the answer to a request that was never sent."""
    return framed[:4] + (0x7FFF_FFF0).to_bytes(4, "big") + framed[8:]


def huge_length(framed: bytes) -> bytes:
    """Return the answer with a frame length of 2 GiB."""
    return (2**31 - 1).to_bytes(4, "big") + framed[4:]


def negative_length(framed: bytes) -> bytes:
    """Return the answer with a negative frame length."""
    return b"\xff" * 4 + framed[4:]


def twice(framed: bytes) -> bytes:
    """Return the answer twice."""
    return framed * 2


@dataclass(eq=False)
class Hold:
    """Hold the request until :meth:`release`, then perform another action.

    A broker processes the requests of a connection one after the other, so later requests on the
    same connection are held as well.
    """

    then: Action = proceed
    _arrived: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, exchange: Exchange) -> None:
        self._arrived.set()
        if exchange.wait(self._released):
            self.then(exchange)

    def wait_until_held(self) -> None:
        """Wait until the request has arrived."""
        self._arrived.wait()

    def release(self) -> None:
        """Release the request. May be called before it arrives."""
        self._released.set()

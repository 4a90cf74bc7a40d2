"""What a scripted broker can be told to do with a request instead of answering it properly.

An action is called with the :class:`Exchange` of one request. The ones here do what brokers and
networks have been seen to do; a test can write its own: any callable that takes an Exchange.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol


class Exchange(Protocol):
    """One request, and what may be done with it."""

    #: kafka-python's object for the request.
    request: Any

    def apply(self) -> Any:
        """Do what was asked (append ...), once; kafka-python's object for the answer."""

    def refusal(self, code: int) -> Any:
        """The answer that refuses all that was asked with an error code; nothing is done."""

    def encoded(self, answer: Any) -> bytes:
        """A framed answer."""

    def send(self, data: bytes) -> None:
        """Send bytes, whatever they are."""

    def disconnect(self) -> None:
        """Close the connection."""

    def wait(self, released: threading.Event) -> None:
        """Wait until *released* is set or the cluster is closed."""


Action = Callable[[Exchange], None]


def proceed(exchange: Exchange) -> None:
    """Answer properly."""
    exchange.send(exchange.encoded(exchange.apply()))


@dataclass(frozen=True)
class Refuse:
    """Answer with an error code: for all partitions (topics, the request), or *only* for some.

    *only* holds (topic, partition) pairs of a Produce request; what it does not name is appended.
    With *appended* everything is appended all the same, as with NOT_ENOUGH_REPLICAS_AFTER_APPEND.
    """

    code: int
    only: Collection[tuple[str, int]] | None = None
    appended: bool = False

    def __call__(self, exchange: Exchange) -> None:
        if self.only is None:
            if self.appended:
                exchange.apply()
            exchange.send(exchange.encoded(exchange.refusal(self.code)))
            return
        spared = getattr(exchange, "apply_without")(() if self.appended else self.only)
        for topic in spared.responses:
            for partition in topic.partition_responses:
                if (topic.name, partition.index) in self.only:
                    partition.error_code = self.code
                    partition.base_offset = -1
        exchange.send(exchange.encoded(spared))

"""What ``verify`` does: sends numbered messages, and reads back what stands in the log."""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pykaproducer._clock import Clock
from pykaproducer.cli._audit import Audit
from pykaproducer.cli._ledger import Told
from pykaproducer.cli._pace import GRACE, Pace, Patience, settle
from pykaproducer.cli._readback import Reader
from pykaproducer.cli._signals import Signals
from pykaproducer.cli.common import CommandError, servers_text, tell
from pykaproducer.config import Config
from pykaproducer.delivery import Delivery
from pykaproducer.errors import BufferFullError, MetadataTimeoutError, PykaproducerError
from pykaproducer.producer import Producer

#: So many messages, if neither their number nor the time is given.
COUNT = 100_000
#: How long the cluster may take to answer at all (seconds).
_MEETING = 10.0
#: How often a line tells how it goes (seconds); after so many messages it is looked at.
_TELLING = 5.0
_LOOK_EVERY = 1 << 10
#: Seconds without a message after which no more are to come.
_READING = 30.0


@dataclass
class Result:
    """How it went."""

    audit: Audit
    #: Of sending, until the last outcome.
    seconds: float = 0.0
    #: (partition, offset) where the log could not be read on.
    unread: list[tuple[int, int]] = field(default_factory=list)


def partitions_of(producer: Producer, topic: str, patience_ms: float | None) -> list[int]:
    """The topic's partitions; waits *patience_ms* for the cluster, by default ``_MEETING``."""
    clock = Clock()
    end = clock.monotonic() + (_MEETING if patience_ms is None else patience_ms / 1000)
    while True:
        try:
            return sorted(producer.partitions_for(topic))
        except MetadataTimeoutError as error:
            if clock.monotonic() >= end:
                servers = servers_text(producer.config.bootstrap_servers)
                raise CommandError(f"{error} (bootstrap servers: {servers})") from None


def ends_of(producer: Producer, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """The next offset of each partition."""
    with Reader(producer.config) as reader:
        ends = reader.ends(topic, partitions)
    return {partition: after for partition, (_, after) in ends.items()}


class Sending:
    """Sends the messages, and tells now and then how it goes."""

    def __init__(
        self,
        options: argparse.Namespace,
        producer: Producer,
        signals: Signals,
        result: Result,
        patience: Patience,
    ) -> None:
        self._options = options
        self._producer = producer
        self._signals = signals
        self._result = result
        self._patience = patience
        self._clock = Clock()
        self._began = self._told = self._clock.monotonic()

    def go(self) -> None:
        """Send, and wait for what becomes of it."""
        self._send_all()
        settle(self._producer, self._signals, self._tell_ending, self._look)
        self._result.seconds = self._clock.monotonic() - self._began

    def _send_all(self) -> None:
        options, audit = self._options, self._result.audit
        messages = audit.messages
        pace = Pace(options.rate, self._signals, self._clock)
        end = None if options.duration is None else pace.start + options.duration
        numbers: Iterable[int] = (
            itertools.count() if end is not None else range(options.count or COUNT)
        )
        send = functools.partial(self._producer.send, options.topic, on_delivery=audit.report)
        headers = messages.headers
        for number in numbers:
            if end is not None and self._clock.monotonic() >= end:
                return
            if options.rate is not None and not pace.wait_for(number, self._look):
                return
            if number % _LOOK_EVERY == 0:
                self._look()
                if self._signals.count:
                    return
            value, key = messages.value(number), messages.key(number)
            # Before: its outcome may come before send() returns.
            audit.sent = number + 1
            try:
                send(value, key, headers)
            except PykaproducerError as error:
                again = functools.partial(send, value, key, headers)
                if not self._insist(number, error, again):
                    audit.sent = number
                    return

    def _insist(self, number: int, error: PykaproducerError, again: Callable[[], Delivery]) -> bool:
        """One was refused: try again while that may help; false: a signal came before."""
        if isinstance(error, BufferFullError):
            try:
                return self._patience.send(again, self._look) is not None
            except PykaproducerError as another:
                error = another
        self._result.audit.refuse(number, error)
        return True

    def _look(self) -> None:
        now = self._clock.monotonic()
        if now - self._told >= _TELLING:
            self._told = now
            audit = self._result.audit
            delivered = audit.ledger.counts[Told.DELIVERED]
            tell(
                f"{now - self._began:.0f} s: {audit.sent:,} sent, {delivered:,} delivered, "
                f"{audit.failures.total:,} failed"
            )

    def _tell_ending(self) -> None:
        audit = self._result.audit
        tell(
            f"ending: {audit.sent - audit.told:,} messages are still on their way and get "
            f"{GRACE:.0f} s; once more gives them up"
        )


def read(config: Config, topic: str, before: Mapping[int, int], result: Result) -> None:
    """Look at all that stands in the log since *before*."""
    clock = Clock()
    told, audit = clock.monotonic(), result.audit
    with Reader(config) as reader:
        ends = reader.ends(topic, list(before))
        ranges = {
            partition: (before[partition], after - 1)
            for partition, (_, after) in ends.items()
            if after > before[partition]
        }
        total = sum(last - first + 1 for first, last in ranges.values())
        for record in reader.read(topic, ranges, _READING):
            audit.look(record)
            if audit.found % _LOOK_EVERY == 0 and clock.monotonic() - told >= _TELLING:
                told = clock.monotonic()
                tell(f"{audit.found:,} of {total:,} read back")
        result.unread = reader.unread

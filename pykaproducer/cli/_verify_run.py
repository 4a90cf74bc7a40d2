"""The steps of ``verify``: send numbered messages, and read the log back."""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pykaproducer._util.clock import Clock
from pykaproducer.cli._audit import Audit
from pykaproducer.cli._ledger import ReportedOutcome
from pykaproducer.cli._pace import GRACE, Pace, Patience, settle
from pykaproducer.cli._readback import LogReader
from pykaproducer.cli._signals import Signals
from pykaproducer.cli.common import CommandError, notify, servers_text
from pykaproducer.config import Config
from pykaproducer.delivery import Delivery
from pykaproducer.errors import BufferFullError, MetadataTimeoutError, PykaproducerError
from pykaproducer.producer import Producer

#: Default number of messages.
COUNT = 100_000
#: Default time to wait for the cluster's first answer (seconds).
_MEETING = 10.0
#: Interval between progress lines (seconds), and number of messages between checks for it.
_PROGRESS_INTERVAL = 5.0
_LOOK_EVERY = 1 << 10
#: Time without a message after which reading back ends (seconds).
_READING = 30.0


@dataclass
class Result:
    """The result of a run."""

    audit: Audit
    #: Time from the first message to the last outcome.
    seconds: float = 0.0
    #: (partition, offset) where reading the log stopped early.
    unread: list[tuple[int, int]] = field(default_factory=list)


def partitions_of(producer: Producer, topic: str, patience_ms: float | None) -> list[int]:
    """Return the topic's partitions, waiting *patience_ms* (default ``_MEETING``) for them."""
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
    """Return the next offset of each partition."""
    with LogReader(producer.config) as reader:
        ends = reader.ends(topic, partitions)
    return {partition: after for partition, (_, after) in ends.items()}


class Sending:
    """Sender of the messages that also prints progress."""

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
        self._began = self._last_progress = self._clock.monotonic()

    def go(self) -> None:
        """Send all messages and wait for their outcomes."""
        self._send_all()
        settle(self._producer, self._signals, self._report_stopping, self._look)
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
            # Set first, because the outcome may be reported before send() returns.
            audit.sent = number + 1
            try:
                send(value, key, headers)
            except PykaproducerError as error:
                again = functools.partial(send, value, key, headers)
                if not self._insist(number, error, again):
                    audit.sent = number
                    return

    def _insist(self, number: int, error: PykaproducerError, again: Callable[[], Delivery]) -> bool:
        """Retry a message that was not accepted. Return false if a signal arrives first."""
        if isinstance(error, BufferFullError):
            try:
                return self._patience.send(again, self._look) is not None
            except PykaproducerError as another:
                error = another
        self._result.audit.refuse(number, error)
        return True

    def _look(self) -> None:
        now = self._clock.monotonic()
        if now - self._last_progress >= _PROGRESS_INTERVAL:
            self._last_progress = now
            audit = self._result.audit
            delivered = audit.ledger.counts[ReportedOutcome.DELIVERED]
            notify(
                f"{now - self._began:.0f} s: {audit.sent:,} sent, {delivered:,} delivered, "
                f"{audit.failures.total:,} failed"
            )

    def _report_stopping(self) -> None:
        audit = self._result.audit
        notify(
            f"stopping: waiting up to {GRACE:.0f} s for {audit.sent - audit.reported:,} pending "
            f"messages; interrupt again to abandon them"
        )


def read(config: Config, topic: str, before: Mapping[int, int], result: Result) -> None:
    """Check everything that was written to the log since *before*."""
    clock = Clock()
    shown, audit = clock.monotonic(), result.audit
    with LogReader(config) as reader:
        ends = reader.ends(topic, list(before))
        ranges = {
            partition: (before[partition], after - 1)
            for partition, (_, after) in ends.items()
            if after > before[partition]
        }
        total = sum(last - first + 1 for first, last in ranges.values())
        for record in reader.read(topic, ranges, _READING):
            audit.look(record)
            if audit.found % _LOOK_EVERY == 0 and clock.monotonic() - shown >= _PROGRESS_INTERVAL:
                shown = clock.monotonic()
                notify(f"{audit.found:,} of {total:,} read back")
        result.unread = reader.unread

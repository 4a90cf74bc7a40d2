"""Traces of single messages through the stages, with times, for ``Producer.traced()``.

Without tracing, a stage only checks once per chunk, slice or batch whether it is on. With tracing,
each stage notes the items that it handles. The messages that an item contains are determined only
when the events of a message are read. A caller that sends notes its own events, without a stage.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from pykaproducer._errors.formatting import format_error_code
from pykaproducer._kernel import Chunk, Delivery, ProduceRequest, Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.batch import Batch
from pykaproducer._pipeline.metrics import copied
from pykaproducer._util.clock import Clock
from pykaproducer._wire.produce import ProduceAnswer, ProducedPartition, results_of

#: Maximum number of notes that are kept.
_NOTES = 200_000
#: Maximum number of chunks for which the times of acceptance are kept.
_CHUNKS = 1_000


class _Note(NamedTuple):
    """A stage handled rows of one chunk, from *first* to *last*."""

    at: float
    event: str
    stage: str | None
    name: str | None
    serial: int
    #: -1: any partition.
    partition: int
    first: int
    last: int
    rows: int
    size: int
    details: dict[str, Any]


class Recorder:
    """Records the events of messages, for :meth:`Producer.traced`.

    Keeps the last 200,000 notes, far more than a few thousand messages produce.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._epoch = clock.time() - clock.monotonic()
        self._notes: deque[_Note] = deque(maxlen=_NOTES)
        self._accepted: dict[int, array[float]] = {}

    # Called by the stages and by callers ----------------------------------------------------------

    def taken(self, worker: object, chunks: Iterable[Chunk]) -> None:
        """Record that the dispatcher has taken *chunks*."""
        for chunk in chunks:
            self.accepted(chunk)
            self.note("dispatched", worker, chunk)

    def accepted(self, chunk: Chunk) -> None:
        """Record when the messages of *chunk* were accepted. Called by several threads."""
        self._accepted[chunk.serial] = array("d", chunk.accepted())
        if len(self._accepted) > _CHUNKS:
            for serial in list(self._accepted)[:-_CHUNKS]:
                self._accepted.pop(serial, None)

    def sealed(self, worker: object, batch: Batch) -> None:
        """Record that *worker* has sealed *batch*."""
        detail = f"{batch.payload.plain_size} bytes before compression"
        if batch.sequenced:
            detail += f", sequence numbers from {batch.first_sequence}"
        self.note("sealed", worker, batch, detail=detail, level=batch.level)

    def driven(self, broker: int, request: ProduceRequest) -> None:
        """Record that a caller has sealed and written *request*."""
        for batch in request.batches:
            self.sealed(None, batch)
            self.note("sent", None, batch, broker=broker)

    def confirmed(self, broker: int, request: ProduceRequest, at: float) -> None:
        """Record the response to a caller's request, which came *at* and confirms every batch."""
        for batch, result in zip(request.batches, results_of(request, None), strict=True):
            self.note("answered", None, batch, at, broker=broker, detail=in_words(result))
            self.note("settled", None, batch, at, detail="delivered")

    def answered(
        self, worker: object, broker: int, request: ProduceRequest, answer: ProduceAnswer | None
    ) -> None:
        """Record the response to *request*; *answer* None: it confirms every batch."""
        wait = 0 if answer is None else answer.throttle_ms / 1000
        for batch, result in zip(request.batches, results_of(request, answer), strict=True):
            self.note("answered", worker, batch, broker=broker, detail=in_words(result))
            if wait:
                self.note("throttled", worker, batch, broker=broker, wait_s=wait)

    def lost(
        self, worker: object, broker: int, batches: Iterable[Batch], reason: str | None
    ) -> None:
        """Record that the connection was lost with the request with *batches*."""
        for batch in batches:
            self.note("lost", worker, batch, broker=broker, detail=reason)

    def note(
        self,
        event: str,
        worker: object,
        item: object,
        at: float | None = None,
        **details: Any,
    ) -> None:
        """Record that *worker* (None: a caller, or any stage) handles *item*.

        An item without messages is ignored. *at*: when that was (monotonic seconds); None: now.
        """
        now = self._clock.monotonic() if at is None else at
        match item:
            case Chunk():
                rows = len(item)
                self._add(now, event, worker, item, -1, (0, rows - 1, rows, item.nbytes), details)
            case Slice() if item.count:
                self._add_slice(now, event, worker, item, item.count, item.nbytes, details)
            case Backlog():
                for part in item.slices():
                    self._add_slice(now, event, worker, part, item.count, item.nbytes, details)
            case Batch():
                for part in item.parts:
                    size = len(item.payload)
                    self._add_slice(now, event, worker, part, item.count, size, details)

    def _add_slice(
        self,
        now: float,
        event: str,
        worker: object,
        part: Slice,
        rows: int,
        size: int,
        details: dict[str, Any],
    ) -> None:
        numbers = part.row_numbers()
        where = (numbers[0], numbers[-1], rows, size)
        self._add(now, event, worker, part.chunk, part.partition, where, details)

    def _add(
        self,
        now: float,
        event: str,
        worker: object,
        chunk: Chunk,
        partition: int,
        where: tuple[int, int, int, int],
        details: dict[str, Any],
    ) -> None:
        stage = None if worker is None else type(worker).__name__
        name = getattr(worker, "name", None)
        self._notes.append(_Note(now, event, stage, name, chunk.serial, partition, *where, details))

    # For users ------------------------------------------------------------------------------------

    def events(self, delivery: Delivery) -> list[dict[str, Any]]:
        """Return the events of a message in chronological order.

        The list is empty if the message was sent before the trace began.

        Each event has the keys ``event``, ``at_s`` (seconds since the message was accepted),
        ``time`` (seconds since the epoch), ``stage`` and ``name`` of the thread (None: a thread
        that sends or waits, or any stage), ``rows`` and ``bytes`` of all the messages that were
        handled together, and ``detail`` (a text or None). Where applicable, it has ``partition``,
        ``broker``, ``level`` and ``wait_s``.
        """
        serial, row = delivery.chunk.serial, delivery.row
        times = self._accepted.get(serial)
        if times is None:
            return []
        accepted = times[row]
        size = sum(
            max(0, n) for n in (delivery.serialized_key_size, delivery.serialized_value_size)
        )
        found = [self._event(accepted, accepted, "accepted", None, None, 1, size, {})]
        for note in copied(lambda: list(self._notes)):
            if note.serial != serial or not note.first <= row <= note.last:
                continue
            if note.partition not in (-1, delivery.partition):
                continue
            details = dict(note.details)
            if note.partition >= 0:
                details["partition"] = note.partition
            found.append(
                self._event(
                    accepted,
                    note.at,
                    note.event,
                    note.stage,
                    note.name,
                    note.rows,
                    note.size,
                    details,
                )
            )
        return sorted(found, key=lambda event: event["at_s"])

    def _event(
        self,
        accepted: float,
        at: float,
        event: str,
        stage: str | None,
        name: str | None,
        rows: int,
        size: int,
        details: dict[str, Any],
    ) -> dict[str, Any]:
        return {
            "event": event,
            "at_s": at - accepted,
            "time": at + self._epoch,
            "stage": stage,
            "name": name,
            "rows": rows,
            "bytes": size,
            "detail": details.pop("detail", None),
            **details,
        }


def in_words(answer: ProducedPartition) -> str:
    """Return a short text for a broker's response for one partition."""
    if answer.error_code:
        return format_error_code(answer.error_code)
    return f"offset {answer.base_offset}"

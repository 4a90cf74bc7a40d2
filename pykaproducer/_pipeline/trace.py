"""The way of single messages through the stages, with times: for ``Producer.traced()``.

While nobody traces, a stage looks once a chunk, slice or batch whether somebody does, and that is
all. While somebody does, each stage notes what it has in its hands; which messages that concerns
is found out when it is asked for.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from pykaproducer._clock import Clock
from pykaproducer._kernel import Chunk, Delivery, Slice
from pykaproducer._machines.backlog import Backlog
from pykaproducer._machines.lane import Batch
from pykaproducer._texts import code_text
from pykaproducer._wire.produce import ProducedPartition

#: The most notes that are kept, and chunks of which it is known when each message was accepted.
_NOTES = 200_000
_CHUNKS = 1_000


class _Note(NamedTuple):
    """What a stage had in its hands: rows of one chunk, from *first* to *last*."""

    at: float
    event: str
    stage: str | None
    name: str | None
    serial: int
    #: -1: of any partition.
    partition: int
    first: int
    last: int
    rows: int
    size: int
    details: dict[str, Any]


class Recorder:
    """What :meth:`Producer.traced` gives: ask it for the events of a message.

    Keeps the last 200,000 notes, far more than a few thousand messages make.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._epoch = clock.time() - clock.monotonic()
        self._notes: deque[_Note] = deque(maxlen=_NOTES)
        self._accepted: dict[int, array[float]] = {}

    # What stages note -----------------------------------------------------------------------------

    def taken(self, worker: object, chunks: Iterable[Chunk]) -> None:
        """The dispatcher has these chunks."""
        for chunk in chunks:
            self._accepted[chunk.serial] = array("d", chunk.accepted())
            while len(self._accepted) > _CHUNKS:
                del self._accepted[next(iter(self._accepted))]
            self.note("dispatched", worker, chunk)

    def note(self, event: str, worker: object, item: object, **details: Any) -> None:
        """*worker* (None: whoever it is) has *item* in its hands; what is no message is no news."""
        now = self._clock.monotonic()
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

    # What is asked for ----------------------------------------------------------------------------

    def events(self, delivery: Delivery) -> list[dict[str, Any]]:
        """What has happened to a message, in the order of time; empty if it was sent before.

        Each event has ``event``; ``at_s``: seconds since the message was accepted; ``time``:
        seconds since the epoch; ``stage`` and ``name`` of its thread (None: any stage's); ``rows``
        and ``bytes`` of all that went along at this moment; ``detail``: more in words, or None;
        and, where there is one, ``partition``, ``broker``, ``level``, ``wait_s``.
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
        for note in self._all():
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

    def _all(self) -> list[_Note]:
        while True:
            try:
                return list(self._notes)
            except RuntimeError:  # a stage has noted something in the middle
                continue

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


def sealing(batch: Batch) -> dict[str, Any]:
    """What is worth telling of a batch that was sealed."""
    detail = f"{batch.payload.plain_size} bytes before compression"
    if batch.sequenced:
        detail += f", sequence numbers from {batch.first_sequence}"
    return {"detail": detail, "level": batch.level}


def in_words(answer: ProducedPartition) -> str:
    """What a broker has answered for one partition."""
    if answer.error_code:
        return code_text(answer.error_code)
    return f"offset {answer.base_offset}"

"""Handling of rows that were not delivered: they fail the write, or are put elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from pykaproducer._load.summary import Summary
from pykaproducer._process.closing import GIVEN_UP
from pykaproducer.delivery import Delivery, Status
from pykaproducer.errors import PykaproducerError
from pykaproducer.producer import Producer

#: Maximum number of rows listed in an error.
_TOLD = 3
#: Number of dead letters after which to wait for their outcomes.
_GATHERED = 10_000


class RefusedRow(NamedTuple):
    """A row that was not delivered."""

    #: Its index, from 0, among all rows of this writer.
    row: int
    #: Its index in the batch that was passed to ``Writer.write()``.
    place: int
    error: BaseException


class RowsRefusedError(PykaproducerError):
    """Rows of a write were not delivered, and no destination for such rows was given.

    The cause is the first row's error. Rows that the write sent before may be in the log.
    """


class RefusedRowHandler(Protocol):
    """Handler of rows that were not delivered."""

    #: Whether it needs the rows themselves. Their origin is then kept until they have an outcome.
    wants_rows: bool

    @property
    def ends_the_load(self) -> bool:
        """Whether to stop sending, because a row was rejected and cannot be kept."""

    def take(self, origin: Any, rows: Sequence[RefusedRow]) -> None:
        """Handle rows that were not delivered; *origin* is as passed to ``Writer.write()``."""

    def finish(self, summary: Summary) -> None:
        """Complete the handling and add the rows to *summary*."""


class Fail:
    """Handler for which the first rejected row ends the write."""

    wants_rows = False
    ends_the_load = False  # take() raises instead

    def __init__(self, who: str) -> None:
        #: The origin of the rows for errors, as "Spark partition 3 (attempt 0)".
        self._who = who

    def take(self, origin: Any, rows: Sequence[RefusedRow]) -> None:
        """Raise :class:`RowsRefusedError`."""
        shown = "; ".join(f"row {each.row}: {describe(each.error)}" for each in rows[:_TOLD])
        count = "1 row was" if len(rows) == 1 else f"{len(rows):,} rows were"
        text = f"{self._who}: {count} not delivered: {shown}"
        raise RowsRefusedError(text) from rows[0].error

    def finish(self, summary: Summary) -> None:
        """Do nothing, as no rows were kept."""


class DeadLetters:
    """Handler that sends rejected rows to another topic, with headers that describe the error.

    The headers are ``pykaproducer.error.class``, ``.message`` and ``.status``, and for the intended
    topic and the origin ``.topic`` and ``.row``. If a row cannot be sent there, the write fails.
    """

    wants_rows = True
    ends_the_load = False

    def __init__(self, producer: Producer, topic: str, meant_for: str | None, who: str) -> None:
        self._producer = producer
        self._topic = topic
        self._meant_for = meant_for
        self._fail = Fail(who)
        self._sent: list[tuple[RefusedRow, Delivery]] = []
        self._count = 0

    def take(self, origin: Any, rows: Sequence[RefusedRow]) -> None:
        """Send the rows to the dead-letter topic."""
        from pykaproducer._load.cells import cells, messages  # requires pyarrow

        for refused in rows:
            row = origin.slice(refused.place, 1)
            message = messages(row)[0]
            topic = self._meant_for or _text((cells(row, "topic") or [None])[0])
            headers = [(_text(name), value) for name, value in message.headers if name is not None]
            why = _why(refused, topic)
            try:
                sent = self._producer.send(
                    self._topic, message.value, message.key, [*headers, *why]
                )
            except (PykaproducerError, ValueError) as error:
                error.__cause__ = refused.error
                self._fail.take(None, [refused._replace(error=error)])
            else:
                self._sent.append((refused, sent))
        if len(self._sent) > _GATHERED:
            self._settle()

    def finish(self, summary: Summary) -> None:
        """Wait until all dead letters are delivered."""
        self._settle()
        summary.refused += self._count

    def _settle(self) -> None:
        for refused, sent in self._sent:
            error = sent.exception()
            if error is not None:
                self._fail.take(None, [refused._replace(error=error)])
        self._count += len(self._sent)
        self._sent.clear()


def _why(refused: RefusedRow, topic: str) -> list[tuple[str, bytes]]:
    """Return the headers that describe why a row was rejected."""
    facts = {
        "class": type(refused.error).__name__,
        "message": text_of(refused.error),
        "status": status_of(refused.error),
        "topic": topic,
        "row": str(refused.row),
    }
    return [(f"pykaproducer.error.{name}", text.encode()) for name, text in facts.items()]


def status_of(error: BaseException) -> str:
    """Return the name of the error's ``Status``: whether the row may be in the log."""
    status = getattr(error, "status", None)
    return status.name if isinstance(status, Status) else Status.NOT_PERSISTED.name


def text_of(error: BaseException) -> str:
    """Return the error's text without the row number, which is relative to an internal block."""
    return getattr(error, "about_row", None) or str(error)


def describe(error: BaseException) -> str:
    """Return the error's class and text."""
    return f"{type(error).__name__}: {text_of(error).replace(GIVEN_UP, 'the load was stopped')}"


def _text(cell: bytes | None) -> str:
    return "" if cell is None else cell.decode(errors="replace")

"""What becomes of rows that were not delivered: they fail the write, or are put elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from pykaproducer._load.summary import Summary
from pykaproducer.delivery import Delivery, Status
from pykaproducer.errors import PykaproducerError
from pykaproducer.producer import Producer

#: Of how many rows an error tells.
_TOLD = 3
#: After so many dead letters they are waited for.
_GATHERED = 10_000


class RefusedRow(NamedTuple):
    """A row that was not delivered."""

    #: Its number, from 0, among the rows of this writer.
    row: int
    #: Its number in the batch that ``Writer.write()`` was given.
    place: int
    error: BaseException


class RowsRefusedError(PykaproducerError):
    """Rows of a write were not delivered, and nobody was to take them.

    The first row's error is the cause. What the write had sent before may be in the log.
    """


class Refused(Protocol):
    """Takes what was not delivered."""

    #: Whether it wants the rows themselves: what they came from is kept until they are settled.
    wants_rows: bool

    @property
    def ends_the_load(self) -> bool:
        """Whether a row was refused that nobody takes: nothing more is to be sent."""

    def take(self, origin: Any, rows: Sequence[RefusedRow]) -> None:
        """Rows were not delivered; *origin* is what ``Writer.write()`` was given with them."""

    def finish(self, summary: Summary) -> None:
        """No more will come: tell of those that were taken."""


class Fail:
    """The first row that is refused ends the write."""

    wants_rows = False
    ends_the_load = False  # for it raises

    def __init__(self, who: str) -> None:
        #: Whose rows they are, as "Spark partition 3 (attempt 0)".
        self._who = who

    def take(self, origin: Any, rows: Sequence[RefusedRow]) -> None:
        """Raise."""
        shown = "; ".join(f"row {each.row}: {describe(each.error)}" for each in rows[:_TOLD])
        count = "1 row was" if len(rows) == 1 else f"{len(rows):,} rows were"
        text = f"{self._who}: {count} not delivered: {shown}"
        raise RowsRefusedError(text) from rows[0].error

    def finish(self, summary: Summary) -> None:
        """None were taken."""


class DeadLetters:
    """Refused rows go to a topic of their own, each with headers that say why.

    The headers: ``pykaproducer.error.class``, ``.message``, ``.status``, and of where it should
    have gone and came from ``.topic``, ``.row``. A row that cannot even go there fails the write.
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
        """Send them to the topic."""
        from pykaproducer._load.cells import cells, messages  # which need pyarrow

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
        """Wait until all are there."""
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
    """The headers that say why a row was refused."""
    facts = {
        "class": type(refused.error).__name__,
        "message": text_of(refused.error),
        "status": status_of(refused.error),
        "topic": topic,
        "row": str(refused.row),
    }
    return [(f"pykaproducer.error.{name}", text.encode()) for name, text in facts.items()]


def status_of(error: BaseException) -> str:
    """Whether the row may be in the log all the same, as a name of ``Status``."""
    status = getattr(error, "status", None)
    return status.name if isinstance(status, Status) else Status.NOT_PERSISTED.name


def text_of(error: BaseException) -> str:
    """What is wrong with a row. Its number in the error is one of a block that nobody knows."""
    return getattr(error, "about_row", None) or str(error)


def describe(error: BaseException) -> str:
    """The same with the error's class."""
    return f"{type(error).__name__}: {text_of(error)}"


def _text(cell: bytes | None) -> str:
    return "" if cell is None else cell.decode(errors="replace")

"""The rows of a task: Arrow batches, which are counted while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pykaproducer._exactly_once import points
from pykaproducer._exactly_once.task import TaskPlace
from pykaproducer._kernel import rows_checksum
from pykaproducer._load.messages import MessageBatch, MessageColumns, MessageWriter
from pykaproducer._load.refused import RefusedRowHandler
from pykaproducer._load.summary import Summary
from pykaproducer.producer import Producer

_MODULUS = 2**64


class RowCount:
    """The number and the checksum of rows. Neither depends on their order."""

    def __init__(self) -> None:
        self.rows = 0
        #: The sum of the rows' checksums, modulo 2**64.
        self.checksum = 0

    def add(self, batch: Any) -> None:
        """Count the rows of a ``pyarrow.RecordBatch`` with the columns of ``send_arrow()``."""
        self.rows += batch.num_rows
        self.checksum = (self.checksum + rows_checksum(batch)) % _MODULUS


class ArrowRows:
    """Arrow batches with the columns of messages, which can be read once."""

    def __init__(
        self,
        batches: Iterator[Any],
        columns: MessageColumns,
        topic: str | None,
        place: TaskPlace,
        refused: Callable[[Producer], RefusedRowHandler],
    ) -> None:
        """Prepare to read *batches* once.

        Args:
            batches: ``pyarrow.RecordBatch``, as Spark passes them.
            columns: those to be sent.
            topic: the topic of all rows; None if the column ``topic`` contains it.
            place: the task, for :mod:`~pykaproducer._exactly_once.points`.
            refused: returns the handler of rows that the producer rejects.
        """
        self._batches = batches
        self._columns = columns
        self._topic = topic
        self._place = place
        self._refused = refused
        self._first: Any = None
        self._count = RowCount()

    def is_empty(self) -> bool:
        """Return whether there are no rows. A batch that is read to find out is kept."""
        while self._first is None:
            batch = next(self._batches, None)
            if batch is None:
                return True
            if batch.num_rows:
                self._first = batch
        return False

    def read(self) -> tuple[int, int]:
        """Read all rows. Return their number and checksum."""
        for _ in self._all():
            pass
        return self._count.rows, self._count.checksum

    def send(self, producer: Producer) -> tuple[int, int, Summary]:
        """Send all rows and wait for their outcomes. Return their number, checksum and summary."""
        writer = MessageWriter(producer, self._topic, self._refused(producer))
        for messages in self._all():
            writer.write(messages)
            points.reached("rows", *self._place)
        return self._count.rows, self._count.checksum, writer.finish()

    def _all(self) -> Iterator[MessageBatch]:
        """Yield the messages of all batches, and count their rows."""
        while not self.is_empty():
            messages, self._first = self._columns.of(self._first), None
            self._count.add(messages.batch)
            yield messages

"""Rows of a sink as messages: their columns, and values that are encoded as Avro records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow

from pykaproducer._load import compute
from pykaproducer._load.avro import AvroSchema, Plan
from pykaproducer._load.encoders import BYTES, Array, EncodingError, by_row, json_objects, plain
from pykaproducer._load.mapping import refusal, without
from pykaproducer._load.refused import RefusedRow, RefusedRowHandler
from pykaproducer._load.summary import Summary
from pykaproducer._load.writer import Writer
from pykaproducer.producer import Producer

VALUE = "value"


class MessageBatch(NamedTuple):
    """The rows of a batch."""

    #: A ``pyarrow.RecordBatch`` with the columns of ``send_arrow()``.
    batch: Any
    #: The rows whose value could not be encoded, and why. Their value in *batch* is null.
    failures: dict[int, EncodingError]
    #: These rows, in order, with their value as JSON.
    failed: Any = None


@dataclass(frozen=True)
class RecordValue:
    """Encodes the column value, which is a struct. A null stays null."""

    #: The fields of the struct.
    names: tuple[str, ...]
    schema: AvroSchema
    plan: Plan
    #: Precedes each record.
    prefix: bytes = b""

    def of(self, column: Array) -> tuple[Array, dict[int, EncodingError]]:
        """Return the values, and the errors by row."""
        known = column.is_valid()
        encoded, failures = by_row(
            lambda arrays: self.schema.encode(self.names, self.plan, arrays, self.prefix),
            column.drop_null().flatten(),
            BYTES,
        )
        errors = {row: refusal(f"column {VALUE}", error) for row, error in failures.items()}
        if not column.null_count:
            return encoded, errors
        values = compute.replace_with_mask(pyarrow.nulls(len(column), BYTES), known, encoded)
        rows = compute.indices_nonzero(known).to_pylist()
        return values, {rows[row]: error for row, error in errors.items()}


@dataclass(frozen=True)
class MessageColumns:
    """The columns of a batch that are sent. Can be pickled."""

    names: tuple[str, ...]
    #: None: the column value is sent as it is.
    value: RecordValue | None = field(default=None)

    def of(self, batch: Any) -> MessageBatch:
        """Return the messages of a ``pyarrow.RecordBatch``."""
        batch = batch.select(list(self.names))
        if self.value is None:
            return MessageBatch(batch, {})
        values, failures = self.value.of(batch.column(VALUE))
        failed = None
        if failures:
            rows = [batch.slice(row, 1) for row in sorted(failures)]
            failed = _with_json(pyarrow.concat_batches(rows))
        return MessageBatch(_with_value(batch, values), failures, failed)


def _with_value(batch: Any, values: Array) -> Any:
    place = batch.schema.get_field_index(VALUE)
    return batch.set_column(place, pyarrow.field(VALUE, values.type), values)


def _with_json(batch: Any) -> Any:
    column = plain(batch.column(VALUE))
    names = [each.name for each in column.type]
    found = by_row(lambda arrays: json_objects(names, arrays), column.flatten(), BYTES)
    return _with_value(batch, found.array)


class MessageWriter:
    """Sender of messages. *refused* gets the rows that were not delivered or not encoded."""

    def __init__(self, producer: Producer, topic: str | None, refused: RefusedRowHandler) -> None:
        self._refused = refused
        self._writer = Writer(producer, topic, _Numbered(refused))
        self._rows = 0

    def write(self, messages: MessageBatch) -> None:
        """Send the messages of a batch. Exceptions that *refused* raises propagate."""
        batch, failures, failed = messages
        numbers: Sequence[int] = range(self._rows, self._rows + batch.num_rows)
        self._rows += batch.num_rows
        if failures:
            self._refused.take(
                failed,
                [
                    RefusedRow(numbers[row], place, failures[row])
                    for place, row in enumerate(sorted(failures))
                ],
            )
            batch = without(batch, failures)
            numbers = [number for row, number in enumerate(numbers) if row not in failures]
        self._writer.write(batch, _Origin(batch, numbers))

    def finish(self) -> Summary:
        """Wait for all outcomes and return the summary."""
        return self._writer.finish()


class _Origin(NamedTuple):
    """Messages that are sent, and the number of each among all rows."""

    batch: Any
    numbers: Sequence[int]


class _Numbered:
    """Handler that passes rows on with their numbers among all rows, encoded or not."""

    def __init__(self, handler: RefusedRowHandler) -> None:
        self.wants_rows = handler.wants_rows
        self._handler = handler

    @property
    def ends_the_load(self) -> bool:
        return self._handler.ends_the_load

    def take(self, origin: _Origin | None, rows: Sequence[RefusedRow]) -> None:
        if origin is None:  # the handler does not want it, as the first such row is the end
            self._handler.take(None, rows)
            return
        numbers = origin.numbers
        self._handler.take(origin.batch, [each._replace(row=numbers[each.place]) for each in rows])

    def finish(self, summary: Summary) -> None:
        self._handler.finish(summary)

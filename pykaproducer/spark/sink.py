"""The sink: what Spark calls when rows are written with ``format("pykaproducer")``.

The driver plans a write (``writer()``, in a process of Spark's own beside the driver), the tasks
call ``write()``, and the driver is given what they return in ``commit()``. A stream makes the
objects anew for each micro-batch.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pykaproducer._load.summary import Summary
from pykaproducer.spark.columns import columns_of
from pykaproducer.spark.options import SinkError, SinkOptions
from pykaproducer.spark.task import send

log = logging.getLogger("pykaproducer.spark")


@dataclass
class Commit(WriterCommitMessage):
    """What a task has written."""

    summary: Summary


class _Planned:
    """A write whose options and columns have been checked."""

    def __init__(self, options: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        if overwrite:
            raise SinkError(self._no_overwriting)
        self._options = SinkOptions.of(options)
        self._columns = columns_of(schema, self._options.topic)

    #: Why a topic is not overwritten, and what to do.
    _no_overwriting: str

    def write(self, batches: Iterator[Any]) -> Commit:
        """Send the rows of one task."""
        return Commit(send(self._options, self._columns, batches))


class BatchSink(_Planned, DataSourceArrowWriter):
    """Writes a DataFrame."""

    _no_overwriting = (
        'mode overwrite: a topic cannot be overwritten, only appended to; use mode("append")'
    )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task has ended well."""
        _log_line("write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task has failed for good. What was written stays: Kafka knows no way back."""
        _log_line("write failed; what had been written by tasks that ended well", messages)


class StreamSink(_Planned, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    _no_overwriting = (
        "output mode complete: a topic cannot be overwritten, only appended to; use "
        'outputMode("append"), or foreachBatch() with pykaproducer.spark.write()'
    )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Every task of the micro-batch has ended well."""
        if not all(isinstance(each, Commit) for each in messages):
            # trigger(continuous=...) commits epochs whose rows Spark has handed to nobody.
            raise SinkError(
                f"{self._query} batch {batchId}: Spark commits tasks that were given no rows; "
                f"trigger(continuous=...) cannot write to a sink in Python"
            )
        _log_line(f"{self._query} batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The micro-batch has failed, or the query was stopped: it will be written again."""
        _log_line(f"{self._query} batch {batchId} ended early; had been written", messages)

    @property
    def _query(self) -> str:
        return "stream" if self._options.query is None else f"stream {self._options.query}"


def register(spark: Any) -> None:
    """Make ``format("pykaproducer")`` known to a session.

    Spark finds the sink on its own where the package is installed. It does not if another package
    named ``pyspark_*`` cannot be imported.

    Args:
        spark (SparkSession): also one of Spark Connect.
    """
    from pyspark_pykaproducer import DefaultSource

    spark.dataSource.register(DefaultSource)


def _log_line(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    total = Summary.of(each.summary for each in messages if isinstance(each, Commit))
    _show_log()
    log.info("%s: %s", what, "; ".join([str(total), *total.lines(most=8)]))


@functools.cache
def _show_log() -> None:
    """Have the lines shown where nobody has configured logging.

    They are written in a process of Spark's that has no logging of its own and whose standard
    error is the driver's.
    """
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)

"""The sink, which Spark calls when rows are written with ``format("pykaproducer")``.

The driver plans a write (``writer()``, in a separate Spark process beside the driver), the tasks
call ``write()``, and the driver receives the results in ``commit()``. For a stream, the objects are
created again for each micro-batch.
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
    """The result of a task."""

    summary: Summary


class _Planned:
    """A write with validated options and columns."""

    def __init__(self, options: Mapping[str, str], schema: Any, overwrite: bool) -> None:
        if overwrite:
            raise SinkError(self._no_overwriting)
        self._options = SinkOptions.of(options)
        self._columns = columns_of(schema, self._options.topic)

    #: Error text for overwriting, which a topic does not support.
    _no_overwriting: str

    def write(self, batches: Iterator[Any]) -> Commit:
        """Send the rows of one task."""
        return Commit(send(self._options, self._columns, batches))


class BatchSink(_Planned, DataSourceArrowWriter):
    """Writer of a DataFrame."""

    _no_overwriting = (
        'mode overwrite is not supported: rows can only be appended to a topic; use mode("append")'
    )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log a summary: every task succeeded."""
        _log_line("write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was written: a task failed permanently. Kafka cannot undo writes."""
        _log_line("write failed; written by successful tasks", messages)


class StreamSink(_Planned, DataSourceStreamArrowWriter):
    """Writer of the micro-batches of a stream."""

    _no_overwriting = (
        "output mode complete is not supported: rows can only be appended to a topic; use "
        'outputMode("append"), or foreachBatch() with pykaproducer.spark.write()'
    )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log a summary: every task of the micro-batch succeeded."""
        if not all(isinstance(each, Commit) for each in messages):
            # trigger(continuous=...) commits epochs without passing their rows to any task.
            raise SinkError(
                f"{self._query} batch {batchId}: Spark committed tasks without passing rows to "
                f"them; trigger(continuous=...) is not supported by Python sinks"
            )
        _log_line(f"{self._query} batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what was written: the micro-batch failed or was stopped, and will be repeated."""
        _log_line(f"{self._query} batch {batchId} ended early; written so far", messages)

    @property
    def _query(self) -> str:
        return "stream" if self._options.query is None else f"stream {self._options.query}"


def register(spark: Any) -> None:
    """Register the data source "pykaproducer" with a session.

    Spark finds an installed sink by itself, unless another package named ``pyspark_*`` fails to
    import.

    Args:
        spark (SparkSession): may be a Spark Connect session.
    """
    from pyspark_pykaproducer import DefaultSource

    spark.dataSource.register(DefaultSource)


def _log_line(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    total = Summary.of(each.summary for each in messages if isinstance(each, Commit))
    _show_log()
    log.info("%s: %s", what, "; ".join([str(total), *total.lines(most=8)]))


@functools.cache
def _show_log() -> None:
    """Print the log to standard error if logging is not configured.

    The messages are logged in a separate Spark process, which does not configure logging and shares
    the driver's standard error.
    """
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)

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
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import WriterCommitMessage

from pykaproducer._exactly_once.setup import WriteKind
from pykaproducer._load.summary import Summary
from pykaproducer.spark.columns import columns_of
from pykaproducer.spark.once import OnceResult, OnceWrite, is_repeated, run_of_task
from pykaproducer.spark.options import SinkError, SinkOptions
from pykaproducer.spark.reports import leave
from pykaproducer.spark.rows import batches_of, local_time_is_utc
from pykaproducer.spark.task import refused_rows, send
from pykaproducer.spark.writers import BatchWriter, StreamWriter, receives_arrow

log = logging.getLogger("pykaproducer.spark")


@dataclass
class Commit(WriterCommitMessage):
    """The result of a task."""

    summary: Summary
    #: Of an exactly-once write.
    once: OnceResult | None = None
    #: The id of the run of the streaming query; None if there is none.
    run: str | None = field(default_factory=run_of_task)


class _Planned:
    """A write with validated options and columns."""

    def __init__(
        self, options: Mapping[str, str], schema: Any, overwrite: bool, *, commits: bool = False
    ) -> None:
        """Plan a write. *commits*: only its tasks' results are to be committed.

        A commit needs no schema, and must not fail because there is none at that moment.
        """
        if overwrite:
            raise SinkError(self._no_overwriting)
        given = SinkOptions.of(options)
        self._options = given.for_tasks()
        self._once = OnceWrite.of(self._options, self._kind)
        is_stream = self._kind is WriteKind.STREAM
        self._columns = None if commits else columns_of(schema, given, again=is_stream)
        self._schema = schema

    #: Error text for overwriting, which a topic does not support.
    _no_overwriting: str
    _kind: WriteKind

    def write(self, rows: Iterator[Any]) -> Commit:
        """Send the rows of one task: Arrow batches, or rows if Spark passes rows to this writer."""
        if receives_arrow(self):
            return self._send(rows)
        with local_time_is_utc():
            return self._send(batches_of(rows, self._schema))

    def _send(self, batches: Iterator[Any]) -> Commit:
        assert self._columns is not None, "planned for commits only"
        if self._once is None:
            return Commit(send(self._options, self._columns, batches))
        result = self._once.task(self._columns, batches, refused_rows)
        return Commit(result.result.summary, result)


class BatchWrite(_Planned):
    """A write of a DataFrame."""

    _kind = WriteKind.SINGLE

    _no_overwriting = (
        'mode overwrite is not supported: rows can only be appended to a topic; use mode("append")'
    )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the tasks' transactions, if any, and log a summary: every task succeeded."""
        _log_options(self._options)
        if self._once is not None:
            self._once.commit(_results(messages))
        _log_line("write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was written: a task failed permanently.

        Kafka cannot undo writes; transactions that are not decided are aborted.
        """
        _log_options(self._options)
        if self._once is None:
            _log_line("write failed; written by successful tasks", messages)
        elif note := self._once.abort(_results(messages), running=None in messages):
            _log_line(f"write failed; {note}", messages)
        else:
            _log_line("write failed, nothing of it is visible; rows written so far", messages)


class StreamWrite(_Planned):
    """A write of the micro-batches of a stream."""

    _kind = WriteKind.STREAM

    _no_overwriting = (
        "output mode complete is not supported: rows can only be appended to a topic; use "
        'outputMode("append"), or foreachBatch() with pykaproducer.spark.write()'
    )

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the tasks' transactions, if any, and log a summary: every task succeeded."""
        if not all(isinstance(each, Commit) for each in messages):
            # trigger(continuous=...) commits epochs without passing their rows to any task.
            raise SinkError(
                f"{self._query} batch {batchId}: Spark committed tasks without passing rows to "
                f"them; trigger(continuous=...) is not supported by Python sinks"
            )
        _log_options(self._options)
        if self._once is not None:
            self._once.commit(_results(messages), batchId)
        _log_line(f"{self._query} batch {batchId}", messages)
        self._report(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what was written: the micro-batch failed or was stopped, and will be repeated."""
        _log_options(self._options)
        if self._once is None:
            _log_line(f"{self._query} batch {batchId} ended early; written so far", messages)
        else:
            self._once.abort(_results(messages), batchId, running=None in messages)
            _log_line(f"{self._query} batch {batchId} ended early; rows written so far", messages)

    def _report(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Report what was written to the listener, if any."""
        commits = [each for each in messages if isinstance(each, Commit)]
        if self._options.progress_directory is None or not commits or commits[0].run is None:
            return
        total = Summary.of(each.summary for each in commits)
        total.repeated = is_repeated(_results(messages))
        leave(self._options.progress_directory, commits[0].run, batch, total)

    @property
    def _query(self) -> str:
        return "stream" if self._options.query is None else f"stream {self._options.query}"


class BatchSink(BatchWrite, BatchWriter):
    """Writer of a DataFrame."""


class StreamSink(StreamWrite, StreamWriter):
    """Writer of the micro-batches of a stream."""


def register(spark: Any) -> None:
    """Register the data source "pykaproducer" with a session.

    Spark finds an installed sink by itself, unless another package named ``pyspark_*`` fails to
    import.

    Args:
        spark (SparkSession): may be a Spark Connect session.
    """
    from pyspark_pykaproducer import DefaultSource

    try:
        spark.dataSource.register(DefaultSource)
    except AnalysisException as error:
        # Spark 4.0 refuses this if it has found the sink by itself; newer versions replace it.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[OnceResult]:
    return [each.once for each in messages if isinstance(each, Commit) and each.once is not None]


def _log_line(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    total = Summary.of(each.summary for each in messages if isinstance(each, Commit))
    results = _results(messages)
    total.repeated = len(results) == len(messages) and is_repeated(results)
    _show_log()
    log.info("%s: %s", what, "; ".join([str(total), *total.lines(most=8)]))


def _log_options(options: SinkOptions) -> None:
    # Not when the write is planned: a stream is planned in two processes, for each micro-batch.
    _show_log()
    options.log_without_effect()


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

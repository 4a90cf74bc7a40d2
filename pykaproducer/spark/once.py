"""Exactly-once writes: the protocol in Spark's tasks and in its driver.

The protocol is in :mod:`pykaproducer._exactly_once`, without Spark. This module finds out which
batch of which query is written, passes the results of tasks to the driver, and keeps the
connections to the coordinators from task to task.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark import TaskContext

from pykaproducer._exactly_once.commit import BatchCommit
from pykaproducer._exactly_once.records import BatchKey
from pykaproducer._exactly_once.rows import ArrowRows
from pykaproducer._exactly_once.setup import WriteKind
from pykaproducer._exactly_once.task import Rows, TaskPlace, TaskResult, write_rows
from pykaproducer._load.messages import MessageColumns
from pykaproducer._load.summary import Summary
from pykaproducer.errors import PykaproducerError
from pykaproducer.producer import Producer
from pykaproducer.spark.once_options import OnceOptions
from pykaproducer.spark.options import PROGRESS_DIRECTORY, SinkError, SinkOptions
from pykaproducer.spark.producers import KeptClients, producer_for
from pykaproducer.transaction_control import TransactionControl

#: Local properties of the tasks of a stream. (Those of ``foreachBatch`` have them as well.)
_JOB_GROUP = "spark.jobGroup.id"
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"

#: The connections of this process to coordinators.
_controls = KeptClients[TransactionControl](discard=TransactionControl.close)
#: The prefixes with which the last commit of this process has succeeded.
_committed: set[str] = set()


@dataclass(frozen=True)
class OnceWrite:
    """An exactly-once write."""

    options: SinkOptions
    once: OnceOptions
    #: STREAM or SINGLE, as planned. In ``foreachBatch`` the tasks use NUMBERED instead of SINGLE.
    kind: WriteKind
    #: Identifies a batch write that has no ``writeId``.
    random_id: str
    #: The argument of ``write(df, batch=...)``.
    batch: int | None = None

    @classmethod
    def of(
        cls, options: SinkOptions, kind: WriteKind, batch: int | None = None
    ) -> OnceWrite | None:
        """Return the write with these options; None for a write that is at least once.

        Args:
            options: of the write.
            kind: STREAM, or SINGLE also in ``foreachBatch``.
            batch: the number of the micro-batch in ``foreachBatch``, if the program passes it.

        Raises:
            SinkError: an option does not fit *kind*, or *batch* is not the number of a batch.
        """
        once = options.once
        if kind is not WriteKind.STREAM and options.progress_directory is not None:
            raise SinkError(
                f"option {PROGRESS_DIRECTORY} is for streams; a batch has a summary from write()"
            )
        if once is None:
            return None
        if kind is WriteKind.STREAM and once.write_id is not None:
            raise SinkError(
                "option writeId is for batch writes; a stream is identified by its checkpoint"
            )
        if kind is not WriteKind.STREAM and once.start_without_state:
            raise SinkError(
                "option startWithoutState is for streams; a batch write, and write() in "
                "foreachBatch, do not need the state of the batch before: remove it"
            )
        is_number = isinstance(batch, int) and not isinstance(batch, bool) and batch >= 0
        if batch is not None and not is_number:
            raise SinkError(f"batch must be the number of a micro-batch, not {batch!r}")
        return cls(options, once, kind, uuid.uuid4().hex, batch)

    def check_query(self, query: str | None) -> None:
        """Check that the batch can be identified; *query* is the id of the query, if known.

        Raises:
            SinkError: the program passed a number for the batch, and the query is unknown.
        """
        if self.batch is not None and query is None and self.once.write_id is None:
            raise SinkError(
                "the id of the query is unknown: pass batch= only within foreachBatch, or pass "
                "write_id= as well, which is the same after a restart of the query"
            )

    # Tasks ---------------------------------------------------------------------------------------

    def task(self, columns: MessageColumns, batches: Iterator[Any], refused: Any) -> OnceResult:
        """Write the rows of one task."""
        topic, handler = self.options.topic, partial(refused, self.options)
        return self.task_of(lambda place: ArrowRows(batches, columns, topic, place, handler))

    def task_of(self, rows_at: Callable[[TaskPlace], Rows]) -> OnceResult:
        """Write the rows that *rows_at* returns for this task and its attempt."""
        context = TaskContext.get()
        assert context is not None, "not in a Spark task"
        place = TaskPlace(context.partitionId(), context.attemptNumber())
        kind, key = self._batch(*_job_of(context))
        make = partial(Producer, **self.options.producer_settings())
        with control_for(self.options) as control:
            result = write_rows(
                self.once.setup(kind, self.options.timeout_ms),
                key,
                place,
                rows_at(place),
                control,
                lambda: producer_for(self.options.settings, make),
            )
        return OnceResult(kind, key, result)

    def _batch(self, query: str | None, batch: str | None) -> tuple[WriteKind, BatchKey]:
        """Return the kind of the write, and its batch, in a job with these properties.

        Raises:
            SinkError: the program passed a number for the batch, and the query is unknown.
        """
        if self.kind is WriteKind.STREAM:
            assert query is not None, "no query id in a task of a stream"
            assert batch is not None, "no batch id in a task of a stream"
            return WriteKind.STREAM, BatchKey(query, int(batch))
        self.check_query(query)
        if self.batch is not None:
            return WriteKind.NUMBERED, BatchKey(self.once.write_id or str(query), self.batch)
        if query is not None and batch is not None and self.once.write_id is None:
            return WriteKind.NUMBERED, BatchKey(query, int(batch))
        return WriteKind.SINGLE, BatchKey(self.once.write_id or self.random_id, 0)

    # The driver ----------------------------------------------------------------------------------

    def run(self, tasks: Callable[[], list[OnceResult]], session: Any = None) -> Summary:
        """Run the tasks and commit their transactions; abort them if a step fails.

        *tasks* runs them in *session* and returns their results. This is for writes that the
        program itself commits: ``write()`` and ``pykaproducer load --spark``.
        """
        planned = self._batch(*_job_of(_context_of(session)))
        results: list[OnceResult] | None = None
        try:
            results = tasks()
            self.commit(results)
        except BaseException as error:
            with contextlib.suppress(PykaproducerError):
                note = self.abort(results or [], running=results is None, planned=planned)
                if note is not None:
                    error.add_note(note)
            raise
        total = Summary.of(each.result.summary for each in results)
        total.repeated = is_repeated(results)
        return total

    def commit(self, results: Sequence[OnceResult], batch: int | None = None) -> None:
        """Commit a batch, given the results of all tasks.

        *batch* is the number of a stream's micro-batch; None for other writes. The errors are those
        of :meth:`BatchCommit.commit <pykaproducer._exactly_once.commit.BatchCommit.commit>`.
        """
        if not results and batch is None:
            return
        prefix = self.once.names.prefix
        with self._commit_of(*self._named(results, batch)) as commit:
            _committed.discard(prefix)
            commit.commit([each.result for each in results])
            _committed.add(prefix)

    def abort(
        self,
        results: Sequence[OnceResult],
        batch: int | None = None,
        *,
        running: bool,
        planned: tuple[WriteKind, BatchKey] | None = None,
    ) -> str | None:
        """Abort a batch unless it is decided; return a note that says so if it is.

        Args:
            results: may lack those of failed tasks, and of tasks that are still running.
            batch: as of :meth:`commit`.
            running: whether tasks may still run.
            planned: the kind and the batch, if they are known without results.
        """
        kind, key = self._named(results, batch, planned)
        with self._commit_of(kind, key) as commit:
            decided = commit.abort([each.result for each in results], running=running)
        if not decided:
            return None
        if kind is WriteKind.SINGLE:
            return (
                f"the write is decided: its rows are visible, or will be when they are written "
                f"again with writeId {key.query!r}; without it they would be there twice"
            )
        return "the batch is decided: its rows are visible, or will be when it is repeated"

    def _named(
        self,
        results: Sequence[OnceResult],
        batch: int | None,
        planned: tuple[WriteKind, BatchKey] | None = None,
    ) -> tuple[WriteKind, BatchKey]:
        """Return the kind of the write, and its batch: as its tasks know it, if one has ended."""
        if results:
            return results[0].kind, results[0].key
        if batch is not None:
            # The tasks of a micro-batch know the id of the query. This process does not, so the
            # protocol uses that of the last decision.
            return WriteKind.STREAM, BatchKey("", batch)
        return planned or self._batch(None, None)

    @contextmanager
    def _commit_of(self, kind: WriteKind, key: BatchKey) -> Iterator[BatchCommit]:
        setup = self.once.setup(kind, self.options.timeout_ms)
        is_first = self.once.names.prefix not in _committed
        with control_for(self.options) as control:
            yield BatchCommit(setup, key, control, is_first=is_first)


def run_of_task() -> str | None:
    """Return the id of the run of the streaming query to which this task belongs.

    Spark cancels the jobs of a run by this id, so it is their job group.
    """
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(_JOB_GROUP)


@dataclass(frozen=True)
class OnceResult:
    """The result of a task, and the batch to which it belongs."""

    kind: WriteKind
    key: BatchKey
    result: TaskResult


def query_of(session: Any) -> str | None:
    """Return the id of the query whose ``foreachBatch`` function calls; None if there is none.

    A session of Spark Connect does not know it, and neither do its tasks.
    """
    return _job_of(_context_of(session))[0]


def _context_of(session: Any) -> Any:
    return getattr(session, "sparkContext", None)


def _job_of(context: Any) -> tuple[str | None, str | None]:
    """Return the ids of the query and of its batch from the local properties of *context*."""
    if context is None:
        return None, None
    return context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)


def is_repeated(results: Sequence[OnceResult]) -> bool:
    """Return whether nothing was written because the batch was committed before."""
    return bool(results) and all(each.result.is_done for each in results)


def control_for(options: SinkOptions) -> AbstractContextManager[TransactionControl]:
    """Return a context manager with the connections of this process to the coordinators.

    They are closed if the block raises: Spark may reuse the worker, for a task that expects
    connections without a pending response.
    """
    return _controls.used(
        options.settings, lambda: TransactionControl(**options.producer_settings())
    )

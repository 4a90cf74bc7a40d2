"""A load on Spark: its tasks convert and send the rows.

They read files themselves, as the embedded load does (``_load/sources.py``): Spark distributes the
parts of the files by name, so every machine must see the files under these names. Only tables,
queries, and URIs that pyarrow cannot read, are read by Spark.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import StructType

from pykaproducer._exactly_once import points
from pykaproducer._exactly_once.errors import ExactlyOnceError
from pykaproducer._exactly_once.rows import RowCount
from pykaproducer._exactly_once.setup import WriteKind
from pykaproducer._exactly_once.task import TaskPlace
from pykaproducer._load.files import delimiter_of, format_of
from pykaproducer._load.job import Job
from pykaproducer._load.names import QUERIES, SourceError
from pykaproducer._load.refused import RowsRefusedError
from pykaproducer._load.rejects import Origin
from pykaproducer._load.sources import LoadSource, SourcePart, columns_of
from pykaproducer._load.summary import Summary
from pykaproducer.producer import Producer
from pykaproducer.spark import json_lines
from pykaproducer.spark.once import OnceWrite
from pykaproducer.spark.options import SinkError, SinkOptions
from pykaproducer.spark.places import pieces, with_places
from pykaproducer.spark.producers import producer_for
from pykaproducer.spark.rows import arrow_types
from pykaproducer.spark.summaries import as_batch, collect

try:
    from py4j.protocol import Py4JError
except ImportError:  # a Spark Connect client has no JVM
    Py4JError = PySparkException

__all__ = [
    "ExactlyOnceError",
    "Job",
    "Reading",
    "SinkError",
    "SparkError",
    "SparkSource",
    "files",
    "query",
    "send",
    "session_on",
]

_CONNECT = "sc://"
#: Value of ``--spark`` for the session that spark-submit has prepared.
SUBMITTED = "submitted"
#: Errors of Spark; some errors of its JVM have no Python class.
_FAILURES = (PySparkException, Py4JError)
#: Bytes of files that a task reads: at most; at least; and else so many that there are _TASKS. A
#: file counts for _OPENING bytes more.
_LARGEST_TASK = 64 << 20
_SMALLEST_TASK = 4 << 20
_TASKS = 16
_OPENING = 256 << 10


class SparkError(Exception):
    """Spark reported an error, whose text this has."""


@dataclass(frozen=True)
class Reading:
    """A source that Spark reads."""

    #: URIs, the name of a table, or a query.
    source: tuple[str, ...]
    #: None: by suffix. ``table`` and ``sql`` denote a table and a query.
    format: str | None
    delimiter: str | None
    #: Send JSON Lines as they stand, unless their objects have a member ``value``.
    whole_lines: bool = False


#: Receives the numbers of bytes and rows that a task has read. Can be pickled.
Advance = Callable[[tuple[int, int]], None]


class TaskRows(Protocol):
    """How a task gets its rows from the batches that Spark passes to it. Can be pickled."""

    def __call__(
        self, batches: Iterator[pyarrow.RecordBatch], *, advance: Advance
    ) -> Iterator[Origin]: ...


@dataclass(frozen=True)
class SparkSource:
    """A source whose rows the tasks send."""

    #: The ``pyarrow.Schema`` of the rows.
    schema: Any
    #: Returns the DataFrame that is passed to the tasks, for these columns, and what they make of
    #: its batches.
    for_tasks: Callable[[Sequence[str]], tuple[Any, TaskRows]]


def session_on(master: str) -> tuple[Any, bool]:
    """Return a session, and whether it was created here and must be stopped.

    Raises:
        SparkError: no session could be created.
    """
    ours = SparkSession.getActiveSession() is None
    builder = SparkSession.builder.appName("pykaproducer load")
    if master.startswith(_CONNECT):
        builder = builder.remote(master)
    elif master != SUBMITTED:
        builder = builder.master(master)
    try:
        with _own_python(master):
            return builder.getOrCreate(), ours
    except (*_FAILURES, RuntimeError, ImportError, OSError) as error:
        raise SparkError(_text(error)) from error


@contextlib.contextmanager
def _own_python(master: str) -> Iterator[None]:
    """Have a session on this machine started with this Python, unless the user has named another.

    Its workers would run the first ``python3`` of ``PATH``.
    """
    if not master.startswith("local") or "PYSPARK_PYTHON" in os.environ:
        yield
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        yield
    finally:
        del os.environ["PYSPARK_PYTHON"]


def files(session: Any, source: LoadSource) -> SparkSource:
    """Return files as a source of tasks, each of which reads one part of a file, or a few files."""
    size = min(_LARGEST_TASK, max(_SMALLEST_TASK, source.size // _TASKS))
    tasks = _tasks(source.parts(size), size)

    def for_tasks(columns: Sequence[str]) -> tuple[Any, TaskRows]:
        # Each partition has one number, that of its task.
        numbers = session.range(0, len(tasks), 1, len(tasks))
        return numbers, FileRows(tasks, columns_of(source.schema, columns))

    return SparkSource(source.schema, for_tasks)


def _tasks(parts: Sequence[SourcePart], size: int) -> list[list[SourcePart]]:
    """Gather *parts* for tasks that read about *size* bytes."""
    tasks: list[list[SourcePart]] = []
    room = 0
    for part in parts:
        if room <= 0:
            tasks.append([])
            room = size
        tasks[-1].append(part)
        room -= part.size + _OPENING
    return tasks


@dataclass(frozen=True)
class FileRows:
    """The rows of the files of a task."""

    tasks: Sequence[Sequence[SourcePart]]
    #: A ``pyarrow.Schema``.
    schema: Any

    def __call__(
        self, batches: Iterator[pyarrow.RecordBatch], *, advance: Advance
    ) -> Iterator[Origin]:
        """Yield the rows of the tasks whose numbers *batches* have."""
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                for part in self.tasks[number]:
                    for found in part.batches(self.schema):
                        advance((0, found.batch.num_rows))
                        yield Origin(found.batch, found.file, found.first_row)
                    advance((part.size, 0))


def query(session: Any, reading: Reading) -> SparkSource:
    """Return a source that Spark reads: URIs, a table, a query.

    Raises:
        SparkError: Spark cannot read it, or a column has a type that Arrow does not support.
    """
    if _kind(reading) == "jsonl":
        return _json_lines(session, reading)
    df = _read(session, reading)

    def for_tasks(columns: Sequence[str]) -> tuple[Any, TaskRows]:
        quoted = ["`{}`".format(name.replace("`", "``")) for name in columns]
        # mapInArrow() does not find columns by names with dots.
        wanted = [df[name].alias(str(place)) for place, name in enumerate(quoted)]
        if reading.format not in QUERIES:
            return with_places(df, wanted), functools.partial(file_rows, columns)
        # At least one column is needed: a task receives no rows without columns.
        return df.select(wanted or [lit(1)]), functools.partial(query_rows, columns)

    return SparkSource(_arrow_schema(df), for_tasks)


def _json_lines(session: Any, reading: Reading) -> SparkSource:
    try:
        df = json_lines.lines(session, reading.source)
        schema, rows = json_lines.rows_of(
            df, ", ".join(reading.source), whole_lines=reading.whole_lines
        )
    except (*_FAILURES, SourceError) as error:
        raise SparkError(_text(error)) from error

    def for_tasks(columns: Sequence[str]) -> tuple[Any, TaskRows]:
        names = None if rows.names is None else tuple(columns)
        return df, dataclasses.replace(rows, names=names)

    return SparkSource(schema, for_tasks)


def _kind(reading: Reading) -> str:
    """Return the format, which Spark's readers have in common for all sources."""
    if reading.format is not None:
        return reading.format
    try:
        return _only(map(format_of, reading.source), "formats")
    except SourceError as error:
        raise SparkError(str(error)) from error


def _only(found: Iterable[str], what: str) -> str:
    different = dict.fromkeys(found)
    if len(different) > 1:
        names = " and ".join(map(repr, different))
        raise SparkError(f"the sources have several {what} ({names}); load each by itself")
    return next(iter(different))


def file_rows(
    columns: Sequence[str], batches: Iterator[pyarrow.RecordBatch], *, advance: Advance
) -> Iterator[Origin]:
    """Yield the rows that Spark has read from files, with the names of their *columns*."""
    for batch, place, first_row in pieces(batches):
        advance((0, batch.num_rows))
        yield Origin(batch.rename_columns(columns), place, first_row)


def query_rows(
    columns: Sequence[str], batches: Iterator[pyarrow.RecordBatch], *, advance: Advance
) -> Iterator[Origin]:
    """Yield the rows of a table or query, with the names of their *columns*."""
    context = TaskContext.get()
    assert context is not None, "not in a Spark task"
    where, row = f"Spark partition {context.partitionId()}", 0
    for batch in batches:
        advance((0, batch.num_rows))
        found = batch.select([*range(len(columns))]).rename_columns(columns)
        yield Origin(found, where, row)
        row += batch.num_rows


def _read(session: Any, reading: Reading) -> Any:
    try:
        if reading.format == "sql":
            return session.sql(reading.source[0])
        if reading.format == "table":
            return session.table(reading.source[0])
        kind = _kind(reading)
        reader = session.read.format(kind).options(**_as_embedded(kind, reading))
        return reader.load(list(reading.source))
    except _FAILURES as error:
        raise SparkError(_text(error)) from error


def _as_embedded(kind: str, reading: Reading) -> dict[str, Any]:
    """Return options that make Spark read URIs as similarly to the embedded load as it can.

    By default Spark replaces unreadable values by null, takes the columns of one file for all, and
    leaves out subdirectories. (It replaces malformed UTF-8 all the same.)
    """
    common = {
        "recursiveFileLookup": True,
        "mode": "FAILFAST",
        "ignoreCorruptFiles": False,
        "ignoreMissingFiles": False,
    }
    if kind == "csv":
        return common | {
            "header": True,
            "enforceSchema": False,
            "sep": reading.delimiter or _only(map(delimiter_of, reading.source), "delimiters"),
            "multiLine": True,
            "quote": '"',
            "escape": '"',
            # Otherwise "" is read as null, too.
            "nullValue": "\0",
        }
    return common | {"mergeSchema": True}


def _arrow_schema(df: Any) -> Any:
    """Return the ``pyarrow.Schema`` of the batches that tasks receive."""
    fields = []
    for each in df.schema.fields:
        try:
            fields += arrow_types(StructType([each]))
        except PySparkException as error:
            raise SparkError(
                f"column {each.name} is {each.dataType.simpleString()}, which cannot be passed to "
                f"Python; cast it or omit it with --format sql"
            ) from error
    return pyarrow.schema(fields)


class _Sum(AccumulatorParam[tuple[int, int]]):
    """Adds up in a task what it has read."""

    def zero(self, value: tuple[int, int]) -> tuple[int, int]:
        """Return what a task begins with."""
        return (0, 0)

    def addInPlace(  # noqa: N802
        self, value1: tuple[int, int], value2: tuple[int, int]
    ) -> tuple[int, int]:
        """Add."""
        return value1[0] + value2[0], value1[1] + value2[1]


class _Shown(_Sum):
    """Shows in the driver what tasks have read. Spark adds it at the end of each task."""

    def __init__(self, show: Callable[[int, int], None]) -> None:
        self._show = show

    def addInPlace(  # noqa: N802
        self, value1: tuple[int, int], value2: tuple[int, int]
    ) -> tuple[int, int]:
        """Add, and show it."""
        self._show(*value2)
        return super().addInPlace(value1, value2)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Sum, ()


def _unseen(read: tuple[int, int]) -> None:
    """Do nothing: Spark Connect has no accumulators."""


def _advance(session: Any, show: Callable[[int, int], None] | None) -> Advance:
    if show is None or not isinstance(session, SparkSession):
        return _unseen
    accumulator: Any = session.sparkContext.accumulator((0, 0), _Shown(show))
    advance: Advance = accumulator.add
    return advance


def send(
    source: SparkSource,
    settings: dict[str, Any],
    job: Job,
    once: Mapping[str, str] | None = None,
    show: Callable[[int, int], None] | None = None,
) -> Summary:
    """Send the rows of *source* and return the summary.

    Args:
        source (SparkSource): the rows.
        settings: the producer's settings, by their Python names.
        job (Job): what to send.
        once: the options of an exactly-once write; None for at least once.
        show: called in a thread with the bytes and rows that each task has read; not with Spark
            Connect.

    Raises:
        SparkError: a task failed permanently.
        SinkError: an option in *once* is missing or invalid.
        ExactlyOnceError: with *once*: the rows were not committed, or not entirely.
    """
    write = None if once is None else _once_write(settings, job, once)
    try:
        df, rows_of = source.for_tasks(job.mapping.columns)
        rows = functools.partial(rows_of, advance=_advance(df.sparkSession, show))
        if write is not None:
            task = functools.partial(_once_task, write, job, rows)
            return write.run(lambda: collect(df, task), df.sparkSession)
        return Summary.of(
            collect(df, functools.partial(_task, tuple(sorted(settings.items())), job, rows))
        )
    except _FAILURES as error:
        raise SparkError(_text(error)) from error


def _task(
    settings: tuple[tuple[str, Any], ...],
    job: Job,
    rows: Callable[[Iterator[pyarrow.RecordBatch]], Iterator[Origin]],
    batches: Iterator[pyarrow.RecordBatch],
) -> Iterator[pyarrow.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    part = f"{context.partitionId()}-{context.taskAttemptId()}"
    with producer_for(settings, lambda: Producer(**dict(settings))) as producer:
        load = job.begin(producer, part)
        problem = None
        try:
            load.send(rows(batches))
        except SourceError as error:  # another attempt would send the rows before it again
            problem = f"{error}: only a part of it was read"
        summary = load.finish()
        if problem is not None:
            summary.troubles.append(problem)
    yield as_batch(summary)


def _once_write(settings: dict[str, Any], job: Job, once: Mapping[str, str]) -> OnceWrite:
    own = {name.lower(): text for name, text in once.items()}
    if job.topic is not None:
        own["topic"] = job.topic
    write = OnceWrite.of(SinkOptions.of_settings(settings, own), WriteKind.SINGLE)
    assert write is not None, "exactlyOnce is true"
    return write


def _once_task(
    write: OnceWrite,
    job: Job,
    rows: Callable[[Iterator[pyarrow.RecordBatch]], Iterator[Origin]],
    batches: Iterator[pyarrow.RecordBatch],
) -> Iterator[pyarrow.RecordBatch]:
    yield as_batch(write.task_of(functools.partial(LoadRows, job, rows(batches))))


class LoadRows:
    """The rows of a task of a load, for :func:`~pykaproducer._exactly_once.task.write_rows`."""

    def __init__(self, job: Job, origins: Iterator[Origin], place: TaskPlace) -> None:
        self._job = job
        self._place = place
        self._origins = origins
        self._first: Origin | None = None
        self._count = RowCount()

    def is_empty(self) -> bool:
        """Return whether there are no rows. A batch that is read to find out is kept."""
        while self._first is None:
            try:
                origin = next(self._origins, None)
            except SourceError as error:
                raise RowsRefusedError(str(error)) from error
            if origin is None:
                return True
            if origin.batch.num_rows:
                self._first = origin
        return False

    def read(self) -> tuple[int, int]:
        """Read all rows. Return their number and checksum."""
        for origin in self._all():
            self._count.add(self._job.mapping(origin.batch).batch)
        return self._count.rows, self._count.checksum

    def send(self, producer: Producer) -> tuple[int, int, Summary]:
        """Send all rows and wait for their outcomes. Return their number, checksum and summary.

        Raises:
            RowsRefusedError: a row was rejected, and there is no directory for such rows.
        """
        load = self._job.begin(producer, f"{self._place.task}-{self._place.attempt}")
        load.on_batch = self._count.add
        load.send(self._all())
        summary = load.finish()
        if summary.troubles or (summary.refused and self._job.rejects is None):
            reasons = [text for text, _ in summary.reasons.values()]
            raise RowsRefusedError("; ".join([*summary.troubles, *reasons]))
        return self._count.rows, self._count.checksum, summary

    def _all(self) -> Iterator[Origin]:
        while not self.is_empty():
            origin, self._first = self._first, None
            assert origin is not None
            yield origin
            points.reached("rows", *self._place)


def _text(error: BaseException) -> str:
    """Return the text of Spark's error without the stack trace of its JVM."""
    return str(error).partition("\n\nJVM stacktrace")[0].partition("\n\tat ")[0].strip()

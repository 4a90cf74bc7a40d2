"""A load on Spark: Spark reads the source, and its tasks convert and send the rows."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import StructType

from pykaproducer._exactly_once import points
from pykaproducer._exactly_once.errors import ExactlyOnceError
from pykaproducer._exactly_once.rows import RowCount
from pykaproducer._exactly_once.setup import WriteKind
from pykaproducer._exactly_once.task import TaskPlace
from pykaproducer._load.files import SourceError, delimiter_of, format_of
from pykaproducer._load.job import Job
from pykaproducer._load.refused import RowsRefusedError
from pykaproducer._load.rejects import Origin
from pykaproducer._load.summary import Summary
from pykaproducer.producer import Producer
from pykaproducer.spark.once import OnceWrite
from pykaproducer.spark.options import SinkError, SinkOptions
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
    "arrow_schema",
    "read",
    "send",
    "session_on",
]

_CONNECT = "sc://"
#: Value of ``--spark`` for the session that spark-submit has prepared.
SUBMITTED = "submitted"
#: Errors of Spark; some errors of its JVM have no Python class.
_FAILURES = (PySparkException, Py4JError)
#: Spark's names of formats, where they differ.
_FORMATS = {"jsonl": "json"}


class SparkError(Exception):
    """Spark reported an error, whose text this has."""


@dataclass(frozen=True)
class Reading:
    """The source that Spark reads."""

    #: Paths, the name of a table, or a query.
    source: tuple[str, ...]
    #: None: by suffix. ``table`` and ``sql`` denote a table and a query.
    format: str | None
    delimiter: str | None
    infer_types: bool


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
        return builder.getOrCreate(), ours
    except (*_FAILURES, RuntimeError, ImportError, OSError) as error:
        raise SparkError(_text(error)) from error


def read(session: Any, reading: Reading) -> Any:
    """Return the DataFrame of a source.

    Raises:
        SparkError: the source cannot be read.
    """
    try:
        if reading.format == "sql":
            return session.sql(reading.source[0])
        if reading.format == "table":
            return session.table(reading.source[0])
        kind = reading.format or format_of(reading.source[0])
        reader = session.read.format(_FORMATS.get(kind, kind)).options(
            **_as_embedded(kind, reading)
        )
        return reader.load(list(reading.source))
    except (*_FAILURES, SourceError) as error:
        raise SparkError(_text(error)) from error


def _as_embedded(kind: str, reading: Reading) -> dict[str, Any]:
    """Return options that make Spark read files as the embedded load (``_load/formats.py``) does.

    By default Spark replaces unreadable values by null, and uses the columns of one file for all.
    """
    if kind == "csv":
        return {
            "header": True,
            "inferSchema": reading.infer_types,
            "sep": reading.delimiter or delimiter_of(reading.source[0]),
            "multiLine": True,
            "quote": '"',
            "escape": '"',
            # Otherwise "" is read as null, too.
            "nullValue": "\0",
            "mode": "FAILFAST",
        }
    if kind == "jsonl":
        return {"mode": "FAILFAST"}
    return {"mergeSchema": True}


def arrow_schema(df: Any) -> Any:
    """Return the ``pyarrow.Schema`` of the batches that tasks receive.

    Raises:
        SparkError: a column has a type that Arrow does not support.
    """
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


def send(
    df: Any, settings: dict[str, Any], job: Job, once: Mapping[str, str] | None = None
) -> Summary:
    """Send the rows of *df* and return the summary.

    Args:
        df (pyspark.sql.DataFrame): the source.
        settings: the producer's settings, by their Python names.
        job (Job): what to send.
        once: the options of an exactly-once write; None for at least once.

    Raises:
        SparkError: a task failed permanently.
        SinkError: an option in *once* is missing or invalid.
        ExactlyOnceError: with *once*: the rows were not committed, or not entirely.
    """
    names = [name.replace("`", "``") for name in job.mapping.columns]
    write = None if once is None else _once_write(settings, job, once)
    try:
        # At least one column is needed: a task receives no rows without columns.
        wanted = df.select([df[f"`{name}`"] for name in names] or [lit(1).alias("nothing")])
        if write is not None:
            return write.run(
                lambda: collect(wanted, functools.partial(_once_task, write, job)), df.sparkSession
            )
        task = functools.partial(_task, tuple(sorted(settings.items())), job)
        return Summary.of(collect(wanted, task))
    except _FAILURES as error:
        raise SparkError(_text(error)) from error


def _task(
    settings: tuple[tuple[str, Any], ...], job: Job, batches: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    part = f"{context.partitionId()}-{context.taskAttemptId()}"
    with producer_for(settings, lambda: Producer(**dict(settings))) as producer:
        load = job.begin(producer, part)
        load.send(_origins(f"Spark partition {context.partitionId()}", batches))
        summary = load.finish()
    yield as_batch(summary)


def _once_write(settings: dict[str, Any], job: Job, once: Mapping[str, str]) -> OnceWrite:
    own = {name.lower(): text for name, text in once.items()}
    if job.topic is not None:
        own["topic"] = job.topic
    write = OnceWrite.of(SinkOptions.of_settings(settings, own), WriteKind.SINGLE)
    assert write is not None, "exactlyOnce is true"
    return write


def _once_task(
    write: OnceWrite, job: Job, batches: Iterator[pyarrow.RecordBatch]
) -> Iterator[pyarrow.RecordBatch]:
    yield as_batch(write.task_of(functools.partial(LoadRows, job, batches)))


class LoadRows:
    """The rows of a task of a load, for :func:`~pykaproducer._exactly_once.task.write_rows`."""

    def __init__(self, job: Job, batches: Iterator[pyarrow.RecordBatch], place: TaskPlace) -> None:
        self._job = job
        self._place = place
        self._origins = _origins(f"Spark partition {place.task}", batches)
        self._first: Origin | None = None
        self._count = RowCount()

    def is_empty(self) -> bool:
        """Return whether there are no rows. A batch that is read to find out is kept."""
        while self._first is None:
            origin = next(self._origins, None)
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


def _origins(where: str, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[Origin]:
    row = 0
    for batch in batches:
        yield Origin(batch, where, row)
        row += batch.num_rows


def _text(error: BaseException) -> str:
    """Return the text of Spark's error without the stack trace of its JVM."""
    return str(error).partition("\n\nJVM stacktrace")[0].partition("\n\tat ")[0].strip()

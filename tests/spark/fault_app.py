"""An application on a small cluster, in which something dies in the middle of each write.

Run by test_faults.py. Spark restarts the lost tasks. The writes are of the sink, or loads of files.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow
from pyarrow import parquet
from pyspark import TaskContext

from pykaproducer import cli
from pykaproducer._load import rejects
from pykaproducer.spark import load
from pykaproducer.spark.sink import BatchSink
from pyspark_pykaproducer import DefaultSource
from tests._support.fixtures.spark import spark_session
from tests.spark.helper import Meeting

ROWS = 40_000
#: The processes that die, in the order of the writes.
FAULTS = ("worker", "executor", "broker")
LOAD_FAULTS = ("task", "worker", "executor")
#: Rows of its first partition, which are sent before the fault.
FIRST_TASK = range(ROWS // 8)
#: The fault happens after this many batches of 1,000 rows, in the first attempt at the first
#: partition.
_MIDDLE = 5
#: Files of a load, and bytes of a row in them: one that small would be read by one task.
_FILES, _ROW = 4, 500
#: Every one of so many rows of a load is refused, if rows may be.
REFUSED = 1_000


class Fated(BatchSink):
    """The sink, with a fault in the first attempt at the first partition."""

    def __init__(self, options: Any, schema: Any, overwrite: bool, fault: str, sign: str) -> None:
        super().__init__(options, schema, overwrite)
        self._fault, self._sign = fault, sign

    def write(self, batches: Iterator[Any]) -> Any:
        return super().write(self._until_it_dies(batches))

    def _until_it_dies(self, batches: Iterator[Any]) -> Iterator[Any]:
        return _until_it_dies(batches, self._fault, self._sign)


def _until_it_dies(batches: Iterator[Any], fault: str, sign: str) -> Iterator[Any]:
    context = TaskContext.get()
    assert context is not None
    fated = context.partitionId() == 0 and context.attemptNumber() == 0
    for number, batch in enumerate(batches):
        if fated and number == _MIDDLE:
            _strike(fault, sign, context.taskAttemptId())
        yield batch


def _strike(fault: str, sign: str, task: int) -> None:
    if fault == "task":  # the driver meets the test, and has Spark kill this task
        pathlib.Path(f"{sign}-task").write_text(str(task))
        threading.Event().wait()
    # In the meantime the test checks whether rows of this attempt are in the log, or kills the
    # broker.
    Meeting.keep(sign)
    if fault == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "executor":
        # The parent process is the daemon that makes workers, and its parent is the executor.
        stat = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)


def source_of(fault: str, sign: str) -> type[DefaultSource]:
    class Source(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return f"fated-{fault}"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return Fated(self.options, schema, overwrite, fault, sign)

    return Source


def main(arguments: dict[str, str]) -> None:
    """Write the rows to a topic for each fault, and cause it in the middle."""
    local = pathlib.Path(arguments["local"])
    spark = spark_session(
        "local-cluster[2,1,1024]",
        local,
        **{
            "spark.task.maxFailures": "4",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        },
    )
    spark.sparkContext.setLogLevel("WARN")  # it then logs lost tasks
    if "load" in arguments:
        load_files(spark, arguments)
    else:
        write_frames(spark, arguments)
    spark.stop()


def write_frames(spark: Any, arguments: dict[str, str]) -> None:
    """Write with the sink."""
    df = spark.range(ROWS, numPartitions=4).selectExpr(
        "CAST(id % 100 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )
    for fault in FAULTS:
        print(f"-- {fault}", file=sys.stderr, flush=True)
        spark.dataSource.register(source_of(fault, f"{arguments['sign']}-{fault}"))
        topic = f"{arguments['topic']}-{fault}"
        to = df.write.format(f"fated-{fault}").option("topic", topic)
        if "once" in arguments:
            to = to.option("exactlyOnce", "true").option("transactionalIdPrefix", topic)
        to.option("kafka.bootstrap.servers", arguments["servers"]).mode("append").save()


# Loads --------------------------------------------------------------------------------------------


def load_files(spark: Any, arguments: dict[str, str]) -> None:
    """Load files with the command, on the session that exists."""
    rows = pathlib.Path(arguments["local"]) / "rows"
    _make_files(rows, refused="once" not in arguments)
    read = load.files
    for fault in LOAD_FAULTS:
        print(f"-- {fault}", file=sys.stderr, flush=True)
        sign, topic = f"{arguments['sign']}-{fault}", f"{arguments['topic']}-{fault}"
        load.files = functools.partial(_fated, read, fault, sign)
        if fault == "task":
            os.mkfifo(f"{sign}-task")
            threading.Thread(target=_kill_task, args=(spark.sparkContext, sign)).start()
        how = ["--rejects", f"{rows}-{fault}"]
        if "once" in arguments:
            how = ["--exactly-once", "--transactional-id-prefix", topic]
        servers = ["--bootstrap-servers", arguments["servers"], "--spark", load.SUBMITTED]
        select = ["--select", "value=value, partition=partition"]
        status = cli.main(["load", str(rows), "-t", topic, *servers, *select, *how])
        print(f"-- {fault}: exit status {status}", file=sys.stderr, flush=True)


def _make_files(directory: pathlib.Path, *, refused: bool) -> None:
    directory.mkdir()
    each = ROWS // _FILES
    for number in range(_FILES):
        values = range(number * each, (number + 1) * each)
        partitions = ["none" if refused and n % REFUSED == 0 else str(n % 3) for n in values]
        table = pyarrow.table(
            {
                "value": list(map(str, values)),
                "partition": partitions,
                "room": [os.urandom(_ROW) for _ in values],
            }
        )
        parquet.write_table(table, directory / f"{number}.parquet", row_group_size=1000)


def _fated(read: Any, fault: str, sign: str, session: Any, source: Any) -> Any:
    """Return the source that *read* returns, with the fault in its first task."""
    found = read(session, source)

    def for_tasks(columns: Sequence[str]) -> tuple[Any, Any]:
        df, rows = found.for_tasks(columns)

        def dying(batches: Iterator[Any], *, advance: Any) -> Iterator[Any]:
            rejects._GATHERED = 1  # the attempt that dies leaves a file
            return _until_it_dies(rows(batches, advance=advance), fault, sign)

        return df, dying

    return dataclasses.replace(found, for_tasks=for_tasks)


def _kill_task(context: Any, sign: str) -> None:
    task = int(pathlib.Path(f"{sign}-task").read_text())
    Meeting.keep(sign)
    context._jsc.sc().killTaskAttempt(task, True, "the test kills it")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

"""An application on a small cluster, in which something dies in the middle of each write.

Run by test_faults.py. Spark restarts the lost tasks.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext

from pykaproducer.spark.sink import BatchSink
from pyspark_pykaproducer import DefaultSource
from tests._support.fixtures.spark import spark_session
from tests.spark.helper import Meeting

ROWS = 40_000
#: The processes that die, in the order of the writes.
FAULTS = ("worker", "executor", "broker")
#: The rows of its first partition.
FIRST_TASK = range(ROWS // 4)
#: The fault happens after this many batches of 1,000 rows, in the first attempt at the first
#: partition.
_MIDDLE = 5


class Fated(BatchSink):
    """The sink, with a fault in the first attempt at the first partition."""

    def __init__(self, options: Any, schema: Any, overwrite: bool, fault: str, sign: str) -> None:
        super().__init__(options, schema, overwrite)
        self._fault, self._sign = fault, sign

    def write(self, batches: Iterator[Any]) -> Any:
        return super().write(self._until_it_dies(batches))

    def _until_it_dies(self, batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        fated = context.partitionId() == 0 and context.attemptNumber() == 0
        for number, batch in enumerate(batches):
            if fated and number == _MIDDLE:
                _strike(self._fault, self._sign)
            yield batch


def _strike(fault: str, sign: str) -> None:
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
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

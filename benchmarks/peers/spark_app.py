"""One Spark application with one sink: ``python -m benchmarks.peers.spark_app JOB``.

Its rows are in memory before its first answer. Then it reads requests from standard input and
answers on standard output, each a JSON object in a line, until the input ends. An answer is
``{"failed": REASON}`` if Spark raised an error. Spark's output goes to standard error.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.peers.spark_usage import running, used

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A 16 B key and a 100 B value, different in every row.
_ROWS = (
    "cast(substring(md5(cast(id as string)), 1, 16) as binary) as key",
    "cast(substring(concat(sha2(cast(id as string), 256), sha1(cast(id as string))), 1, 100)"
    " as binary) as value",
)
#: Keys of 0 to 40 bytes, any bytes.
_KEYS = (
    "substring(unhex(sha2(cast(id as string), 512)), 1, cast(id % 41 as int)) as key",
    "cast(cast(id as string) as binary) as value",
)
_KEY_COUNT = 5_000

#: The seconds for Java to end.
_END = 30.0


class Application:
    """A session, the rows that it holds, and the sink to which it writes them."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._spark = _session(job)
        context = self._spark.sparkContext
        context.setLogLevel("ERROR")
        assert context._gateway is not None
        self._java = context._gateway.proc
        self._format = job["format"]
        self._options: dict[str, str] = job["options"]
        if self._format == "pykaproducer":
            import pykaproducer.spark
            from benchmarks.peers import spark_count

            pykaproducer.spark.register(self._spark)
            self._spark.dataSource.register(spark_count.Source)
        self._frames = {
            "rows": _cached(self._spark, job["rows"], job["tasks"]),
            "keys": self._spark.range(_KEY_COUNT).selectExpr(*_KEYS),
        }

    def ready(self) -> dict[str, Any]:
        return {"jvm": self._java.pid, "keys": _KEY_COUNT, "spark": self._spark.version}

    def write(self, frame: str, topic: str, sink: str | None = None) -> dict[str, Any]:
        """Write once, measuring from the call until it has returned."""
        writer = self._frames[frame].write.format(sink or self._format).mode("append")
        writer = writer.options(**self._options).option("topic", topic)
        before = running()
        start = time.perf_counter()
        writer.save()
        wall = time.perf_counter() - start
        spent = used(self._java.pid, before, running())
        return {"wall": wall, **vars(spent)}

    def stop(self) -> None:
        """Stop the session, and wait until Java has ended."""
        self._spark.stop()
        self._java.stdin.close()
        self._java.wait(_END)


def _session(job: Mapping[str, Any]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().appName("pykaproducer benchmark")
    for name, value in job["session"].items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _cached(spark: SparkSession, rows: int, tasks: int) -> DataFrame:
    frame = spark.range(0, rows, 1, tasks).selectExpr(*_ROWS).cache()
    if frame.count() != rows:
        raise RuntimeError("Spark has not made as many rows as it was asked for")
    for stored in spark.sparkContext._jsc.sc().getRDDStorageInfo():
        if stored.diskSize() or stored.numCachedPartitions() < stored.numPartitions():
            raise RuntimeError("the rows do not fit into Spark's memory: give --memory more")
    return frame


def _reason(text: str) -> str:
    """Return each exception and its cause, without the tracebacks."""
    lines = (line for line in text.splitlines() if not line.startswith(("\tat ", "\t...")))
    return "\n".join(line for line in lines if line.strip())


def main() -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    failures = (Py4JError, PySparkException)
    job = json.loads(sys.argv[1])
    # Java writes to the standard output it inherits, which must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    application = Application(job)
    print(json.dumps(application.ready()), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        # A hang ends the process with the tracebacks of all threads.
        faulthandler.dump_traceback_later(request["limit"], exit=True)
        try:
            answer = application.write(request["frame"], request["topic"], request["sink"])
        except failures as error:
            # The next write may succeed.
            answer = {"failed": _reason(str(error))}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(answer), file=answers)
    application.stop()


if __name__ == "__main__":
    main()

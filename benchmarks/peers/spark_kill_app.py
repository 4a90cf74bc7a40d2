"""A Spark application that is killed: ``python -m benchmarks.peers.spark_kill_app JOB``.

It writes a batch, or a stream from text files, with the sink. ``PYKA_FAULT`` in its environment
says where a process pauses. A stream writes its first files before the pipe of the pause exists, so
that there is an earlier micro-batch.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _session(job: dict[str, Any]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder().appName("pykaproducer kills").master(job["master"])
    directory = job["directory"]
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": f"{directory}/local",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.task.maxFailures": "4",
        # So that "rows" is in the middle of a task.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
        # A file is split for each core.
        "spark.sql.files.minPartitionNum": str(job["tasks"]),
        "spark.sql.files.openCostInBytes": "0",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")  # it then logs lost tasks
    return spark


def _write_batch(spark: SparkSession, job: dict[str, Any]) -> None:
    rows = spark.range(job["rows"], numPartitions=job["tasks"]).selectExpr(
        "CAST(id AS STRING) AS value"
    )
    rows.write.format("pykaproducer").options(**job["options"]).mode("append").save()


def _write_stream(spark: SparkSession, job: dict[str, Any]) -> None:
    directory = Path(job["directory"])
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory / "in"))
    query = (
        lines.writeStream.format("pykaproducer")
        .options(**job["options"])
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    job = json.loads(sys.argv[1])
    import pykaproducer.spark

    spark = _session(job)
    pykaproducer.spark.register(spark)
    if job["kind"] == "batch":
        _make_pipes(job)
        _write_batch(spark, job)
    else:
        if job["first"]:
            _write_stream(spark, job)
            for path in Path(job["directory"], "later").iterdir():
                path.rename(Path(job["directory"], "in", path.name))
        _make_pipes(job)
        _write_stream(spark, job)
    spark.stop()


def _make_pipes(job: dict[str, Any]) -> None:
    if job["pipe"] is not None:
        os.mkfifo(f"{job['pipe']}-done")
        os.mkfifo(job["pipe"])


if __name__ == "__main__":
    main()

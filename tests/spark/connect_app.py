"""An application of Spark Connect that only relies on the sink being installed."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from pykaproducer.spark import ProgressListener, Summary, write


def show(progress: Any, summary: Summary) -> None:
    """Print what a micro-batch has written, and Spark's count of its rows."""
    print(f"listener: {progress.name} {progress.batchId}: {progress.numInputRows} in, {summary}")


def main(arguments: dict[str, str]) -> None:
    """Write the same rows in several ways."""
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", arguments["local"])
        .getOrCreate()
    )
    servers, topic = arguments["servers"], arguments["topic"]
    df = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    df.write.format("pykaproducer").option("kafka.bootstrap.servers", servers).option(
        "topic", f"{topic}-batch"
    ).mode("append").save()
    print("summary:", write(df, topic=f"{topic}-write", bootstrap_servers=servers), flush=True)
    once = {"exactly_once": True, "transactional_id_prefix": f"{topic}-once", "write_id": "first"}
    for _ in range(2):
        summary = write(df, topic=f"{topic}-once", bootstrap_servers=servers, **once)
        print("repeated:", summary.repeated, flush=True)
    with ProgressListener(spark, show) as listener:
        query = (
            spark.readStream.text(arguments["input"])
            .writeStream.format("pykaproducer")
            .options(**listener.options)
            .option("kafka.bootstrap.servers", servers)
            .option("topic", f"{topic}-stream")
            .option("checkpointLocation", arguments["checkpoint"])
            .queryName("lines")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print("left:", *map(os.path.exists, listener.options.values()), flush=True)
    spark.stop()


if __name__ == "__main__":
    os.environ["SPARK_TESTING"] = "1"  # any free port, not 15002, which may be in use
    main(json.loads(sys.argv[1]))

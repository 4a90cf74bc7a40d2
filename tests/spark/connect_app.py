"""An application of Spark Connect that only relies on the sink being installed."""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from pykaproducer.spark import write


def main(arguments: dict[str, str]) -> None:
    """Write the same rows in three ways."""
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
    query = (
        spark.readStream.text(arguments["input"])
        .writeStream.format("pykaproducer")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", f"{topic}-stream")
        .option("checkpointLocation", arguments["checkpoint"])
        .queryName("lines")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    os.environ["SPARK_TESTING"] = "1"  # any free port, not 15002, which may be in use
    main(json.loads(sys.argv[1]))

"""Payments from CSV files to Kafka, each exactly once: a cleaned stream on Spark.

::

    python payments.py DIRECTORY --bootstrap-servers HOST:PORT [--checkpoint DIR] [--once]

It reads each file that is moved into DIRECTORY once. A line is ``id,account,amount,currency,time``.
It writes to two topics:

- ``payments-valid``: each valid payment as JSON, with the account as the key, and with its time;
- ``payments-rejected``: each other line unchanged, with the reason and the file as headers.

Kill it at any moment, and start it again: a reader of committed messages sees each line once, in
one of the topics. ``examples/README.rst`` shows how to try it, and ``docs/spark-exactly-once.rst``
explains it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery

FIELDS = ("id", "account", "amount", "currency", "time")
#: Names what the query keeps in Kafka. No other query may use it.
PREFIX = "examples.payments"


def read(spark: SparkSession, directory: str) -> DataFrame:
    """Return the lines of the files and their fields. Each file is a micro-batch."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(directory)
    parts = sf.split("value", ",")
    fields = [sf.trim(sf.get(parts, sf.lit(i))).alias(name) for i, name in enumerate(FIELDS)]
    return (
        lines.select("value", sf.col("_metadata.file_name").alias("file"), *fields)
        .where("value != ''")
        .withColumn("amount", sf.expr("try_cast(amount AS DECIMAL(18, 2))"))
        .withColumn("currency", sf.upper("currency"))
        .withColumn("time", sf.expr("try_cast(time AS TIMESTAMP)"))
        .withColumn("reason", _reason(sf.size(parts)))
    )


def _reason(fields: Column) -> Column:
    """Return why a line is not a payment; null if it is one."""
    return (
        sf.when(fields != len(FIELDS), sf.lit("not 5 fields"))
        .when(sf.col("id") == "", sf.lit("no id"))
        .when(sf.col("amount").isNull(), sf.lit("the amount is not a number"))
        .when(sf.col("amount") <= 0, sf.lit("the amount is not positive"))
        .when(~sf.col("currency").rlike("^[A-Z]{3}$"), sf.lit("no currency"))
        .when(sf.col("time").isNull(), sf.lit("no time"))
    )


def messages(lines: DataFrame) -> DataFrame:
    """Return the messages: each line is in one topic, so that one query writes both."""
    valid = sf.col("reason").isNull()
    header = "struct<key: string, value: binary>"
    reasons = sf.array(
        sf.struct(sf.lit("reason").alias("key"), sf.col("reason").cast("binary").alias("value")),
        sf.struct(sf.lit("file").alias("key"), sf.col("file").cast("binary").alias("value")),
    )
    return lines.select(
        sf.when(valid, "payments-valid").otherwise("payments-rejected").alias("topic"),
        sf.when(valid, sf.col("account")).alias("key"),
        sf.when(valid, sf.to_json(sf.struct(*FIELDS))).otherwise(sf.col("value")).alias("value"),
        sf.when(~valid, reasons).cast(f"array<{header}>").alias("headers"),
        sf.when(valid, sf.col("time")).alias("timestamp"),
    )


def start(frame: DataFrame, servers: str, checkpoint: str, *, once: bool) -> StreamingQuery:
    """Start the query. With *once* it ends when all files are written."""
    writer = (
        frame.writeStream.format("pykaproducer")
        .queryName("payments")
        .option("kafka.bootstrap.servers", servers)
        .option("exactlyOnce", "true")
        .option("transactionalIdPrefix", PREFIX)
        # Required because rows name their topics. The sink writes no state into the topic itself.
        .option("stateTopic", "payments-valid")
        .option("checkpointLocation", checkpoint)
    )
    if once:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until it is interrupted, or with ``--once`` until all files are written."""
    parser = argparse.ArgumentParser(description="Payments from CSV files to Kafka, exactly once.")
    parser.add_argument("directory", help="where complete files are moved to")
    parser.add_argument("--bootstrap-servers", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--checkpoint", default="payments-checkpoint", metavar="DIR")
    parser.add_argument("--once", action="store_true", help="end when all files are written")
    options = parser.parse_args(arguments)
    spark = SparkSession.builder.appName("payments").getOrCreate()
    frame = messages(read(spark, options.directory))
    query = start(frame, options.bootstrap_servers, options.checkpoint, once=options.once)
    query.awaitTermination()


if __name__ == "__main__":
    main()

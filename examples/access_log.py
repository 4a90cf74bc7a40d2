"""Web-server access logs into Kafka: a pipeline on Spark's structured streaming.

::

    python examples/access_log.py LOGS --bootstrap-servers HOST:PORT [--checkpoint DIR] [--once]

Reads each file in the directory LOGS once, in the common or the combined log format (nginx, Apache,
``python -m http.server``), including files that are moved there later. It writes to these topics:

- ``requests``: each request, with the client's address as the key, the request as JSON, the file's
  name as a header, and the time of the request as the timestamp;
- ``unparsed``: lines that are not requests, unchanged;
- ``status-counts``: the number of requests per minute and status. A changed count is written again
  with the same key, so the last one is valid.

``examples/README.rst`` shows how to run it on real logs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery

from pykaproducer.spark import write

#: A line of the common log format; the combined format appends referrer and user agent.
LINE = (
    r'^(\S+) \S+ .+ \[([^\]]+)\] "([A-Z]+) (\S+)(?: (HTTP/[\d.]+))?" (\d{3}) (\d+|-)'
    r'(?: "(.*?)" "(.*?)")?(?: .*)?$'
)
FIELDS = ("client", "time", "method", "path", "protocol", "status", "size", "referrer", "agent")

#: The time in the common log format, and in that of http.server, which has no time zone.
TIMES = ("dd/MMM/yyyy:HH:mm:ss Z", "dd/MMM/yyyy HH:mm:ss")

#: A request that is older than the newest one by more than this is not counted, because Spark has
#: dropped the count of its minute.
LATEST = "1 day"


def read(spark: SparkSession, logs: str) -> DataFrame:
    """Return the lines of the logs and their fields, which are null in lines without a request."""
    lines = spark.readStream.text(logs).select("value", "_metadata.file_name").where("value != ''")
    found = [
        _given(sf.regexp_extract("value", LINE, number)).alias(name)
        for number, name in enumerate(FIELDS, start=1)
    ]
    times = [sf.try_to_timestamp("time", sf.lit(form)) for form in TIMES]
    return lines.select("*", *found).withColumn("time", sf.coalesce(*times))


def _given(text: Column) -> Column:
    """Return *text*, or null if it is the placeholder of a missing value."""
    return sf.when(~text.isin("", "-"), text)


def messages(lines: DataFrame) -> DataFrame:
    """Return a message for each line, in the columns of the sink."""
    request = sf.to_json(
        sf.struct(
            sf.date_format("time", "yyyy-MM-dd'T'HH:mm:ssXXX").alias("time"),
            *("method", "path", "protocol"),
            sf.col("status").cast("int").alias("status"),
            sf.col("size").cast("long").alias("size"),
            *("referrer", "agent"),
        )
    )
    file = sf.col("file_name").cast("binary").alias("value")
    is_request = sf.col("time").isNotNull()
    return lines.select(
        sf.when(is_request, "requests").otherwise("unparsed").alias("topic"),
        sf.col("client").alias("key"),
        sf.when(is_request, request).otherwise(sf.col("value")).alias("value"),
        sf.array(sf.struct(sf.lit("file").alias("key"), file)).alias("headers"),
        sf.col("time").alias("timestamp"),  # null: the time of sending
    )


def counts(lines: DataFrame) -> DataFrame:
    """Return the number of requests per minute and status, as messages."""
    requests = lines.where("time IS NOT NULL").withWatermark("time", LATEST)
    minute = sf.date_format("window.start", "yyyy-MM-dd'T'HH:mmXXX").alias("minute")
    status = sf.col("status").cast("int").alias("status")
    return (
        requests.groupBy(sf.window("time", "1 minute"), "status")
        .count()
        .select(
            sf.concat_ws(" ", minute, "status").alias("key"),
            sf.to_json(sf.struct(minute, status, "count")).alias("value"),
        )
    )


def start(spark: SparkSession, options: argparse.Namespace) -> list[StreamingQuery]:
    """Start both queries."""
    lines = read(spark, options.logs)
    trigger = {"availableNow": True} if options.once else {"processingTime": "10 seconds"}

    def write_counts(changed: DataFrame, batch: int) -> None:
        summary = write(changed, topic="status-counts", bootstrap_servers=options.bootstrap_servers)
        print(f"status-counts, batch {batch}: {summary}", flush=True)

    # The sink itself logs a line for each micro-batch.
    to_requests = (
        messages(lines)
        .writeStream.format("pykaproducer")
        .queryName("requests")
        .option("kafka.bootstrap.servers", options.bootstrap_servers)
        .option("checkpointLocation", f"{options.checkpoint}/requests")
    )
    # Spark has the output mode "update" for foreachBatch, but not for sinks in Python.
    to_counts = (
        counts(lines)
        .writeStream.foreachBatch(write_counts)
        .queryName("status-counts")
        .outputMode("update")
        .option("checkpointLocation", f"{options.checkpoint}/status-counts")
    )
    return [query.trigger(**trigger).start() for query in (to_requests, to_counts)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until Ctrl-C, or with ``--once`` until all existing files are processed."""
    parser = argparse.ArgumentParser(description="Web-server access logs into Kafka.")
    parser.add_argument("logs", metavar="LOGS", help="the directory with finished log files")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    parser.add_argument(
        "--checkpoint",
        default="access-log-checkpoint",
        metavar="DIR",
        help="where Spark records its progress; default %(default)s",
    )
    parser.add_argument("--once", action="store_true", help="process the existing files, then exit")
    options = parser.parse_args(arguments)
    # The number of partitions of the counts. Spark's default, 200, is for a cluster.
    builder = SparkSession.builder.appName("access-log").config("spark.sql.shuffle.partitions", 2)
    with builder.getOrCreate() as spark:
        queries = start(spark, options)
        try:
            if not options.once:
                spark.streams.awaitAnyTermination()  # until one fails
            for query in queries:
                query.awaitTermination()
        except KeyboardInterrupt:
            print("interrupted; the next run continues from the checkpoint")


if __name__ == "__main__":
    main()

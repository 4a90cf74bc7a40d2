"""The command ``load``, and what users would have without it.

For files: DuckDB writes the rows as JSON to a pipe, and kcat sends the lines; JSON Lines are sent
by kcat alone. With ``--spark``: ``spark.read``, and Spark's own sink on the JVM. Rows are narrow (8
columns), wide (5,000 columns, compared with 50 by the time for a cell) or long (a text of 100 kB).
See :mod:`benchmarks.programs` for what is measured; the processes of Java are counted by their
wall-clock time alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import options, programs
from benchmarks.peers import Unavailable, spark
from benchmarks.produce import kcat_command
from benchmarks.programs import Case, Pipeline

if TYPE_CHECKING:
    from pykaproducer.testing import KafkaCluster

HELP = "rows per second of the command load, of DuckDB with kcat, and on Spark"

#: Case -> the suffix, the number of columns besides a text, and the bytes of that text.
_SHAPES: dict[str, tuple[str, int, int]] = {
    "parquet": ("parquet", 7, 40),
    "csv": ("csv", 7, 40),
    "jsonl": ("jsonl", 7, 40),
    "parquet 50": ("parquet", 49, 10),
    "parquet 5,000": ("parquet", 4_999, 10),
    "csv 50": ("csv", 49, 10),
    "csv 5,000": ("csv", 4_999, 10),
    "parquet long": ("parquet", 1, 100_000),
    "csv long": ("csv", 1, 100_000),
    "jsonl long": ("jsonl", 1, 100_000),
}
#: Approximate size of a cell that is not a text.
_BYTES_A_CELL = 12
#: The cells of a row group.
_CELLS = 2_000_000

#: Runs a query in a separate process, as the kernel reports for a program at least the peak memory
#: of its parent. A query with thousands of columns is read from standard input.
_DUCKDB = [
    sys.executable,
    "-c",
    "import sys, duckdb; duckdb.execute(sys.argv[1] if sys.argv[1:] else sys.stdin.read())",
]

_SPARK = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master(sys.argv[4]).config("spark.jars", sys.argv[5]).getOrCreate()
rows = spark.read.parquet(sys.argv[1]).selectExpr("to_json(struct(*)) as value")
kafka = rows.write.format("kafka").option("kafka.bootstrap.servers", sys.argv[2])
kafka.option("topic", sys.argv[3]).save()
spark.stop()
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--megabytes",
        type=options.positive,
        default=100,
        help="size of each file, roughly and before it is compressed; default: %(default)s",
    )
    parser.add_argument("--spark", metavar="MASTER", help="compare on Spark, with Parquet alone")
    programs.add_arguments(parser, list(_SHAPES))


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if importlib.util.find_spec("duckdb") is None:
        parser.error("duckdb is not installed: pip install -r benchmarks/requirements.txt")
    if arguments.spark is not None:
        arguments.cases = [case for case in arguments.cases if case == "parquet"]
        if not arguments.cases:
            parser.error("--spark is compared with the case parquet")
        try:
            spark.prepare([spark.JVM])
        except Unavailable as error:
            parser.error(str(error))
    elif not kcat_command("", ""):
        parser.error("kcat is not installed")


def run(
    arguments: argparse.Namespace, words: Sequence[str], cluster: KafkaCluster | None = None
) -> int:
    """Measure, print a line for each case and program, and return the exit status."""
    from pykaproducer.testing import KafkaCluster

    del words
    with tempfile.TemporaryDirectory() as directory, cluster or KafkaCluster() as running:
        servers = running.bootstrap_servers
        programs.compare(
            running,
            arguments,
            [_made(name, Path(directory), arguments.megabytes) for name in arguments.cases],
            lambda case, topic, path: _programs(arguments, servers, topic, str(path)),
        )
    return 0


def _made(name: str, directory: Path, megabytes: int) -> Case:
    """Write the files of a case."""
    suffix, columns, size = _SHAPES[name]
    rows = max(2, megabytes * 10**6 // (columns * _BYTES_A_CELL + size))
    paths = [directory / f"{name.replace(' ', '-')}-{count}.{suffix}" for count in (1, rows)]
    for path, count in zip(paths, (1, rows), strict=True):
        _write(path, count, columns, size)
    return Case(name, paths[0], paths[1], rows, columns + 1)


def _write(path: Path, rows: int, columns: int, size: int) -> None:
    numbers = [
        ("id * {n} % 1000003", "id * {n} % 997 / 8", "id % {n} = 0", "'v' || id * {n} % 1009")[
            n % 4
        ].format(n=n)
        + f" as c{n}"
        for n in range(1, columns + 1)
    ]
    # Different in each row, but no work for a codec.
    text = f"rpad(md5(cast(id as varchar)), {size}, md5(cast(id + 1 as varchar))) as text"
    formats: dict[str, str] = {
        "parquet": f"format parquet, row_group_size {max(2048, _CELLS // (columns + 1))}",
        "csv": "format csv, header",
        "jsonl": "format json",
    }
    query = (
        f"copy (select {', '.join([*numbers, text])} from range({rows}) as rows(id)) "
        f"to '{path}' ({formats[path.suffix[1:]]})"
    )
    subprocess.run(_DUCKDB, input=query.encode(), check=True)


def _programs(
    arguments: argparse.Namespace, servers: str, topic: str, path: str
) -> dict[str, Pipeline]:
    ours = [sys.executable, "-P", "-m", "pykaproducer", "load", path, "-b", servers, "-t", topic]
    if arguments.spark is not None:
        jars: Any = ",".join(map(str, spark.prepare([spark.JVM])))
        theirs = [sys.executable, "-c", _SPARK, path, servers, topic, arguments.spark, jars]
        return {"load --spark": [[*ours, "--spark", arguments.spark]], "spark.read": [theirs]}
    kcat = kcat_command(servers, topic)
    if path.endswith(".jsonl"):
        return {"load": [ours], "kcat": [[*kcat, "-l", path]]}
    read = "read_csv" if path.endswith(".csv") else "read_parquet"
    text = ", all_varchar=true" if path.endswith(".csv") else ""
    copy = f"copy (select * from {read}('{path}'{text})) to '/dev/stdout' (format json)"
    return {"load": [ours], "DuckDB and kcat": [[*_DUCKDB, copy], kcat]}

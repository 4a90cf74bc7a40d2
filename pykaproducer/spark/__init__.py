"""The Spark sink: ``df.write.format("pykaproducer")``, streaming, and :func:`write`.

Requires ``pip install "pykaproducer[spark]"`` on the driver and the executors, and nothing else.
Columns and options are those of Spark's own Kafka sink. The guide is ``docs/spark.rst``.

The order of a write: the driver checks options (:mod:`~pykaproducer.spark.options`) and columns
(:mod:`~pykaproducer.spark.columns`); each task (:mod:`~pykaproducer.spark.task`) sends its Arrow
batches through the producer of its Python worker (:mod:`~pykaproducer.spark.producers`); the
summary is returned to the driver (:mod:`~pykaproducer.spark.sink`, or the caller of
:func:`~pykaproducer.spark.job.write`). From the driver of a stream it travels to the user's program
as a file (:mod:`~pykaproducer.spark.reports`) if there is a listener
(:mod:`~pykaproducer.spark.listener`).

:mod:`~pykaproducer.spark.once` passes an exactly-once write to its protocol, which is in
``pykaproducer/_exactly_once`` and knows nothing of Spark.

:mod:`~pykaproducer.spark.load` is the part of ``pykaproducer load --spark`` that requires Spark,
and :mod:`~pykaproducer.cli._spark_submit` is its script for spark-submit.
"""

from __future__ import annotations

from pykaproducer._exactly_once.errors import (
    ExactlyOnceError,
    PartialCommitError,
    PrefixInUseError,
    StateMismatchError,
    TransactionsExpiredError,
)
from pykaproducer._load.summary import Summary, Written

try:
    import pyarrow as _pyarrow  # noqa: F401
    from pyspark.sql.datasource import DataSourceWriter as _Needed  # noqa: F401
except ImportError:
    raise ImportError(
        "pykaproducer.spark needs PySpark 4.0 or newer and pyarrow: "
        'pip install "pykaproducer[spark]"'
    ) from None

from pykaproducer.spark.job import write
from pykaproducer.spark.listener import ProgressListener
from pykaproducer.spark.options import SinkError
from pykaproducer.spark.sink import register

__all__ = [
    "ExactlyOnceError",
    "PartialCommitError",
    "PrefixInUseError",
    "ProgressListener",
    "SinkError",
    "StateMismatchError",
    "Summary",
    "TransactionsExpiredError",
    "Written",
    "register",
    "write",
]

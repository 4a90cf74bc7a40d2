"""The classes of PySpark that the sink derives from, chosen once.

Spark passes Arrow batches to a writer that derives from one of its Arrow classes, and rows to any
other. PySpark has the Arrow class of batch writes since 4.0, and that of streams since 4.1;
runtimes of Databricks that are based on Spark 3.5 may have neither. The sink derives from the Arrow
classes where they exist, because a row is a Python object for each value. Elsewhere
:mod:`~pykaproducer.spark.rows` converts the rows.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import datasource


def _first(*names: str) -> Any:
    return next(getattr(datasource, name) for name in names if hasattr(datasource, name))


BatchWriter: Any = _first("DataSourceArrowWriter", "DataSourceWriter")
StreamWriter: Any = _first("DataSourceStreamArrowWriter", "DataSourceStreamWriter")

_ARROW = ("DataSourceArrowWriter", "DataSourceStreamArrowWriter")
_ARROW_WRITERS = tuple(getattr(datasource, name) for name in _ARROW if hasattr(datasource, name))


def receives_arrow(writer: object) -> bool:
    """Return whether Spark passes Arrow batches to *writer*, by the rule that Spark applies."""
    return isinstance(writer, _ARROW_WRITERS)

"""A sink for Spark that counts its rows and drops them: the baseline cost of a Python worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

NAME = "counting"


@dataclass
class Counted(WriterCommitMessage):
    """The number of rows that a task received."""

    rows: int


class Writer(DataSourceArrowWriter):
    """A writer that counts."""

    def write(self, batches: Iterator[Any]) -> Counted:
        return Counted(sum(batch.num_rows for batch in batches))


class Source(DataSource):
    """``format("counting")``."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: Any, overwrite: bool) -> Writer:
        return Writer()

"""Return of the tasks' summaries to the caller: as rows of ``mapInArrow()``, one per task."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow

from pykaproducer._load.summary import Summary


def collect(df: Any, task: Callable[[Iterator[pyarrow.RecordBatch]], Iterator[Any]]) -> Summary:
    """Run *task* for each partition of a DataFrame, and return the sum of the summaries."""
    rows = df.mapInArrow(task, "summary binary").collect()
    return Summary.of(pickle.loads(row.summary) for row in rows)


def as_batch(summary: Summary) -> pyarrow.RecordBatch:
    """Return the batch that a task yields."""
    return pyarrow.record_batch({"summary": [pickle.dumps(summary)]})

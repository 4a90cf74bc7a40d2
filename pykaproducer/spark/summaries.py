"""Return of the tasks' results to the caller: as rows of ``mapInArrow()``, one per task."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow


def collect(
    df: Any, task: Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]
) -> list[Any]:
    """Run *task* for each partition of a DataFrame, and return the results."""
    rows = df.mapInArrow(task, "summary binary").collect()
    return [pickle.loads(row.summary) for row in rows]


def as_batch(result: object) -> pyarrow.RecordBatch:
    """Return the batch that a task yields."""
    return pyarrow.record_batch({"summary": [pickle.dumps(result)]})

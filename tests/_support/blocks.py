"""Shared helpers for the tests of ``send_many()`` and ``send_arrow()``."""

from __future__ import annotations

from typing import Any

import pyarrow

from pykaproducer.testing import ScriptedCluster

#: Far more than any operation here takes (seconds).
SOON = 30


def logged(cluster: ScriptedCluster, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in cluster.log("t", partition)]


def batch(**columns: Any) -> Any:
    return pyarrow.record_batch(columns)


def coded(numbers: list[Any], kind: Any = None) -> Any:
    return pyarrow.array(numbers, kind).dictionary_encode()


def with_headers(pairs: list[Any], kind: Any) -> Any:
    return batch(value=["v"] * len(pairs), headers=pyarrow.array(pairs, kind))


def list_of(**fields: Any) -> Any:
    return pyarrow.list_(pyarrow.struct(list(fields.items())))

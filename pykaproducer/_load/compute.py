"""``pyarrow.compute``, imported with its first use: most workers of Spark need not its 8 MB."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from pyarrow import compute

    return getattr(compute, name)

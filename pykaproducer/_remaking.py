"""Reject pickles of producers made before the first release, which name this module."""

from __future__ import annotations

import pickle
from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise pickle.UnpicklingError(
        "this pickle of a producer was made by an earlier version of pykaproducer and cannot be "
        "read by this one; pickle the producer again"
    )

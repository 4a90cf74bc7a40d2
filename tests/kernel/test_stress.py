"""Several threads use the kernel at once. See ``stress.py``."""

from __future__ import annotations

from .stress import Stress


def test_each_message_has_one_outcome_whatever_threads_do() -> None:
    assert Stress(seed=1, seconds=1).run() > 0

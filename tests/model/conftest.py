"""Randomness that hypothesis controls."""

from __future__ import annotations

import random

import pytest

from pykaproducer._util.randomness import system_random


@pytest.fixture(autouse=True)
def chance_that_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the module's generator, which hypothesis seeds, so that it can replay what it finds."""
    monkeypatch.setattr(system_random, "random", random.random)
    monkeypatch.setattr(system_random, "shuffle", random.shuffle)

"""The benchmarks, from the tree; an installed pykaproducer takes precedence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pykaproducer.testing import KafkaCluster

sys.path.append(str(Path(__file__).parents[2]))


@pytest.fixture
def lent(cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> KafkaCluster:
    """Lend the tests' cluster to a benchmark, which must not stop it at its end."""
    monkeypatch.setattr(cluster, "stop", lambda: None)
    return cluster

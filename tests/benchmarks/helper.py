"""Calls of ``python -m benchmarks``, and the peers that can take part."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

from benchmarks.__main__ import main
from benchmarks.peers import TABLE, Unavailable
from pykaproducer.testing import KafkaCluster


def peers() -> list[str]:
    """Return confluent-kafka if it is installed: it is not a dependency of the tests."""
    return ["confluent-kafka"] if importlib.util.find_spec("confluent_kafka") else []


def every_peer(benchmark: str) -> list[str]:
    """Return all peers that can run at once: nothing is downloaded or built for a test."""
    module = importlib.import_module(f"benchmarks.{benchmark}")
    find = getattr(module, "peer", TABLE.__getitem__)
    found = []
    for name in module.PEERS:
        peer = find(name)
        if hasattr(peer, "ready") and not peer.ready():
            continue
        try:
            peer.prepare()
        except Unavailable:
            continue
        found.append(name)
    assert "raw" in found or benchmark in ("overlap", "transactions")
    return found


def is_there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def call(cluster: KafkaCluster | None, *words: str) -> int:
    status = main(words, cluster=cluster)
    assert isinstance(status, int)
    return status


def versus() -> list[str]:
    return ["--vs", *peers()] if peers() else []


def results(path: Path) -> Any:
    return json.loads(path.read_text())

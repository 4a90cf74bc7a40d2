"""Clients in Python: modules of :mod:`benchmarks.clients`, each in a fresh interpreter."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.peer import Feature, Unavailable
from benchmarks.runner import Measures, in_fresh_process


class PythonClient:
    """A Python client.

    *library*: the library that it imports; None: only ours. *outcome*: the only mode that it
    supports.
    """

    def __init__(
        self,
        name: str,
        library: str | None,
        lacks: frozenset[Feature] = frozenset(),
        outcome: str | None = None,
    ) -> None:
        self.lacks = lacks
        self._name = name
        self._library = library
        self._outcome = outcome

    def prepare(self) -> None:
        if self._library is not None and importlib.util.find_spec(self._library) is None:
            raise Unavailable(
                f"{self._name} is not installed: pip install -r benchmarks/requirements.txt"
            )

    def version(self) -> str:
        if self._library is None:
            return "(prebuilt batches, no client)"
        # Imported here: the fresh process imports this module too, and must stay small.
        import importlib.metadata

        try:
            version = importlib.metadata.version(self._name)
        except importlib.metadata.PackageNotFoundError:
            # Built in place, not installed.
            return "from the source tree"
        if self._library == "confluent_kafka":
            import confluent_kafka

            version += f" (librdkafka {confluent_kafka.libversion()[0]})"
        return version

    def send(self, job: Mapping[str, Any], limit: float) -> Measures:
        outcome = self._outcome or job["outcome"]
        return in_fresh_process("benchmarks.send", {**job, "outcome": outcome}, limit=limit)

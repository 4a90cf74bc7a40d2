"""pykaproducer without transactions: ``flush()`` in place of a commit."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.clients import Settings, pykaproducer


class Client(pykaproducer.Client):
    def __init__(self, settings: Settings) -> None:
        super().__init__(replace(settings, transactional_id=None, idempotence=True))

    def init_transactions(self, timeout: float) -> None:
        pass

    def begin(self) -> None:
        pass

    def commit(self, timeout: float) -> None:
        self._producer.flush(timeout)

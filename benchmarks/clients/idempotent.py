"""pykaproducer without transactions: nothing is waited for until the end."""

from __future__ import annotations

from benchmarks.clients import flushing


class Client(flushing.Client):
    waits = False

    def commit(self, timeout: float) -> None:
        pass

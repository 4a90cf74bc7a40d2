"""pykaproducer with a thread for each topic and partition."""

from __future__ import annotations

from benchmarks.clients import Settings, pykaproducer


class Client(pykaproducer.Client):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, stage_threads="own")

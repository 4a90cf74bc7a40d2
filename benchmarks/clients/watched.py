"""pykaproducer, while ``pykaproducer top`` reads its stats once a second."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.clients import Settings, pykaproducer


class Client(pykaproducer.Client):
    def __init__(self, settings: Settings) -> None:
        self._end = contextlib.ExitStack()
        directory = self._end.enter_context(tempfile.TemporaryDirectory())
        self._socket = Path(directory, "stats.sock")
        self._top: subprocess.Popen[bytes] | None = None
        super().__init__(settings, stats_socket=str(self._socket))

    def flush(self, timeout: float) -> None:
        super().flush(timeout)
        if self._top is None:
            # After the warm-up: the socket exists.
            command = [sys.executable, "-m", "pykaproducer", "top", str(self._socket), "--json"]
            self._top = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert self._top.stdout is not None
            self._top.stdout.readline()  # it has read the stats once, so it is running

    def abandon(self) -> None:
        super().abandon()
        if self._top is not None:
            self._top.communicate(timeout=30)  # it ends with the process that it watches
        self._end.close()

"""franz-go's fake cluster, which ``kfake/main.go`` runs: a broker that is not Apache Kafka."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pykaproducer import Producer

from .releases import DIRECTORY, MissingError

_SOURCE = Path(__file__).with_name("kfake")


def build() -> Path:
    """Return the program, which is built once."""
    if shutil.which("go") is None:
        raise MissingError("Go is not installed, which builds kfake")
    binary = DIRECTORY / "kfake"
    command = ["go", "build", "-o", str(binary), "."]
    done = subprocess.run(command, cwd=_SOURCE, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise MissingError(f"Go could not build kfake: {done.stderr.strip().splitlines()[-1]}")
    return binary


class Fake:
    """A running cluster of one broker."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.servers = self._line()

    def producer(self, **settings: Any) -> Producer:
        return Producer(
            bootstrap_servers=self.servers,
            client_id="tested",
            **{"retry_backoff_ms": 20, **settings},
        )

    def do(self, op: str, **arguments: object) -> Any:
        """Execute a command of ``main.go``."""
        assert self._process.stdin is not None
        print(json.dumps({"Op": op, **arguments}), file=self._process.stdin, flush=True)
        return json.loads(self._line())

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests that producers have made since the last time."""
        return [each for each in self.do("requests") if each["Client"].startswith("tested")]

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "kfake has ended"
        return line.strip()


@contextmanager
def running(binary: Path, *arguments: str) -> Iterator[Fake]:
    """Run a cluster for the duration of the block."""
    with subprocess.Popen(
        [binary, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GOMAXPROCS": "2"},
    ) as process:
        try:
            yield Fake(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()  # it ends with its input

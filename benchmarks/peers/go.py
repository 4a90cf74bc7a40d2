"""Clients in Go: a small program for each, built once with the installed Go.

The sources are beside this file, with all versions pinned by ``go.mod`` and ``go.sum``;
``harness/`` is the shared code. The program is kept in the user's cache, under a name that changes
with the sources and with Go.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import payloads
from benchmarks.peers.peer import Feature, Unavailable
from benchmarks.runner import Measures, in_program

_SOURCES = Path(__file__).parent
#: For two hundred thousand lines of Go, and their download (seconds).
_BUILD_TIMEOUT = 900


class GoProgram:
    """A program for a Go client.

    *name* is the directory with its sources, *module* the client's name in ``go.mod``.
    """

    def __init__(self, name: str, module: str, lacks: frozenset[Feature] = frozenset()) -> None:
        self.lacks = lacks
        self._name = name
        self._module = module
        self._program: Path | None = None

    def prepare(self) -> None:
        program = self._built()
        if not program.exists():
            print(f"building {self._name}, once; its sources are fetched", file=sys.stderr)
            self._build(program)
        self._program = program

    def ready(self) -> bool:
        """Return whether it has been built before and can run at once."""
        return shutil.which("go") is not None and self._built().exists()

    def version(self) -> str:
        wanted = re.search(
            rf"{re.escape(self._module)} (v\S+)", (_SOURCES / self._name / "go.mod").read_text()
        )
        assert wanted is not None
        return f"{wanted[1]} ({self._go_version()})"

    def send(self, job: Mapping[str, Any], limit: float) -> Measures:
        assert self._program is not None, "call prepare() first"
        with tempfile.TemporaryDirectory(prefix="pykaproducer-benchmark-") as directory:
            values, whole = Path(directory, "values"), Path(directory, "job.json")
            values.write_bytes(b"".join(payloads.text_values(job["size"])))
            made = payloads.keys()
            keys = [key.decode() for key in made]
            whole.write_text(json.dumps({**job, "values": str(values), "keys": keys}))
            return in_program([str(self._program), str(whole)], limit=limit)

    def _go(self) -> str:
        found = shutil.which("go")
        if found is None:
            raise Unavailable(
                f"{self._name} is built with Go, and PATH has no go: install Go "
                f"{self._go_wanted()} or newer, or leave {self._name} out"
            )
        return found

    def _go_wanted(self) -> str:
        wanted = re.search(r"^go (\S+)$", (_SOURCES / self._name / "go.mod").read_text(), re.M)
        assert wanted is not None
        return wanted[1]

    def _go_version(self) -> str:
        # "go version go1.26.0 linux/amd64"
        return self._call("version").stdout.split()[2]

    def _built(self) -> Path:
        from pykaproducer.testing._jars import cache_directory

        content = hashlib.sha256(self._go_version().encode())
        for directory in (_SOURCES / "harness", _SOURCES / self._name):
            for path in sorted(directory.iterdir()):
                if path.suffix in (".go", ".mod", ".sum"):
                    content.update(path.name.encode() + b"\0" + path.read_bytes())
        return cache_directory() / "peers" / f"{self._name}-{content.hexdigest()[:16]}"

    def _build(self, program: Path) -> None:
        program.parent.mkdir(parents=True, exist_ok=True)
        # Built beside it and moved: other processes see a complete program or none.
        with tempfile.TemporaryDirectory(dir=program.parent) as directory:
            made = Path(directory, program.name)
            built = self._call("build", "-trimpath", "-o", str(made), ".")
            if built.returncode != 0:
                last = "\n".join(built.stderr.strip().splitlines()[-5:])
                raise Unavailable(
                    f"{self._name} could not be built with {self._go_version()} (it requires Go "
                    f"{self._go_wanted()} or newer, and a network the first time):\n{last}"
                )
            os.replace(made, program)

    def _call(self, *words: str) -> subprocess.CompletedProcess[str]:
        # Only the installed Go is used: no other version is downloaded.
        environment = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
        try:
            return subprocess.run(
                [self._go(), *words],
                cwd=_SOURCES / self._name,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_BUILD_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"{self._name}: go {words[0]} did not end within {_BUILD_TIMEOUT} s"
            ) from error

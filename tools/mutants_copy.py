"""Copies of a tree in which ``mutants.py`` applies and tests mutants.

A mutant is described by the lines that it replaces: in which function they are, and which place of
several alike. So it can be applied as long as these lines exist, whatever changes around them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
IGNORED = shutil.ignore_patterns(
    ".git",
    ".tox",
    ".venv*",
    ".hypothesis",
    ".*_cache",
    "__pycache__",
    "build",
    "dist",
    "*.egg-info",
)

Mutant = dict[str, Any]


def scope_of(lines: list[str], index: int) -> str:
    """Return the qualified name of the class and function around a line, by its indentation."""
    own = next(line for line in lines[index:] if line.strip())
    names, indent = [], len(own) - len(own.lstrip())
    for line in reversed(lines[:index]):
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if text and depth < indent and not text.startswith(("#", ")", "]", "}", '"')):
            indent = depth
            found = re.match(r"(?:async )?(?:def|cdef|cpdef|class)\b[^(:=]*?(\w+)\s*[(:]", text)
            names += [found[1]] if found else []
    return ".".join(reversed(names))


def places_of(lines: list[str], wanted: list[str], scope: str) -> list[int]:
    """Return the indexes of *wanted* in *scope*."""
    size = len(wanted)
    found = [i for i in range(len(lines) - size + 1) if lines[i : i + size] == wanted]
    return [index for index in found if scope_of(lines, index) == scope]


def applied(mutant: Mutant, text: str) -> str | None:
    """Return *text* with *mutant*, or None if its lines are not there."""
    lines = text.splitlines()
    places = places_of(lines, mutant["before"], mutant["scope"])
    if mutant["place"] >= len(places):
        return None
    first = places[mutant["place"]]
    lines[first : first + len(mutant["before"])] = mutant["after"]
    return "\n".join(lines) + "\n"


def statement_of(text: str, mutant: Mutant) -> range | None:
    """Return the lines of the statement that *mutant* changes; None if an import executes it."""
    line = places_of(text.splitlines(), mutant["before"], mutant["scope"])[mutant["place"]] + 1
    changed = [old == new for old, new in zip(mutant["before"], mutant["after"], strict=False)]
    line += changed.index(False) if False in changed else 0
    best: range | None = None
    is_inside = False
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_inside |= node.body[0].lineno <= line <= (node.end_lineno or 0)
        if not isinstance(node, (ast.stmt, ast.ExceptHandler)):
            continue
        body = getattr(node, "body", None)
        last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or 0
        if node.lineno <= line <= last and (best is None or len(best) > last - node.lineno):
            best = range(node.lineno, last + 1)
    return best if is_inside else None


def quiet(seconds: float) -> float:
    """Return how long something that takes *seconds* now would take if it had a core to itself."""
    return seconds / max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Copy:
    """A copy of a tree, in which one mutant at a time is applied and tested."""

    def __init__(self, directory: Path, name: str, tree: Path, tests: Path) -> None:
        self.root = directory / "copies" / name
        self._work = directory / "copies" / f"{name}-files"
        for path in (self.root, self._work):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(tree, self.root, ignore=IGNORED)
        if tests != tree:
            shutil.rmtree(self.root / "tests")
            shutil.copytree(tests / "tests", self.root / "tests", ignore=IGNORED)
        self._work.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self._kernels = list((self.root / "pykaproducer").glob("*.so"))
        for kernel in self._kernels:
            shutil.copy2(kernel, self._work)

    def pytest(self, files: list[str], limit: float, **request: Any) -> Iterator[list[Any]]:
        """Run pytest and yield the lines of its log; then its exit status, None if stopped.

        In between, ``["", "tick", seconds]`` is how long it has run by ``quiet()``.
        """
        log, asked = self._work / "log", self._work / "request"
        log.write_text("")
        asked.write_text(json.dumps({"log": str(log), **request}))
        words = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "mutants_plugin"]
        words += ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:pytest_cov"]
        words += ["--hypothesis-seed=1", "-o", "faulthandler_timeout=0"]
        words += ["-x"] if "tests" in request else []
        environment = {key: value for key, value in os.environ.items() if key != "CI"} | {
            "PYTHONPATH": f"{self.root}{os.pathsep}{HERE}",
            "MUTANTS_REQUEST": str(asked),
            "PYKAPRODUCER_SEED": "1",
            "PYKAPRODUCER_EXAMPLES": str(self._work / "examples"),
            "JAVA_HOME": "/nonexistent",
        }
        shutil.rmtree(self._work / "examples", ignore_errors=True)
        spent, looked = 0.0, time.monotonic()
        with (self._work / "output").open("w") as output, log.open() as lines:
            process = self._process = subprocess.Popen(
                [*words, *files],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = None
                while status is None and spent < limit:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        status = process.wait(0.2)
                    spent, looked = spent + quiet(time.monotonic() - looked), time.monotonic()
                    while (line := lines.readline()).endswith("\n"):
                        yield json.loads(line)
                    yield ["", "tick", spent]
                yield ["", "status", status]
            finally:
                self.stop()
                process.wait()

    def stop(self) -> None:
        """Kill pytest and what it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def output(self) -> str:
        """Return the end of what pytest printed."""
        return (self._work / "output").read_text(errors="replace")[-2_000:]

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[bool]:
        """Apply *mutant*, yield whether it could be built, and restore the file."""
        path = self.root / mutant["file"]
        old = path.read_text()
        new = applied(mutant, old)
        assert new is not None
        try:
            self._write(path, new)
            yield path.suffix == ".py" or self._build()
        finally:
            self._write(path, old)
            if path.suffix != ".py":
                for kernel in self._kernels:
                    shutil.copy2(self._work / kernel.name, kernel)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # Python would use compiled code of a text with the same size and second.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def _build(self) -> bool:
        """Build the kernel quickly, whatever flags its setup.py has."""
        compiler = self._work / "cc"
        compiler.write_text('#!/bin/sh\nexec gcc "$@" -O1 -g0\n')
        compiler.chmod(0o755)
        with (self._work / "output").open("w") as output:
            return not subprocess.run(
                [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--force"],
                cwd=self.root,
                env={**os.environ, "CC": str(compiler)},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode

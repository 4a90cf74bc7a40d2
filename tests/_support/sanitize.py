"""The kernel's tests under AddressSanitizer and UndefinedBehaviorSanitizer: ``tox -e sanitize``.

Builds a sanitized kernel in a copy of the sources, so that the checkout keeps its own, and runs in
that copy the suites that exercise compiled code, the fuzzer and the reference counts. Needs gcc.
The exit status is 1 if a run failed or a sanitizer reported something.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Suites that exercise compiled code and need no Kafka.
SUITES = (
    "kernel",
    "block",
    "producer/test_delivery.py",
    "process/test_fork*.py",
    "pipeline",
    "model",
)
#: The pool is switched off for these runs; the others are run separately below.
IGNORED = ("test_pool.py", "test_fuzz.py", "test_references.py")
#: The copied sources, without build products.
COPIED = ("pykaproducer", "tests", "benchmarks", "chaos", "docs", "examples")
FILES = ("setup.py", "setup.cfg", "pyproject.toml", "tox.ini", "README.rst", "LICENSE")

OPTIONS = {
    "PYTHONMALLOC": "malloc",  # otherwise most objects are pieces of larger blocks
    # CPython does not free everything at exit. The code must handle a refused allocation.
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def build(copy: Path) -> None:
    """Copy the sources to *copy* and build the sanitized kernel there."""
    shutil.rmtree(copy, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "_kernel.c", "_scan.c")
    for name in COPIED:
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=copy,
        env={**os.environ, "CC": "gcc", "PYKAPRODUCER_SANITIZE": "1"},
        check=True,
    )


def library(name: str) -> str:
    """Return the path of one of gcc's shared libraries."""
    asked = ["gcc", f"-print-file-name={name}"]
    path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        raise SystemExit(f"gcc has no {name}: install its sanitizer libraries")
    return path


def environment(copy: Path) -> dict[str, str]:
    """Return the environment in which the sanitized kernel of *copy* can be loaded."""
    # The sanitizers must be the first libraries: the interpreter is not built with them.
    preload = " ".join([library("libasan.so"), library("libubsan.so")])
    return {**os.environ, **OPTIONS, "LD_PRELOAD": preload, "PYTHONPATH": str(copy)}


def run(copy: Path, words: list[str]) -> bool:
    """Run a Python command in *copy* and print how it ended; true if it succeeded."""
    print(f"-- python {' '.join(words)}", flush=True)
    start = time.monotonic()
    status = subprocess.run(
        [sys.executable, "-X", "faulthandler", *words], cwd=copy, env=environment(copy), check=False
    ).returncode
    print(f"-- exit status {status} after {time.monotonic() - start:.0f} s", flush=True)
    return status == 0


def suites(copy: Path) -> list[str]:
    """Return the arguments for pytest."""
    tests = copy / "tests"
    found = sorted(str(each) for pattern in SUITES for each in tests.glob(pattern))
    return [*found, *(f"--ignore={tests / 'kernel' / name}" for name in IGNORED)]


def main() -> int:
    """Build, run everything, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="where the copy is made")
    parser.add_argument("--inputs", default="100000", help="of the fuzzer; %(default)s")
    parser.add_argument("--seed", help="of the fuzzer; default: a new one each time")
    parser.add_argument("--times", default="100000", help="of counted cases; %(default)s")
    parser.add_argument("pytest", nargs="*", help="run pytest alone, with these arguments")
    arguments = parser.parse_args()
    copy = arguments.directory.resolve() / "sanitized"
    build(copy)
    if arguments.pytest:
        return 0 if run(copy, ["-m", "pytest", *arguments.pytest]) else 1
    seed = [] if arguments.seed is None else ["--seed", arguments.seed]
    ended_well = [
        run(copy, ["-m", "pytest", "-q", "-p", "no:cacheprovider", *suites(copy)]),
        run(copy, ["-m", "tests.kernel.fuzz", "--inputs", arguments.inputs, *seed]),
        run(copy, ["-m", "tests.kernel.references", "--times", arguments.times]),
    ]
    return 0 if all(ended_well) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Installs wheels where there is no compiler, sends a message, and runs suites of tests.

For each wheel in a directory that a Python here can load::

    python tools/check_wheels.py --directory dist --bootstrap-servers 127.0.0.1:9092
    python tools/check_wheels.py --directory dist --bootstrap-servers 127.0.0.1:9092 --tests

1. A new virtual environment, with ``CC=/bin/false``, gets the wheel and what it requires, from
   wheels only. It imports the package, and delivers a message to the broker. The time is measured.
2. With ``--tests``, the suites that need no Kafka are run in it, in a copy of ``tests/``, so that
   the installed package is tested and not the checkout.

The others are listed as not run.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from build_wheels import HERE, BuildError, find_python, run

#: What the tests of SUITES import.
TEST_PACKAGES = (
    "pytest>=8.3,<10",
    "pytest-xdist>=3.6,<4",
    # Newer versions have compiled parts, which do not have a wheel for every Python.
    "hypothesis>=6.100,<6.140",
    "numpy>=2,<3",
)
#: What some suites import or use besides. Not every Python has wheels of them.
OPTIONAL_PACKAGES = ("pyarrow", "zstandard>=0.22,<1")
SUITES = ("kernel", "block", "wire", "machines", "producer", "model")

SEND = """
import sys
from pykaproducer import Producer
with Producer(bootstrap_servers=sys.argv[1]) as producer:
    found = producer.send("wheels", sys.version.encode()).result(8)
has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
print(f"offset {found.offset}", "with the GIL" if has_gil else "without the GIL")
"""


def main() -> int:
    """Check the wheels; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=pathlib.Path, default=HERE / "dist", help="%(default)s")
    parser.add_argument("--bootstrap-servers", required=True, help="of a running broker")
    parser.add_argument("--python", nargs="+", help="only these, such as 3.13t; default: all")
    parser.add_argument(
        "--tests", action="store_true", help="also run the suites that need no Kafka"
    )
    arguments = parser.parse_args()
    problems = 0
    for wheel in sorted(arguments.directory.resolve().glob("*.whl")):
        version = python_of(wheel)
        if arguments.python and version not in arguments.python:
            continue
        if not runs_here(wheel) or (python := find_python(version)) is None:
            print(f"{wheel.name}: built, not run")
            continue
        try:
            check(wheel, python, arguments.bootstrap_servers, arguments.tests)
        except BuildError as error:
            problems += 1
            print(f"{wheel.name}: {error}", flush=True)
    return 1 if problems else 0


def python_of(wheel: pathlib.Path) -> str:
    """Return the Python for which *wheel* is, such as 3.13t."""
    abi = wheel.name.split("-")[3]
    (major, minor, free) = re.fullmatch(r"cp(\d)(\d+)(t?)", abi).groups()  # type: ignore[union-attr]
    return f"{major}.{minor}{free}"


def runs_here(wheel: pathlib.Path) -> bool:
    """Return whether *wheel* is for the C library and the processor of this machine."""
    library = "musllinux" if platform.libc_ver()[0] != "glibc" else "manylinux"
    return library in wheel.name and wheel.stem.endswith(platform.machine())


def check(wheel: pathlib.Path, python: pathlib.Path, servers: str, tests: bool) -> None:
    """Check one wheel, and print the result. Raises BuildError."""
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        run([python, "-m", "venv", directory / "bare"])
        inside = directory / "bare" / "bin" / "python"
        # No compiler, no Java, and nothing of this environment.
        bare = {"PATH": "/nowhere", "CC": "/bin/false", "CXX": "/bin/false", "HOME": name}
        bare |= {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
        start = time.monotonic()
        run([inside, "-m", "pip", "install", "-q", "--only-binary=:all:", wheel], env=bare)
        installed = time.monotonic()
        sent = subprocess.run(
            [inside, "-W", "error::RuntimeWarning", "-c", SEND, servers],
            env=bare,
            cwd=name,
            capture_output=True,
            text=True,
            check=False,
        )
        if sent.returncode:
            raise BuildError(f"the message failed:\n{sent.stderr.strip()}")
        took = time.monotonic() - start
        print(
            f"{wheel.name}: installed in {installed - start:.1f} s; with a message "
            f"({sent.stdout.strip()}) {took:.1f} s",
            flush=True,
        )
        if tests:
            free_threaded = python_of(wheel).endswith("t")
            print("   ", run_suites(directory, inside, free_threaded=free_threaded), flush=True)


def run_suites(directory: pathlib.Path, python: pathlib.Path, *, free_threaded: bool) -> str:
    """Run the suites that need no Kafka with the installed package; return pytest's last line."""
    environment = dict(os.environ)
    if free_threaded:
        environment["PYTHON_GIL"] = "0"  # some codecs do not declare that they need no GIL
    run([python, "-m", "pip", "install", "-q", "--only-binary=:all:", *TEST_PACKAGES])
    missing = [name for name in OPTIONAL_PACKAGES if not can_install(python, name)]
    shutil.copytree(HERE / "tests", directory / "tests")
    shutil.copy(HERE / "tox.ini", directory)
    # The tests of blocks import pyarrow.
    without = {"block"} if OPTIONAL_PACKAGES[0] in missing else set()
    suites = [f"tests/{name}" for name in SUITES if name not in without]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "2", *suites],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BuildError("the tests failed:\n" + "\n".join(done.stdout.splitlines()[-15:]))
    rest = f" (without {', '.join(missing)})" if missing else ""
    return done.stdout.strip().splitlines()[-1] + rest


def can_install(python: pathlib.Path, package: str) -> bool:
    """Install *package* from a wheel; return whether there is one."""
    try:
        run([python, "-m", "pip", "install", "-q", "--only-binary=:all:", package])
    except BuildError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())

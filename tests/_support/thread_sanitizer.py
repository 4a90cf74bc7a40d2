"""The kernel's stress test under ThreadSanitizer: ``tox -e threads -- --python PYTHON``.

*PYTHON* is a free-threaded CPython that was configured with ``--with-thread-sanitizer``, and has
what the kernel's tests import (pytest, hypothesis, crc32c, lz4, kafka-python). The kernel is built
in a copy of the sources, with clang. ``--suppressions`` names CPython's own list of known reports
(``Tools/tsan/suppressions_free_threading.txt`` in its sources). The exit status is 1 if a race was
reported, or the stress test failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from sanitize import COPIED, FILES, ROOT


def main() -> int:
    """Build, run the stress test, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True, help="where the copy is made")
    parser.add_argument("--python", required=True, help="a Python with ThreadSanitizer")
    parser.add_argument("--suppressions", type=Path, help="CPython's list of known reports")
    parser.add_argument("--seconds", default="60", help="of the stress test; %(default)s")
    arguments = parser.parse_args()
    copy = arguments.directory.resolve() / "thread-sanitized"
    shutil.rmtree(copy, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "_kernel.c", "_scan.c")
    for name in (*COPIED, "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    environment = {**os.environ, "CC": "clang", "PYKAPRODUCER_SANITIZE": "thread"}
    quiet = {**environment, "TSAN_OPTIONS": "report_bugs=0"}
    build = [arguments.python, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(build, cwd=copy, env=quiet, check=True)
    options = ["exitcode=66", "history_size=5"]
    if arguments.suppressions is not None:
        options.append(f"suppressions={arguments.suppressions.resolve()}")
    command = [arguments.python, "-m", "tests.kernel.stress", "--seconds", arguments.seconds]
    loud = {**environment, "TSAN_OPTIONS": ":".join(options)}
    return 1 if subprocess.run(command, cwd=copy, env=loud, check=False).returncode else 0


if __name__ == "__main__":
    raise SystemExit(main())

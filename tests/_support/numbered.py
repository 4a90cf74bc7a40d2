"""Commands that try numbered cases in a child process, which may crash or hang.

Cases are numbered from a seed on, and a case depends on its number alone. The child writes each
number to a file that both processes map, so that the command can print how to repeat the last one.
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator

#: A case that takes longer is considered hung (seconds).
PATIENCE = 120

#: The exit status of a child process that has printed the defects that it has found.
_DEFECTS = 3


def main(
    module: str,
    description: str | None,
    play: Callable[[Iterator[int], str | None], bool],
    *,
    unit: str,
    total: int,
    each: int = 1,
    kinds: Collection[str],
) -> int:
    """Run the command of *module*, and return the exit status.

    *play* tries the cases of these numbers, of one kind or of all, and returns whether it has
    printed defects. *unit* names what is counted, by default *total*, of which a case has *each*.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument(f"--{unit}", dest="total", type=int, default=total, help="%(default)s")
    parser.add_argument("--seed", type=int, help="number of the first case; default: a new one")
    parser.add_argument("--only", choices=kinds, help="cases of this kind; default: all")
    parser.add_argument("--progress", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 40) if arguments.seed is None else arguments.seed
    if arguments.progress is not None:
        numbers = range(seed, seed + -(-arguments.total // each))
        return _DEFECTS if play(_noted(numbers, arguments.progress), arguments.only) else 0
    print(f"seed {seed}", flush=True)
    start = time.monotonic()
    only = [] if arguments.only is None else ["--only", arguments.only]
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(bytes(8))
        progress.flush()
        words = ["-m", module, "--progress", progress.name]
        words += [f"--{unit}", str(arguments.total), "--seed", str(seed), *only]
        status = subprocess.run(
            [sys.executable, "-X", "faulthandler", *words], check=False
        ).returncode
        progress.seek(0)
        (number,) = struct.unpack("q", progress.read(8))
    if not status:
        print(f"{arguments.total:,} {unit} in {time.monotonic() - start:.0f} s: no defect")
        return 0
    if status != _DEFECTS:
        print(f"exit status {status}; this repeats it:")
        print(" ".join(["python", "-m", module, f"--{unit} 1 --seed", str(number), *only]))
    return 1


def _noted(numbers: range, progress: str) -> Iterator[int]:
    """Yield *numbers*; write each to the file *progress* first."""
    with open(progress, "r+b") as file, mmap.mmap(file.fileno(), 8) as current:
        for number in numbers:
            current[:8] = struct.pack("q", number)
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            yield number

"""A fuzzer of the calls that reach compiled code: ``python -m tests.kernel.fuzz --inputs 100000``.

An input is one call of a producer, or of a handle that it returned, with arguments of any kind:
valid ones, sequences that lie about their length or change it, every layout of Arrow, objects that
raise or call back into the producer. For each call the fuzzer checks that it raises only documented
exceptions, and that each accepted row is written to the log of an in-process cluster, byte for
byte, as it was passed. For each round of calls it checks that every callback ran once and that no
byte is in use at the end.

Rounds are numbered from the seed on, and the arguments of a round depend on its number alone; which
thread comes first does not. They run in a child process: if it crashes or hangs, the number of the
round is printed, with the command to repeat it.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import mmap
import random
import struct
import subprocess
import sys
import tempfile
import time

from .fuzz_calls import Round

#: The number of calls in a round.
CALLS = 40
#: A round that takes longer is considered hung (seconds).
PATIENCE = 120


#: The calls, and their relative frequencies.
KINDS = {"send": 30, "block": 25, "arrow": 25, "produce": 10, "use": 10}


def play(number: int, only: str | None = None) -> None:
    """Play one round to its end; *only*: calls of this kind alone."""
    calls = Round(number)
    ways = (calls.send, calls.send_block, calls.send_arrow, calls.produce, calls.use)
    shares = [share if only in (None, kind) else 0 for kind, share in KINDS.items()]
    for _ in range(CALLS):
        calls.odd.chance.choices(ways, shares)[0]()
    calls.end()
    gc.collect()


def play_all(seed: int, inputs: int, progress: str, only: str | None) -> None:
    """Play the rounds of a child process; write the number of each to the file *progress* first."""
    logging.disable()  # what callbacks raise
    gc.freeze()  # only objects made by the rounds are collected
    with open(progress, "r+b") as file, mmap.mmap(file.fileno(), 8) as current:
        for number in range(seed, seed + -(-inputs // CALLS)):
            current[:8] = struct.pack("q", number)
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            play(number, only)


def main() -> int:
    """Run the rounds, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernel.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="%(default)s")
    parser.add_argument("--seed", type=int, help="number of the first round; default: a new one")
    parser.add_argument("--only", choices=KINDS, help="calls of this kind; default: all")
    parser.add_argument("--progress", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 40) if arguments.seed is None else arguments.seed
    if arguments.progress is not None:
        play_all(seed, arguments.inputs, arguments.progress, arguments.only)
        return 0
    print(f"seed {seed}", flush=True)
    start = time.monotonic()
    with tempfile.NamedTemporaryFile() as progress:
        progress.write(bytes(8))
        progress.flush()
        words = ["-m", "tests.kernel.fuzz", "--progress", progress.name]
        words += ["--seed", str(seed), "--inputs", str(arguments.inputs)]
        only = [] if arguments.only is None else ["--only", arguments.only]
        status = subprocess.run(
            [sys.executable, "-X", "faulthandler", *words, *only], check=False
        ).returncode
        progress.seek(0)
        (number,) = struct.unpack("q", progress.read(8))
    if status:
        print(f"exit status {status}; this repeats it:")
        print(" ".join(["python -m tests.kernel.fuzz --inputs 1 --seed", str(number), *only]))
        return 1
    print(f"{arguments.inputs:,} inputs in {time.monotonic() - start:.0f} s: no defect")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""A fuzzer of the calls that reach compiled code: ``python -m tests.kernel.fuzz --inputs 100000``.

An input is one call of a producer, or of a handle that it returned, with arguments of any kind:
valid ones, sequences that lie about their length or change it, every layout of Arrow, objects that
raise or call back into the producer. For each call the fuzzer checks that it raises only documented
exceptions, and that each accepted row is written to the log of an in-process cluster, byte for
byte, as it was passed. For each round of calls it checks that every callback ran once and that no
byte is in use at the end.

Rounds are numbered, and run in a child process: see :mod:`tests._support.numbered`. The arguments
of a round depend on its number alone; which thread comes first does not.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

from tests._support import numbered

from .fuzz_calls import Round

#: The number of calls in a round.
CALLS = 40
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


def play_all(numbers: Iterator[int], only: str | None) -> bool:
    """Play the rounds of these numbers; the first defect raises."""
    logging.disable()  # what callbacks raise
    gc.freeze()  # only objects made by the rounds are collected
    for number in numbers:
        play(number, only)
    return False


def main() -> int:
    """Run the rounds, and return the exit status."""
    return numbered.main(
        "tests.kernel.fuzz",
        __doc__,
        play_all,
        unit="inputs",
        total=100_000,
        each=CALLS,
        kinds=KINDS,
    )


if __name__ == "__main__":
    raise SystemExit(main())

"""The kernel alone, in nanoseconds per message: microbenchmarks with pyperf, no broker, no thread.

pyperf runs each in many fresh processes. Its JSON files are compared with ``python -m pyperf
compare_to BEFORE.json AFTER.json``.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import payloads

if TYPE_CHECKING:
    from benchmarks.door import Door

HELP = "the compiled kernel alone: append, split, encode, settle"

#: Messages of each measurement: fewer than the kernel puts into one chunk.
_ROWS = 8192
_PARTITIONS = 12
_STICKY_BYTES = 16 * 1024

#: A measurement: the seconds for that many times :data:`_ROWS` messages.
_Timed = Callable[[int], float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="only benchmarks whose names contain these words",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write pyperf's results, for compare_to"
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--fast", dest="pace", action="store_const", const="--fast")
    pace.add_argument("--rigorous", dest="pace", action="store_const", const="--rigorous")
    pace.add_argument(
        "--once",
        dest="pace",
        action="store_const",
        const="--debug-single-value",
        help="run each benchmark once, to check that it works",
    )


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if importlib.util.find_spec("pyperf") is None:
        parser.error("pyperf is not installed: pip install -r benchmarks/requirements.txt")
    if arguments.json is not None and arguments.json.exists():
        parser.error(f"{arguments.json} is there already")


def run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run in a separate process, which starts pyperf's; return the exit status."""
    command = [sys.executable, "-P", "-m", "benchmarks.kernel"]
    command += [arguments.pace] if arguments.pace else []
    command += ["-o", str(arguments.json.absolute())] if arguments.json else []
    command += ["--only", *arguments.only] if arguments.only else []
    # -P and this path: they import exactly what this process would, wherever they run.
    path = os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


# In the processes of pyperf --------------------------------------------------------------------


def main() -> None:
    import pyperf

    def pass_on(command: list[str], arguments: argparse.Namespace) -> None:
        command += ["--only", *arguments.only] if arguments.only else []

    runner = pyperf.Runner(program_args=("-P", "-m", "benchmarks.kernel"), add_cmdline_args=pass_on)
    runner.argparser.add_argument("--only", nargs="+", default=[])
    only = runner.parse_args().only
    for name, timed in _all().items():
        if not only or any(word in name for word in only):
            runner.bench_time_func(name, timed, inner_loops=_ROWS)


def _all() -> dict[str, _Timed]:
    tally = payloads.Tally()
    return {
        "a method that does nothing": partial(_append, _Nothing),
        "a method that does nothing, with callback": partial(_append_with, _Nothing, tally),
        "send": partial(_append, _door),
        "send with callback": partial(_append_with, _door, tally),
        "send with key": _append_keyed,
        "send, handles kept": _append_keeping_handles,
        "send_many of a list": _block_of_list,
        "send_arrow": _block_of_arrow,
        "split, sticky": partial(_split, "sticky", keyed=False),
        "split, round robin": partial(_split, "round_robin", keyed=False),
        "split, murmur2 of keys": partial(_split, "murmur2", keyed=True),
        "split, crc32 of keys": partial(_split, "crc32", keyed=True),
        "claim": _claim,
        "encode": _encode,
        "settle": partial(_settle, {}),
        "settle with callback": partial(_settle, {"on_delivery": tally.on_delivery}),
    }


class _Nothing:
    """The baseline: the cost of a bare call of a Python method."""

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        on_delivery: object = None,
    ) -> None:
        pass


def _door() -> Door:
    from benchmarks.door import Door

    return Door()


def _values() -> list[bytes]:
    return list(itertools.islice(itertools.cycle(payloads.text_values(100)), _ROWS))


# Each loop is written out: a call with ``**arguments`` would cost more than send() itself.


def _append(make: Callable[[], Any], loops: int) -> float:
    values, total = _values(), 0.0
    for _ in range(loops):
        send = make().send
        start = time.perf_counter()
        for value in values:
            send("benchmark", value)
        total += time.perf_counter() - start
    return total


def _append_with(make: Callable[[], Any], tally: payloads.Tally, loops: int) -> float:
    values, total = _values(), 0.0
    callback = tally.on_delivery
    for _ in range(loops):
        send = make().send
        start = time.perf_counter()
        for value in values:
            send("benchmark", value, on_delivery=callback)
        total += time.perf_counter() - start
    return total


def _append_keyed(loops: int) -> float:
    values, total = _values(), 0.0
    for _ in range(loops):
        send = _door().send
        start = time.perf_counter()
        for value in values:
            send("benchmark", value, b"key-000001")
        total += time.perf_counter() - start
    return total


def _append_keeping_handles(loops: int) -> float:
    values, total = _values(), 0.0
    for _ in range(loops):
        send = _door().send
        start = time.perf_counter()
        handles = [send("benchmark", value) for value in values]
        total += time.perf_counter() - start
        del handles
    return total


def _block_of_list(loops: int) -> float:
    from pykaproducer._kernel import columns_of

    values = _values()
    return _blocks(lambda: [columns_of(values)], loops)


def _block_of_arrow(loops: int) -> float:
    import pyarrow as pa

    from pykaproducer._kernel import columns_of_arrow

    batch = pa.record_batch({"value": pa.array(_values(), pa.binary())})
    return _blocks(lambda: columns_of_arrow(batch), loops)


def _blocks(columns: Callable[[], list[Any]], loops: int) -> float:
    total = 0.0
    for _ in range(loops):
        door = _door()
        start = time.perf_counter()
        door.take_block(columns())
        total += time.perf_counter() - start
    return total


def _chunk(how: dict[str, Any], *, keyed: bool = False) -> Any:
    """Return a full chunk; its door is not kept."""
    door = _door()
    for value, key in zip(_values(), itertools.cycle(payloads.keys()), strict=False):
        door.send("benchmark", value, key if keyed else None, **how)
    (chunk,) = door.chunks()
    return chunk


def _split(name: str, loops: int, *, keyed: bool) -> float:
    from benchmarks.door import split
    from pykaproducer import partitioners

    total = 0.0
    for _ in range(loops):
        chunk = _chunk({}, keyed=keyed)
        partitioner = partitioners.named(name, sticky_bytes=_STICKY_BYTES)
        start = time.perf_counter()
        split(chunk, _PARTITIONS, partitioner)
        total += time.perf_counter() - start
    return total


def _whole(how: dict[str, Any]) -> Any:
    """Return a full chunk as one slice of a partition."""
    from benchmarks.door import split
    from pykaproducer import partitioners

    (whole,) = split(_chunk(how), 1, partitioners.named("sticky", sticky_bytes=_STICKY_BYTES))
    return whole


def _claim(loops: int) -> float:
    total = 0.0
    for _ in range(loops):
        whole = _whole({})
        start = time.perf_counter()
        whole.claim(1 << 30, _ROWS)
        total += time.perf_counter() - start
    return total


def _encode(loops: int) -> float:
    import crc32c

    from pykaproducer._kernel import encode_batch

    total = 0.0
    for _ in range(loops):
        part = _whole({}).claim(1 << 30, _ROWS)
        start = time.perf_counter()
        encode_batch([part], crc32c.crc32c)
        total += time.perf_counter() - start
    return total


def _settle(how: dict[str, Any], loops: int) -> float:
    total = 0.0
    for _ in range(loops):
        part = _whole(how)
        start = time.perf_counter()
        part.deliver(0).report(_no_trouble)
        total += time.perf_counter() - start
    return total


def _no_trouble(callback: object, error: BaseException) -> None:
    raise AssertionError(f"{callback!r} raised {error!r}")


if __name__ == "__main__":
    main()

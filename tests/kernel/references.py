"""References and memory over more than a million calls: ``python -m tests.kernel.references``.

Each entry point of the kernel is called with valid and invalid arguments, with new objects each
time. After a warm-up, neither Python's memory nor malloc()'s may grow with the number of calls.
Nothing depends on time: the same calls give the same counts.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import socket
import sys
import sysconfig
import time
from collections.abc import Callable
from typing import Any

import crc32c
import numpy
import pyarrow

import pykaproducer._kernel as _kernel

from .helper import Door, encode, no_error_expected, pack, some

#: Accepted messages are finished after this many calls.
ROUND = 100
#: A leak grows with the calls of every window; a free list or a table reaches its final size.
WINDOWS = 4
#: Growth in a window that is not a leak, however many calls it has. A free-threaded interpreter
#: frees some objects later. (A leak of one block in each of a hundred calls is still found.)
BLOCKS, BYTES = (80 if sysconfig.get_config_var("Py_GIL_DISABLED") else 40), 16 << 10


class TooMuchError(Exception):
    """Memory has grown with the number of calls."""


class Wrong:
    """An object whose every attribute and method raises."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        yield b"1"
        raise LookupError


def refused(function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Call *function*, which must raise."""
    try:
        function(*arguments, **named)
    except Exception:
        return
    raise AssertionError(f"{function} took {arguments}, {named}")


def fresh(size: int = 3) -> bytes:
    """Return bytes that nothing else refers to."""
    return bytes(bytearray(b"v" * size))


def callback() -> Callable[..., None]:
    """Return a function that nothing else refers to."""
    return lambda *outcome: None


def finish(door: Door, *, failing: bool = False, partitions: int = 3) -> None:
    """Finish all accepted messages, as the stages do."""
    partitioner = _kernel.Partitioner(_kernel.MURMUR2, _kernel.STICKY, sticky_bytes=200)
    partitioner.set_queue_bounds(pack(range(partitions)), pack(range(1, partitions + 1)))
    stat = _kernel.SampledStat(1.0, 2, True)
    for chunk in door._take_all():
        slices, _ = chunk.split(partitioner, partitions, pack(range(partitions)))
        for part in slices:
            part.detach_payload()
            claimed = some(part.claim(1 << 30, 1 << 30))
            encode(claimed, compress=lambda buffer: bytes(buffer)[:3])
            claimed.unclaim()
            claimed.mark_ambiguous()
            if failing:
                settled = claimed.fail(LookupError(), TimeoutError())
            else:
                settled = claimed.deliver(5, 7, latency=stat, now=1.0)
            assert settled is not None
            settled.wake_waiters()
            settled.report(no_error_expected)


# Valid and invalid calls --------------------------------------------------------------------------


def send_right(door: Door) -> None:
    headers = [(f"h{id(door)}", fresh()), ("none", None)]
    timed = {"on_delivery": callback(), "delivery_timeout_ms": 1 << 20}
    door.send("events", fresh(), fresh(), headers, 0, 1 << 40, **timed)
    door.send("events", bytearray(b"v"), memoryview(fresh()))
    door.send("other", None, fresh(2000))


def send_wrong(door: Door) -> None:
    lease = bytearray(b"key")
    for wrong in (
        {"value": "text"},
        {"value": memoryview(fresh(9))[::2]},
        {"value": bytes(3 << 20)},
        {"topic": ""},
        *({"headers": [("a", fresh()), pair]} for pair in (("c", "d"), 5, ("\ud800", fresh()))),
        {"headers": Wrong()},
        {"partition": -(1 << 70)},
        {"timestamp_ms": "now"},
        {"on_delivery": []},
    ):
        refused(door.send, **{"topic": "events", "value": fresh(), "key": lease, **wrong})
    refused(door.send, "events", fresh(), object())
    lease.append(1)  # fails if a buffer is still exported
    intercepted = _kernel.Intercepted(callback(), callback())
    refused(door.send, "events", fresh(), on_delivery=intercepted)


def columns_right(door: Door) -> None:
    values = [fresh(), None, bytearray(b"x")]
    headers = [[("name", fresh())], None, []]
    columns = _kernel.columns_of(values, values, headers, [0, None, 2], numpy.array([1, 2, 3]))
    assert columns.count == 3
    block(door, "events", [columns, _kernel.columns_of(numpy.array([b"a", b"bc"]))])
    block(door, "events", [_kernel.columns_of(pyarrow.array([fresh()]), pyarrow.array(["k"]))])
    chunked = pyarrow.chunked_array([[fresh()], [b"b"]])
    block(door, "events", [_kernel.columns_of(chunked)])


def columns_wrong(door: Door) -> None:
    two = [fresh(), fresh()]
    for values, more in (
        ([fresh(), 5], {}),
        (Wrong(), {}),
        ([fresh()], {"keys": two}),
        ([fresh()], {"headers": [[("a", 5)]]}),
        (two, {"headers": Wrong()}),
        (two, {"partitions": [1 << 20, "x"]}),
        (two, {"partitions": Wrong()}),
        ([fresh()], {"timestamps_ms": [-5]}),
        ([fresh()], {"partitions": pyarrow.array([-1])}),
        (pyarrow.array([1.5]), {}),
    ):
        refused(_kernel.columns_of, values, **more)


def arrow_right(door: Door) -> None:
    headers = pyarrow.array([[("a", fresh())], None], pyarrow.map_(pyarrow.string(), "binary"))
    columns = {"value": [fresh(), None], "key": ["k", "l"], "partition": [1, None]}
    batch = pyarrow.record_batch({**columns, "timestamp": [5, None], "headers": headers})
    block(door, "events", _kernel.columns_of_arrow(batch))
    table = pyarrow.table({"value": [fresh()] * 3, "topic": ["a", "b", "a"]})
    block(door, None, _kernel.columns_of_arrow(table))
    words = pyarrow.array(["a", "b", "a"]).dictionary_encode()
    block(door, "events", _kernel.columns_of_arrow(pyarrow.record_batch({"value": words})))


def arrow_wrong(door: Door) -> None:
    schema = pyarrow.schema([("value", pyarrow.binary())])
    for data in (
        *({"x": [1]}, {"value": [1.5]}, {"partition": [-5]}, {"headers": [[1]]}),
        object(),
        pyarrow.RecordBatchReader.from_batches(schema, Wrong()),
    ):
        whole = pyarrow.record_batch({"value": [fresh()], **data}) if type(data) is dict else data
        refused(_kernel.columns_of_arrow, whole)
    no_topic = pyarrow.record_batch({"value": [fresh()] * 2, "topic": ["a", None]})
    refused(block, door, None, _kernel.columns_of_arrow(no_topic))


def block(door: Door, topic: str | None, columns: list[_kernel.Columns]) -> _kernel.SentBlock:
    """Send columns, and call every method of the block."""
    sent = _kernel.SentBlock()
    door._send_block(sent, topic, columns, None, callback(), ())
    sent.pending(), sent.failures()
    sent.watch_each([callback() for _ in range(sent.count)])
    sent.outcomes()
    return sent


def handles(door: Door) -> None:
    failing = door.failing
    kept = [failing.send("events", fresh(), fresh(), on_delivery=callback()) for _ in range(3)]
    first = kept[0]
    lock = asyncio.Lock()
    for handle in kept:
        handle.when_settled(callback())
        handle.add_done_callback(callback())
        handle.add_callback(callback(), fresh())
        handle.add_errback(callback(), fresh())
        handle.add_both(callback())
        handle.watch(lock)
        handle.unwatch(lock)
    refused(first.result, 0)
    refused(first.exception, 0)
    finish(failing, failing=True)
    for handle in kept:
        refused(handle.result)
        refused(handle.get, 0)
        refused(handle.__reduce__)
        assert handle.exception() is not None
        assert (handle.done(), handle.failed(), handle.succeeded()) == (True, True, False)
        assert handle.failure() is not None
        assert handle.peek_failure() is not None
        handle.add_done_callback(callback())
        handle.settled(), handle.possibly_persisted(), repr(handle), {handle: handle.key}
    refused(wait_in_loop, first)


def wait_in_loop(handle: _kernel.Delivery) -> None:
    """Wait as in ``await handle`` of a message that has failed."""
    next(handle.__await__())


def chunks(door: Door) -> None:
    failing = door.failing
    for _ in range(3):
        failing.send("events", fresh(), fresh(), delivery_timeout_ms=1)
    failing._unannounced(), failing._open_rows()
    (chunk,) = failing._take_all()
    chunk.assign(0, 1)
    chunk.unassigned(), chunk.partition_of(0), chunk.accepted(), chunk.expired(1e12)
    assert chunk.key(0) == chunk.value(1) == fresh()
    refused(chunk.pick, [3])
    part = chunk.pick([1, 2])
    part.row_numbers(), part.waiting(), part.oldest_deadline(), part.first_error()
    part.unreported_failures()
    claimed = part.claim(1 << 30, 1 << 30)
    refused(_kernel.encode_batch, [claimed], lambda buffer: 1 // 0)
    refused(_kernel.encode_batch, [], crc32c.crc32c)
    for each in (claimed, chunk.whole()):
        settled = some(each.fail(LookupError(), TimeoutError()))
        settled.finish()


def small_things(door: Door) -> None:
    _kernel.partition_for(_kernel.CRC32, fresh(), 7)
    refused(_kernel.Partitioner(1, 0).set_queue_bounds, fresh(8), fresh(4))
    stat = _kernel.SampledStat(10.0, 3, True)
    stat.add(1.0, 0.5)
    stat.percentiles(1.0, 0.5, 0.9), stat.recent(1.0), stat.histogram([0.1, 1.0])
    budget = _kernel.Budget(1 << 40)
    budget.fits(1 << 30), budget.wake_all()
    _kernel.pool_use(), _kernel.stage_wanted(), _kernel.stage_runs()


def sockets(door: Door) -> None:
    ours, theirs = door.sockets
    number = theirs.fileno()
    into = memoryview(bytearray(9))
    _kernel.write_buffers(ours.fileno(), [fresh(), bytearray(b"x"), memoryview(fresh())], 0)
    _kernel.write_buffers(ours.fileno(), [b"x"] * 70, 0)
    _kernel.poll_events([(number, 1), (ours.fileno(), 4)], 0)
    _kernel.read_into(number, into)
    poker = _kernel.Poker(ours.fileno())
    poker.poke(), poker.poke(), poker.reset(), poker.poke(surely=True), poker.close()
    poker.poke(surely=True)
    _kernel.drain(number)
    _kernel.read_into(number, into)
    refused(_kernel.write_buffers, -1, [fresh()], 0)


CASES: tuple[Callable[[Any], None], ...] = (
    send_right,
    send_wrong,
    columns_right,
    columns_wrong,
    arrow_right,
    arrow_wrong,
    handles,
    chunks,
    small_things,
    sockets,
)


# Counters -----------------------------------------------------------------------------------------


class CountedDoor(Door):
    """A door, one for messages that fail, and a pair of sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = Door()
        ours, theirs = self.sockets = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)


class _Usage(ctypes.Structure):
    """``struct mallinfo2``."""

    _fields_ = [("fields", ctypes.c_size_t * 10)]


def allocated_bytes() -> int:
    """Return the number of bytes allocated by malloc()."""
    library = ctypes.CDLL(None)
    if hasattr(library, "__sanitizer_get_current_allocated_bytes"):
        count = library.__sanitizer_get_current_allocated_bytes
        count.restype = ctypes.c_size_t
        return int(count())
    if not hasattr(library, "mallinfo2"):
        return 0  # another libc: only Python's own blocks are counted
    library.mallinfo2.restype = _Usage
    usage = library.mallinfo2()
    return int(usage.fields[7] + usage.fields[4])  # from the heap, and mapped separately


def counts(door: CountedDoor) -> dict[str, int]:
    """Return the counters that must not grow with the number of calls."""
    gc.collect()
    pool = _kernel.pool_use()[1]
    found = {
        "blocks": sys.getallocatedblocks(),
        "bytes": allocated_bytes(),
        "pool": pool,
        "in use": door.budget.used + door.failing.budget.used,
    }
    for shared in (door, door.budget, door.home, None, _kernel.Chunk, callback):
        found[f"references to {shared!r}"[:60]] = sys.getrefcount(shared)
    return found


def check(case: Callable[[Any], None], times: int) -> None:
    """Run *case* *times* times; raise if a counter has grown."""
    door = CountedDoor()

    def play(rounds: int) -> None:
        for number in range(rounds):
            case(door)
            if number % ROUND == ROUND - 1:
                finish(door)
                door.told.clear()
                door.failing.told.clear()
        finish(door)

    leaks: list[dict[str, int]] = []
    try:
        play(2 * ROUND)
        for _ in range(WINDOWS):
            before = counts(door)
            play(times // WINDOWS)
            grown = {name: count - before[name] for name, count in counts(door).items()}
            leaks.append({name: by for name, by in grown.items() if by > allowed(name)})
    finally:
        for each in door.sockets:
            each.close()
    if all(leaks):
        raise TooMuchError(f"{case.__name__}: {leaks} in windows of {times // WINDOWS:,} times")


def allowed(name: str) -> int:
    """Return the growth that is not considered a leak."""
    return BYTES if name in ("bytes", "pool") else BLOCKS


def main() -> int:
    """Check every case, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernel.references", description=__doc__)
    parser.add_argument(
        "--times",
        type=int,
        default=100_000,
        help="how often cases are run, in all, each with about a dozen calls; %(default)s",
    )
    arguments = parser.parse_args()
    start = time.monotonic()
    for case in CASES:
        check(case, -(-arguments.times // len(CASES)))
    print(f"{arguments.times:,} cases in {time.monotonic() - start:.0f} s: nothing has grown")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Calls in another process, and a file that crashes the library that reads ORC."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest

from pykaproducer._load import apart
from pykaproducer._load.names import SourceError
from tests.load.truth import values

#: An ORC file with the texts 0 to 39 in a column y. Its byte 40 is of the lengths of the texts.
ORC = zlib.decompress(
    base64.b64decode(
        "eJxdzr1qAkEQwPGZW7NuFkmOK3Q9CBxXbRV2Zu5rrQRBUyTxEJ/At0gnqVPkBfIueag8QBbtZGB+Uw3//WFjdTExfgQ7"
        "twoAikfj63uLocDovnCEKf4+ZRCIpWm7fogUiIhJqKGWOuppoMiBiZmFG265454HjhKEhEWkkVY66WWQaLXROThzEZ1L"
        "ZkmdxOQ2lUAOaWc5lGr3drQLe427rTIq/8HSJir3WpH39YOZFYglflTgIUBtzPR6Bb+6/Fjd/lh/v7/g6Y6f05gxdZ3P"
        "kzqDmV8G/fmn1P6wWfwD50Im8Q=="
    )
)


def processes(count: int) -> Iterator[int]:
    for _ in range(count):
        yield os.getpid()


def crash_after(count: int) -> Iterator[int]:
    yield from range(1, count + 1)
    os.kill(os.getpid(), signal.SIGSEGV)


def fail(error: Exception) -> Iterator[int]:
    yield 1
    raise error


def test_the_process_is_another_one_and_kept() -> None:
    first, second = apart.each(processes, 2)
    assert first == second != os.getpid()
    assert list(apart.each(processes, 1)) == [first]


@pytest.mark.parametrize(
    "error", [OSError(5, "no"), ImportError("no"), pyarrow.ArrowInvalid("no"), SourceError("no")]
)
def test_an_exception_is_raised_here(error: Exception) -> None:
    (process,) = apart.each(processes, 1)
    found = apart.each(fail, error)
    assert next(found) == 1
    with pytest.raises(type(error), match="no"):
        next(found)
    assert list(apart.each(processes, 1)) == [process]


def test_a_crash_is_an_error() -> None:
    found = apart.each(crash_after, 2)
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(pyarrow.ArrowInvalid, match=r"has crashed \(SIGSEGV\)"):
        next(found)
    assert len(list(apart.each(processes, 2))) == 2


class Fatal:
    def __reduce__(self) -> str:
        os._exit(7)


def half_a_result() -> Iterator[object]:
    yield bytes(1 << 20), Fatal()


def test_a_crash_within_a_result_is_an_error() -> None:
    with pytest.raises(pyarrow.ArrowInvalid, match=r"has crashed \(exit status 7\)"):
        list(apart.each(half_a_result))


def test_a_process_that_has_died_is_not_used_again() -> None:
    (process,) = apart.each(processes, 1)
    os.kill(process, signal.SIGKILL)
    apart._idle[0]._process.wait(60)
    assert len(list(apart.each(processes, 2))) == 2


@pytest.mark.parametrize("limit", ["soft", "hard"])
def test_a_lower_limit_of_memory_is_kept(limit: str) -> None:
    program = (
        "import resource, sys; from pykaproducer._load import apart; from tests.load.test_apart "
        "import limits; most = 6 << 30; "
        f"resource.setrlimit(resource.RLIMIT_AS, (most, most if {limit == 'hard'} else -1)); "
        "assert list(apart.each(limits)) == [resource.getrlimit(resource.RLIMIT_AS)]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def limits() -> Iterator[tuple[int, int]]:
    import resource

    yield resource.getrlimit(resource.RLIMIT_AS)


def test_calls_at_once_have_a_process_each() -> None:
    first, second = apart.each(processes, 3), apart.each(processes, 3)
    assert next(first) != next(second)
    first.close()  # in the middle: that process is not used again
    assert len({*second, *apart.each(processes, 1)}) == 1


def test_a_file_that_crashes_the_library(tmp_path: Path) -> None:
    path = tmp_path / "x.orc"
    path.write_bytes(ORC)
    assert len(values(str(path))) == 40
    path.write_bytes(ORC[:40] + b"\x7f" + ORC[41:])
    with pytest.raises(SourceError, match=r"x\.orc: stripe 0, column y: .*; write the file again"):
        values(str(path))

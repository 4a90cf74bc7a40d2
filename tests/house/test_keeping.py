"""What a test starts does not outlive the run or the worker process, even if that is killed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from pykaproducer.testing._processes import tick
from tests._support.programs import exists

ROOT = pathlib.Path(__file__).parents[2]
#: How long a busy machine may take for anything here (seconds).
SOON = 60

#: Runs pytest with Python's own handler of Ctrl-C, which a shell takes from programs in background.
PYTEST = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""

TEST = """
import os, pathlib, subprocess, sys, tempfile

def test_that_starts_a_program():
    program = [sys.executable, "-c", "input()"]
    child = subprocess.Popen(program, stdin=subprocess.PIPE, start_new_session=True)
    made = pathlib.Path(__file__).with_name("made")
    made.write_text(f"{os.getpid()} {child.pid} {tempfile.mkdtemp()}")
    made.rename(made.with_name("found"))
    child.wait()
"""


def wait_for(condition: Callable[[], object], failure: str) -> None:
    """Wait until *condition()* is true."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, failure
        tick()


@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["one process", "a worker"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
def test_nothing_outlives_the_run(
    workers: list[str], number: signal.Signals, tmp_path: pathlib.Path
) -> None:
    _, child, directory, controller = _run(tmp_path, workers)
    controller.send_signal(number)
    wait_for(lambda: not exists(child), "the program outlives the run")
    wait_for(lambda: not directory.exists(), "a directory outlives the run")
    controller.wait(SOON)


def test_nothing_outlives_a_worker_that_is_killed(tmp_path: pathlib.Path) -> None:
    worker, child, _, controller = _run(tmp_path, ["-n", "1", "--max-worker-restart", "0"])
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not exists(child), "the program outlives the worker that started it")
    assert controller.wait(SOON) != 0


def _run(
    directory: pathlib.Path, workers: list[str]
) -> tuple[int, int, pathlib.Path, subprocess.Popen[bytes]]:
    """Run the test. Return its process, its program, its directory, and the controller."""
    (directory / "test_program.py").write_text(TEST)
    options = ["-c", "/dev/null", "-p", "no:cacheprovider", "-p", "tests._support.fixtures.keeping"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    controller = subprocess.Popen(
        [sys.executable, "-c", PYTEST, *options, *workers, str(directory / "test_program.py")],
        cwd=ROOT,
        env=env,
        stdout=subprocess.DEVNULL,
    )
    found = directory / "found"
    with contextlib.ExitStack() as failing:
        failing.callback(controller.kill)
        wait_for(lambda: found.exists() or controller.poll() is not None, "the test does not run")
        pid, child, made = found.read_text().split()
        failing.pop_all()
    return int(pid), int(child), pathlib.Path(made), controller

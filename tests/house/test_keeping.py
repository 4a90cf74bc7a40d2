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

#: Forks, and does not wait for the child.
FORK = """
import os, pathlib, tempfile

def test_that_forks():
    child = os.fork()
    if child == 0:
        os.read(os.pipe()[0], 1)
    made = pathlib.Path(__file__).with_name("made")
    made.write_text(f"{os.getpid()} {child} {tempfile.mkdtemp()}")
    made.rename(made.with_name("found"))
"""

#: A guard that starts what makes a file after the directories of the run have been removed.
GUARD = """
import os, pathlib, sys, threading

run, owner = pathlib.Path(sys.argv[1]), sys.argv[2]
while str(os.getppid()) == owner or run.exists():
    threading.Event().wait(0.02)
(run / "broker").mkdir(parents=True)
"""

#: Kills pytest when it is about to start the keeper.
EARLY = """
import os, signal
from tests._support import keeper

keeper.start = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""

#: Writes down the places of workers. The second one is killed, and its replacement awaited.
PLACES = """
import os, pathlib, pytest, signal, threading

@pytest.mark.parametrize("number", range(12))
def test_that_has_a_place(number, request, tmp_path):
    worker, place = (request.config.workerinput[name] for name in ("workerid", "place"))
    pathlib.Path(__file__).with_name(f"{worker} {place}").touch()
    if worker == "gw1":
        os.kill(os.getpid(), signal.SIGKILL)
    while worker == "gw0" and not list(pathlib.Path(__file__).parent.glob("gw2 *")):
        threading.Event().wait(0.02)
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


def test_a_worker_that_replaces_a_killed_one_takes_its_place(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_places.py").write_text(PLACES)
    plugins = [f"-ptests._support.fixtures.{name}" for name in ("keeping", "cluster")]
    options = ["-c", "/dev/null", "-p", "no:cacheprovider", *plugins, "-n", "2"]
    ended = subprocess.run(
        [sys.executable, "-c", PYTEST, *options, str(tmp_path / "test_places.py")],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        timeout=SOON,
        check=False,
    )
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED  # that of the worker that was killed
    assert {each.name for each in tmp_path.glob("gw*")} == {"gw0 0", "gw1 1", "gw2 1"}


linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children so")


@linux
def test_a_worker_that_is_killed_is_noticed_although_a_forked_child_has_its_pipes(
    tmp_path: pathlib.Path,
) -> None:
    waits = FORK + "    os.waitpid(child, 0)\n"
    worker, child, _, controller = _run(tmp_path, ["-n", "1", "--max-worker-restart", "0"], waits)
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not exists(child), "the forked child outlives the worker")
    assert controller.wait(SOON) != 0


@linux
def test_a_run_ends_although_a_test_has_left_a_forked_child(tmp_path: pathlib.Path) -> None:
    _, child, directory, controller = _run(tmp_path, [], FORK)
    assert controller.wait(SOON) == 0
    wait_for(lambda: not exists(child), "the forked child outlives the run")
    assert not directory.exists()


@linux
def test_what_a_guard_still_makes_is_removed(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "testing" / "_guard.py"
    script.parent.mkdir()
    script.write_text(GUARD)
    test = TEST.replace(
        '"-c", "input()"', f"{str(script)!r}, tempfile.gettempdir(), str(os.getpid())"
    )
    _, guard, directory, controller = _run(tmp_path, [], test)
    controller.kill()
    controller.wait(SOON)
    wait_for(lambda: not exists(guard), "the guard outlives the run")
    wait_for(lambda: not directory.parent.exists(), "the directory of the run outlives it")


def test_a_run_that_is_killed_before_it_has_a_keeper_leaves_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "early", "-p", "tests._support.fixtures.keeping"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(temporary)},
        timeout=SOON,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert list(temporary.iterdir()) == []


def _run(
    directory: pathlib.Path, workers: list[str], test: str = TEST
) -> tuple[int, int, pathlib.Path, subprocess.Popen[bytes]]:
    """Run the test. Return its process, its program, its directory, and the controller."""
    (directory / "test_program.py").write_text(test)
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

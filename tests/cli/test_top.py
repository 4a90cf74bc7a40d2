"""``top``: it shows the stats of a process, on any terminal, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from pykaproducer.cli import main
from pykaproducer.cli._top_history import History
from pykaproducer.cli._top_view import Room, frame
from pykaproducer.cli.top import _command_of
from pykaproducer.stats import read_stats, running, runtime_directory
from pykaproducer.testing import KafkaCluster
from tests._support.consumer import consume
from tests._support.snapshots import SOME, TRANSACTIONS, snapshot
from tests._support.speaker import speaking

from .helper import NOWHERE, PATIENCE, command, end_of, run
from .terminal import on_a_terminal

#: The sequences that leave the alternate screen, and show the cursor again.
LEFT, CURSOR = b"\x1b[?1049l", b"\x1b[?25h"
#: For ``perf``: enough to run until it is stopped, and slowly enough for any machine.
ENDLESS = ("--num-records", "100000000", "--throughput", "1000")
#: Each picture starts with this sequence, which moves the cursor to the top left.
HOME = "\x1b[H"


@pytest.fixture
def directory() -> Iterator[pathlib.Path]:
    """Yield a directory with a short name: a socket's path has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="top") as name:
        yield pathlib.Path(name)


@pytest.fixture
def path(directory: pathlib.Path) -> pathlib.Path:
    """Return the path of a socket."""
    return directory / "a.sock"


class Busy:
    """A producer that has delivered a thousand more messages at each call."""

    def __init__(self, **more: Any) -> None:
        self._more = more
        self._looks = itertools.count()

    def __call__(self) -> dict[str, Any]:
        said = snapshot(**self._more)
        said["messages"]["delivered"] += 1000 * next(self._looks)
        return said


# On a terminal ------------------------------------------------------------------------------------


def test_the_picture_and_the_keys(path: pathlib.Path) -> None:
    with (
        speaking(path, Busy()),
        on_a_terminal("top", str(path), "--interval", "0.1", columns=60) as terminal,
    ):
        for text in ("app", "pid 4711", "running", "up 1:00:00", "buffer", "LATENCY", "q quits"):
            terminal.wait_for(text)
        assert b"last error" not in terminal.shown
        terminal.resize(200, 50)
        terminal.wait_for("last error")
        terminal.wait_for("connection refused")
        terminal.press(b"p")
        terminal.wait_for("PAUSED")
        terminal.press(b"p")
        terminal.wait_for("q quits   p pauses")
        terminal.press(b"\x1b[A")  # an arrow key is not bound
        terminal.press(b"q")
        assert terminal.end() == 0
        assert LEFT in terminal.shown
        assert CURSOR in terminal.shown
        assert terminal.is_as_before()


def test_transactions(path: pathlib.Path) -> None:
    refused = {**TRANSACTIONS, "state": "abortable", "error": "there is no such topic"}
    latency = {**snapshot()["latency_ms"], "commit": SOME}

    def shown(**more: Any) -> str:
        with speaking(path, lambda: snapshot(**more)):
            done = run("top", str(path), "--once", "--interval", "0.1")
        return " ".join(done.stdout.decode().split())

    there = shown(transactions=TRANSACTIONS, latency_ms=latency)
    assert "txns open 250 ms 3 partitions committed 0/s total 40 aborted 2" in there
    assert " commit 1.50 4.00 8.00 16.0 2.00 " in there
    there = shown(transactions=refused, latency_ms=latency)
    assert "txns abortable" in there
    assert "there is no such topic" in there
    assert "txns" not in shown()


@pytest.mark.parametrize(("columns", "lines"), [(20, 5), (1, 1), (500, 100)])
def test_any_size(columns: int, lines: int, path: pathlib.Path) -> None:
    arguments = ("top", str(path), "--interval", "0.1")
    with (
        speaking(path, Busy()),
        on_a_terminal(*arguments, columns=columns, lines=lines) as terminal,
    ):
        for _ in range(4):
            terminal.wait_for(HOME)
        terminal.press(b"q")
        assert terminal.end() == 0
        assert b"Traceback" not in terminal.shown


def test_ctrl_c_is_an_end_like_any_other(path: pathlib.Path) -> None:
    with speaking(path, Busy()), on_a_terminal("top", str(path)) as terminal:
        terminal.wait_for("q quits")
        terminal.press(b"\x03")
        assert terminal.end() == 0
        assert LEFT in terminal.shown
        assert b"Traceback" not in terminal.shown
        assert terminal.is_as_before()


def test_the_end_of_who_is_watched(path: pathlib.Path) -> None:
    with contextlib.ExitStack() as stack:
        with speaking(path, Busy()):
            arguments = ("top", str(path), "--interval", "0.1")
            terminal = stack.enter_context(on_a_terminal(*arguments))
            terminal.wait_for("q quits")
        assert terminal.end() == 0
        assert b"app (process 4711) has ended" in terminal.shown
        assert LEFT in terminal.shown
        assert terminal.is_as_before()


def test_a_process_that_does_not_answer_is_waited_for(path: pathlib.Path) -> None:
    answers = threading.Event()
    looks = itertools.count()

    def say() -> dict[str, Any]:
        look = next(looks)
        if look == 2:
            assert answers.wait(PATIENCE)
        said = snapshot()
        # A look that was given up may be answered, too, so those that follow are the same.
        said["messages"]["delivered"] += 1000 * min(look, 3)
        return said

    with (
        speaking(path, say),
        on_a_terminal("top", str(path), "--interval", "0.1") as terminal,
    ):
        try:
            terminal.wait_for("no answer for")
        finally:
            answers.set()
        # The picture is updated: the delivery rate is above zero.
        terminal.wait_for("total 3,900")
        terminal.press(b"q")
        assert terminal.end() == 0


# Without a terminal -------------------------------------------------------------------------------


def test_one_picture_in_plain_text(path: pathlib.Path) -> None:
    with speaking(path, Busy()):
        done = run("top", str(path), "--once", "--interval", "0.1")
    assert done.returncode == 0, done.stderr.decode()
    assert b"\x1b" not in done.stdout
    shown = done.stdout.decode()
    for text in ("app  pid 4711  running", "3% of 33.6 MB", "BrokerWorker"):
        assert text in shown
    assert "gone: UnknownTopicOrPartitionError" in shown
    assert "2 blocked in send()" in shown


def test_numbers_stay_near_their_labels_in_a_wide_terminal() -> None:
    history = History()
    history.add(snapshot(), 0.0)
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(frame(history, Room(400)))
    (line,) = [line for line in console.export_text().splitlines() if "send() to outcome" in line]
    assert len(line[:200].rstrip()) <= 100


def test_lines_of_json_until_the_end(path: pathlib.Path) -> None:
    says = iter([snapshot(), snapshot(), snapshot(state="closed")])
    with speaking(path, lambda: next(says)):
        done = run("top", str(path), "--json", "--interval", "0.1")
    assert done.returncode == 0
    assert [json.loads(line) for line in done.stdout.splitlines()] == [snapshot(), snapshot()]
    assert b"has ended" in done.stderr
    assert b"900 of 1,000" in done.stderr


def test_what_it_shows_gives_the_terminal_no_commands(path: pathlib.Path) -> None:
    with speaking(path, lambda: snapshot(client_id="\x1b]0;evil\x07[red]\n")):
        done = run("top", str(path), "--once", "--interval", "0.1")
    assert done.returncode == 0
    assert done.stdout.startswith(b"?]0;evil?[red]?  pid")


def test_without_rich(path: pathlib.Path) -> None:
    program = "import sys; sys.modules['rich'] = None; import pykaproducer.cli as c; "
    with speaking(path, snapshot):
        for option, status in (("--once", 1), ("--json", 0)):
            call = f"sys.exit(c.main(['top', {str(path)!r}, '--once', {option!r}]))"
            done = subprocess.run(
                [sys.executable, "-c", program + call],
                capture_output=True,
                timeout=PATIENCE,
                check=False,
            )
            assert done.returncode == status
            assert (b"pip install 'pykaproducer[cli]'" in done.stderr) == (status == 1)


# Finding a process --------------------------------------------------------------------------------


def test_what_cannot_be_watched(
    directory: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, gone = directory / "other.sock", directory / "gone.sock"
    (directory / "file").write_bytes(b"")
    with speaking(gone, snapshot):
        os.link(gone, directory / "left")  # as left by a process that was killed
    with speaking(other, lambda: b'{"no": "producer"}\n'):
        for name, status, text in (
            ("nothing", 2, "No such file"),
            ("file", 2, "not a socket"),
            ("left", 1, "Connection refused"),
            ("other.sock", 1, "not from a producer of this version"),
        ):
            assert main(["top", str(directory / name)]) == status
            assert text in capsys.readouterr().err


def test_finding_the_commands_that_run(
    directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))

    def found(*arguments: str) -> int:
        assert main(["top", "--once", "--json", *arguments]) == 0
        pid: int = json.loads(capsys.readouterr().out)["pid"]
        return pid

    assert main(["top", "--once"]) == 1
    assert f"no producer listens in {directory}/pykaproducer" in capsys.readouterr().err
    there = directory / "pykaproducer"
    there.mkdir(mode=0o700)
    with speaking(there / "1.sock", lambda: snapshot(pid=1)):
        assert found() == 1
        with speaking(there / "2.sock", lambda: snapshot(pid=2)):
            assert main(["top", "--once"]) == 2
            err = capsys.readouterr().err
            assert "several producers; name one by its process id, or by its socket:\n" in err
            assert re.search(rf"\n  2  .*{there}/2\.sock\n", err)
            assert found("2") == 2
        assert main(["top", "7"]) == 1
        assert "of process 7" in capsys.readouterr().err


def test_the_list_shows_the_commands() -> None:
    """A long command line is cut, and one that cannot be read is left out."""
    words = ("produce", "-t", "events", "-b", NOWHERE, "--header", f"a={'b' * 99}")
    with subprocess.Popen(
        command(*words), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        while not (found := _command_of(process.pid)):  # the system has not started it yet
            assert process.poll() is None
        process.kill()
    assert found == f"pykaproducer produce -t events -b {NOWHERE} --header a=...  "
    assert _command_of(process.pid) == ""


def test_a_command_can_be_found(
    cluster: KafkaCluster, topic: str, directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an option; with a configured socket; and without any socket."""
    cluster.create_topic(topic)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    there = directory / "pykaproducer"
    for option, wanted in ((None, there), (f"{directory}/%p.sock", directory), ("none", None)):
        options = [] if option is None else ["--stats-socket", option]
        servers = cluster.bootstrap_servers
        with subprocess.Popen(
            command("produce", "-t", topic, "--bootstrap-servers", servers, *options),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            before = end_of(servers, topic)
            process.stdin.write(b"a line\n")
            process.stdin.flush()
            consume(servers, topic, before + 1)
            found = sorted(directory.rglob("*.sock"))
            if wanted is None:
                assert found == []
            else:
                assert found == [wanted / f"{process.pid}.sock"]
                assert read_stats(found[0])["messages"]["accepted"] == 1
            _, told = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, told
        assert not list(directory.rglob("*.sock"))


@pytest.mark.full
def test_a_command_that_is_started_to_be_watched(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    to = ("-t", topic, "--bootstrap-servers", cluster.bootstrap_servers)
    with on_a_terminal("top", "--command", "perf", *to, *ENDLESS) as terminal:
        terminal.wait_for("delivered")
        terminal.wait_for("q quits")
        terminal.press(b"q")
        terminal.end()
        assert LEFT in terminal.shown
        assert b"Traceback" not in terminal.shown
        # The command's output comes after the picture.
        assert terminal.shown.split(LEFT)[-1].strip()
    # The watched process reads the standard input of this one.
    watched = command("top", "--json", "--command", "produce", *to)
    done = subprocess.run(
        watched, input=b"one\ntwo\n", capture_output=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"2 of 2 lines delivered" in done.stderr
    # Its producer is closed before the process has ended.
    few = ("--num-records", "1500", "--throughput", "1000")
    done = run("top", "--json", "--interval", "0.1", "--command", "perf", *to, *few)
    assert done.returncode == 0, done.stderr
    assert b"1500 records sent" in done.stderr
    done = run("top", "--command", "produce", *to, "/no/such/file")
    assert done.returncode == 2
    assert b"/no/such/file" in done.stderr


def test_a_directory_where_others_may_write_is_not_trusted(
    directory: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    there = runtime_directory()
    there.mkdir(mode=0o700)
    with speaking(there / "1.sock", lambda: snapshot(pid=1)):
        assert [each.pid for each in running()] == [1]
        there.chmod(0o770)
        assert running() == []

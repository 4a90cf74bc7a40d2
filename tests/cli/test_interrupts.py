"""Ctrl-C and SIGTERM: the commands end soon, and lose nothing that they have read."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from pykaproducer.testing import KafkaCluster
from tests._support.consumer import consume
from tests._support.pairs import partly
from tests._support.programs import run

from .helper import NOWHERE, PATIENCE, command, end_of

DATA = b"".join(b"line %d\n" % number for number in range(400_000)) + b"half a li"
#: More than a pipe holds (bytes).
FIRST = 70_000


class Fed:
    """A command that reads DATA from a pipe that stays open until the command ends."""

    def __init__(self, *arguments: str) -> None:
        self._readable, writable = os.pipe()
        self.process = subprocess.Popen(
            command(*arguments),
            stdin=self._readable,
            stderr=subprocess.PIPE,
            # The tests may run under nohup, which ignores it, and the command would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        #: Set when it has read something: a pipe holds less than the first piece.
        self.reading = threading.Event()
        self._ended = threading.Event()
        self._feeder = threading.Thread(target=self._feed, args=(writable,))
        self._feeder.start()

    def _feed(self, writable: int) -> None:
        with open(writable, "wb") as file:
            file.write(DATA[:FIRST])
            file.flush()
            self.reading.set()
            file.write(DATA[FIRST:])
            file.flush()
            self._ended.wait(PATIENCE)

    def end(self, interrupt: Callable[[subprocess.Popen[bytes]], None]) -> tuple[str, bytes]:
        """Interrupt the command; return its error output and the unread data."""
        interrupt(self.process)
        _, err = self.process.communicate(timeout=PATIENCE)
        self._ended.set()
        with open(self._readable, "rb") as pipe:
            unread = pipe.read()
        self._feeder.join(PATIENCE)
        assert b"Traceback" not in err
        return err.decode(), unread


def once(number: int) -> Callable[[subprocess.Popen[bytes]], None]:
    """Return a function that sends the signal."""
    return lambda process: process.send_signal(number)


def again_and_again(process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C until the command ends."""
    while True:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
        return


@pytest.mark.parametrize(
    "number", partly([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], [signal.SIGTERM])
)
def test_what_was_read_is_delivered_or_kept(
    number: signal.Signals, cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    servers, rejects = cluster.bootstrap_servers, tmp_path / "rejects"
    fed = Fed("produce", "-t", topic, "--bootstrap-servers", servers, "--rejects", str(rejects))
    consume(servers, topic, 1)
    told, unread = fed.end(once(number))
    assert fed.process.returncode == 128 + number
    assert f"interrupted by {number.name}" in told
    delivered = consume(servers, topic, end_of(servers, topic))
    sent = b"".join(record.value + b"\n" for record in delivered)
    assert sent + rejects.read_bytes() + unread == DATA


@pytest.mark.parametrize("interrupt", [once(signal.SIGINT), again_and_again])
def test_what_cannot_be_delivered_is_kept(
    interrupt: Callable[[subprocess.Popen[bytes]], None], tmp_path: pathlib.Path
) -> None:
    """The buffer is full, or everything is read; no broker answers. The command ends soon."""
    rejects = tmp_path / "rejects"
    fed = Fed(
        *("produce", "-t", "t", "--bootstrap-servers", NOWHERE, "--rejects", str(rejects)),
        *("-X", "buffer_memory=1000000"),
    )
    assert fed.process.stderr is not None
    assert NOWHERE.encode() in fed.process.stderr.readline()
    assert fed.reading.wait(PATIENCE)
    told, unread = fed.end(interrupt)
    assert fed.process.returncode == 130
    # Depends on whether it has already sent what it has read.
    assert "abandoned after the interrupt" in told or "read, but not sent" in told
    assert rejects.read_bytes() + unread == DATA


@pytest.mark.skipif(sys.platform != "linux", reason="the others wait in open()")
def test_a_named_pipe_without_a_writer(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    arguments = ("produce", "-t", "t", "--bootstrap-servers", NOWHERE, str(tmp_path / "pipe"))
    with subprocess.Popen(command(*arguments), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert NOWHERE.encode() in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143


def test_load_while_it_waits_for_a_pipe() -> None:
    short = [word for name in ("delivery", "request") for word in ("-X", f"{name}_timeout_ms=500")]
    arguments = ("load", "-t", "t", "-b", NOWHERE, *short, "-X", "linger_ms=0", "--format", "jsonl")
    with subprocess.Popen(
        command(*arguments, "-"), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b'{"a":1}\n')
        process.stdin.flush()
        assert NOWHERE.encode() in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 143


SWALLOWED = """
    import os, signal
    from pykaproducer.cli import _signals

    class Finalized:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    readable, writable = os.pipe()
    with _signals.counted() as signals:
        try:
            signals.error = InterruptedError
            Finalized()  # what its handler raises is only printed
            os.read(readable, 1)
        except InterruptedError:
            signals.error = None
    at_end = signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    print(signals.count, signal.getitimer(signal.ITIMER_REAL), at_end)
    """


def test_a_signal_within_a_finalizer_ends_the_wait_after_it() -> None:
    assert run(SWALLOWED) == "1 (0.0, 0.0) True\n"


def test_an_alarm_that_is_not_ours_ends_a_command_as_before() -> None:
    program = """
        import os, signal
        from pykaproducer.cli import _signals

        with _signals.counted() as signals:
            signals.error = InterruptedError
            os.kill(os.getpid(), signal.SIGALRM)
        """
    assert run(program, code=-signal.SIGALRM) == ""


def test_without_rejects_the_summary_says_what_is_lost() -> None:
    fed = Fed("produce", "-t", "t", "--bootstrap-servers", NOWHERE)
    assert fed.reading.wait(PATIENCE)
    told, _ = fed.end(again_and_again)
    assert "these lines were not kept; use --rejects FILE to keep them" in told


def test_load_abandons_what_cannot_be_delivered(tmp_path: pathlib.Path) -> None:
    """At the second signal at the latest."""
    (tmp_path / "rows.csv").write_text("n\n" + "1\n" * 1000)
    arguments = ("load", str(tmp_path / "rows.csv"), "-t", "t", "-b", NOWHERE)
    with subprocess.Popen(command(*arguments), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        assert NOWHERE.encode() in told
        process.send_signal(signal.SIGINT)
        while b"stopping: waiting up to 5 s for 1,000 pending rows" not in told:
            told = process.stderr.readline()
            assert told
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    assert b"AbortedError: topic 't': the load was stopped; it waited: no connection to" in told


@pytest.mark.kafka
@pytest.mark.parametrize("number", partly([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_a_cluster_prints_its_servers_and_ends_cleanly(number: signal.Signals) -> None:
    with subprocess.Popen(
        command("cluster", "start"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        host, port = line.rstrip("\n").split(":")
        assert (host, port.isdecimal()) == ("127.0.0.1", True)
        assert end_of(f"{host}:{port}", "made-when-it-is-asked-for") == 0
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert out == b""
    assert b"Traceback" not in err


def test_a_cluster_that_is_interrupted_while_it_starts() -> None:
    with subprocess.Popen(
        command("cluster", "start"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert b"starting" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert out == b""
    assert b"Traceback" not in err


def test_the_demo_is_interrupted(cluster: KafkaCluster) -> None:
    with subprocess.Popen(
        command("demo", "--bootstrap-servers", cluster.bootstrap_servers),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"Topic"):
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, b"pykaproducer: interrupted\n")

"""Servers in separate processes, many concurrent requests, and the log afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

import pykaproducer
from pykaproducer.testing import KafkaCluster
from pykaproducer.testing._processes import tick
from tests.cluster.readback import read_log

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]

#: How long anything here may take on a busy machine (seconds).
SOON = 180

#: The number of concurrent requests.
CONCURRENT = 300


def tool(name: str) -> str:
    """Return the path of a command that pip installs; skip without it."""
    beside = pathlib.Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (it comes with the extra test)")
    return found


def environment(cluster: KafkaCluster, directory: pathlib.Path, **more: str) -> dict[str, str]:
    """Return the environment of a program that needs the package, these tests and the cluster."""
    paths = (pathlib.Path(pykaproducer.__file__).parents[1], HERE, *filter(None, sys.path))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONUNBUFFERED": "1",
        "HOME": str(directory),
        "KAFKA_SERVERS": cluster.bootstrap_servers,
        **more,
    }


def free_port() -> int:
    """Return a port that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


class Program:
    """A running program: a server, or a worker."""

    def __init__(self, process: subprocess.Popen[bytes], log: pathlib.Path, port: int) -> None:
        self.process = process
        self.log = log
        self.port = port

    @property
    def output(self) -> str:
        """Return its output."""
        return self.log.read_text(errors="replace")

    def until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until *ready()* is true."""
        deadline = time.monotonic() + SOON
        while not ready():
            assert self.process.poll() is None, f"it ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"it still runs, without {what}:\n{self.output}"
            tick()

    def listens(self) -> bool:
        """Return whether its port accepts connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), SOON).close()
        except OSError:
            return False
        return True

    def terminate(self) -> None:
        """Send SIGTERM, as a supervisor does."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Return its exit status."""
        return self.process.wait(SOON)


@contextlib.contextmanager
def running(
    command: Sequence[str], directory: pathlib.Path, env: dict[str, str], port: int = 0
) -> Iterator[Program]:
    """Run a program, in a session that ends with it; with *port*, wait until it listens there."""
    log = directory / "output"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    program = Program(process, log, port)
    try:
        if port:
            program.until(program.listens, "listening")
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(SOON)


class Answers(NamedTuple):
    """A server's answers to requests."""

    #: The names of accepted requests (status 2xx), and the bodies of the answers.
    accepted: dict[str, str]
    #: The names of the other requests, and the reasons.
    refused: dict[str, str]


def load(
    program: Program,
    requests: int,
    path: str = "/{name}",
    *,
    method: str = "GET",
    body: str = "",
    each: Callable[[Answers], None] = lambda answers: None,
) -> Answers:
    """Make requests, CONCURRENT at a time; *each* is called after each accepted one.

    ``{name}`` in *path* and *body* is the request's own name.
    """
    answers = Answers({}, {})
    names = iter([f"request-{number}" for number in range(requests)])

    async def ask_all() -> None:
        await asyncio.gather(*(ask_on() for _ in range(CONCURRENT)))

    async def ask_on() -> None:
        for name in names:
            fill = {"{name}": name}
            target, content = (_filled(text, fill) for text in (path, body))
            try:
                status, answer = await _ask(program.port, method, target, content)
            except OSError as error:
                answers.refused[name] = repr(error)
                continue
            if 200 <= status < 300:
                answers.accepted[name] = answer
                each(answers)
            else:
                answers.refused[name] = f"{status} {answer}"

    asyncio.run(asyncio.wait_for(ask_all(), SOON))
    return answers


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


async def _ask(port: int, method: str, target: str, content: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = content.encode()
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, rest = answer.decode().partition("\r\n\r\n")
    if not head:
        raise ConnectionResetError("no answer")
    return int(head.split()[1]), rest


def stop_after(program: Program, requests: int, *, different: int = 1) -> Callable[[Answers], None]:
    """Return an ``each`` that sends SIGTERM after *requests* accepted requests.

    But not before there are as many *different* answers: one worker may be ready long before the
    others.
    """
    seen: set[str] = set()
    stopped = False

    def look(answers: Answers) -> None:
        nonlocal stopped
        seen.add(next(reversed(answers.accepted.values())))
        if not stopped and len(answers.accepted) >= requests and len(seen) >= different:
            stopped = True
            program.terminate()

    return look


def in_the_log(cluster: KafkaCluster, topic: str) -> Counter[str]:
    """Return how often each value is in the topic."""
    return Counter((value or b"").decode() for value in read_log(cluster, topic).values)


def assert_once(cluster: KafkaCluster, topic: str, values: Iterator[str] | Sequence[str]) -> None:
    """Check that each of *values* is in the log exactly once, and nothing is there twice."""
    found = in_the_log(cluster, topic)
    missing = [value for value in values if value not in found]
    assert not missing, f"{len(missing)} are lost: {missing[:5]}"
    twice = [value for value, count in found.items() if count > 1]
    assert not twice, f"{len(twice)} are there more than once: {twice[:5]}"

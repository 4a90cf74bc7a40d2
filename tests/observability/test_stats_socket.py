"""The Unix socket that serves ``stats()``: access, stale and foreign files, forks, the end."""

from __future__ import annotations

import errno
import os
import pathlib
import socket
import stat
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pykaproducer import Producer
from pykaproducer._net.transport import mapped
from pykaproducer._net.wakeup import Wakeup
from pykaproducer._observability import stats_server
from pykaproducer.stats import read_stats
from pykaproducer.testing import FakeClock, ScriptedCluster
from tests._support import programs
from tests._support.logs import told_by_log
from tests.pipeline.helper import SOON, offsets, send, until

#: Refuses connections; these tests need no cluster.
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def path(tmp_path: pathlib.Path) -> Iterator[str]:
    """Yield a path short enough for a socket, wherever the tests run."""
    before = pathlib.Path.cwd()
    os.chdir(tmp_path)
    yield "s"
    os.chdir(before)


def answers(path: str) -> bool:
    """Return whether a producer listens at *path*."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def test_whoever_connects_gets_the_stats(path: str) -> None:
    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        cluster.producer(stats_socket=path, client_id="me") as producer,
    ):
        assert not os.path.exists(path), "before the first message"
        offsets(send(producer, [b"1", b"2"]))
        until(lambda: os.path.exists(path))
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        for _ in range(3):
            found = read_stats(path)
            assert found["client_id"] == "me"
            assert found["pid"] == os.getpid()
            assert found["messages"]["delivered"] == 2
            assert "stages" in found
        producer.close()
        assert not os.path.exists(path)
    assert os.listdir(".") == []


def test_the_process_id_in_the_path(path: str) -> None:
    producer = Producer(bootstrap_servers=NOWHERE, stats_socket="%p.sock")
    producer.send("t", b"1")
    until(lambda: os.path.exists(f"{os.getpid()}.sock"))
    producer.abort()
    assert os.listdir(".") == []


def test_the_socket_of_a_process_that_died_is_replaced(path: str) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(path)
    dead.close()
    producer = Producer(bootstrap_servers=NOWHERE, stats_socket=path)
    producer.send("t", b"1")
    until(lambda: answers(path))
    assert read_stats(path)["messages"]["pending"] == 1
    producer.abort()
    assert not os.path.exists(path)


def test_a_socket_that_is_served_is_left_alone(path: str) -> None:
    first = Producer(bootstrap_servers=NOWHERE, stats_socket=path, client_id="first")
    second = Producer(bootstrap_servers=NOWHERE, stats_socket=path, client_id="second")
    first.send("t", b"1")
    until(lambda: os.path.exists(path))
    with told_by_log("another producer listens there") as told:
        second.send("t", b"1")
        assert told.wait(SOON)
    second.abort()
    assert read_stats(path)["client_id"] == "first"
    first.abort()
    assert os.listdir(".") == []


def test_a_file_that_is_no_socket_is_left_alone(path: str) -> None:
    pathlib.Path(path).write_text("mine")
    producer = Producer(bootstrap_servers=NOWHERE, stats_socket=path)
    with told_by_log("not a socket") as told:
        producer.send("t", b"1")
        assert told.wait(SOON)
    producer.abort()
    assert pathlib.Path(path).read_text() == "mine"


@pytest.mark.parametrize("bad", ["no/such/directory/s", "x" * 200])
def test_a_path_that_cannot_be(path: str, bad: str) -> None:
    with (
        ScriptedCluster(topics={"t": 1}) as cluster,
        cluster.producer(stats_socket=bad) as producer,
        told_by_log("stats_socket") as told,
    ):
        offsets(send(producer, [b"1"]))
        assert told.wait(SOON)
    assert os.listdir(".") == []


def test_who_reads_nothing_holds_up_nobody(path: str) -> None:
    with ScriptedCluster(topics={"t": 1}) as cluster:
        with cluster.producer(stats_socket=path) as producer:
            offsets(send(producer, [b"1"]))
            until(lambda: os.path.exists(path))
            lazy = [socket.socket(socket.AF_UNIX) for _ in range(5)]
            for each in lazy:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                each.connect(path)
            assert read_stats(path)["messages"]["delivered"] == 1
        for each in lazy:
            each.close()
    assert not os.path.exists(path)


def test_a_forked_child_has_its_own(path: str) -> None:
    script = """
        import os, signal, threading
        from pykaproducer import Producer
        from pykaproducer.stats import read_stats

        def asked(path):
            while True:
                try:
                    return read_stats(path)
                except OSError:
                    threading.Event().wait(0.005)

        signal.alarm(30)
        producer = Producer(bootstrap_servers="127.0.0.1:1", stats_socket="%p.s")
        producer.send("t", b"1")
        mine = f"{os.getpid()}.s"
        assert asked(mine)["messages"]["pending"] == 1
        child = os.fork()
        if not child:
            signal.alarm(30)
            producer.send("t", b"1")
            producer.send("t", b"1")
            own = f"{os.getpid()}.s"
            found = asked(own)
            assert found["messages"]["pending"] == 2 and found["pid"] == os.getpid()
            producer.abort()
            assert not os.path.exists(own) and os.path.exists(mine)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert asked(mine)["messages"]["pending"] == 1
        producer.abort()
        assert os.listdir(".") == []
        """
    programs.run(script)


def test_a_process_that_forgets_to_close_leaves_no_file(path: str) -> None:
    script = """
        import os, threading
        from pykaproducer import Producer

        producer = Producer(
            bootstrap_servers="127.0.0.1:1", stats_socket="s", exit_flush_timeout_ms=1
        )
        producer.send("t", b"1")
        while not os.path.exists("s"):
            threading.Event().wait(0.005)
        """
    programs.run(script)
    assert os.listdir(".") == []


def test_too_many_open_files_do_not_make_it_busy(path: str) -> None:
    script = """
        import os, resource, signal, socket, threading, time
        from pykaproducer._util.clock import Clock
        from pykaproducer._observability.stats_server import StatsServer

        signal.alarm(30)
        server = StatsServer("s", "test", Clock(), dict)
        server.start()
        while not os.path.exists("s"):
            threading.Event().wait(0.005)
        client = socket.socket(socket.AF_UNIX)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        held = []
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            client.connect("s")
        before = time.process_time()
        threading.Event().wait(0.5)
        busy = time.process_time() - before
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert client.recv(10) == b"{}\\n" and client.recv(10) == b""
        server.stop()
        assert busy < 0.25, busy
        """
    programs.run(script)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_the_answer_ends_although_a_child_has_a_duplicate_of_the_connection(path: str) -> None:
    script = """
        import os, signal, socket, threading
        from pykaproducer._util.clock import Clock
        from pykaproducer._observability.stats_server import StatsServer

        asked, forked = threading.Event(), threading.Event()

        def stats():
            asked.set()
            forked.wait(30)
            return {}

        signal.alarm(30)
        server = StatsServer("s", "test", Clock(), stats)
        server.start()
        while not os.path.exists("s"):
            threading.Event().wait(0.005)
        client = socket.socket(socket.AF_UNIX)
        client.connect("s")
        asked.wait()
        alive, end = os.pipe()
        child = os.fork()
        if not child:
            os.close(end)
            os.read(alive, 1)  # until the parent has ended
            os._exit(0)
        forked.set()
        assert client.recv(10) == b"{}\\n" and client.recv(10) == b""
        os.close(end)
        os.waitpid(child, 0)
        server.stop()
        """
    programs.run(script)


@pytest.mark.parametrize("what", ["pair", "listener"])
def test_a_moment_without_file_descriptors_passes(
    path: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """send() is not affected, and the socket is created later."""
    refused = threading.Semaphore(2)

    def refuse() -> None:
        if refused.acquire(blocking=False):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    class Short:
        def __getattr__(self, name: str) -> Any:
            return getattr(socket, name)

        def socket(self, *arguments: Any) -> Any:
            refuse()
            return socket.socket(*arguments)

    def wakeup() -> Wakeup:
        with mapped():
            refuse()
        return Wakeup()

    clock = FakeClock()
    with ScriptedCluster(topics={"t": 1}) as cluster:
        producer = cluster.producer(clock=clock, stats_socket=path)
        with told_by_log("oo many open files") as told:
            if what == "pair":
                monkeypatch.setattr(stats_server, "Wakeup", wakeup)
            else:
                monkeypatch.setattr(stats_server, "socket", Short())
            offsets(send(producer, [b"1"]))
            assert told.wait(SOON)
        while not os.path.exists(path):
            clock.jump(1.0)
        assert read_stats(path)["messages"]["delivered"] == 1
        producer.close()
    assert os.listdir(".") == []

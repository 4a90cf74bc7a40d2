"""A broker's host that acknowledges nothing, and one whose broker reads nothing.

A proxy acknowledges for its peer, so a real network is needed: a pair of interfaces, of which one
is in another network namespace.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pykaproducer._net.connection import FullyWritten, Lost
from pykaproducer._net.transport import Endpoint, Network, PlainTransport
from tests.net.helper import Settings, Talk, connect
from tests.wire.helper import record_batch

only_on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells what was acknowledged"
)

#: Accepts one connection, answers ApiVersions, and then only reads.
BROKER = """
import socket, struct, sys
with socket.create_server((sys.argv[1], 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    client, _ = listener.accept()
    head = client.recv(4096)
    number, = struct.unpack_from(">i", head, 8)
    body = struct.pack(">ihB", number, 0, 2) + struct.pack(">hhhB", 0, 0, 9, 0) + bytes(5)
    client.sendall(struct.pack(">i", len(body)) + body)
    while client.recv(65536):
        pass
"""


class Namespace:
    """Another host, behind a pair of interfaces."""

    def __init__(self, number: int) -> None:
        self.name = f"pykaproducer-{number}"
        self.ours, self.theirs = f"pk{number}a", f"pk{number}b"
        self.near, self.far = f"10.213.{number % 250}.1", f"10.213.{number % 250}.2"

    def run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)

    def inside(self, *command: str) -> None:
        self.run("ip", "netns", "exec", self.name, *command)

    def begin(self) -> None:
        self.run("ip", "netns", "add", self.name)
        self.run("ip", "link", "add", self.ours, "type", "veth", "peer", "name", self.theirs)
        self.run("ip", "link", "set", self.theirs, "netns", self.name)
        self.run("ip", "addr", "add", f"{self.near}/30", "dev", self.ours)
        self.run("ip", "link", "set", self.ours, "up")
        self.inside("ip", "addr", "add", f"{self.far}/30", "dev", self.theirs)
        self.inside("ip", "link", "set", self.theirs, "up")

    def end(self) -> None:
        for command in (("link", "del", self.ours), ("netns", "del", self.name)):
            subprocess.run(("ip", *command), check=False, capture_output=True)

    def black_hole(self) -> None:
        """Drop everything from now on, in both directions."""
        self.inside("ip", "link", "set", self.theirs, "down")


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    if shutil.which("ip") is None:
        pytest.skip("the program ip (iproute2) is not installed")
    made = Namespace(os.getpid())
    try:
        made.begin()
    except subprocess.CalledProcessError as error:
        made.end()
        pytest.skip(f"network namespaces are not permitted: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def far_broker(namespace: Namespace) -> Iterator[tuple[str, int]]:
    command = ["ip", "netns", "exec", namespace.name, sys.executable, "-c", BROKER, namespace.far]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield namespace.far, int(process.stdout.readline())
        process.kill()


@contextlib.contextmanager
def cut_off(namespace: Namespace, far_broker: tuple[str, int], **settings: float) -> Iterator[Talk]:
    """Yield a connection to a broker that was ready, and from whose host nothing comes any more."""
    config = Settings(**settings)  # type: ignore[arg-type]
    with Talk(Network(config), address=far_broker, settings=config) as talk:
        talk.open()
        namespace.black_hole()
        yield talk


@only_on_linux
def test_a_host_that_acknowledges_nothing_costs_seconds(
    namespace: Namespace, far_broker: tuple[str, int]
) -> None:
    """The timeout of the request is 1000 s."""
    with cut_off(
        namespace, far_broker, tcp_user_timeout_ms=1500, connections_check_idle_ms=0
    ) as talk:
        request = talk.submit(("t", 0, record_batch(b"v")))
        began = time.monotonic()
        lost = talk.until(Lost)
        assert time.monotonic() - began >= 1.5
        assert lost.reason == (
            "the broker's host acknowledged nothing that was sent in the last 1.5 s "
            "(tcp_user_timeout_ms)"
        )
        # The broker may have received it.
        assert (lost.unanswered, lost.unwritten) == ([request], [])


@only_on_linux
def test_such_a_host_is_noticed_without_responses(
    namespace: Namespace, far_broker: tuple[str, int]
) -> None:
    """With acks=0 nothing is in flight that could time out."""
    with cut_off(namespace, far_broker, tcp_user_timeout_ms=1500) as talk:
        request = talk.submit(("t", 0, record_batch(b"v")), acks=0)
        assert talk.until(FullyWritten).request is request
        lost = talk.until(Lost)
        assert lost.reason.endswith("in the last 1.5 s (tcp_user_timeout_ms)")
        assert (lost.unanswered, lost.unwritten) == ([], [])


@only_on_linux
def test_an_unused_connection_to_such_a_host_is_found_dead_before_anything_is_written(
    namespace: Namespace, far_broker: tuple[str, int]
) -> None:
    with cut_off(namespace, far_broker, connections_check_idle_ms=0.001) as talk:
        request = talk.submit(("t", 0, record_batch(b"v")))
        lost = talk.until(Lost)
        assert lost.reason.startswith("the connection was unused, and the broker does not answer")
        assert (lost.unanswered, lost.unwritten) == ([], [request])


def full(transport: PlainTransport) -> None:
    """Write until the socket takes nothing, and the peer's window is closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(transport, selectors.EVENT_WRITE)
        while selector.select(1.0):
            transport.send([memoryview(bytes(1 << 20))])


@only_on_linux
def test_a_broker_that_reads_nothing_is_not_gone() -> None:
    """Its host acknowledges the probes of the closed window.

    (The system's option TCP_USER_TIMEOUT would end this connection.)
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = Endpoint(socket.AF_INET, listener.getsockname())
        with contextlib.closing(connect(Network(Settings()), there)) as transport:
            far_end, _ = listener.accept()
            with far_end:
                assert isinstance(transport, PlainTransport)
                full(transport)
                assert transport.unacknowledged() == 0.0


def test_a_socket_that_is_not_tcp_tells_nothing() -> None:
    ours, theirs = socket.socketpair()
    with theirs, contextlib.closing(PlainTransport(ours)) as transport:
        assert transport.unacknowledged() is None

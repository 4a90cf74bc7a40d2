"""Happy eyeballs and setup timeouts, on real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from pykaproducer._net.connection import Lost, Ready
from pykaproducer._net.secure import SecureNetwork
from pykaproducer._net.transport import Endpoint
from pykaproducer.config import Config
from pykaproducer.testing import FakeClock, ScriptedCluster
from tests.net.helper import Settings, Talk
from tests.net.test_connection import Addresses, Directory, in_a_thread


@pytest.fixture
def black_hole() -> Iterator[Endpoint]:
    """Yield an address that answers no SYN: the backlog of its listener is full."""
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            filler = undo.enter_context(socket.socket())
            filler.settimeout(0.2)
            try:
                filler.connect(listener.getsockname())
            except TimeoutError:
                break
        yield Endpoint(socket.AF_INET, listener.getsockname())


def accepted(talk: Talk, listener: socket.socket) -> socket.socket:
    """Return the server's end of the connection that *talk* opens, after its first request."""
    talk.connection.open()
    stop = threading.Event()

    def poll() -> None:
        while not stop.is_set():
            talk.connection.poll(None)

    poller = threading.Thread(target=poll)
    poller.start()
    listener.settimeout(30)
    try:
        far_end, _ = listener.accept()
        assert far_end.recv(100)
    finally:
        stop.set()
        talk.connection.wakeup.poke()
        poller.join()
    return far_end


def test_an_address_that_swallows_everything_costs_a_moment(black_hole: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        network = Directory(black_hole, Endpoint(socket.AF_INET, listener.getsockname()))
        with Talk(network) as talk:
            accepted(talk, listener).close()
            # The loser is closed.
            assert [transport.fileno() == -1 for transport in network.made] == [True, False]


@pytest.mark.skipif(not socket.has_ipv6, reason="the system has no IPv6")
def test_localhost_that_listens_on_one_family_only() -> None:
    try:
        probe = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("the system has no IPv6 loopback address")
    probe.close()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        network = Directory(
            Endpoint(socket.AF_INET6, ("::1", port, 0, 0)),
            Endpoint(socket.AF_INET, ("127.0.0.1", port)),
        )
        with Talk(network) as talk:
            accepted(talk, listener).close()
            assert [each.family for each in network.tried] == [socket.AF_INET6, socket.AF_INET]
            talk.connection.give_up("once more")
            # The family that worked is the first one now.
            network.tried.clear()
            accepted(talk, listener).close()
            assert [each.family for each in network.tried] == [socket.AF_INET]


def test_nothing_answers(black_hole: Endpoint) -> None:
    clock = FakeClock()
    network = Directory(black_hole, black_hole._replace(host="again"))
    with Talk(network, clock=clock) as talk:
        talk.connection.open()
        clock.jump(0.25)
        talk.connection.poll(clock.monotonic())
        assert len(network.tried) == 2
        assert talk.connection.next_deadline == 1010.0
        clock.jump(9.75)
        (lost,) = talk.connection.poll(clock.monotonic())
        assert isinstance(lost, Lost)
        assert lost.reason == "connecting took too long"
        assert [transport.fileno() for transport in network.made] == [-1, -1]
        # The next attempt has more time.
        talk.connection.open()
        assert talk.connection.next_deadline == 1010.25
        clock.jump(0.25)
        talk.connection.poll(clock.monotonic())
        assert talk.connection.next_deadline is not None
        assert 1026.0 <= talk.connection.next_deadline <= 1034.0


class SlowDirectory(Directory):
    """A resolver that takes *seconds*, more than the time for setting up a connection."""

    def __init__(self, *endpoints: Endpoint, clock: FakeClock, seconds: float) -> None:
        super().__init__(*endpoints)
        self.clock, self.seconds = clock, seconds

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        self.clock.jump(self.seconds)
        return super().resolve(host, port)


def test_a_slow_resolver_leaves_the_connection_all_its_time() -> None:
    clock = FakeClock()
    with ScriptedCluster(1) as cluster:

        class Slow(Addresses):
            def resolve(self, host: str, port: int) -> list[Endpoint]:
                clock.jump(45.0)
                return super().resolve(host, port)

        with Talk(Slow(cluster, 0), clock=clock) as talk:
            talk.connection.open()
            due = talk.connection.next_deadline
            assert due is None or due >= 1045.0
            talk.until(Ready)


def test_a_slow_resolver_does_not_take_the_time_of_the_attempts(black_hole: Endpoint) -> None:
    clock = FakeClock()
    with Talk(SlowDirectory(black_hole, clock=clock, seconds=45.0), clock=clock) as talk:
        talk.connection.open()
        assert talk.connection.next_deadline == 1055.0
        clock.jump(10.0)
        (lost,) = talk.connection.poll(clock.monotonic())
        assert isinstance(lost, Lost)
        assert lost.reason == "connecting took too long"


@pytest.mark.parametrize("seconds", [0.0, 45.0])
def test_a_name_without_an_address(seconds: float) -> None:
    clock = FakeClock()
    with Talk(SlowDirectory(clock=clock, seconds=seconds), clock=clock) as talk:
        talk.connection.open()
        (lost,) = talk.connection.poll(clock.monotonic())
        assert isinstance(lost, Lost)
        assert lost.reason == "the host name has no address"


def test_the_timeout_is_a_setting(black_hole: Endpoint) -> None:
    settings = Settings(
        socket_connection_setup_timeout_ms=500, socket_connection_setup_timeout_max_ms=700
    )
    clock = FakeClock()
    with Talk(Directory(black_hole), clock=clock, settings=settings) as talk:
        waits = []
        for _ in range(3):
            talk.connection.open()
            began, due = clock.monotonic(), talk.connection.next_deadline
            assert due is not None
            waits.append(due - began)
            clock.jump(due - began)
            talk.connection.poll(clock.monotonic())
    assert waits[0] == pytest.approx(0.5)
    assert all(0.56 <= wait <= 0.701 for wait in waits[1:])


def test_a_connection_that_becomes_ready_resets_the_timeout() -> None:
    clock = FakeClock()
    with ScriptedCluster(2) as cluster, Talk(Addresses(cluster, 0), clock=clock) as talk:
        cluster.stop(0, silently=True)
        talk.connection.open()
        with in_a_thread(clock.jump_to_next):
            talk.until(Lost)
        cluster.start(0)
        talk.connection.open()
        talk.until(Ready)
        talk.connection.give_up("once more")
        cluster.stop(0, silently=True)
        talk.connection.open()
        due = talk.connection.next_deadline
        assert due is not None
        assert due - clock.monotonic() == 10.0


def test_tls_begins_on_the_winner_which_leaves_time_for_the_others() -> None:
    """The first address accepts connections, and says nothing in the handshake."""
    clock = FakeClock()
    config = Config.from_kwargs({"security_protocol": "SSL"})
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        endpoints = [
            Endpoint(socket.AF_INET, each.getsockname(), "localhost") for each in (first, second)
        ]

        class Hosts(SecureNetwork):
            def resolve(self, host: str, port: int) -> list[Endpoint]:
                return endpoints

        with Talk(Hosts(config), clock=clock) as talk:
            talk.connection.open()
            for listener, deadline in ((first, 1005.0), (second, 1010.0)):
                far_end, _ = listener.accept()
                with far_end:
                    talk.connection.poll(clock.monotonic())
                    assert far_end.recv(1) == b"\x16"  # the ClientHello
                    assert talk.connection.next_deadline == deadline
                    clock.jump(5)
                    events = talk.connection.poll(clock.monotonic())
            (lost,) = events
            assert isinstance(lost, Lost)
            assert lost.reason.startswith("the TLS handshake (does this listener use TLS?")

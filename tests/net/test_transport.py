"""The boundary to the operating system, on real sockets."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

import pykaproducer._kernel as _kernel
from pykaproducer._net.transport import (
    ConnectionFailed,
    Endpoint,
    Network,
    PlainTransport,
    Transport,
)
from tests.net.helper import Settings, connect, wait
from tests.net.tls_server import receive


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def endpoint(listener: socket.socket) -> Endpoint:
    return Endpoint(socket.AF_INET, listener.getsockname())


@pytest.fixture
def pair(listener: socket.socket) -> Iterator[tuple[Transport, socket.socket]]:
    """Yield a transport and the broker's end."""
    transport = connect(Network(Settings()), endpoint(listener))
    far_end, _ = listener.accept()
    with far_end, contextlib.closing(transport):
        yield transport, far_end


def test_bytes_go_both_ways(pair: tuple[Transport, socket.socket]) -> None:
    transport, far_end = pair
    assert transport.send([memoryview(b"to the "), memoryview(b"broker")]) == 13
    assert far_end.recv(100) == b"to the broker"
    far_end.sendall(b"and back")
    assert receive(transport, 8) == b"and back"


def test_nothing_there_is_no_error(pair: tuple[Transport, socket.socket]) -> None:
    transport, _ = pair
    assert transport.receive(memoryview(bytearray(10))) == 0


def test_more_buffers_than_one_system_call_takes(pair: tuple[Transport, socket.socket]) -> None:
    transport, far_end = pair
    buffers = [memoryview(b"%06d" % number) for number in range(3000)]
    sent = 0
    received = b""
    while sent < 18_000:
        assert sent % 6 == 0
        taken = transport.send(buffers[sent // 6 :])
        assert taken > 0
        sent += taken
        while len(received) < sent:
            received += far_end.recv(100_000)
    assert received == b"".join(buffers)


def test_many_buffers_go_in_one_call(pair: tuple[Transport, socket.socket]) -> None:
    transport, far_end = pair
    assert transport.send([memoryview(b"x")] * 1000) == 1000
    assert far_end.recv(1000, socket.MSG_WAITALL) == b"x" * 1000


def test_a_full_socket_takes_a_part_and_then_nothing(pair: tuple[Transport, socket.socket]) -> None:
    transport, far_end = pair
    large = memoryview(bytes(50_000_000))
    sent = transport.send([large])
    assert 0 < sent < len(large)
    while taken := transport.send([large[sent:]]):
        sent += taken
    received = 0
    while received < sent:
        received += len(far_end.recv(1 << 20))
    # There is space again.
    wait(transport, selectors.EVENT_WRITE)
    assert transport.send([large[sent:]]) > 0


@pytest.mark.parametrize("pieces", [1, 4096])
def test_a_peer_that_takes_a_little_at_a_time_does_not_keep_the_writer(pieces: int) -> None:
    """The socket soon has space again each time; only the total wait is bounded."""
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        stopped = threading.Event()

        def trickle() -> None:
            while not stopped.is_set():
                far.recv(4096)

        reader = threading.Thread(target=trickle)
        reader.start()
        large = memoryview(bytes(256 << 20))
        size = len(large) // pieces
        buffers = [large[start : start + size] for start in range(0, len(large), size)]
        try:
            assert 0 < _kernel.write_buffers(near.fileno(), buffers, 1) < len(large)
        finally:
            stopped.set()
            near.shutdown(socket.SHUT_WR)
            reader.join()


def test_thousands_of_pieces_are_written_in_order(
    pair: tuple[Transport, socket.socket],
) -> None:
    transport, far_end = pair
    pieces = [b"%d," % number for number in range(5000)]
    buffers, sent = [memoryview(piece) for piece in pieces], 0
    whole = b"".join(pieces)
    while sent < len(whole):
        count = transport.send([memoryview(whole)[sent:]] if sent else buffers)
        assert count > 0
        sent += count
    found = b""
    while len(found) < len(whole):
        found += far_end.recv(len(whole))
    assert found == whole


def test_the_broker_s_end_is_told(pair: tuple[Transport, socket.socket]) -> None:
    transport, far_end = pair
    far_end.close()
    wait(transport, selectors.EVENT_READ)
    with pytest.raises(ConnectionFailed, match="the broker closed the connection"):
        transport.receive(memoryview(bytearray(10)))


def test_a_reset_is_told(pair: tuple[Transport, socket.socket]) -> None:
    transport, far_end = pair
    # With a linger time of zero close() sends a reset.
    far_end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far_end.close()
    wait(transport, selectors.EVENT_READ)
    with pytest.raises(ConnectionFailed, match="reset"):
        transport.receive(memoryview(bytearray(10)))
    with pytest.raises(ConnectionFailed, match="closed"):
        transport.send([memoryview(b"too late")])


def test_closing_twice_does_no_harm(pair: tuple[Transport, socket.socket]) -> None:
    transport, _ = pair
    transport.close()
    transport.close()


def test_sockets_have_the_settings_asked_for(listener: socket.socket) -> None:
    settings = Settings(
        send_buffer_bytes=50_000,
        receive_buffer_bytes=60_000,
        socket_options=[(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)],
    )
    transport = connect(Network(settings), endpoint(listener))
    with contextlib.closing(transport), socket.socket(fileno=transport.fileno()) as sock:
        # Linux doubles the requested value.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in (50_000, 100_000)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in (60_000, 120_000)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        # Set explicitly: the system's default is hours.
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 10
        sock.detach()


def test_an_option_that_the_system_refuses_is_told(listener: socket.socket) -> None:
    network = Network(Settings(socket_options=[(socket.SOL_SOCKET, 99_999, 1)]))
    with pytest.raises(ConnectionFailed, match="Protocol not available"):
        network.connect(endpoint(listener))


@pytest.mark.parametrize("host", ["no such host.invalid", "two..dots", "x" * 64 + ".invalid"])
def test_a_name_that_cannot_be_resolved_is_named(host: str) -> None:
    with pytest.raises(ConnectionFailed, match=f"host name '{host}' cannot be resolved: "):
        Network(Settings()).resolve(host, 9092)


def test_numeric_addresses() -> None:
    network = Network(Settings())
    assert network.resolve("127.0.0.1", 9092) == [Endpoint(socket.AF_INET, ("127.0.0.1", 9092))]
    (found,) = network.resolve("::1", 9092)
    assert str(found) == "[::1]:9092"
    assert str(Endpoint(socket.AF_INET, ("127.0.0.1", 9092))) == "127.0.0.1:9092"


def test_every_descriptor_is_given_back_when_connecting_fails() -> None:
    network = Network(Settings(socket_options=[(socket.SOL_SOCKET, 99_999, 1)]))
    numbers = set()
    for _ in range(5):
        with contextlib.suppress(ConnectionFailed):
            network.connect(Endpoint(socket.AF_INET, ("127.0.0.1", 1)))
        with socket.socket() as probe:
            numbers.add(probe.fileno())
    assert len(numbers) == 1


def test_a_socket_pair_is_a_transport_too() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs, contextlib.closing(PlainTransport(ours)) as transport:
        assert transport.finish_connect() == 0
        transport.send([memoryview(b"x")])
        assert theirs.recv(1) == b"x"

"""The fault proxy, with bytes that look like Kafka's. No Kafka is needed."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pykaproducer.testing import Cut, FaultProxy, KafkaCluster

#: How long an expected event may take (seconds).
PATIENCE = 30.0

PRODUCE, METADATA = 0, 3


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(number: int, *, key: int = PRODUCE, version: int = 3, acks: int = -1) -> bytes:
    """Return a request with correlation id *number*; a Produce request ends after its acks."""
    header = struct.pack(">hhi", key, version, number) + struct.pack(">h", 2) + b"me"
    if key != PRODUCE:
        return frame(header)
    if version >= 9:
        tagged = b"\x02" + b"\x00\x03abc" + b"\x05\x81\x01" + bytes(129)
        return frame(header + tagged + b"\x04tid" + struct.pack(">h", acks) + b"rest")
    no_transaction = struct.pack(">h", -1) if version >= 3 else b""
    return frame(header + no_transaction + struct.pack(">h", acks) + b"rest")


def answer(number: int, size: int = 4) -> bytes:
    return frame(struct.pack(">i", number).ljust(size, b"."))


class Server:
    """A server that accepts connections one by one, records its input and answers on command."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        #: The received data, one connection after the other.
        self.arrivals: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.connections: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._serve(self._accept)

    def _serve(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self.connections.put(connection)
            self._serve(lambda c=connection: self._read(c))  # type: ignore[misc]

    def _read(self, connection: socket.socket) -> None:
        while True:
            try:
                data = connection.recv(65536)
            except OSError:
                data = b""
            self.arrivals.put(data)
            if not data:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already closed
        for thread in self._threads:
            thread.join(PATIENCE)
        for connection in self._open:
            connection.close()

    def receive(self, size: int) -> bytes:
        """Return the next *size* bytes received, on any connection."""
        data = b""
        while len(data) < size:
            data += self.arrivals.get(timeout=PATIENCE)
        return data

    def ended(self) -> bool:
        """Wait for the end of a connection; return true if nothing was received before."""
        return self.arrivals.get(timeout=PATIENCE) == b""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.address) as made:
        yield made


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with connect(proxy) as made:
        yield made


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), PATIENCE)


def receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = client.recv(size - len(data))
        assert piece, f"the connection ended after {data!r}"
        data += piece
    return data


def assert_reset(client: socket.socket) -> None:
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def seen(proxy: FaultProxy, count: int = 1) -> None:
    assert proxy.wait_for(lambda: len(proxy.unanswered) == count, PATIENCE)


# No faults


def test_frames_go_through_whole_and_in_order(server: Server, client: socket.socket) -> None:
    sent = b"".join(request(n, key=METADATA if n % 2 else PRODUCE) for n in range(100))
    # In pieces that do not match the frames.
    for i in range(0, len(sent), 7):
        client.sendall(sent[i : i + 7])
    assert server.receive(len(sent)) == sent
    back = b"".join(answer(n, 4 + n) for n in range(100))
    server.connections.get(timeout=PATIENCE).sendall(back)
    assert receive(client, len(back)) == back


def test_a_large_frame_goes_through(server: Server, client: socket.socket) -> None:
    large = frame(bytes(10 * 1024 * 1024))
    sender = threading.Thread(target=client.sendall, args=(large,))
    sender.start()
    assert server.receive(len(large)) == large
    sender.join(PATIENCE)


def test_the_end_of_either_side_is_the_others_end(server: Server, proxy: FaultProxy) -> None:
    with connect(proxy) as leaving:
        leaving.sendall(request(1))
        assert server.receive(len(request(1)))
    assert server.ended()
    with connect(proxy) as left:
        for _ in range(2):  # the first connection, and this one
            connection = server.connections.get(timeout=PATIENCE)
        connection.shutdown(socket.SHUT_RDWR)
        assert left.recv(1) == b""


def test_without_a_server_a_connection_ends(refusing: str) -> None:
    host, port = refusing.split(":")
    with (
        FaultProxy((host, int(port))) as proxy,
        # It may end before the client knows that it was established.
        pytest.raises(ConnectionResetError),
        connect(proxy) as client,
    ):
        client.recv(1)


def test_garbage_ends_the_connection(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert_reset(client)


def test_it_waits_for_its_target(server: Server) -> None:
    with FaultProxy() as proxy, connect(proxy) as client:
        client.sendall(request(1))
        proxy.target = server.address
        assert server.receive(len(request(1))) == request(1)


# Observation


@pytest.mark.parametrize("version", [2, 3, 8, 9, 12])
def test_produce_requests_are_known_until_they_are_answered(
    server: Server, proxy: FaultProxy, client: socket.socket, version: int
) -> None:
    client.sendall(request(7, version=version) + request(8, version=version))
    seen(proxy, 2)
    assert [each.correlation_id for each in proxy.unanswered] == [7, 8]
    first = proxy.unanswered[0]
    assert first.nbytes == len(request(7, version=version))
    server.connections.get(timeout=PATIENCE).sendall(answer(7))
    receive(client, len(answer(7)))
    seen(proxy, 1)
    assert first.answered
    assert not proxy.unanswered[0].answered


def test_only_what_will_be_answered_counts(server: Server, proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        others = request(1, key=METADATA) + request(2, acks=0) + request(3, acks=0, version=9)
        client.sendall(others + request(4))
        seen(proxy, 1)
        assert proxy.unanswered[0].correlation_id == 4
    assert proxy.wait_for(lambda: not proxy.unanswered, PATIENCE), "its connection has ended"


# Cuts


def test_cut_before_the_broker_has_read_anything(
    server: Server, proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.cut(Cut.BEFORE)
    client.sendall(request(1))
    assert_reset(client)
    assert server.ended()
    assert proxy.cuts == 1
    assert proxy.unanswered == []


def test_cut_within_the_request(server: Server, proxy: FaultProxy, client: socket.socket) -> None:
    proxy.cut(Cut.WITHIN)
    client.sendall(request(1))
    assert_reset(client)
    half = len(request(1)) // 2
    assert request(1).startswith(server.receive(half))
    assert server.ended()
    assert proxy.cuts == 1


def test_cut_after_the_broker_has_answered(
    server: Server, proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.cut(Cut.AFTER)
    client.sendall(request(1))
    assert server.receive(len(request(1))) == request(1)
    assert proxy.cuts == 0, "not before the answer"
    server.connections.get(timeout=PATIENCE).sendall(answer(1))
    assert_reset(client)
    assert proxy.cuts == 1


def test_other_requests_do_not_meet_the_cut(
    server: Server, proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.cut(Cut.BEFORE)
    harmless = request(1, key=METADATA) + request(2, acks=0)
    client.sendall(harmless)
    assert server.receive(len(harmless)) == harmless


def test_other_requests_are_cut_if_that_is_asked_for(
    server: Server, proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.cut(Cut.AFTER, api_key=METADATA)
    client.sendall(request(1) + request(2, key=METADATA))
    connection = server.connections.get(timeout=PATIENCE)
    seen(proxy, 1)
    connection.sendall(answer(1))
    assert client.recv(65536) == answer(1)
    connection.sendall(answer(2))
    assert_reset(client)
    assert proxy.cuts == 1
    with connect(proxy) as another:
        another.sendall(request(3, key=METADATA))
        server.connections.get(timeout=PATIENCE).sendall(answer(3))
        assert another.recv(65536) == answer(3)


def test_as_many_requests_are_cut_as_were_asked_for(server: Server, proxy: FaultProxy) -> None:
    proxy.cut(Cut.BEFORE, 2)
    for _ in range(2):
        with connect(proxy) as client:
            client.sendall(request(1))
            assert_reset(client)
            assert server.ended()
    with connect(proxy) as client:
        client.sendall(request(1))
        assert server.receive(len(request(1))) == request(1)
    assert proxy.cuts == 2


def test_all_requests_of_a_connection_are_cut_with_it(
    server: Server, proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.cut(Cut.AFTER, 3)
    client.sendall(request(1) + request(2) + request(3))
    seen(proxy, 3)
    server.connections.get(timeout=PATIENCE).sendall(answer(1))
    assert_reset(client)
    assert proxy.cuts == 3


def test_answers_are_altered(server: Server, proxy: FaultProxy, client: socket.socket) -> None:
    def change(version: int, response: bytes) -> bytes:
        if response[4:] == b"bad":
            raise ValueError(response)
        return response[:4] + b"in version %d: " % version + response[4:]

    proxy.alter(METADATA, change)
    client.sendall(request(1) + request(2, key=METADATA, version=8))
    connection = server.connections.get(timeout=PATIENCE)
    seen(proxy, 1)
    connection.sendall(answer(1) + answer(2, 6))
    changed = frame(answer(2)[4:] + b"in version 8: ..")
    assert receive(client, len(answer(1) + changed)) == answer(1) + changed
    proxy.restore()
    client.sendall(request(3, key=METADATA) + request(4))
    seen(proxy, 1)
    connection.sendall(frame(struct.pack(">i", 3) + b"bad"))
    assert_reset(client)
    proxy.alter(METADATA, None)
    with connect(proxy) as another:
        another.sendall(request(5, key=METADATA) + request(6))
        connection = server.connections.get(timeout=PATIENCE)
        seen(proxy, 1)
        connection.sendall(answer(5))
        assert receive(another, len(answer(5))) == answer(5)


def test_restore_takes_back_a_cut(server: Server, proxy: FaultProxy, client: socket.socket) -> None:
    proxy.cut(Cut.BEFORE)
    proxy.restore()
    client.sendall(request(1))
    assert server.receive(len(request(1))) == request(1)


def test_cut_all(server: Server, proxy: FaultProxy, client: socket.socket) -> None:
    client.sendall(request(1) + request(2))
    seen(proxy, 2)
    assert proxy.cut_all() == 2
    assert proxy.connections == 0
    assert_reset(client)
    with connect(proxy) as another:
        another.sendall(request(3))
        seen(proxy, 1)


# Delays, limits and refusals


def test_refuse_and_listen_again(server: Server, proxy: FaultProxy, client: socket.socket) -> None:
    client.sendall(request(1))
    seen(proxy, 1)
    proxy.refuse()
    assert_reset(client)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
    proxy.refuse()  # it is already refusing
    proxy.restore()
    with connect(proxy) as another:
        another.sendall(request(1))
        seen(proxy, 1)


def test_a_black_hole_takes_everything_and_gives_it_back(
    server: Server, proxy: FaultProxy, client: socket.socket
) -> None:
    client.sendall(request(1))
    assert server.receive(len(request(1)))
    proxy.black_hole()
    client.sendall(request(2))
    server.connections.get(timeout=PATIENCE).sendall(answer(1))
    with connect(proxy) as another:
        another.sendall(request(3))
        assert [each.correlation_id for each in proxy.unanswered] == [1]
        assert server.arrivals.empty()
        proxy.restore()
        assert receive(client, len(answer(1))) == answer(1)
        came = server.receive(len(request(2)) + len(request(3)))
        assert request(2) in came
        assert request(3) in came


def test_what_a_client_has_given_up_in_a_black_hole_still_arrives(
    server: Server, proxy: FaultProxy
) -> None:
    with connect(proxy) as client:
        client.sendall(request(1))
        assert server.receive(len(request(1)))
        proxy.black_hole()
        client.sendall(request(2))
    proxy.restore()
    assert server.receive(len(request(2))) == request(2)
    assert server.ended()
    assert proxy.wait_for(lambda: not proxy.unanswered, PATIENCE)


def test_delayed_frames_wait_side_by_side(
    server: Server, proxy: FaultProxy, client: socket.socket
) -> None:
    """One after the other a hundred frames of half a second would take longer than the timeout."""
    proxy.delay(0.5)
    sent = b"".join(request(n) for n in range(100))
    begin = time.monotonic()
    client.sendall(sent)
    assert server.receive(len(sent)) == sent
    assert 0.5 <= time.monotonic() - begin < PATIENCE
    server.connections.get(timeout=PATIENCE).sendall(answer(0))
    assert receive(client, len(answer(0))) == answer(0)


def test_a_throttled_frame_comes_in_pieces_and_whole(
    server: Server, proxy: FaultProxy, client: socket.socket
) -> None:
    proxy.throttle(20_000)
    sent = frame(bytes(range(250)) * 20)
    client.sendall(sent)
    first = server.arrivals.get(timeout=PATIENCE)
    assert len(first) < len(sent)
    assert first + server.receive(len(sent) - len(first)) == sent


def test_a_rate_of_nothing_is_refused(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="black_hole"):
        proxy.throttle(0)


# The end


@pytest.mark.parametrize("state", ["idle", "black_hole", "refuse", "busy"])
def test_close_ends_everything_in_any_state(server: Server, state: str) -> None:
    proxy = FaultProxy(server.address)
    assert any(thread.name == f"fault-proxy-{proxy.port}" for thread in threading.enumerate())
    with connect(proxy) as client:
        if state in ("black_hole", "refuse"):
            getattr(proxy, state)()
        elif state == "busy":
            proxy.delay(PATIENCE)
            client.sendall(request(1))
            seen(proxy, 1)
        proxy.close()
        proxy.close()
        assert not any(t.name == f"fault-proxy-{proxy.port}" for t in threading.enumerate())
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    with pytest.raises(ValueError, match="closed"):
        proxy.restore()


@pytest.mark.kafka
def test_a_cluster_has_as_many_proxies_as_brokers(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="2 brokers need 2 proxies, not 1"):
        KafkaCluster(2, proxies=[proxy])


def test_connections_are_dropped_without_a_word(
    proxy: FaultProxy, server: Server, client: socket.socket
) -> None:
    client.sendall(request(1))
    server.receive(len(request(1)))
    assert len(proxy.unanswered) == 1
    assert proxy.drop_silently() == 1
    assert not proxy.unanswered
    # Nothing passes in either direction, and neither side is notified.
    server.connections.get(timeout=PATIENCE).sendall(answer(1))
    client.sendall(request(2))
    with connect(proxy) as another:
        another.sendall(request(3))
        assert server.receive(len(request(3))) == request(3)
        server.connections.get(timeout=PATIENCE).sendall(answer(3))
        assert receive(another, 8) == answer(3)
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    # The broker learns of the end when the client closes it.
    client.close()
    assert server.ended()

"""Brokers that send arbitrary bytes: each message has its outcome in time, and nothing breaks.

``PYKAPRODUCER_FUZZ=20000`` tries that many inputs, including those of ``cli/test_fuzz.py``.
"""

from __future__ import annotations

import contextlib
import itertools
import socketserver
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykaproducer import DeliveryError, Producer, ProducerBrokenError
from pykaproducer._net.transport import ConnectionFailed, Endpoint, Transport
from pykaproducer.delivery import Delivery
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import (
    Action,
    Disconnect,
    Exchange,
    Mangle,
    Omit,
    Refuse,
    proceed,
)
from tests._support.fuzz import tries
from tests._support.threads import Call

#: By then each message has its outcome, however slow the machine is (seconds).
PATIENCE = 60
#: The delivery timeout of a message (milliseconds).
DEADLINE = 300

SETTINGS = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 2,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 2,
    "request_timeout_ms": 100,
    "delivery_timeout_ms": DEADLINE,
    "max_block_ms": DEADLINE,
}


class Cluster(ScriptedCluster):
    """A cluster in which an address from a corrupted answer refuses connections."""

    def _connect(self, endpoint: Endpoint) -> Transport:
        try:
            return super()._connect(endpoint)
        except StopIteration:
            raise ConnectionFailed("connection refused: nothing listens there") from None


# Changes to an answer -----------------------------------------------------------------------------

Change = Callable[[bytes], bytes]
place = st.integers(0, 200)
piece = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\x00", b"\x00" * 8, b"\xff" * 10]),
)


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def overwrite(where: int, what: bytes) -> Change:
    """Return a change that overwrites the bytes at *where*; the frame length stays valid."""

    def change(framed: bytes) -> bytes:
        body = framed[8:]
        at = where % (len(body) + 1)
        return _framed(framed[4:8] + (body[:at] + what + body[at + len(what) :])[: len(body)])

    return change


def insert(where: int, what: bytes) -> Change:
    """Return a change that inserts *what*."""

    def change(framed: bytes) -> bytes:
        at = where % (len(framed) - 7)
        return _framed(framed[4:8] + framed[8:][:at] + what + framed[8:][at:])

    return change


def cut(where: int) -> Change:
    """Return a change that keeps only the beginning, in a valid frame."""
    return lambda framed: _framed(framed[4 : 4 + where % len(framed)])


def raw(what: bytes) -> Change:
    """Return a change that replaces everything."""
    return lambda framed: what


changes = st.one_of(
    st.builds(overwrite, place, piece),
    st.builds(overwrite, place, piece),
    st.builds(insert, place, piece),
    st.builds(cut, place),
    st.builds(raw, st.binary(max_size=60)),
    st.builds(lambda body: lambda framed: _framed(framed[4:8] + body), st.binary(max_size=80)),
)


def leave(exchange: Exchange) -> None:
    """Close the connection without an answer."""
    raise Disconnect


codes = st.one_of(st.integers(-1, 130), st.integers(-(2**15), 2**15 - 1))
actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(Mangle, changes, st.booleans()),
    st.builds(Mangle, changes, st.booleans()),
    st.just(proceed),
    st.just(leave),
)
of_produce = st.one_of(actions, st.builds(Refuse, codes), st.builds(Omit, st.just("t"), place))
scripts = st.fixed_dictionaries(
    {
        "api_versions": st.lists(actions, max_size=3),
        "metadata": st.lists(st.one_of(actions, st.builds(Refuse, codes)), max_size=4),
        "init_producer_id": st.lists(st.one_of(actions, st.builds(Refuse, codes)), max_size=3),
        "produce": st.lists(of_produce, max_size=4),
    }
)


def outcomes(deliveries: list[Delivery]) -> list[BaseException | None]:
    """Return the outcome of each message; fail if one has none."""
    found = []
    for delivery in deliveries:
        found.append(delivery.exception(PATIENCE))
    return found


@tries(60, 0.2)
@given(scripts, st.booleans())
def test_any_answers(script: dict[str, list[Action]], idempotent: bool) -> None:
    with Cluster(brokers=2, topics={"t": 2}) as cluster:
        for api, wanted in script.items():
            cluster.next(api, *wanted)
        told: list[Delivery] = []
        with cluster.producer(enable_idempotence=idempotent, **SETTINGS) as producer:
            deliveries = [
                producer.send("t", b"%d" % n, on_delivery=lambda error, each: told.append(each))
                for n in range(4)
            ]
            for error in outcomes(deliveries):
                assert error is None or isinstance(error, DeliveryError)
                assert not isinstance(error, ProducerBrokenError), error.__cause__
            # The producer has recovered: the next message meets a healthy cluster.
            if not any(cluster._script.values()):
                # A view that says that the topic does not exist is believed for a while.
                threading.Event().wait(2 * SETTINGS["retry_backoff_max_ms"] / 1000)
                last = producer.send("t", b"last", delivery_timeout_ms=PATIENCE * 1000)
                last.result(PATIENCE)
        assert len(told) == 4


# Bytes that are not an answer ---------------------------------------------------------------------


@contextlib.contextmanager
def babbler(pieces: list[tuple[bytes, bool]]) -> Iterator[str]:
    """Yield the address of a server that answers each request with the next of *pieces*."""
    left = itertools.chain(pieces, itertools.repeat((b"", True)))

    class Talk(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while request := self.request.recv(65536):
                    answer, ends = next(left)
                    # The number of the request, so that some pieces are accepted as an answer.
                    self.request.sendall(answer.replace(b"#", request[8:12]))
                    if ends:
                        return

    # At the end it waits for the threads of its connections, which their client has closed.
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Talk) as server:
        serving = Call(lambda: server.serve_forever(poll_interval=0.01))
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.outcome()


words = st.one_of(
    st.binary(max_size=40),
    st.binary(max_size=60).map(lambda body: _framed(b"#" + body)),
    st.sampled_from([b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x0a", b""]),
)


@tries(30, 0.05)
@given(st.lists(st.tuples(words, st.booleans()), max_size=8))
def test_any_bytes(pieces: list[tuple[bytes, bool]]) -> None:
    """Time is moved by hand: only the deadline of each message ends the wait for it."""
    clock = FakeClock()
    with babbler(pieces) as address:

        class Ours(Producer):
            _clock = clock

        producer = Ours(bootstrap_servers=address, **SETTINGS)
        done = threading.Event()
        left = itertools.count(1)

        def report(error: BaseException | None, delivery: Delivery) -> None:
            if next(left) == 3:
                done.set()

        try:
            deliveries = [producer.send("t", b"%d" % n, on_delivery=report) for n in range(3)]
            passed = 0.0
            while not done.wait(0.002):
                clock.jump(0.05)
                passed += 0.05
                assert passed < 1000, "no outcome"
            for error in outcomes(deliveries):
                assert isinstance(error, DeliveryError)
                assert not isinstance(error, ProducerBrokenError), error.__cause__
        finally:
            producer.abort()


@pytest.fixture(autouse=True)
def in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """Drop log records: thousands of lost connections are logged."""
    caplog.set_level("CRITICAL", logger="pykaproducer")

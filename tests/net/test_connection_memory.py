"""A connection without memory: it is lost, and every request is still returned once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pykaproducer._net import connection, outbox
from pykaproducer._net.connection import Connection, ConnectionFailed, FullyWritten, Lost
from pykaproducer._net.outbox import Outbox
from pykaproducer._net.poller import Poller
from pykaproducer._wire.frames import FrameReader
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Drop
from tests.net.helper import Full, Refusing, Settings, Talk, Wrapped, WrappedNetwork
from tests.net.test_connection import Collect
from tests.wire.helper import record_batch

#: Patience with another thread (seconds).
SOON = 30.0

NO_MEMORY = "out of memory for a request or a response"


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(topics={"t": 3}) as made:
        yield made


@pytest.fixture
def talk(cluster: ScriptedCluster) -> Iterator[Talk]:
    with Talk(cluster.network, clock=FakeClock()) as made:
        yield made


def values(cluster: ScriptedCluster) -> list[bytes | None]:
    return [record.value for record in cluster.log("t")]


# Connecting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["resolve", "connect", "FrameReader", "modify"])
def test_no_memory_to_connect(
    cluster: ScriptedCluster, talk: Talk, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    talk.open()
    talk.submit(("t", 0, record_batch(b"v")))
    talk.produced()
    talk.connection.give_up("another attempt follows")
    place: Any = {"FrameReader": connection, "modify": talk.connection._selector}.get(
        step, cluster.network
    )
    monkeypatch.setattr(place, step, Refusing(getattr(place, step), times=1))
    request = talk.submit(("t", 0, record_batch(b"w")))
    talk.connection.open()
    assert talk.until(Lost) == Lost(NO_MEMORY, [request], [])
    assert talk.connection.is_closed
    talk.open()
    assert values(cluster) == [b"v"]


@pytest.mark.parametrize("part", [FrameReader, Poller, Outbox])
def test_no_memory_for_the_connection_itself(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, part: type
) -> None:
    """It fails as without file descriptors, so the stage tries again later."""
    monkeypatch.setattr(connection, part.__name__, Refusing(part, times=1))
    with pytest.raises(ConnectionFailed, match="out of memory for a connection"):
        Connection(
            ("broker-0.scripted", 9092),
            config=Settings(),
            clock=FakeClock(),
            network=cluster.network,
        )


# Writing ------------------------------------------------------------------------------------------


def test_another_thread_without_memory_leaves_the_request_to_the_owner(
    cluster: ScriptedCluster, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.open()
    monkeypatch.setattr(talk.connection._outbox, "add", add := refusing_add(talk))
    request = talk.submit(("t", 0, record_batch(b"v")))
    add.times = 1
    talk.connection.write_now()
    assert talk.connection.has_to_go_on
    assert talk.produced().partitions[0].error_code == 0
    assert request.written is not None
    assert values(cluster) == [b"v"]
    assert talk.connection.is_idle


def test_the_owner_without_memory_reports_the_request_once(
    cluster: ScriptedCluster, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.open()
    monkeypatch.setattr(talk.connection._outbox, "add", add := refusing_add(talk))
    request = talk.submit(("t", 0, record_batch(b"v")))
    add.times = 1
    assert talk.until(Lost) == Lost(NO_MEMORY, [request], [])
    talk.open()
    assert values(cluster) == []


def refusing_add(talk: Talk) -> Refusing:
    return Refusing(talk.connection._outbox.add)


class Forgetful(Wrapped):
    """A transport that writes, and then has no memory for the number of bytes."""

    forgets = False

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        count = super().send(buffers, patient=patient)
        if self.forgets:
            raise MemoryError
        return count


@pytest.mark.parametrize("acks", [-1, 0])
def test_a_request_that_may_have_been_written_is_not_written_again(
    cluster: ScriptedCluster, acks: int
) -> None:
    network = WrappedNetwork(cluster.network, Forgetful)
    talk = Talk(network, clock=FakeClock())
    talk.open()
    network.made.forgets = True
    request = talk.submit(("t", 0, record_batch(b"v")), acks=acks)
    if acks:
        talk.connection.write_now()  # in another thread, which cannot report the loss
        assert talk.connection.has_to_go_on
    assert talk.until(Lost) == Lost(NO_MEMORY, [], [request])
    cluster.wait_for("produce", 1)
    talk.close()
    assert values(cluster) == [b"v"]


def test_a_written_request_without_a_response_is_not_forgotten(
    cluster: ScriptedCluster, talk: Talk
) -> None:
    talk.open()
    talk.connection._events = Full()
    request = talk.submit(("t", 0, record_batch(b"v")), acks=0)
    # There is no memory for the event, and then none to report that.
    assert talk.connection.poll(talk.clock.monotonic()) == []
    assert talk.until(Lost) == Lost(NO_MEMORY, [], [request])


# Reading and the end ------------------------------------------------------------------------------


def test_a_response_that_cannot_be_reported_is_a_lost_one(
    cluster: ScriptedCluster, talk: Talk
) -> None:
    talk.open()
    cluster.next("produce", *[Collect(2)] * 2)
    requests = [talk.submit(("t", 0, record_batch(b"v"))) for _ in range(2)]
    talk.connection._events = Full()
    events: list[Any] = []
    end = time.monotonic() + SOON
    while not events and time.monotonic() < end:
        events = talk.connection.poll(talk.clock.monotonic())
    assert events == [Lost(NO_MEMORY, [], requests)]


def test_a_loss_is_reported_as_soon_as_there_is_memory(
    cluster: ScriptedCluster, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.open()
    cluster.next("produce", Drop())
    first = talk.submit(("t", 0, record_batch(b"v")))
    talk.connection.write_now()
    lost = Refusing(Lost, times=2)
    monkeypatch.setattr(outbox, "Lost", lost)
    end = time.monotonic() + SOON
    while lost.times == 2 and time.monotonic() < end:
        assert talk.connection.poll(talk.clock.monotonic()) == []
    assert lost.times < 2
    # Nothing is written in the meantime.
    second = talk.submit(("t", 0, record_batch(b"w")))
    talk.connection.write_now()
    assert not talk.connection.is_idle
    assert talk.connection.poll(talk.clock.monotonic()) == []
    event = talk.until(Lost)
    assert (event.unwritten, event.unanswered) == ([second], [first])
    assert talk.connection.give_up("again") == Lost("again", [], [])
    talk.open()


def test_it_does_not_try_again_without_a_pause(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = talk.clock
    assert isinstance(clock, FakeClock)
    monkeypatch.setattr(outbox, "Lost", lost := Refusing(Lost, times=2))
    talk.connection.address = ("elsewhere", 9092)
    talk.connection.open()
    assert lost.times == 1
    jumping = threading.Thread(target=clock.jump_to_next, daemon=True)
    jumping.start()
    assert "host name 'elsewhere' cannot be resolved" in talk.until(Lost).reason
    jumping.join()
    assert clock.monotonic() == pytest.approx(1000.1)


def test_giving_up_without_memory_is_reported_later(
    cluster: ScriptedCluster, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport is closed at once, and the requests are reported by poll()."""
    talk.open()
    cluster.next("produce", Collect(2))
    first = talk.submit(("t", 0, record_batch(b"v")))
    talk.connection.write_now()
    monkeypatch.setattr(outbox, "Lost", Refusing(Lost, times=2))
    assert talk.connection.give_up("enough") is None
    cluster.join_connections()
    # It must not be opened again, or considered idle, before these requests are returned.
    assert not talk.connection.is_closed
    assert not talk.connection.is_idle
    second = talk.submit(("t", 0, record_batch(b"w")))
    talk.connection.write_now()
    assert talk.connection.poll(talk.clock.monotonic()) == []
    assert talk.until(Lost) == Lost("enough", [second], [first])
    assert talk.connection.is_closed
    talk.open()


def test_giving_up_again_returns_what_was_not_reported(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.open()
    request = talk.submit(("t", 0, record_batch(b"v")))
    monkeypatch.setattr(outbox, "Lost", Refusing(Lost, times=1))
    assert talk.connection.give_up("enough") is None
    assert talk.connection.give_up("again") == Lost("again", [request], [])
    assert talk.connection.poll(talk.clock.monotonic()) == []


def test_it_is_closed_without_memory(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    talk.open()
    monkeypatch.setattr(outbox, "Lost", Refusing(Lost, times=1))
    talk.connection.close()
    assert talk.connection.wakeup.fileno() < 0


def test_a_wait_without_memory_is_not_repeated_without_a_pause(talk: Talk) -> None:
    clock = talk.clock
    assert isinstance(clock, FakeClock)
    talk.open()
    select = Refusing(clock.select, times=2)
    jumping = threading.Thread(target=clock.jump_to_next, daemon=True)
    jumping.start()
    assert talk.connection.poll(None, select) == []
    assert clock.monotonic() == pytest.approx(1000.1)
    jumping.join()
    # It does not wait beyond the deadline.
    assert talk.connection.poll(clock.monotonic(), select) == []
    assert select.times == 0
    talk.submit(("t", 0, record_batch(b"v")), acks=0)
    assert isinstance(talk.connection.poll(None, select)[0], FullyWritten)

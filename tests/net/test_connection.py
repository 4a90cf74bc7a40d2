"""A connection to a scripted broker: the messages exchanged, and the fate of requests."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._net.connection import Answered, FullyWritten, Lost, Ready, SessionState
from pykaproducer._net.transport import ConnectionFailed, Endpoint, Network, Transport
from pykaproducer._wire.messages import ApiKey, decode_metadata
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import (
    Drop,
    Exchange,
    Hold,
    Mangle,
    Omit,
    cut_short,
    garbage,
    huge_length,
    negative_length,
    proceed,
    twice,
    wrong_correlation_id,
)
from tests._support.produce import produce_request
from tests.net.helper import Settings, Talk, Wrapped, WrappedNetwork
from tests.wire.helper import record_batch


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(topics={"t": 3}) as made:
        yield made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def talk(cluster: ScriptedCluster, clock: FakeClock) -> Iterator[Talk]:
    with Talk(cluster.network, clock=clock) as made:
        yield made


@contextmanager
def in_a_thread(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


# The handshake --------------------------------------------------------------------------------


def test_it_becomes_ready_with_the_common_versions(talk: Talk) -> None:
    assert talk.connection.is_closed
    ready = talk.open()
    expected = {ApiKey.PRODUCE: 12, ApiKey.METADATA: 13, ApiKey.INIT_PRODUCER_ID: 5}
    expected |= {ApiKey.END_TXN: 5, ApiKey.ADD_PARTITIONS_TO_TXN: 3}
    assert {key: ready.versions[key] for key in expected} == expected
    assert ready.features == {"transaction.version": 2}
    assert talk.connection.state is SessionState.READY


@pytest.mark.parametrize("last", range(3, 13))
def test_every_version_of_produce(last: int) -> None:
    with (
        ScriptedCluster(topics={"t": 1}, versions={"produce": (0, last)}) as cluster,
        Talk(cluster.network) as talk,
    ):
        assert talk.open().versions[ApiKey.PRODUCE] == last
        talk.submit(("t", 0, record_batch(b"a", b"b")))
        (partition,) = talk.produced().partitions
        assert (partition.error_code, partition.base_offset) == (0, 0)
        assert [record.value for record in cluster.log("t")] == [b"a", b"b"]


@pytest.mark.parametrize("last", range(13))
def test_every_version_of_metadata(last: int) -> None:
    with (
        ScriptedCluster(2, {"t": 2}, versions={"metadata": (0, last)}) as cluster,
        Talk(cluster.network) as talk,
    ):
        talk.open()
        talk.ask_metadata("t", "nowhere")
        event = talk.until(Answered)
        answer = decode_metadata(event.version, event.payload)
        assert [broker.port for broker in answer.brokers] == [9092, 9093]
        there, nowhere = answer.topics
        assert [partition.leader_id for partition in there.partitions] == [0, 1]
        assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("known", "asked"), [((0, 4), [4]), ((0, 3), [4, 3]), ((0, 2), [4, 3, 0]), ((0, 0), [4, 3, 0])]
)
def test_a_broker_that_knows_old_versions_of_api_versions(
    known: tuple[int, int], asked: list[int]
) -> None:
    with (
        ScriptedCluster(versions={"api_versions": known}) as cluster,
        Talk(cluster.network) as talk,
    ):
        talk.open()
        assert [received.version for received in cluster.received("api_versions")] == asked


class Resets:
    """Closes a connection that asks with a newer version of ApiVersions, as Azure Event Hubs."""

    def __init__(self, newest: int) -> None:
        self.newest = newest

    def __call__(self, exchange: Exchange) -> None:
        version = exchange.request.API_VERSION
        (Drop() if version > self.newest else proceed)(exchange)


@pytest.mark.parametrize(("newest", "asked"), [(3, [4, 4, 3]), (0, [4, 4, 3, 3, 0])])
def test_a_broker_that_resets_new_versions_of_api_versions(
    newest: int, asked: list[int], cluster: ScriptedCluster, clock: FakeClock
) -> None:
    cluster.always("api_versions", Resets(newest))
    network = cluster.network
    # The second connection knows what the first one has learnt.
    with Talk(network, clock=clock) as talk, Talk(network, clock=clock) as other:
        for n in range(len(asked) - 1):
            talk.connection.open()
            tried = ", ".join(str(version) for version in dict.fromkeys(asked[: n + 1]))
            assert f"any response to ApiVersions {tried}; is this" in talk.until(Lost).reason
        talk.open()
        other.open()
    assert [each.version for each in cluster.received("api_versions")] == [*asked, asked[-1]]


def test_a_broker_whose_refusal_makes_no_sense(cluster: ScriptedCluster, talk: Talk) -> None:
    cluster.next("api_versions", Mangle(garbage))
    talk.open()
    assert [received.version for received in cluster.received("api_versions")] == [4, 3]


def test_an_answer_of_more_than_a_mebibyte_before_it_is_ready(
    cluster: ScriptedCluster, talk: Talk
) -> None:
    """A server can send it before the client has checked its identity."""
    cluster.next("api_versions", Mangle(lambda framed: ((1 << 20) + 1).to_bytes(4, "big")))
    talk.connection.open()
    assert "1048577 bytes, more than the 1048576" in talk.until(Lost).reason


def test_a_broker_that_is_too_old_is_named_as_such(clock: FakeClock) -> None:
    with (
        ScriptedCluster(versions={"produce": (0, 2)}) as cluster,
        Talk(cluster.network, clock=clock) as talk,
    ):
        talk.open()
        request = talk.submit(("t", 0, record_batch()))
        lost = talk.until(Lost)
        assert lost.unwritten == [request]
        assert "PRODUCE requests of versions 0 to 2" in lost.reason


def test_requests_of_one_connection_may_have_other_versions(
    cluster: ScriptedCluster, talk: Talk
) -> None:
    talk.open()
    for at_most in (11, 12, 3):
        talk.submit(("t", 0, record_batch())).at_most = at_most
        assert talk.produced().partitions[0].error_code == 0
    assert [received.version for received in cluster.received("produce")] == [11, 12, 3]


def test_a_broker_without_the_version_that_a_request_requires_is_named(clock: FakeClock) -> None:
    with (
        ScriptedCluster(topics={"t": 1}, versions={"produce": (0, 11)}) as cluster,
        Talk(cluster.network, clock=clock) as talk,
    ):
        talk.open()
        assert talk.connection.refuses(ApiKey.PRODUCE) is None
        reason = "PRODUCE requests of versions 0 to 11, this request requires version 12"
        assert reason in str(talk.connection.refuses(ApiKey.PRODUCE, 12))
        request = talk.submit(("t", 0, record_batch()))
        request.at_least = 12
        lost = talk.until(Lost)
        assert lost.unwritten == [request]
        assert reason in lost.reason
        assert not cluster.received("produce")


# Requests and answers ---------------------------------------------------------------------------


def test_a_request_submitted_before_it_is_ready_is_sent_then(talk: Talk) -> None:
    talk.submit(("t", 0, record_batch()))
    talk.connection.open()
    assert talk.until(Answered).payload


def test_answers_come_in_the_order_of_the_requests(talk: Talk, cluster: ScriptedCluster) -> None:
    talk.open()
    for number in range(20):
        talk.submit(("t", number % 3, record_batch(b"%d" % number)), tag=number)
    assert [talk.until(Answered).request.tag for _ in range(20)] == list(range(20))
    assert [r.value for r in cluster.log("t", 1)] == [b"%d" % n for n in range(1, 20, 3)]


class Counting(Wrapped):
    """A transport that counts the calls of its methods."""

    def __init__(self, real: Transport) -> None:
        super().__init__(real)
        self.sends = 0
        self.receives = 0

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        self.sends += 1
        return super().send(buffers, patient=patient)

    def receive(self, into: memoryview) -> int:
        self.receives += 1
        return super().receive(into)


def test_several_requests_go_out_and_come_in_together(cluster: ScriptedCluster) -> None:
    network = WrappedNetwork(cluster.network, Counting)
    with Talk(network) as talk:
        talk.open()
        # All answers are sent together when the last request has arrived.
        cluster.next("metadata", *[Collect(5)] * 5)
        network.made.sends = network.made.receives = 0
        for _ in range(5):
            talk.ask_metadata("t")
        for _ in range(5):
            talk.until(Answered)
        assert (network.made.sends, network.made.receives) == (1, 1)


class Collect:
    """Sends all answers at once with the last of them."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.answers: list[bytes] = []

    def __call__(self, exchange: Exchange) -> None:
        self.left -= 1
        self.answers.append(exchange.encoded(exchange.apply()))
        if not self.left:
            exchange.send(b"".join(self.answers))


def test_a_request_far_larger_than_the_socket_s_buffer_arrives_whole(
    talk: Talk, cluster: ScriptedCluster
) -> None:
    talk.open()
    values = [bytes([number]) * 3_000_000 for number in range(5)]
    talk.submit(*[("t", number % 3, record_batch(value)) for number, value in enumerate(values)])
    assert [p.error_code for p in talk.produced().partitions] == [0] * 5
    assert [r.value for n in range(3) for r in cluster.log("t", n)] == [
        values[n] for n in (0, 3, 1, 4, 2)
    ]


def test_an_answer_far_larger_than_a_receive_arrives_whole(clock: FakeClock) -> None:
    with (
        ScriptedCluster(topics={"large": 10_000}) as cluster,
        Talk(cluster.network, clock=clock) as talk,
    ):
        talk.open()
        talk.ask_metadata("large")
        event = talk.until(Answered)
        assert len(decode_metadata(event.version, event.payload).topics[0].partitions) == 10_000


def test_a_request_without_answer_is_told_of_when_it_is_written(
    talk: Talk, cluster: ScriptedCluster
) -> None:
    talk.open()
    request = talk.submit(("t", 0, record_batch(b"v")), acks=0)
    assert talk.until(FullyWritten).request is request
    cluster.wait_for("produce", 1)
    # The connection stays usable, and the broker handles the requests in order.
    talk.ask_metadata("t")
    talk.until(Answered)
    assert [record.value for record in cluster.log("t")] == [b"v"]


def test_a_request_is_encoded_only_when_its_turn_comes(
    talk: Talk, cluster: ScriptedCluster
) -> None:
    """Requests beyond the expected capacity of the socket wait, and get the remaining time."""
    talk.open()
    held = Hold()
    cluster.next("produce", held)
    talk.submit(("t", 0, record_batch()))
    assert talk.connection.poll(talk.clock.monotonic()) == []
    held.wait_until_held()
    encoded: list[int] = []
    large = bytes(6_000_000)

    def encode(version: int, correlation_id: int) -> list[Any]:
        encoded.append(correlation_id)
        return produce_request(version, correlation_id, None, -1, 1000, [("t", 0, large)])

    for _ in range(3):
        talk.request(ApiKey.PRODUCE, encode, True, 1000, None)
    assert talk.connection.poll(talk.clock.monotonic()) == []
    assert len(encoded) == 1
    lost = talk.connection.give_up("enough")
    assert (len(lost.unanswered), len(lost.unwritten)) == (2, 2)
    held.release()


def test_a_poke_ends_the_wait(talk: Talk) -> None:
    talk.open()
    with in_a_thread(talk.connection.wakeup.poke):
        assert talk.connection.poll(None) == []


def test_a_poke_ends_the_wait_also_when_there_is_no_connection(talk: Talk) -> None:
    talk.connection.wakeup.poke()
    assert talk.connection.poll(None) == []


def test_a_wait_ends_at_its_deadline(talk: Talk, clock: FakeClock) -> None:
    talk.open()
    with in_a_thread(clock.jump_to_next):
        assert talk.connection.poll(clock.monotonic() + 5) == []
    assert clock.monotonic() == 1005.0


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (Drop(), "the broker closed the connection"),
        (Drop(appended=True), "the broker closed the connection"),
        (Mangle(wrong_correlation_id), "response to request 2147483632 when 1 was due"),
        (Mangle(huge_length), "length of 2147483647 bytes, more than receive_message_max_bytes"),
        (Mangle(negative_length), "length of -1 bytes"),
        (Mangle(cut_short, disconnect=True), "the broker closed the connection"),
    ],
)
def test_a_broken_connection_gives_its_requests_back(
    cluster: ScriptedCluster, talk: Talk, action: Drop | Mangle, reason: str
) -> None:
    talk.open()
    cluster.next("produce", action)
    request = talk.submit(("t", 0, record_batch()))
    lost = talk.until(Lost)
    assert reason in lost.reason
    assert (lost.unanswered, lost.unwritten) == ([request], [])
    assert talk.connection.is_closed
    # And it can be opened again.
    talk.open()
    talk.submit(("t", 0, record_batch()))
    assert talk.produced().partitions[0].error_code == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [(twice, "malformed response"), (lambda framed: framed + b"\xff\xff\xff\xff", "of -1 bytes")],
    ids=["a second answer", "a length"],
)
def test_what_was_answered_before_the_garbage_stays_answered(
    cluster: ScriptedCluster, talk: Talk, change: Callable[[bytes], bytes], reason: str
) -> None:
    talk.open()
    cluster.next("produce", Mangle(change))
    first = talk.submit(("t", 0, record_batch()))
    second = talk.submit(("t", 1, record_batch()))
    assert talk.until(Answered).request is first
    lost = talk.until(Lost)
    assert lost.unanswered == [second]
    assert reason in lost.reason


def test_requests_are_told_apart_by_what_the_broker_may_have_seen(
    cluster: ScriptedCluster, talk: Talk
) -> None:
    talk.open()
    held = Hold()
    cluster.next("produce", held)
    seen = talk.submit(("t", 0, record_batch()))
    assert talk.connection.poll(talk.clock.monotonic()) == []
    held.wait_until_held()
    # The broker stops reading: this request is written in part, the next one not at all.
    part = talk.submit(("t", 0, record_batch(bytes(6_000_000))), acks=0)
    none = talk.submit(("t", 0, record_batch()))
    assert talk.connection.poll(talk.clock.monotonic()) == []
    with in_a_thread(held.release):
        cluster.stop(0)
        lost = talk.until(Lost)
    assert lost.unanswered == [seen, part]
    assert lost.unwritten == [none]


def test_a_broker_that_ends_takes_an_idle_connection_with_it(
    cluster: ScriptedCluster, talk: Talk
) -> None:
    talk.open()
    cluster.stop(0)
    assert talk.until(Lost) == Lost("the broker closed the connection", [], [])


def test_a_stopped_broker_refuses(cluster: ScriptedCluster) -> None:
    refused = "connection refused: nothing listens there"
    hint = "; the cluster advertises this address (advertised.listeners of the broker)"
    with Talk(cluster.network, settings=Settings(bootstrap_servers=[])) as talk:
        for expected in (refused + hint, refused):
            cluster.stop(0)
            if expected == refused:
                talk.until(Lost)
            talk.connection.open()
            assert talk.until(Lost).reason == expected
            cluster.start(0)
            talk.open()  # from here on it is known that the address is right


class Directory(Network):
    """A network whose resolver returns given addresses, and which records the attempts."""

    def __init__(self, *endpoints: Endpoint) -> None:
        super().__init__(Settings())
        self.endpoints = endpoints
        self.tried: list[Endpoint] = []
        self.made: list[Transport] = []

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        return list(self.endpoints)

    def connect(self, endpoint: Endpoint) -> Transport:
        self.tried.append(endpoint)
        self.made.append(super().connect(endpoint))
        return self.made[-1]


def test_a_name_without_address() -> None:
    with Talk(Directory()) as talk:
        talk.connection.open()
        assert talk.until(Lost).reason == "the host name has no address"


def test_the_addresses_of_a_name_are_tried_in_turn(clock: FakeClock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        refuses = Endpoint(socket.AF_INET, gone.getsockname())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listens = Endpoint(socket.AF_INET, listener.getsockname())
        with Talk(Directory(refuses, listens), clock=clock) as talk:
            talk.connection.open()
            with in_a_thread(talk.connection.wakeup.poke):
                talk.connection.poll(None)
            far_end, _ = listener.accept()
            far_end.close()
            assert talk.until(Lost).reason.startswith("the broker ")
    with Talk(Directory(refuses, refuses), clock=clock) as talk:
        talk.connection.open()
        assert "connection refused" in talk.until(Lost).reason


# Time ---------------------------------------------------------------------------------------------


def test_connecting_takes_ten_seconds_at_most(
    cluster: ScriptedCluster, talk: Talk, clock: FakeClock
) -> None:
    cluster.stop(0, silently=True)
    talk.connection.open()
    with in_a_thread(clock.jump_to_next):
        assert talk.until(Lost).reason == "connecting took too long"
    assert clock.monotonic() == 1010.0


def test_connecting_takes_no_longer_than_a_request(
    cluster: ScriptedCluster, clock: FakeClock
) -> None:
    cluster.stop(0, silently=True)
    with Talk(cluster.network, clock=clock, settings=Settings(request_timeout_ms=3000)) as talk:
        talk.connection.open()
        assert talk.connection.next_deadline == 1003.0


class Addresses(Network):
    """One host with several addresses."""

    def __init__(self, cluster: ScriptedCluster, *brokers: int) -> None:
        super().__init__(Settings())
        self.network = cluster.network
        self.brokers = brokers

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        return [
            endpoint
            for broker in self.brokers
            for endpoint in self.network.resolve(f"broker-{broker}.scripted", 9092 + broker)
        ]

    def connect(self, endpoint: Endpoint) -> Transport:
        return self.network.connect(endpoint)


def test_an_address_that_swallows_everything_leaves_time_for_the_next(clock: FakeClock) -> None:
    with ScriptedCluster(2) as cluster:
        cluster.stop(0, silently=True)
        with Talk(Addresses(cluster, 0, 1), clock=clock) as talk:
            talk.connection.open()
            with in_a_thread(clock.jump_to_next):
                talk.until(Ready)
            assert clock.monotonic() == 1000.25


def test_a_broker_that_accepts_and_says_nothing(
    cluster: ScriptedCluster, talk: Talk, clock: FakeClock
) -> None:
    held = Hold()
    cluster.next("api_versions", held)
    talk.connection.open()
    with in_a_thread(clock.jump_to_next):
        assert "the broker does not answer" in talk.until(Lost).reason
    assert clock.monotonic() == 1010.0
    held.release()


def test_a_request_that_is_not_answered_in_time_ends_the_connection(
    cluster: ScriptedCluster, talk: Talk, clock: FakeClock
) -> None:
    talk.open()
    held = Hold()
    cluster.next("produce", held)
    first = talk.submit(("t", 0, record_batch()), seconds=20)
    second = talk.submit(("t", 1, record_batch()), seconds=7)
    with in_a_thread(clock.jump_to_next):
        lost = talk.until(Lost)
    assert clock.monotonic() == 1007.0
    assert lost.reason == "the broker did not answer a request in time"
    assert lost.unanswered == [first, second]
    held.release()


def test_a_request_that_is_not_taken_in_time_ends_the_connection(
    cluster: ScriptedCluster, talk: Talk, clock: FakeClock
) -> None:
    """Including one that expects no answer: otherwise nothing would ever end it."""
    talk.open()
    held = Hold()
    cluster.next("produce", held)
    seen = talk.submit(("t", 0, record_batch()), acks=0)
    assert talk.until(FullyWritten).request is seen
    held.wait_until_held()
    # The broker stops reading.
    part = talk.submit(("t", 0, record_batch(bytes(6_000_000))), acks=0, seconds=7)
    with in_a_thread(clock.jump_to_next):
        lost = talk.until(Lost)
    assert clock.monotonic() == 1007.0
    assert lost.reason == "the broker did not read a request in time"
    assert lost.unanswered == [part]
    held.release()


class Line(Wrapped):
    """A transport that accepts *room* bytes, and no more until *room* grows."""

    room = 1_000_000

    def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
        taken = 0
        for buffer in buffers:
            some = buffer[: self.room]
            if not some:
                break
            count = super().send([some], patient=patient)
            self.room -= count
            taken += count
        return taken


@contextmanager
def slow_line(cluster: ScriptedCluster) -> Iterator[tuple[Talk, Line, FakeClock]]:
    """Yield an open connection over a line without room."""
    clock, network = FakeClock(), WrappedNetwork(cluster.network, Line)
    with Talk(network, clock=clock) as talk:
        talk.open()
        network.made.room = 0
        yield talk, network.made, clock


def test_a_request_behind_others_has_its_time_from_the_answer_before_it(
    cluster: ScriptedCluster, talk: Talk, clock: FakeClock
) -> None:
    """The broker takes five seconds for each, and answers in order."""
    talk.open()
    held = [Hold() for _ in range(4)]
    cluster.next("produce", *held)
    for number in range(4):
        talk.submit(("t", number, record_batch()), seconds=7)
    for each in held[:3]:
        with in_a_thread(each.wait_until_held):
            talk.connection.poll(clock.monotonic())
        clock.jump(5)
        each.release()
        talk.produced()
    assert clock.monotonic() == 1015.0
    assert talk.connection.next_deadline == 1022.0
    with in_a_thread(clock.jump_to_next):
        lost = talk.until(Lost)
    assert clock.monotonic() == 1022.0
    assert len(lost.unanswered) == 1
    held[3].release()


def test_a_request_has_its_time_while_the_line_takes_some_of_it(cluster: ScriptedCluster) -> None:
    """A line that takes 40 kB in five seconds, and a request that has seven."""
    held = Hold()
    cluster.next("produce", held)
    with slow_line(cluster) as (talk, line, clock):
        request = talk.submit(("t", 0, record_batch(bytes(180_000))), seconds=7)
        for _ in range(5):
            line.room = 40_000
            assert talk.connection.poll(clock.monotonic()) == []
            assert talk.connection.next_deadline == clock.monotonic() + 7
            clock.jump(5)
        assert not talk.connection.has_to_go_on
        clock.jump(2)
        lost = talk.until(Lost)
        assert lost.reason == "the broker did not answer a request in time"
        assert lost.unanswered == [request]
        held.release()


def test_a_line_that_takes_nothing_any_more_is_given_up(cluster: ScriptedCluster) -> None:
    with slow_line(cluster) as (talk, line, clock):
        begun = talk.submit(("t", 0, record_batch(bytes(100_000))), seconds=7)
        line.room = 40_000
        talk.connection.poll(clock.monotonic())
        clock.jump(3)
        queued = talk.submit(("t", 0, record_batch()), seconds=7)
        talk.connection.poll(clock.monotonic())
        assert talk.connection.next_deadline == 1007.0
        clock.jump(4)
        lost = talk.until(Lost)
        assert lost.reason == "the broker did not read a request in time"
        assert (lost.unanswered, lost.unwritten) == ([begun], [queued])


def test_an_answer_in_time_leaves_no_deadline_behind(talk: Talk, clock: FakeClock) -> None:
    talk.open()
    talk.submit(("t", 0, record_batch()), seconds=7)
    assert talk.connection.next_deadline == 1007.0
    talk.produced()
    assert talk.connection.next_deadline is None
    clock.jump(100)
    talk.submit(("t", 0, record_batch()), seconds=7)
    assert talk.produced().partitions[0].error_code == 0


# Written by another thread --------------------------------------------------------------------


def test_another_thread_may_write_while_the_owner_waits(
    talk: Talk, cluster: ScriptedCluster
) -> None:
    """The thread that holds *turn* uses the connection; the owner releases it while it waits."""
    talk.open()
    answers: list[Answered] = []
    turn, waits = threading.Lock(), threading.Event()

    def select(*arguments: Any) -> Any:
        turn.release()
        waits.set()
        try:
            return talk.connection._clock.select(*arguments)
        finally:
            turn.acquire()

    def own() -> None:
        with turn:
            while not answers:
                events = talk.connection.poll(None, select)
                answers.extend(event for event in events if isinstance(event, Answered))

    with in_a_thread(own):
        waits.wait()
        with turn:
            request = talk.submit(("t", 0, record_batch(b"v")))
            talk.connection.write_now()
            assert not talk.connection.has_to_go_on
    assert [answer.request for answer in answers] == [request]
    assert [record.value for record in cluster.log("t")] == [b"v"]


def test_what_another_thread_could_not_write_is_the_owners(cluster: ScriptedCluster) -> None:
    class Choked(Wrapped):
        """A socket that accepts nothing more: its buffer is full, or it is broken."""

        broken = False
        full = False

        def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
            if self.broken:
                raise ConnectionFailed("the cable was cut")
            return 0 if self.full else super().send(buffers, patient=patient)

    network = WrappedNetwork(cluster.network, Choked)
    with Talk(network) as talk:
        talk.open()
        network.made.full = True
        talk.submit(("t", 0, record_batch(b"v")))
        talk.connection.write_now()
        assert talk.connection.has_to_go_on
        network.made.full = False
        talk.produced()
        assert not talk.connection.has_to_go_on
        network.made.broken = True
        request = talk.submit(("t", 0, record_batch(b"w")))
        talk.connection.write_now()
        assert talk.connection.has_to_go_on
        assert talk.until(Lost) == Lost("the cable was cut", [request], [])
    assert [record.value for record in cluster.log("t")] == [b"v"]


# The end ------------------------------------------------------------------------------------------


def test_giving_up_is_told_once(cluster: ScriptedCluster, talk: Talk) -> None:
    talk.open()
    cluster.next("produce", Omit("t", 0))
    request = talk.submit(("t", 0, record_batch()))
    assert talk.produced().partitions == []
    later = talk.submit(("t", 0, record_batch()))
    assert talk.connection.give_up("no partition") == Lost("no partition", [later], [])
    assert request.correlation_id == 1
    talk.connection.wakeup.poke()
    assert talk.connection.poll(None) == []
    assert talk.connection.give_up("again") == Lost("again", [], [])


def test_requests_of_a_connection_that_was_never_opened(talk: Talk) -> None:
    request = talk.submit(("t", 0, record_batch()))
    assert talk.connection.give_up("not wanted") == Lost("not wanted", [request], [])


def test_every_descriptor_is_given_back(cluster: ScriptedCluster, clock: FakeClock) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    if not Path("/proc/self/fd").exists():
        pytest.skip("counts the descriptors in /proc")
    before = open_files()
    for state in ("never opened", "open", "lost", "refused"):
        with Talk(cluster.network, clock=clock) as talk:
            if state != "never opened":
                talk.open()
            if state in ("lost", "refused"):
                cluster.stop(0)
                talk.until(Lost)
            if state == "refused":
                talk.connection.open()
                talk.until(Lost)
            cluster.start(0)
        talk.close()
        cluster.join_connections()
    assert open_files() == before


def test_a_failed_send_is_a_lost_connection(cluster: ScriptedCluster) -> None:
    class Broken(Wrapped):
        def send(self, buffers: Sequence[memoryview], *, patient: bool = True) -> int:
            raise ConnectionFailed("the cable was cut")

    with Talk(WrappedNetwork(cluster.network, Broken)) as talk:
        talk.connection.open()
        assert talk.until(Lost) == Lost("the cable was cut", [], [])

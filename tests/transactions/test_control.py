"""``TransactionControl``: transactional ids and groups of a cluster, seen from outside."""

from __future__ import annotations

import functools
import os
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pytest

import pykaproducer._machines.session as session
from pykaproducer import (
    EndState,
    PreparedTransaction,
    ProducerClosedError,
    ProducerFencedError,
    TopicPartition,
    TransactionControl,
    TransactionError,
    TransactionStateError,
    TransactionTimeoutError,
    UnsupportedFeatureError,
)
from pykaproducer._wire.messages import decode_api_versions
from pykaproducer.testing import FakeClock, ScriptedCluster
from pykaproducer.testing.scripted import Hold
from pykaproducer.transaction_control import CommittedOffset
from tests._support.threads import Call
from tests.transactions.bounds import CONTROLS, PollingClock, scripted_control
from tests.transactions.helper import BOTH, PATIENCE, Kafka
from tests.transactions.scripted_helper import NAME, producer_of

NOWHERE = "127.0.0.1:9"


@pytest.fixture
def control(kafka: Kafka) -> Iterator[TransactionControl]:
    with TransactionControl(bootstrap_servers=kafka.cluster.bootstrap_servers) as found:
        yield found


# Inspecting ---------------------------------------------------------------------------------------


def test_open_and_ended_transactions(kafka: Kafka, topic: str, control: TransactionControl) -> None:
    began = time.time() * 1000
    with (
        kafka.producer(transactional_id=f"{topic}-a", transaction_timeout_ms=50_000) as one,
        kafka.producer(transactional_id=f"{topic}-b") as other,
    ):
        one.init_transactions()
        one.begin_transaction()
        for partition in (0, 2):
            one.send(topic, b"value", partition=partition).result(PATIENCE)
        with other.transaction():
            other.send(topic, b"value", partition=1)
        names = [f"{topic}-{each}" for each in ("b", "a", "none")]
        ended, ongoing, unknown = control.describe(names).values()
        assert (ongoing.transactional_id, ongoing.state) == (f"{topic}-a", "Ongoing")
        assert ongoing.partitions == ((topic, 0), (topic, 2))
        assert ongoing.timeout_ms == 50_000
        assert abs(ongoing.start_ms - began) < PATIENCE * 1000
        assert ended.state in ("CompleteCommit", "PrepareCommit")
        assert (unknown.error_code, unknown.state) == (105, "")
        listed = control.list(f"{topic}-")
        assert [each.transactional_id for each in listed] == names[1::-1]
        assert [each.producer_id for each in listed] == [ongoing.producer_id, ended.producer_id]
        assert [e.transactional_id for e in control.list(topic, ["Ongoing"])] == [f"{topic}-a"]
        assert {each.transactional_id for each in control.list()} >= set(names[:2])
        one.abort_transaction()


def test_a_prefix_is_no_pattern(kafka: Kafka, control: TransactionControl) -> None:
    names = ["a.b*c\\Q[", "aXb*c\\Q[", "ü-1", "-{1}"]
    for name in names:
        control.initialize(name, 60_000)
    for name in ("a.b*c\\Q[", "a.b*", "ü", "-{1}", "-{"):
        found = [each.transactional_id for each in control.list(name)]
        assert found == sorted(each for each in names if each.startswith(name))


def test_a_state_that_there_is_not(control: TransactionControl) -> None:
    with pytest.raises(ValueError, match="unknown states of transactions: Open"):
        control.list(states=["Ongoing", "Open"])


def test_nothing_is_asked(control: TransactionControl) -> None:
    assert control.describe([]) == {}
    assert control.fence([]) == ()
    assert control.complete_all([], commit=True) == []
    assert control.offsets([]) == {}


def test_coordinators_are_remembered_for_the_ids_asked_for_last() -> None:
    names = [f"id-{number}" for number in range(1500)]
    with ScriptedCluster() as scripted, scripted_control(scripted, FakeClock()) as control:
        for asked, lookups in ((names, True), (names[-1000:], False), (names[:1], True)):
            before = len(scripted.received("find_coordinator"))
            assert list(control.describe(asked)) == asked
            assert (len(scripted.received("find_coordinator")) > before) is lookups


# Offsets ------------------------------------------------------------------------------------------


@BOTH
def test_offsets_are_committed_together(
    kafka: Kafka, topic: str, control: TransactionControl
) -> None:
    groups = [f"{topic}-{n}" for n in range(3)]
    one, two = TopicPartition(topic, 1), TopicPartition(topic, 2)
    for number, commit in ((1, True), (2, False), (3, True)):
        begun = control.initialize(f"{topic}-driver", 60_000)
        control.commit_offsets(begun, {groups[0]: {one: number, two: number + 5}})
        control.commit_offsets(begun, {groups[1]: {one: number}, groups[2]: {}})
        ended = control.complete(begun, commit)
        assert ended.state is (EndState.COMMITTED if commit else EndState.ABORTED)
        found = control.offsets(groups, {topic: [1, 2]})
        kept = number if commit else 1
        assert found == {
            groups[0]: {one: CommittedOffset(kept, -1, ""), two: CommittedOffset(kept + 5, -1, "")},
            groups[1]: {one: CommittedOffset(kept, -1, "")},
            groups[2]: {},
        }
    assert control.offsets(groups[:1], {topic: [2]}) == {groups[0]: {two: found[groups[0]][two]}}
    assert control.offsets(groups[:1], ["other"]) == {groups[0]: {}}
    # What was read can be committed.
    begun = control.initialize(f"{topic}-driver", 60_000)
    control.commit_offsets(begun, {f"{topic}-copy": found[groups[0]]})
    assert control.complete(begun, commit=True).state is EndState.COMMITTED
    assert control.offsets([f"{topic}-copy"], {topic: [1, 2]})[f"{topic}-copy"] == found[groups[0]]


def test_metadata_of_offsets(kafka: Kafka, topic: str, control: TransactionControl) -> None:
    """As long as brokers take them by default, for many partitions, all in one transaction."""
    name = f"{topic}-many"
    kafka.cluster.create_topic(name, partitions=100)
    stored = {
        TopicPartition(name, n): CommittedOffset(n + 1, -1, f"{n:04}" * 1024) for n in range(100)
    }
    begun = control.initialize(f"{topic}-driver", 60_000)
    control.commit_offsets(begun, {f"{topic}-group": stored})
    assert control.complete(begun, commit=True).state is EndState.COMMITTED
    places = {name: range(100)}
    assert control.offsets([f"{topic}-group"], places) == {f"{topic}-group": stored}
    begun = control.initialize(f"{topic}-driver", 60_000)
    longer = CommittedOffset(1, -1, "x" * 4097)
    with pytest.raises(TransactionError, match=r"OFFSET_METADATA_TOO_LARGE \(12\)") as raised:
        control.commit_offsets(begun, {f"{topic}-group": {TopicPartition(name, 0): longer}})
    assert raised.value.code == 12
    assert f"group '{topic}-group'" in str(raised.value)
    assert control.complete(begun, commit=False).state is EndState.ABORTED
    assert control.offsets([f"{topic}-group"], places) == {f"{topic}-group": stored}


def test_an_open_transaction_is_waited_for(
    kafka: Kafka, topic: str, control: TransactionControl
) -> None:
    group, place = f"{topic}-group", TopicPartition(topic, 0)
    begun = control.initialize(f"{topic}-driver", 60_000)
    control.commit_offsets(begun, {group: {place: 5}})
    with pytest.raises(TransactionTimeoutError, match=r"UNSTABLE_OFFSET_COMMIT \(88\)") as raised:
        control.offsets([group], {topic: [0]}, timeout=5)
    assert str(raised.value).startswith(f"offsets(): group '{group}': no answer within 5 s")
    assert control.offsets([group], {topic: [0]}, stable=False) == {group: {}}
    control.complete(begun, commit=True)
    assert control.offsets([group], {topic: [0]})[group][place].offset == 5


def test_a_commit_of_nothing_is_an_abort(
    kafka: Kafka, topic: str, control: TransactionControl
) -> None:
    begun = control.initialize(f"{topic}-driver", 60_000)
    assert control.complete(begun, commit=True).state is EndState.ABORTED


def test_a_second_instance_fences_the_first(
    kafka: Kafka, topic: str, control: TransactionControl
) -> None:
    """And what it had committed is seen by the second one."""
    group, place = f"{topic}-group", TopicPartition(topic, 0)
    first = control.initialize(f"{topic}-driver", 60_000)
    control.commit_offsets(first, {group: {place: 1}})
    assert control.complete(first, commit=True).state is EndState.COMMITTED
    second = control.initialize(f"{topic}-driver", 60_000)
    assert control.offsets([group])[group][place].offset == 1
    with pytest.raises(ProducerFencedError, match=f"'{topic}-driver'") as raised:
        control.commit_offsets(first, {group: {place: 2}})
    assert raised.value.transactional_id == f"{topic}-driver"
    control.commit_offsets(second, {group: {place: 3}})
    assert control.complete(second, commit=True).state is EndState.COMMITTED
    assert control.offsets([group], {topic: [0]})[group][place].offset == 3


def test_a_partition_that_there_is_not(
    kafka: Kafka, topic: str, control: TransactionControl
) -> None:
    begun = control.initialize(f"{topic}-driver", 60_000)
    with pytest.raises(TransactionTimeoutError, match=r"UNKNOWN_TOPIC_OR_PARTITION \(3\)"):
        control.commit_offsets(begun, {"g": {TopicPartition(topic, 99): 1}}, timeout=5)


# Fencing ------------------------------------------------------------------------------------------


def test_fence_aborts_what_is_open(kafka: Kafka, topic: str, control: TransactionControl) -> None:
    with kafka.begun(transactional_id=f"{topic}-a") as producer:
        producer.send(topic, b"lost", partition=0).result(PATIENCE)
        control.initialize(f"{topic}-b", 60_000)
        names = [f"{topic}-a", f"{topic}-b", f"{topic}-none"]
        assert control.fence(names) == (f"{topic}-a",)
        assert kafka.committed(topic) == []  # it is over at once
        with pytest.raises(ProducerFencedError):
            producer.commit_transaction(PATIENCE)
    assert control.fence(names) == ()


# Errors -------------------------------------------------------------------------------------------


def test_one_bootstrap_server_suffices(kafka: Kafka) -> None:
    servers = f"{NOWHERE},{kafka.cluster.bootstrap_servers}"
    for _ in range(3):
        with TransactionControl(bootstrap_servers=servers) as control:
            assert control.describe(["none"])["none"].error_code == 105


def test_a_silent_bootstrap_server_is_not_waited_for() -> None:
    """After a second another one is tried, long before the first attempt is given up."""
    clock = PollingClock()

    def ask(control: TransactionControl) -> Any:
        found = control.list(timeout=100.0)
        # If the server that answers was tried first, perhaps nothing had to be waited for.
        clock.polls.set()
        return found

    with ScriptedCluster(2) as scripted:
        scripted.stop(0, silently=True)
        for _ in range(6):  # they are tried in any order
            with scripted_control(scripted, clock) as control:
                clock.polls.clear()
                asking = Call(functools.partial(ask, control))
                assert clock.polls.wait(PATIENCE)
                clock.jump(1.0)
                assert asking.error() is None
                assert asking.result == ()


def test_max_block_ms_is_the_default() -> None:
    text = rf"^list\(\): .*: no answer within 0.2 s: no connection to {NOWHERE}"
    with (
        TransactionControl(bootstrap_servers=NOWHERE, max_block_ms=200) as control,
        pytest.raises(TransactionTimeoutError, match=text),
    ):
        control.list()


def test_a_closed_one(kafka: Kafka) -> None:
    control = TransactionControl(bootstrap_servers=kafka.cluster.bootstrap_servers)
    control.list()
    control.close()
    control.close()
    token = PreparedTransaction(NAME, 7, 0, 2)
    for name, call in CONTROLS.items():
        with pytest.raises(ProducerClosedError, match=rf"^{name}\(\): the TransactionControl is"):
            call(control, token, PATIENCE)


def test_a_signal_handler_closes_it() -> None:
    class Interrupted(PollingClock):
        def select(self, *arguments: Any) -> Any:
            control.close()
            return super().select(*arguments)

    with ScriptedCluster() as scripted:
        scripted.always("metadata", Hold())
        with (
            scripted_control(scripted, Interrupted()) as control,
            pytest.raises(ProducerClosedError, match=r"list\(\): .* was closed during the call"),
        ):
            control.list()


def test_it_is_not_pickled(control: TransactionControl) -> None:
    with pytest.raises(TypeError, match="cannot be pickled; make one where it is used"):
        pickle.dumps(control)


def test_two_threads() -> None:
    clock = PollingClock()
    with ScriptedCluster() as scripted, scripted_control(scripted, clock) as control:
        scripted.stop(0, silently=True)
        waiting = Call(lambda: control.list(timeout=5.0))
        assert clock.polls.wait(PATIENCE)
        with pytest.raises(TransactionStateError, match="another thread is using this Trans"):
            control.list()
        clock.jump(5.0)
        assert isinstance(waiting.error(), TransactionTimeoutError)
        scripted.start(0)
        assert control.list() == ()


def test_a_forked_child(control: TransactionControl) -> None:
    control.list()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            control.list()
        except TransactionStateError as error:
            os.write(writer, str(error).encode())
        finally:
            control.close()
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        assert pipe.read() == (
            "list(): this TransactionControl was made in the parent process; make one here"
        )
    control.list()  # the parent's connections still work


# Older brokers ------------------------------------------------------------------------------------


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> dict[int, tuple[int, int] | None]:
    """Change the versions that brokers seem to support: key -> (first, last), None: not at all."""
    changes: dict[int, tuple[int, int] | None] = {}

    def older(version: int, payload: Any) -> Any:
        answer = decode_api_versions(version, payload)
        for key, found in changes.items():
            answer.ranges.pop(key, None)
            if found is not None:
                answer.ranges[key] = found
        return answer

    monkeypatch.setattr(session, "decode_api_versions", older)
    return changes


@pytest.mark.parametrize(
    ("key", "versions", "text"),
    [
        (22, (0, 1), "it supports INIT_PRODUCER_ID requests of versions 0 to 1, this request"),
        (28, (0, 2), "it supports TXN_OFFSET_COMMIT requests of versions 0 to 2, this request"),
        (28, None, "it does not support TXN_OFFSET_COMMIT requests"),
        (10, None, "the brokers are older: they have no FIND_COORDINATOR requests"),
    ],
)
def test_a_producer_and_older_brokers(
    offered: dict[int, tuple[int, int] | None],
    key: int,
    versions: tuple[int, int] | None,
    text: str,
) -> None:
    offered[key] = versions
    with ScriptedCluster() as scripted, producer_of(scripted) as producer:
        for call in (*[producer.init_transactions] * 2, producer.transaction().__enter__):
            with pytest.raises(UnsupportedFeatureError) as raised:
                call()
            said = str(raised.value)
            assert said.startswith(f"transactional id {NAME!r}: transactions need Kafka 2.5 or new")
            assert text in said
            assert said.endswith("; upgrade the brokers, or remove transactional_id")
        with pytest.raises(
            TransactionStateError,
            match=r"n\(\): init_transactions\(\) failed: transactions need Kafka 2.5 or newer; ",
        ) as refused:
            producer.begin_transaction()
        assert isinstance(refused.value.__cause__, UnsupportedFeatureError)


def test_a_control_and_older_brokers(
    kafka: Kafka, offered: dict[int, tuple[int, int] | None]
) -> None:
    servers = kafka.cluster.bootstrap_servers
    offered.update({65: None, 66: None, 22: (0, 1), 9: (0, 5)})
    with TransactionControl(bootstrap_servers=servers) as control:
        needed = {**dict.fromkeys(("describe", "list", "fence"), "3.0"), "offsets": "2.5"}
        for name, since in {**needed, "initialize": "2.5"}.items():
            with pytest.raises(UnsupportedFeatureError) as raised:
                CONTROLS[name](control, None, PATIENCE)
            assert str(raised.value).startswith(f"{name}(): the broker at {servers}: it ")
            assert str(raised.value).endswith(f"; that needs Kafka {since} or newer")


def test_older_versions_of_the_requests(
    kafka: Kafka, topic: str, offered: dict[int, tuple[int, int] | None]
) -> None:
    """One id in a FindCoordinator request, one group in OffsetFetch, no pattern for a prefix."""
    offered.update({10: (0, 3), 9: (0, 7), 66: (0, 0)})
    servers = kafka.cluster.bootstrap_servers
    groups = [f"{topic}-{n}" for n in range(3)]
    with TransactionControl(bootstrap_servers=servers) as control:
        for number, group in enumerate(groups):
            begun = control.initialize(group, 60_000)
            control.commit_offsets(begun, {group: {TopicPartition(topic, 0): number}})
            assert control.complete(begun, commit=True).state is EndState.COMMITTED
    with TransactionControl(bootstrap_servers=servers) as control:
        found = control.offsets(groups, {topic: [0]})
        assert [each[TopicPartition(topic, 0)].offset for each in found.values()] == [0, 1, 2]
        assert [each.transactional_id for each in control.list(topic)] == groups
        assert len(control.describe(groups)) == 3

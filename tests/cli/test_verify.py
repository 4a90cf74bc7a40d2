"""``verify``: it reports SAME when everything matches, and finds every defect."""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
from typing import Any, NamedTuple

import pytest

from pykaproducer import DeliveryTimeoutError, Status
from pykaproducer.cli import main
from pykaproducer.cli._audit import DEFECTS, Audit, Messages, defect_lines
from pykaproducer.cli._ledger import SEGMENT, Ledger, LedgerEntry, ReportedOutcome
from pykaproducer.cli._readback import Record
from pykaproducer.testing import KafkaCluster
from tests._support.consumer import consume

from .helper import NOWHERE, PATIENCE, command, run, status_of


def test_all_is_well(cluster: KafkaCluster, topic: str) -> None:
    """Also on a topic with other messages, and in several partitions at once."""
    cluster.create_topic(topic, 3)
    servers = ["--bootstrap-servers", cluster.bootstrap_servers]
    assert run("produce", "-t", topic, *servers, data=b"of another\n" * 10).returncode == 0
    done = run("verify", "-t", topic, *servers, "--count", "3000", "--keys", "10")
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith(f"sent    3,000 messages to {topic} at")
    assert lines[1] == "outcome 3,000 delivered, 0 failed, 0 failed but possibly written"
    assert lines[2].startswith("found   3,000 in the log; by partition: 0: ")
    assert lines[3:] == ["SAME    every message is in the log once, in order, unchanged"]
    # Once more, without keys: the first run's messages are in the log, too, and are ignored.
    arguments = ["--keys", "0", "--record-size", "8", "--duration", "1", "--rate", "500", "--json"]
    done = run("verify", "-t", topic, *servers, *arguments)
    figures = json.loads(done.stdout)
    assert done.returncode == 0
    assert figures["same"] is True
    assert figures["found"] == figures["sent"] == figures["reported"]["delivered"] > 0
    assert figures["defects"] == dict.fromkeys(DEFECTS, 0)


@pytest.mark.full
def test_through_a_bad_time(own_cluster: KafkaCluster, topic: str) -> None:
    """Messages delivered by retries are in the log once, in order."""
    own_cluster.create_topic(topic, 2)
    servers = own_cluster.bootstrap_servers
    arguments = ["--count", "5000", "--rate", "500", "-X", "request_timeout_ms=300", "--json"]
    with subprocess.Popen(
        command("verify", "-t", topic, "--bootstrap-servers", servers, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        consume(servers, topic, 50)
        own_cluster.pause(0)
        try:
            assert process.stderr is not None
            told = process.stderr.readline()
        finally:
            own_cluster.resume(0)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err.decode()
    assert b"connection" in told
    assert json.loads(out)["reported"]["delivered"] == 5000


def test_what_was_not_delivered_is_told_of(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, config={"max.message.bytes": "1000"})
    done = run(
        *("verify", "-t", topic, "--bootstrap-servers", cluster.bootstrap_servers),
        *("--count", "20", "--record-size", "2000", "-X", "batch_size=0"),
    )
    assert done.returncode == 1
    lines = done.stdout.decode().splitlines()
    assert lines[1].startswith("outcome 0 delivered, 20 failed")
    assert "20 failed: " in lines[2]
    assert "MESSAGE_SIZE_TOO_LARGE" in lines[2]
    assert (
        lines[-1]
        == "FAILED  some messages were not delivered; the log matches the reported outcomes"
    )


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--bootstrap-servers", NOWHERE, "-X", "max_block_ms=300"]
    assert main(["verify", "-t", "t", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert NOWHERE in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-X", "acks=0"], "acks=0: no broker confirms anything"),
        (["-t", "no topic"], "is not a topic name"),
        (["--count", "5", "--duration", "5"], "not allowed with argument"),
        (["--record-size", "7"], "'7' is not an integer >= 8"),
    ],
)
def test_what_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["verify", "-t", "t", *arguments]) == 2
    assert told in capsys.readouterr().err


# The audit ----------------------------------------------------------------------------------------

KEYS = 5


class Outcome(NamedTuple):
    """A delivery as a callback receives it."""

    value: bytes
    partition: int
    offset: int


def partition_of(number: int) -> int:
    return number % KEYS % 2


class World:
    """A run of *count* messages, all delivered to two partitions; tests then add defects."""

    def __init__(self, count: int = 20) -> None:
        self.messages = Messages("run", 30, KEYS)
        self.audit = Audit(self.messages)
        self.audit.sent = count
        self.log: dict[int, list[Record]] = {0: [], 1: []}
        for number in range(count):
            self.write(number)

    def write(self, number: int, partition: int | None = None) -> Record:
        partition = partition_of(number) if partition is None else partition
        value, key = self.messages.value(number), self.messages.key(number)
        log = self.log[partition]
        log.append(Record(partition, len(log), key, value, self.messages.headers))
        return log[-1]

    def tell(self, numbers: Any = None) -> None:
        """Report each message in the log as delivered at its first offset."""
        told = set()
        for log in self.log.values():
            for record in log:
                number = Messages.number(record.value)
                if number not in told and (numbers is None or number in numbers):
                    told.add(number)
                    self.audit.report(None, Outcome(record.value, *record[:2]))  # type: ignore[arg-type]

    def defects(self) -> dict[str, int]:
        """Return the defects that were found."""
        for log in self.log.values():
            for record in log:
                self.audit.look(record)
        self.audit.finish()
        assert len(defect_lines(self.audit)) == len(+self.audit.defects)
        return dict(+self.audit.defects)


def test_a_world_in_order() -> None:
    world = World()
    world.tell()
    assert world.defects() == {}
    assert world.audit.found == 20


def test_lost() -> None:
    world = World()
    world.tell()
    del world.log[0][3]
    assert world.defects() == {"lost": 1}
    assert "message 5" in defect_lines(world.audit)[0]


def test_duplicated() -> None:
    world = World()
    world.tell()
    world.write(19)
    assert world.defects() == {"duplicated": 1}


def test_out_of_order() -> None:
    world = World()
    log = world.log[1]
    log[2], log[3] = log[3]._replace(offset=2), log[2]._replace(offset=3)
    world.tell()
    assert world.defects() == {"out_of_order": 1}


@pytest.mark.parametrize("part", ["value", "key"])
def test_corrupted(part: str) -> None:
    world = World()
    world.tell()
    record = world.log[0][5]
    world.log[0][5] = record._replace(**{part: getattr(record, part)[:-1] + b"?"})
    assert world.defects() == {"corrupted": 1, "lost": 1}


def test_told_not_written_and_there() -> None:
    world = World()
    world.tell(range(1, 20))
    error = DeliveryTimeoutError(topic="t", waited=1.0, status=Status.NOT_PERSISTED)
    world.audit.refuse(0, error)
    assert world.defects() == {"denied": 1}


@pytest.mark.parametrize("there", [True, False])
def test_a_doubtful_one_may_be_there_or_not(there: bool) -> None:
    world = World()
    world.tell(range(1, 20))
    error = DeliveryTimeoutError(topic="t", waited=1.0, status=Status.POSSIBLY_PERSISTED)
    world.audit.refuse(0, error)
    if not there:
        del world.log[0][0]
    assert world.defects() == {}


def test_a_key_in_two_partitions() -> None:
    world = World(19)
    world.audit.sent = 20
    world.write(19, partition=1 - partition_of(19))
    world.tell()
    assert world.defects() == {"split_keys": 1}


def test_reported_twice_and_never() -> None:
    world = World()
    world.tell(range(19))
    record = world.log[0][0]
    world.audit.report(None, Outcome(record.value or b"", *record[:2]))  # type: ignore[arg-type]
    del world.log[partition_of(19)][-1]
    assert world.defects() == {"reported_twice": 1, "without_outcome": 1, "misplaced": 1}


def test_told_another_place() -> None:
    world = World()
    world.tell(range(1, 20))
    record = world.log[0][0]
    world.audit.report(None, Outcome(record.value or b"", 0, 17))  # type: ignore[arg-type]
    assert world.defects() == {"misplaced": 1}


def test_others_do_no_harm() -> None:
    world = World()
    world.tell()
    world.log[0].insert(3, Record(0, 99, None, b"hello", []))
    world.log[0].insert(4, Record(0, 99, None, None, Messages("other", 8, 0).headers))
    assert world.defects() == {}
    assert (world.audit.found, world.audit.foreign) == (20, 2)


# The ledger ---------------------------------------------------------------------------------------


@pytest.mark.full
def test_many_messages_take_one_segment() -> None:
    ledger = Ledger()
    count = 4 * SEGMENT
    most = 0
    for number in range(count):
        ledger.report(number, ReportedOutcome.DELIVERED)
        most = max(most, ledger.size) if not number % 1000 else most
    assert ledger.size == 4
    for number in range(count):
        assert ledger.find(number) == (ReportedOutcome.DELIVERED, False)
        most = max(most, ledger.size) if not number % 1000 else most
    assert ledger.size == 4
    assert most <= SEGMENT + 4
    assert list(ledger.lost()) == []
    assert ledger.find(5) == (ReportedOutcome.DELIVERED, True)


def test_the_books_are_a_dictionary() -> None:
    """For any sequence of calls, with segments open and closed."""
    rng = random.Random(3)
    ledger = Ledger()
    told = dict.fromkeys(range(2 * SEGMENT + 1000), ReportedOutcome.DELIVERED)
    told.update((number, ReportedOutcome.NOT_WRITTEN) for number in rng.sample(range(SEGMENT), 9))
    for number, state in told.items():
        assert ledger.report(number, state)
        assert ledger.size <= 3 * SEGMENT
    assert not ledger.report(5, ReportedOutcome.DELIVERED)
    assert not ledger.report(SEGMENT + 5, ReportedOutcome.DELIVERED)
    found: set[int] = set()
    for number in rng.sample(sorted(told), 50_000) + [SEGMENT + 5] * 2:
        assert ledger.find(number) == LedgerEntry(told[number], number in found)
        found.add(number)
    lost = [n for n, state in told.items() if state is ReportedOutcome.DELIVERED and n not in found]
    assert list(ledger.lost()) == lost
    assert ledger.counts[ReportedOutcome.DELIVERED] == len(told) - 9


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("proxy_url", ["proxy_url=socks5://127.0.0.1:9"]),
        (
            "sasl_oauthbearer_token_endpoint_url",
            [
                "security_protocol=SASL_PLAINTEXT",
                "sasl_mechanism=OAUTHBEARER",
                "sasl_oauthbearer_token_endpoint_url=https://127.0.0.1:9/token",
                "sasl_oauthbearer_client_id=alice",
                "sasl_oauthbearer_client_secret=secret",
            ],
        ),
    ],
)
@pytest.mark.parametrize("what", ["verify", "load"])
def test_settings_that_the_consumer_does_not_have(
    what: str,
    name: str,
    settings: list[str],
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is sent."""
    rows = tmp_path / "rows.csv"
    rows.write_text("key,value\na,b\n")
    source = [] if what == "verify" else [str(rows), "--verify"]
    extra = [word for setting in settings for word in ("-X", setting)]
    assert main([what, *source, "-t", "x", "--bootstrap-servers", NOWHERE, *extra]) == 1
    assert capsys.readouterr().err == (
        "pykaproducer: the topic cannot be read back: kafka-python's consumer, which reads it, "
        f"does not support setting {name}\n"
    )


def test_without_assertions_nothing_is_sent() -> None:
    """kafka-python's consumer does not connect then, which must not blame the cluster."""
    program, *rest = command("verify", "-t", "t", "-b", NOWHERE)
    done = subprocess.run([program, "-O", *rest], capture_output=True, text=True)
    assert done.returncode == 1
    assert "without -O" in done.stderr

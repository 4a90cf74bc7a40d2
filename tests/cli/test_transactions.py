"""``transactions``: list, describe and fence, as text and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pykaproducer.cli.transactions as command
from pykaproducer import Producer, ProducerFencedError, TopicPartition, TransactionControl
from pykaproducer.cli import main
from pykaproducer.testing import KafkaCluster, ScriptedCluster, Security
from pykaproducer.testing._processes import tick

from .helper import NOWHERE, PATIENCE
from .terminal import on_a_terminal


def printed(
    capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0
) -> tuple[str, str]:
    """Return the output of ``transactions``, and its messages."""
    capsys.readouterr()
    assert main(["transactions", *arguments]) == status
    found = capsys.readouterr()
    return found.out, found.err


@pytest.fixture
def servers(cluster: KafkaCluster) -> list[str]:
    return ["--bootstrap-servers", cluster.bootstrap_servers]


@pytest.fixture
def open_one(cluster: KafkaCluster, topic: str) -> Iterator[Producer]:
    """Yield a producer with an open transaction in two partitions, and one that is committed."""
    cluster.create_topic(topic, 3)
    settings: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers}
    with Producer(**settings, transactional_id=f"{topic}-ended") as ended, ended.transaction():
        ended.send(topic, b"value")
    with TransactionControl(**settings) as control:
        deadline = time.monotonic() + PATIENCE
        while control.describe([f"{topic}-ended"])[f"{topic}-ended"].state != "CompleteCommit":
            assert time.monotonic() < deadline
            tick()
    with Producer(**settings, transactional_id=f"{topic}-open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for partition in (0, 2):
            producer.send(topic, b"value", partition=partition).result(PATIENCE)
        yield producer


@pytest.fixture
def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command believe that an hour has passed."""
    monkeypatch.setattr(command, "time", SimpleNamespace(time=lambda: time.time() + 3_600))


# list ---------------------------------------------------------------------------------------------


def test_a_list(
    open_one: Producer, topic: str, servers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = printed(capsys, "list", "--prefix", f"{topic}-", *servers)
    head, ended, ongoing = out.splitlines()
    assert err == ""
    assert head.split("  ")[0] == "transactional id"
    assert ended.split()[0] == f"{topic}-ended"
    assert ended.split()[1] in ("CompleteCommit", "PrepareCommit")
    assert ongoing.split()[:2] == [f"{topic}-open", "Ongoing"]
    assert ongoing.split()[-3:] == ["60", "s", "2"]
    out, _ = printed(capsys, "list", "--open", "--prefix", f"{topic}-", *servers)
    assert [line.split()[0] for line in out.splitlines()[1:]] == [f"{topic}-open"]
    assert printed(capsys, "list", "--overdue", "--prefix", f"{topic}-", *servers) == ("", "")


def test_a_list_as_json(
    open_one: Producer, topic: str, servers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = printed(capsys, "list", "--json", "--prefix", f"{topic}-", *servers)
    ended, ongoing = json.loads(out)
    assert ended["transactional_id"] == f"{topic}-ended"
    assert (ended["open_ms"], ended["overdue"], ended["partitions"]) == (None, False, [])
    assert 0 <= ongoing.pop("open_ms") < PATIENCE * 1000
    assert abs(ongoing.pop("start_ms") / 1000 - time.time()) < PATIENCE
    assert ongoing.pop("producer_id") > ended["producer_id"]
    assert ongoing == {
        "transactional_id": f"{topic}-open",
        "state": "Ongoing",
        "producer_epoch": 0,
        "timeout_ms": 60_000,
        "overdue": False,
        "partitions": [{"topic": topic, "partition": 0}, {"topic": topic, "partition": 2}],
    }


@pytest.mark.usefixtures("an_hour_later")
def test_a_transaction_that_should_have_ended(
    open_one: Producer, topic: str, servers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Rule 7: what is open for longer than its timeout is shown, and is an exit status."""
    arguments = ["--prefix", f"{topic}-", *servers]
    for options in (["--overdue"], ["--open"]):
        out, err = printed(capsys, "list", *options, *arguments, status=1)
        (line,) = out.splitlines()[1:]
        assert line.split()[:2] == [f"{topic}-open", "Ongoing"]
        assert " 60 min " in line
        assert line.endswith("60 s (passed)  2")
        assert err == (
            "pykaproducer: 1 transaction is open for longer than the timeout; "
            "'pykaproducer transactions fence ID' aborts one\n"
        )
    out, _ = printed(capsys, "list", "--json", *arguments, status=1)
    assert [each["overdue"] for each in json.loads(out)] == [False, True]
    out, _ = printed(capsys, "describe", f"{topic}-open", *servers)
    assert "    timeout      60 s, which has passed" in out


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCluster]:
    """Yield a cluster without any id, to which the command connects."""
    with ScriptedCluster(topics={"t": 1}) as made:
        monkeypatch.setattr(
            TransactionControl, "_network_type", staticmethod(lambda config: made.network)
        )
        yield made


def test_nothing_to_list(scripted: ScriptedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Ids that do not match are something else than ids that may not be seen."""
    none = (
        "pykaproducer: none of the transactional ids that this client may see (right: Describe) "
        "begins with 'zzz'\n"
    )
    not_open = "pykaproducer: there is no open transaction of the ids that begin with 'orders'\n"
    with scripted.producer(transactional_id="orders-0") as producer, producer.transaction():
        producer.send("t", b"value")
    servers = ["--bootstrap-servers", scripted.bootstrap_servers]
    for options in ([], ["--open"], ["--overdue"]):
        assert printed(capsys, "list", *options, "--prefix", "zzz", *servers) == ("", none)
    assert printed(capsys, "list", "--json", "--prefix", "zzz", *servers) == ("[]\n", "")
    assert printed(capsys, "list", "--open", "--prefix", "orders", *servers) == ("", not_open)
    assert printed(capsys, "list", "--overdue", "--prefix", "orders", *servers) == ("", "")


@pytest.mark.parametrize("name", ["x\nbilling-7  Ongoing", "a b", "\x1b[31m", "'a'", "a\u202eb"])
def test_an_id_that_pretends_to_be_more(
    name: str, scripted: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any client may choose it, and who reads the table may fence what it names."""
    servers = ["--bootstrap-servers", scripted.bootstrap_servers]
    with scripted.producer(transactional_id=name) as producer, producer.transaction():
        producer.send("t", b"value")
    out, _ = printed(capsys, "list", *servers)
    _head, line = out.splitlines()
    assert line.startswith(ascii(name) + "  ")
    for action in ("describe", "fence"):
        line, *_ = printed(capsys, action, name, *servers)[0].splitlines()
        assert line.startswith(ascii(name) + ": ")
    (found,) = json.loads(printed(capsys, "list", "--json", *servers)[0])
    assert found["transactional_id"] == name


@pytest.mark.parametrize("options", [[], ["--prefix", "x"], ["--overdue"]], ids=str)
def test_a_list_without_any_id(
    options: list[str], scripted: ScriptedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = ["--bootstrap-servers", scripted.bootstrap_servers]
    out, err = printed(capsys, "list", *options, *servers)
    assert out == ""
    assert err == (
        "pykaproducer: there is no transactional id that this client may see (right: Describe)\n"
    )


@pytest.mark.parametrize(
    "action",
    [["transactions", "list"], ["transactions", "fence", "x"], ["topics", "list"]],
    ids=str,
)
def test_an_id_as_a_setting(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It would look like a filter."""
    assert main([*action, "-X", "transactional.id=x", "--bootstrap-servers", NOWHERE]) == 2
    assert "transactional_id: it has no effect" in capsys.readouterr().err


# describe -----------------------------------------------------------------------------------------


def test_descriptions(
    open_one: Producer, topic: str, servers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{topic}-{each}" for each in ("open", "none", "ended", "open")]
    out, err = printed(capsys, "describe", *names, *servers, status=1)
    ongoing, ended = out.split("\n\n")
    lines = ongoing.splitlines()
    assert lines[0] == f"{topic}-open: Ongoing"
    assert lines[1].startswith("    producer id  ")
    assert lines[1].endswith(", epoch 0")
    assert lines[2].startswith("    open for     ")
    assert lines[3:] == [
        "    timeout      60 s",
        "    written to   2 partitions",
        f"        {topic}: 0, 2",
    ]
    assert ended.startswith(f"{topic}-ended: ")
    assert "open for" not in ended
    assert err == (
        f"pykaproducer: transactional id '{topic}-none': the cluster has no such transactional "
        "id, or has forgotten it: TRANSACTIONAL_ID_NOT_FOUND (105)\n"
    )
    out, _ = printed(capsys, "describe", *names, "--json", *servers, status=1)
    assert [each["transactional_id"] for each in json.loads(out)] == [names[0], names[2]]


def test_offsets_are_partitions_of_a_topic(
    cluster: KafkaCluster, topic: str, servers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.create_topic(topic)
    with TransactionControl(bootstrap_servers=cluster.bootstrap_servers) as control:
        begun = control.initialize(topic, 60_000)
        control.commit_offsets(begun, {"g": {TopicPartition(topic, 0): 1}})
        out, _ = printed(capsys, "describe", topic, *servers)
        assert "        __consumer_offsets: " in out
        control.complete(begun, commit=False)


# fence --------------------------------------------------------------------------------------------


def test_a_fence(
    open_one: Producer, topic: str, servers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each id has a line; those without an open transaction are left alone."""
    names = [f"{topic}-{each}" for each in ("none", "open", "ended")]
    out, err = printed(capsys, "fence", "--dry-run", *names, *servers, status=1)
    would, ended = out.splitlines()
    assert would.startswith(f"{topic}-open: would abort its transaction (open for ")
    assert would.endswith(", timeout 60 s, 2 partitions)")
    assert ended.startswith(f"{topic}-ended: no open transaction (")
    assert "TRANSACTIONAL_ID_NOT_FOUND (105)" in err
    out, _ = printed(capsys, "list", "--open", "--prefix", f"{topic}-", *servers)
    assert f"{topic}-open" in out  # nothing was done
    out, _ = printed(capsys, "fence", *names, *servers, status=1)
    did, ended = out.splitlines()
    assert did.startswith(f"{topic}-open: aborted its transaction (open for ")
    assert ended.startswith(f"{topic}-ended: no open transaction (")
    with pytest.raises(ProducerFencedError):
        open_one.commit_transaction()
    out, err = printed(capsys, "fence", *names[1:], *servers)
    assert [line.partition(" (")[0] for line in out.splitlines()] == [
        f"{topic}-open: no open transaction",
        f"{topic}-ended: no open transaction",
    ]
    assert err == ""


def test_a_fence_as_json(
    open_one: Producer, topic: str, servers: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{topic}-{each}" for each in ("none", "open", "ended")]
    out, err = printed(capsys, "fence", "--json", *names, *servers, status=1)
    none, ongoing, ended = json.loads(out)
    assert err == ""
    assert (none["action"], none["state"]) == ("none", None)
    assert "TRANSACTIONAL_ID_NOT_FOUND (105)" in none["error"]
    assert (ongoing["action"], ongoing["state"], ongoing["error"]) == ("abort", "Ongoing", None)
    assert (ended["action"], ended["error"]) == ("none", None)
    with pytest.raises(ProducerFencedError):
        open_one.commit_transaction()


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action", [["list"], ["describe", "x"], ["fence", "x"]], ids=lambda a: a[0]
)
def test_a_cluster_that_is_not_there(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--bootstrap-servers", NOWHERE, "-X", "max_block_ms=1000"]
    out, err = printed(capsys, *action, *where, status=1)
    assert out == ""
    *before, _ = err.splitlines()
    assert all(line.endswith("; trying again") for line in before)  # after a second of waiting
    assert f"no answer within 1 s: no connection to {NOWHERE}: connection refused" in err
    assert err.endswith(f"(bootstrap servers: {NOWHERE})\n")


@pytest.mark.kafka
def test_rights_that_are_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    security = Security("SASL_PLAINTEXT", mechanism="PLAIN", authorize=True)
    with KafkaCluster(security=security, fast_start=True) as secured:
        settings = secured.settings()
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        config = ["--config", str(file)]
        out, err = printed(capsys, "list", *config)
        assert out == ""
        assert "that this client may see (right: Describe)" in err
        for action in ("describe", "fence"):
            out, err = printed(capsys, action, "orders-0", *config, status=1)
            assert out == ""
            assert "'orders-0': this client may not see the id; grant it Describe on the" in err
            assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53)" in err


@pytest.mark.parametrize("name", ["", "x" * 40_000])
@pytest.mark.parametrize("action", ["describe", "fence"])
def test_an_id_that_is_none(action: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = printed(capsys, action, name, status=2)
    assert "is not a transactional id" in err
    assert len(err) < 200


def test_the_settings_of_a_transactional_program_do(
    cluster: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its id has no effect: the command is no producer."""
    file = tmp_path / "client.properties"
    file.write_text(
        f"bootstrap.servers={cluster.bootstrap_servers}\ntransactional.id=of-the-program\n"
    )
    for prefix in ("none", "of-the-program"):
        arguments = ("--json", "--prefix", prefix, "--config", str(file))
        assert printed(capsys, "list", *arguments) == ("[]\n", "")


def test_on_a_terminal(open_one: Producer, topic: str, servers: list[str]) -> None:
    """Ctrl-C ends a command that waits; nothing is coloured or cut."""
    with on_a_terminal("transactions", "list", "--prefix", f"{topic}-", *servers) as terminal:
        terminal.wait_for("Ongoing")
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.shown
    with on_a_terminal("transactions", "list", "--bootstrap-servers", NOWHERE) as terminal:
        terminal.wait_for("trying again")
        terminal.press(b"\x03")
        assert terminal.end() == 130
        assert terminal.is_as_before()

"""The command line, as a user runs it: in a separate process, with a real broker."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys

import pytest

from pykaproducer.cli import main
from pykaproducer.cli.cluster import _reasons
from pykaproducer.testing import KafkaCluster
from tests.cluster.readback import read_log


def run(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pykaproducer", *arguments],
        input=data,
        capture_output=True,
        timeout=120,
        check=False,
    )


#: Empty lines, CRLF, bytes that are not text, a line of nearly a megabyte, no final terminator.
NASTY = b"\n".join(
    [
        *(b"", b"first\r", b"\xff\xfe\x00", b"", b"x" * 1_000_000),
        *(b"line %d" % number for number in range(3000)),
    ]
)


def test_every_line_arrives_byte_for_byte(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    source = tmp_path / "lines"
    source.write_bytes(NASTY)
    servers = cluster.bootstrap_servers
    done = run("produce", "-t", topic, "--bootstrap-servers", servers, str(source))
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b""
    assert b"3,005 of 3,005 lines delivered" in done.stderr
    assert read_log(cluster, topic).values == NASTY.split(b"\n")


def test_standard_input_and_a_terminator_at_the_end(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    done = run(
        "produce", "-t", topic, "--bootstrap-servers", cluster.bootstrap_servers, data=b"a\nb\n"
    )
    assert done.returncode == 0
    assert read_log(cluster, topic).values == [b"a", b"b"]


def test_what_is_not_delivered_is_kept(tmp_path: pathlib.Path) -> None:
    rejects = tmp_path / "rejects"
    done = run(
        *("produce", "-t", "t", "--bootstrap-servers", "127.0.0.1:9", "--rejects", str(rejects)),
        *("-X", "delivery_timeout_ms=500", "--key-separator", ":"),
        data=b"k:one\n\nthree\r\n",
    )
    assert done.returncode == 1
    assert rejects.read_bytes() == b"k:one\n\nthree\r\n"
    assert b"0 of 3 lines delivered" in done.stderr
    assert b"127.0.0.1:9" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["produce", "-t", "t", "-X", "lingr_ms=5"], "linger_ms"),
        (["produce", "-t", "t", "-X", "linger_ms"], "name=value"),
        (["produce", "-t", "t", "-X", "linger_ms=soon"], "linger_ms"),
        (["produce", "-t", "t", "/no/such/file"], "/no/such/file"),
        (["produce", "-t", "t", "--header", "x", "-"], "--header"),
    ],
)
def test_a_users_mistake_is_one_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert text in said


@pytest.mark.parametrize(
    "arguments", [["cluster", "start", "--brokers", "0"], ["demo", "--lines", "0"]]
)
def test_a_number_that_is_too_small(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert arguments[-2].encode() in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_topic_name_that_is_none() -> None:
    done = run("produce", "-t", "no topic", "--bootstrap-servers", "127.0.0.1:9", data=b"x\n")
    assert done.returncode == 2
    assert b"no topic" in done.stderr
    assert b"Traceback" not in done.stderr


def test_the_demo_sends_and_compares(cluster: KafkaCluster) -> None:
    done = run("demo", "--lines", "5000", "--bootstrap-servers", cluster.bootstrap_servers)
    assert done.returncode == 0, done.stderr.decode()
    assert b"all 5,000 messages, byte for byte, in order" in done.stdout


@pytest.mark.kafka
def test_a_cluster_runs_until_it_is_interrupted() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pykaproducer", "cluster", "start"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        servers = process.stdout.readline().decode().strip()
        host, _, port = servers.partition(":")
        assert host == "127.0.0.1"
        assert port.isdecimal()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_the_reason_for_the_end_of_a_broker_is_found_in_its_log() -> None:
    """The log ends with a part of a stack."""
    cause = "12:00:00.000 [main] ERROR kafka.Kafka - Error while writing"
    stack = ["java.io.IOException", "\tat a.b(C.java:1)", "Caused by: No space left on device"]
    log = "\n".join(["12:00:00.000 [main] INFO fine", cause, *stack, *["\tat d.e(F.java:2)"] * 9])
    assert _reasons(log).splitlines() == [cause, "Caused by: No space left on device"]
    assert _reasons("one\ntwo") == "one\ntwo"

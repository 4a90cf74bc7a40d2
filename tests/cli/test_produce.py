"""``produce``: every line is delivered unchanged, or kept unchanged."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from pykaproducer import Producer
from pykaproducer.testing import KafkaCluster, ScriptedCluster
from pykaproducer.testing.scripted import LoggedRecord, Refuse
from tests._support.consumer import consume

from .helper import NOWHERE, PATIENCE, command, end_of, run
from .terminal import on_a_terminal


def nasty(lines: int) -> bytes:
    """Return lines of every kind: empty, CRLF, not text, a megabyte; the last has no terminator."""
    rng = random.Random(lines)
    kinds = (
        lambda: b"",
        lambda: b"\r",
        lambda: b"ends in CRLF\r",
        lambda: rng.randbytes(rng.randrange(200)).replace(b"\n", b"\x00"),
        lambda: b"text " * rng.randrange(40),
    )
    found = [rng.choice(kinds)() for _ in range(lines)]
    for place in range(0, lines, 1000):
        found[place] = rng.randbytes(1_000_000).replace(b"\n", b"\r")
    return b"\n".join([*found, b"no terminator"])


def produce(
    cluster: KafkaCluster, topic: str, *arguments: str, data: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    servers = cluster.bootstrap_servers
    return run("produce", "-t", topic, "--bootstrap-servers", servers, *arguments, data=data)


def test_kafka_pythons_consumer_gets_every_byte_in_order(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    source = tmp_path / "lines"
    source.write_bytes(nasty(5000))
    servers = cluster.bootstrap_servers
    done = produce(cluster, topic, str(source))
    assert done.returncode == 0, done.stderr.decode()
    records = consume(servers, topic, 5001)
    assert b"\n".join(record.value for record in records) == source.read_bytes()
    assert {record.key for record in records} == {None}
    assert end_of(servers, topic) == 5001


def test_what_comes_through_a_pipe_is_sent_as_it_comes(cluster: KafkaCluster, topic: str) -> None:
    """As with ``tail -f``: lines are sent before the input ends or a buffer is full."""
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    with subprocess.Popen(
        command("produce", "-t", topic, "--bootstrap-servers", servers),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        for number in range(1, 4):
            process.stdin.write(b"line %d\n" % number)
            process.stdin.flush()
            assert consume(servers, topic, number)[-1].value == b"line %d" % number
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err.decode()


def test_keys_headers_and_a_partition(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    done = run(
        *("produce", "-t", topic, "--bootstrap-servers", cluster.bootstrap_servers),
        *("--key-separator", "→", "--header", "a=1", "--header", "a=x=y", "--partition", "2"),
        data="k→v\nno key\n→empty key\nk→v→w\nempty value→\n".encode(),
    )
    assert done.returncode == 0, done.stderr.decode()
    records = consume(cluster.bootstrap_servers, topic, 5, [2])
    assert [(record.key, record.value) for record in records] == [
        (b"k", b"v"),
        (None, b"no key"),
        (b"", b"empty key"),
        (b"k", "v→w".encode()),
        (b"empty value", b""),
    ]
    assert {tuple(record.headers) for record in records} == {(("a", b"1"), ("a", b"x=y"))}
    assert b"lines by partition: 2: 5" in done.stderr


def test_several_files_and_standard_input_among_them(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    for name, data in {"one": b"1\n2", "three": b"4\n"}.items():
        (tmp_path / name).write_bytes(data)
    files = [str(tmp_path / "one"), "-", str(tmp_path / "three")]
    done = produce(cluster, topic, *files, data=b"3")
    assert done.returncode == 0, done.stderr.decode()
    records = consume(cluster.bootstrap_servers, topic, 4)
    assert [record.value for record in records] == [b"1", b"2", b"3", b"4"]


def test_no_line_is_no_message(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    done = produce(cluster, topic)
    assert done.returncode == 0
    assert b"0 of 0 lines delivered" in done.stderr
    assert end_of(cluster.bootstrap_servers, topic) == 0


def test_the_summary_and_nothing_else_in_a_pipe(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    done = produce(cluster, topic, data=b"a\n" * 1000)
    assert done.stdout == b""
    first, second, rest = done.stderr.decode().split("\n")
    assert first.startswith(f"pykaproducer: 1,000 of 1,000 lines delivered to {topic} at {servers}")
    assert second.strip() == "lines by partition: 0: 1,000"
    assert rest == ""


def test_a_bar_on_a_terminal(cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path) -> None:
    cluster.create_topic(topic)
    source = tmp_path / "lines"
    source.write_bytes(b"a line\n" * 100_000)
    servers = cluster.bootstrap_servers
    arguments = ("produce", "-t", topic, "--bootstrap-servers", servers, str(source))
    with on_a_terminal(*arguments, columns=120) as terminal:
        assert terminal.end() == 0
        shown = terminal.shown
    assert f"to {topic}".encode() in shown
    assert b"\x1b[" in shown
    assert b"700.0/700.0 kB" in shown
    assert b"100,000 of 100,000 lines delivered" in shown


# The parts of a line ------------------------------------------------------------------------------


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedCluster]:
    """Yield a cluster with the topic t, to which the command connects."""
    with ScriptedCluster(topics={"t": 1}) as made:
        monkeypatch.setattr(Producer, "_network_type", staticmethod(lambda _config: made.network))
        yield made


def sent(cluster: ScriptedCluster, *arguments: str, data: bytes = b"") -> list[LoggedRecord]:
    """Return the messages of a command that delivers everything."""
    done = run("produce", "-t", "t", "-b", cluster.bootstrap_servers, *arguments, data=data)
    assert done.returncode == 0, done.stderr.decode()
    return cluster.log("t")


def test_tombstones_headers_and_timestamps_in_the_lines(scripted: ScriptedCluster) -> None:
    """In the order in which Kafka's console consumer prints them."""
    records = sent(
        scripted,
        *("--timestamp-separator", "|||", "--headers-separator", r"\t", "--key-separator", r"\x09"),
        *("--null", "NULL", "--header", "all=1", "--timestamp", "1970-01-01T00:00:05.001Z"),
        data=b"7|||a:b,c:NULL\tkey\tvalue\n\tNULL\tNULL\n8|||value\nNULL",
    )
    always = ("all", b"1")
    assert [(r.key, r.value, r.headers, r.timestamp) for r in records] == [
        (b"key", b"value", (always, ("a", b"b"), ("c", None)), 7),
        (None, None, (always,), 5001),
        (None, b"value", (always,), 8),
        (None, None, (always,), 5001),
    ]


@pytest.mark.parametrize("delimiter", [r"\0", r"\r\n", "aab"])
@pytest.mark.parametrize("last", [True, False])
def test_any_delimiter_also_across_reads(
    delimiter: str, last: bool, scripted: ScriptedCluster
) -> None:
    lines = [b"aa" * (number % 7) + b"\n-" * (number % 5) + b"%d" % number for number in range(900)]
    end = {r"\0": b"\0", r"\r\n": b"\r\n"}.get(delimiter, delimiter.encode())
    data = end.join([*lines, b""] if last else lines)
    # A quarter of the buffer is read at a time.
    records = sent(
        scripted,
        f"--delimiter={delimiter}",
        "-X",
        "buffer_memory=1000",
        "-X",
        "linger_ms=0",
        data=data,
    )
    assert [record.value for record in records] == lines


def test_files_as_messages(scripted: ScriptedCluster, tmp_path: pathlib.Path) -> None:
    contents = {"a": b"one\n\ntwo", "empty": b"", "b\n": b"\0" * 2_000_000, "c": b"key:end\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    rejects = tmp_path / "rejects"
    names = [str(tmp_path / name) for name in contents]
    done = run(
        *("produce", "-t", "t", "-b", scripted.bootstrap_servers, "--file-as-message"),
        *("--key-separator", ":", "--rejects", str(rejects), *names, "-"),
        data=b"from a pipe\n",
    )
    assert done.returncode == 1
    assert [(record.key, record.value) for record in scripted.log("t")] == [
        (None, b"one\n\ntwo"),
        (None, b""),
        (b"key", b"end\n"),
        (None, b"from a pipe\n"),
    ]
    assert b"4 of 5 files delivered" in done.stderr
    assert b"a file is too long: max_request_size is 1048576" in done.stderr
    assert rejects.read_bytes() == names[2].encode() + b"\n"


def after_a_pipe(
    scripted: ScriptedCluster, tmp_path: pathlib.Path, *arguments: str, then: Callable[[], object]
) -> bytes:
    """Send a pipe, and the file "second". Call *then* before the pipe ends; return what is told."""
    os.mkfifo(tmp_path / "first")
    names = [str(tmp_path / name) for name in ("first", "second")]

    def feed() -> None:
        with open(names[0], "wb") as pipe:  # the command has looked at both when it opens this
            pipe.write(b"of the pipe\n")
            then()

    feeder = threading.Thread(target=feed)
    feeder.start()
    done = run("produce", "-t", "t", "-b", scripted.bootstrap_servers, *arguments, *names)
    feeder.join(PATIENCE)
    assert done.returncode == 1
    return done.stderr


def test_a_file_that_becomes_shorter(scripted: ScriptedCluster, tmp_path: pathlib.Path) -> None:
    """Its last line may be cut, and is not sent."""
    second = tmp_path / "second"
    second.write_bytes(b"whole\ncut here\n")
    told = after_a_pipe(scripted, tmp_path, then=lambda: os.truncate(second, 9))
    assert b"second: became shorter while it was read: only a part of it was read" in told
    assert [record.value for record in scripted.log("t")] == [b"of the pipe", b"whole"]


def test_a_file_that_is_removed_before_its_turn(
    scripted: ScriptedCluster, tmp_path: pathlib.Path
) -> None:
    second, rejects = tmp_path / "second", tmp_path / "rejects"
    second.write_bytes(b"value")
    told = after_a_pipe(
        scripted, tmp_path, "--file-as-message", "--rejects", str(rejects), then=second.unlink
    )
    assert b"second: No such file or directory\n" in told
    assert b"1 of 2 files delivered" in told
    assert rejects.read_bytes() == f"{second}\n".encode()
    assert [record.value for record in scripted.log("t")] == [b"of the pipe\n"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--delimiter", ""], "--delimiter: must not be empty"),
        (["--key-separator", r"a\q"], r"\q is not an escape sequence"),
        (["--headers-separator", "\\"], "is not an escape sequence"),
        (["--timestamp", "tomorrow"], "'tomorrow' is neither a time"),
        (["--timestamp", "-1"], "'-1' is neither a time"),
        (["--delimiter", ",", "--file-as-message"], "not allowed with"),
    ],
)
def test_options_without_a_meaning(arguments: list[str], why: str) -> None:
    done = run("produce", "-t", "t", "-b", NOWHERE, *arguments, data=b"a\n")
    assert (done.returncode, why in done.stderr.decode()) == (2, True), done.stderr.decode()


# Undelivered lines --------------------------------------------------------------------------------


def reject(tmp_path: pathlib.Path, data: bytes, *arguments: str) -> tuple[bytes, bytes]:
    """Return what a command that cannot deliver everything keeps, and its error output."""
    rejects = tmp_path / "rejects"
    done = run("produce", "--rejects", str(rejects), *arguments, data=data)
    assert done.returncode == 1, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return rejects.read_bytes(), done.stderr


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_rejects_are_the_input_byte_for_byte(end: bytes, tmp_path: pathlib.Path) -> None:
    data = nasty(3000) + end
    arguments = ["-t", "t", "--bootstrap-servers", NOWHERE, "-X", "delivery_timeout_ms=3000"]
    kept, told = reject(tmp_path, data, *arguments)
    assert kept == data
    assert b"0 of 3,001 lines delivered" in told
    # The reason is named once for each kind of failure, with the server that does not answer.
    assert told.count(b"not delivered within") == 1
    assert NOWHERE.encode() in told


def test_rejects_with_keys_are_whole_lines(tmp_path: pathlib.Path) -> None:
    data = b"key:value\n:\nno key\n\nkey:value:value\r\n"
    arguments = ["-t", "t", "--bootstrap-servers", NOWHERE, "-X", "delivery_timeout_ms=200"]
    kept, _ = reject(tmp_path, data, *arguments, "--key-separator", ":")
    assert kept == data


def test_rejects_of_an_earlier_run_stay(tmp_path: pathlib.Path) -> None:
    arguments = ["-t", "t", "--bootstrap-servers", NOWHERE, "-X", "delivery_timeout_ms=200"]
    reject(tmp_path, b"one\ntwo", *arguments)
    kept, _ = reject(tmp_path, b"three\n", *arguments)
    assert kept == b"one\ntwo\nthree\n"


def test_lines_that_are_too_long_are_kept_and_the_others_arrive(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    long, endless = b"l" * 1_048_576, b"e" * 5_000_000
    data = b"\n".join([b"first", long, b"second", endless, b"third", endless])
    arguments = ["-t", topic, "--bootstrap-servers", cluster.bootstrap_servers]
    kept, told = reject(tmp_path, data, *arguments)
    assert kept == b"\n".join([long, endless, endless])
    assert b"3 of 6 lines delivered" in told
    assert b"3 failed" in told
    assert b"max_request_size" in told
    records = consume(cluster.bootstrap_servers, topic, 3)
    assert [record.value for record in records] == [b"first", b"second", b"third"]


@pytest.mark.full
def test_a_line_longer_than_memory_passes_through(tmp_path: pathlib.Path) -> None:
    """A gigabyte without a line ending is neither held in memory nor cut short."""
    size = 1 << 30
    code = (
        "import resource, sys; from pykaproducer.cli import main; limit = 768 << 20;"
        "resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)); sys.exit(main(sys.argv[1:]))"
    )
    source, rejects = tmp_path / "lines", tmp_path / "rejects"
    with open(source, "wb") as file:
        file.truncate(size)
    os.mkfifo(rejects)
    arguments = ["-t", "t", "--bootstrap-servers", NOWHERE, "--rejects", rejects, source]
    with subprocess.Popen(
        [command()[0], "-c", code, "produce", *arguments], stderr=subprocess.PIPE
    ) as process:
        kept = 0
        with open(rejects, "rb", buffering=0) as file:
            while piece := file.read(1 << 20):
                kept += len(piece)
        _, err = process.communicate(timeout=PATIENCE)
    assert kept == size
    assert process.returncode == 1, err.decode()
    assert b"0 of 1 lines delivered" in err


def test_lines_that_cannot_be_sent_are_kept_in_their_places(
    scripted: ScriptedCluster, tmp_path: pathlib.Path
) -> None:
    lines = [
        *(b"1|a:b;fine", b"x|a:b;no number", b"2|ab;no header", b"3|\xff:b;no text", b"4|;fine"),
        *(b"5|a:b;" + b"x" * 2000, b"6|no headers", b"refused", b"x|a:b;no number"),
    ]
    data = b"::".join(lines)
    scripted.always("produce", Refuse(87))
    arguments = ["-t", "t", "-b", scripted.bootstrap_servers, "--delimiter", "::"]
    kept, told = reject(
        tmp_path,
        data,
        *(*arguments, "--timestamp-separator", "|", "--headers-separator", ";"),
        *("-X", "max_request_size=1000"),
    )
    assert kept == data
    assert b"2 failed: a timestamp is not a number of milliseconds; the first: line 2\n" in told
    assert b"; the first: line 1\n" in told, "it was sent, and the broker rejected it"


def test_rejects_of_several_partitions_are_in_order(
    scripted: ScriptedCluster, tmp_path: pathlib.Path
) -> None:
    """Partitions fail at different times; the lines of one wait for those before them."""
    scripted.add_topic("several", 3)
    data = b"".join(b"%d:%d\n" % (number % 7, number) for number in range(3000))
    scripted.always("produce", Refuse(87))
    arguments = ["-t", "several", "-b", scripted.bootstrap_servers, "--key-separator", ":"]
    kept, told = reject(tmp_path, data, *arguments, "-X", "batch_size=100")
    assert kept == data
    assert b"0 of 3,000 lines delivered" in told


def test_rejects_that_cannot_be_kept_are_told_of() -> None:
    done = run(
        *("produce", "-t", "t", "--bootstrap-servers", NOWHERE, "--rejects", "/dev/full"),
        *("-X", "delivery_timeout_ms=200"),
        data=b"a line\n" * 10_000,
    )
    assert done.returncode == 1
    assert b"not all of these lines are in /dev/full: No space left on device" in done.stderr


def test_a_partition_that_does_not_exist(cluster: KafkaCluster, topic: str) -> None:
    cluster.create_topic(topic, partitions=3)
    # So that the broker knows the new topic: otherwise only the message is refused.
    assert produce(cluster, topic, "--partition", "2", data=b"a\n").returncode == 0
    done = produce(cluster, topic, "--partition", "3", data=b"a\n")
    assert done.returncode == 2
    assert b"has partitions 0 to 2" in done.stderr


def test_what_the_broker_refuses_is_kept_with_its_reason(
    cluster: KafkaCluster, topic: str, tmp_path: pathlib.Path
) -> None:
    cluster.create_topic(topic, config={"max.message.bytes": "1000"})
    data = b"small\n" + b"x" * 5000 + b"\nsmall too\n"
    arguments = ["-t", topic, "--bootstrap-servers", cluster.bootstrap_servers]
    # Each line has its own batch, so that the small ones are not sent together with the large one.
    kept, told = reject(tmp_path, data, *arguments, "-X", "batch_size=0")
    assert kept == b"x" * 5000 + b"\n"
    assert b"2 of 3 lines delivered" in told
    assert b"MESSAGE_SIZE_TOO_LARGE" in told


# A full buffer -----------------------------------------------------------------------------------


def test_a_full_buffer_is_waited_for(own_cluster: KafkaCluster, topic: str) -> None:
    """The broker is stopped for longer than the buffer lasts; nothing is dropped."""
    own_cluster.create_topic(topic)
    data = b"".join(b"line %d\n" % number for number in range(50_000))
    servers = own_cluster.bootstrap_servers
    readable, writable = os.pipe()
    with subprocess.Popen(
        command(
            *("produce", "-t", topic, "--bootstrap-servers", servers),
            *("-X", "buffer_memory=300000"),
        ),
        stdin=readable,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(readable)
        os.write(writable, b"the first\n")
        assert consume(servers, topic, 1)[0].value == b"the first"
        own_cluster.pause(0)
        try:
            # More than the pipe holds: the writer blocks when the buffer is full.
            feeder = threading.Thread(target=_feed, args=(writable, data))
            feeder.start()
            feeder.join(1.0)
            assert feeder.is_alive()
        finally:
            own_cluster.resume(0)
        feeder.join(PATIENCE)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err.decode()
    values = [record.value for record in consume(servers, topic, 50_001)]
    assert b"\n".join(values) + b"\n" == b"the first\n" + data


def test_a_long_line_is_not_gathered_behind_pending_ones(tmp_path: pathlib.Path) -> None:
    """Its place in the rejects is after a line whose outcome is unknown: reading pauses."""
    readable, writable = os.pipe()
    data, rejects = b"pending\n" + b"x" * 5_000_000, tmp_path / "rejects"
    with subprocess.Popen(
        command(
            *("produce", "-t", "t", "--bootstrap-servers", NOWHERE, "--rejects", str(rejects)),
            *("-X", "buffer_memory=1000000", "-X", "max_request_size=1000"),
        ),
        stdin=readable,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        assert NOWHERE.encode() in process.stderr.readline()
        feeder = threading.Thread(target=_feed, args=(writable, data))
        feeder.start()
        feeder.join(1.0)
        assert feeder.is_alive()
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        with open(readable, "rb") as pipe:
            unread = pipe.read()
        feeder.join(PATIENCE)
    assert rejects.read_bytes() + unread == data


def test_max_block_ms_bounds_the_wait(tmp_path: pathlib.Path) -> None:
    data = b"".join(b"line %d\n" % number for number in range(5000))
    kept, told = reject(
        tmp_path,
        data,
        *("-t", "t", "--bootstrap-servers", NOWHERE, "-X", "buffer_memory=100000"),
        *("-X", "max_block_ms=0", "-X", "delivery_timeout_ms=2000"),
    )
    assert b"buffer_memory (100000 bytes) was full for max_block_ms (0 ms)" in told
    assert sorted(kept.splitlines()) == sorted(data.splitlines())


def _feed(fd: int, data: bytes) -> None:
    with open(fd, "wb") as file:
        file.write(data)

"""Mistakes in a command line are reported in the user's terms, before anything is read or sent."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess

import pytest

from pykaproducer import __version__
from pykaproducer.cli import main

from .helper import NOWHERE, PATIENCE, command, status_of


@pytest.fixture
def lines(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "lines"
    path.write_bytes(b"a\nb\n")
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["-X", "lingerms=5"],
            "setting lingerms is unknown; the most similar setting is linger_ms",
        ),
        (["-X", "linger.ms=x"], "setting linger.ms: 'x' was given; allowed: a number"),
        (["-X", "acks=2"], "setting acks: '2' was given; allowed: 0, 1 or 'all'"),
        (["-X", "value_serializer=str"], "value_serializer: it cannot be given as a string"),
        (["-X", "transactional_id=t"], "setting transactional_id: transactions are not supported"),
        (["-X", "client_id=\udcff"], "-X client_id: the value is not valid UTF-8"),
        (["--bootstrap-servers", ""], "setting bootstrap_servers: '' was given"),
        (["--bootstrap-servers", "h:0"], "the port of 'h:0'"),
        (["--bootstrap-servers", "h", "-X", "bootstrap_servers=h"], "given twice"),
        (["--header", "name"], "--header name: expected name=value"),
        (["--header", "\udcff=value"], "the name is not valid UTF-8"),
        (["--key-separator", ""], "--key-separator: must not be empty"),
        (["--partition", "-1"], "'-1' is not an integer >= 0"),
        (["--partition", "one"], "'one' is not an integer >= 0"),
        (["--partition", "2147483648"], "'2147483648' is not an integer"),
        (["/no/such/file"], "/no/such/file: No such file or directory"),
        (["/"], "/: Is a directory"),
        (["--rejects", "/no/such/dir/file"], "--rejects /no/such/dir/file: No such file"),
        (["-t", "no topic"], "topic 'no topic' is not a topic name"),
        (["-t", ".."], "topic '..' is not a topic name"),
    ],
)
def test_produce_refuses(
    arguments: list[str], told: str, lines: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(["produce", "-t", "events", *arguments, lines]) == 2
    out, err = capsys.readouterr()
    *usage, last = err.splitlines()
    assert told in last
    assert not usage or usage[0].startswith("usage: pykaproducer produce ")
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["produce"], "the following arguments are required: -t/--topic"),
        (["cluster"], "the following arguments are required: ACTION"),
        (["cluster", "start", "--brokers", "none"], "'none' is not an integer >= 1"),
        (["cluster", "start", "--brokers", "0"], "argument --brokers: '0' is not an integer >= 1"),
        (["cluster", "start", "--port", "0"], "'0' is not a port from 1 to 65535"),
        (["cluster", "start", "--port", "x"], "'x' is not a port from 1 to 65535"),
        (
            ["cluster", "start", "--brokers", "3", "--port", "65534"],
            "--port 65534: 3 brokers need as many ports from there on, and 65535 is the last one; "
            "choose a port up to 65533",
        ),
        (["demo", "-X", "acks=0"], "acks=0"),
        (["demo", "--lines", "0"], "argument --lines: '0' is not an integer >= 1"),
        (["demo", "--partitions", "3", "--bootstrap-servers", NOWHERE], "--partitions"),
        (["demo", "--bootstrap-servers", NOWHERE, "--topic", "no topic"], "not a topic name"),
    ],
)
def test_the_other_commands_refuse(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(arguments) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["produec", "-t", "events"], "invalid choice: 'produec'; did you mean produce?"),
        (["topics", "lst"], "invalid choice: 'lst'; did you mean list?"),
        (["completion", "bsh"], "invalid choice: 'bsh'; did you mean bash?"),
        (["produce", "--tpic", "events"], "unknown option --tpic; did you mean --topic?"),
        (["produce", "-t", "t", "--header=a=b", "--rejcts=x"], "did you mean --rejects?"),
        (["perf", "-t", "t", "--trougput", "5"], "did you mean --throughput?"),
        (["topics", "list", "--frobnicate"], "unknown option --frobnicate\n"),
        (["produce", "-t", "t", "-q"], "unknown option -q\n"),
        (["topics", "list", "events"], "unexpected argument: events"),
    ],
)
def test_a_mistyped_word_is_corrected(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(arguments) == 2
    assert told in capsys.readouterr().err


def test_an_unknown_option_comes_with_the_usage_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of(["topics", "list", "--jsn"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("usage: pykaproducer topics list ")
    assert err.endswith(
        "\npykaproducer topics list: error: unknown option --jsn; did you mean --json?\n"
    )


def test_options_of_a_command_that_top_starts_are_not_those_of_top(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert status_of(["top", "12", "--command", "perf", "--topic", "events"]) == 2
    assert "--command cannot be combined with a SOCKET or PID" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["-b", "--bootstrap-server", "--bootstrap-servers"])
def test_every_spelling_of_the_servers(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", option, NOWHERE, "-X", "max_block_ms=100"]) == 1
    assert f"(bootstrap servers: {NOWHERE})" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["--version"]) == 0
    assert capsys.readouterr().out == f"pykaproducer {__version__}\n"


def test_a_file_of_rejects_is_no_input(lines: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "-t", "events", "--rejects", lines, lines]) == 2
    assert "is also an input file" in capsys.readouterr().err
    assert pathlib.Path(lines).read_bytes() == b"a\nb\n"


def test_standard_input_that_is_closed() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command("produce", "-t", "events")],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == b"pykaproducer: standard input is closed; name an input file\n"


def test_a_reader_that_leaves_causes_no_traceback() -> None:
    readable, writable = os.pipe()
    os.close(readable)
    buffered = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    try:
        done = subprocess.run(
            command("--help"),
            env=buffered,
            stdout=writable,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
            check=False,
        )
    finally:
        os.close(writable)
    assert (done.returncode, done.stderr) == (1, b"")


def test_the_users_signal_handlers_come_back(lines: str) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    arguments = ["--bootstrap-servers", NOWHERE, "-X", "delivery_timeout_ms=100"]
    assert main(["produce", "-t", "events", *arguments, lines]) == 1
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_the_demo_says_what_it_needs(tmp_path: pathlib.Path) -> None:
    """Without the jars and the packages that fetch them, one line names what to install."""
    code = (
        "import sys; sys.modules['jgo'] = None; from pykaproducer.cli import main; "
        "sys.exit(main(['demo']))"
    )
    done = subprocess.run(
        [command()[0], "-c", code],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert b'pip install "pykaproducer[testing]"' in done.stderr
    assert done.stderr.count(b"\n") == 1

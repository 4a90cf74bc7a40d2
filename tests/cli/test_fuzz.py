"""Arbitrary arguments, properties files and input: one of three statuses, and no traceback.

``PYKAPRODUCER_FUZZ=20000`` tries that many inputs, including those of ``test_fuzz_broker.py``.
"""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pykaproducer.testing
from pykaproducer.cli import main, top
from pykaproducer.config import SETTINGS
from tests._support.fuzz import tries

from .helper import NOWHERE, PATIENCE, all_commands, command

#: These come last, so that each command ends soon.
SHORT = ["--bootstrap-servers", NOWHERE, "-X", "delivery_timeout_ms=40", "-X", "max_block_ms=40"]
#: Options that limit the work of a command.
BOUNDS = {
    "perf": ["--num-records", "20", "--warmup", "0"],
    "verify": ["--count", "20"],
    "demo": ["--lines", "20"],
}

# No path leads out of the directory, and no argument contains a zero byte.
junk = st.one_of(
    st.sampled_from(["a", "a b", "é", "events", "key"]),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=12),
    st.binary(max_size=8).map(
        lambda data: os.fsdecode(data.replace(b"\0", b"").replace(b"/", b""))
    ),
)
numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str), st.floats().map(str), st.sampled_from(["0", "1", "-1"])
)
names = st.sampled_from([name for row in SETTINGS for name in (row.name, *row.dotted)])
values = st.one_of(junk, numbers, st.sampled_from(["true", "false", "all", "none", "lz4", ""]))
pairs = st.one_of(
    st.builds("{}={}".format, names, values), st.builds("{}@{}".format, names, junk), junk
)
files = st.sampled_from(["lines", "empty", "directory", "missing", "some.properties", "a.csv", "-"])
rates = st.one_of(junk, st.sampled_from(["-1", "100", "1e6", "nan", "inf", "0", "1e9"]))

OPTIONS: dict[str, st.SearchStrategy[str] | None] = {
    **dict.fromkeys(["-t", "--topic"], st.one_of(junk, st.just("events"))),
    "-X": pairs,
    "--config": st.one_of(files, junk),
    "--header": st.builds("{}={}".format, junk, junk),
    **dict.fromkeys(["--key-separator", "--payload-delimiter", "--delimiter"], junk),
    **dict.fromkeys(["--partition", "--partitions", "--lines", "--brokers"], numbers),
    **dict.fromkeys(["--keys", "--record-size"], st.sampled_from(["0", "7", "100", "-3", "x"])),
    **dict.fromkeys(["--throughput", "--rate"], rates),
    "--num-records": numbers,
    "--warmup": st.sampled_from(["0", "5", "-1"]),
    "--duration": st.sampled_from(["1", "0", "x"]),
    "--payload-file": files,
    "--rejects": st.one_of(files, junk),
    "--plot": st.builds("{}{}".format, junk, st.sampled_from([".svg", ".png", ""])),
    "--select": st.one_of(
        junk, st.sampled_from(["value=a", "key=a, value=json(*)", "value=json("])
    ),
    "--format": st.sampled_from(["csv", "jsonl", "parquet", "orc", "table", "sql", "x"]),
    **dict.fromkeys(
        [
            *("--json", "--offsets", "--internal", "--verify", "--infer-types", "--script"),
            *("--print-metrics", "--version", "--help", "--"),
        ],
        None,
    ),
}


def _commands() -> Iterator[tuple[list[str], list[str]]]:
    """Yield each command, and which of the options above it has."""
    for each in all_commands(without=top):  # it watches running processes until Ctrl-C
        known = {name for option in each.options for name in option.names}
        yield list(each.path), [name for name in OPTIONS if name in known]


COMMANDS = list(_commands())


@st.composite
def arguments(draw: st.DrawFn) -> list[str]:
    """Draw a command line: mostly of existing options, with any values."""
    words, known = draw(st.sampled_from(COMMANDS))
    words, first = list(words), "".join(words[:1])
    odd = draw(st.integers(0, 4)) == 0
    for _ in range(draw(st.integers(0, 4))):
        name = draw(st.sampled_from(list(OPTIONS) if odd or not known else known))
        strategy = OPTIONS[name]
        words += [name] if strategy is None else [name, draw(strategy)]
    if odd or first in ("produce", "load", "topics"):
        words += draw(st.lists(st.one_of(files, junk), max_size=2))
    if not odd and first in ("produce", "load", "perf", "verify", "trace"):
        words += ["-t", "events"]
    return [*words, *([] if first in ("", "completion", "cluster") else SHORT)]


class Ended(NamedTuple):
    """The exit status and the output of a command."""

    status: int | str | None
    out: str
    err: str


def run(words: list[str], stdin: str = os.devnull) -> Ended:
    """Run the command in this process, with streams like those of a terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", None))
    err.reconfigure(errors="backslashreplace")
    status: int | str | None
    with (
        open(stdin, encoding="utf-8", errors="surrogateescape") as file,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", file)
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    out.flush()
    err.flush()
    texts = (stream.buffer.getvalue().decode() for stream in (out, err))
    return Ended(status, *texts)


def check(ended: Ended) -> None:
    """Check what holds for every command line."""
    assert ended.status in (0, 1, 2), ended
    assert "Traceback" not in ended.out + ended.err, ended
    if ended.status == 2:
        assert ended.err, "a mistake that is not reported"
        assert ended.out == "", ended


@pytest.fixture(scope="module", autouse=True)
def somewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    """Yield a directory with various files, in which nothing can start Kafka."""
    directory = tmp_path_factory.mktemp("fuzz")
    (directory / "lines").write_bytes(b"a:b\n\xff\xfe\n\nlast")
    (directory / "empty").write_bytes(b"")
    (directory / "directory").mkdir()
    (directory / "some.properties").write_text("linger.ms=5\ngroup.id=readers\n")
    (directory / "a.csv").write_text("a,b\n1,2\n3\n")

    class NoCluster:
        def __init__(self, *arguments: object, **more: object) -> None:
            raise pykaproducer.testing.ClusterError("no Kafka is started here")

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.setattr(pykaproducer.testing, "KafkaCluster", NoCluster)
        patch.setenv("COLUMNS", "80")
        yield directory


@tries(150, 0.4)
@given(arguments())
def test_any_arguments(words: list[str]) -> None:
    if words[:1] and words[0] in BOUNDS:
        words += BOUNDS[words[0]]
    check(run(words))


lines = st.one_of(
    st.builds("{}{}{}".format, names, st.sampled_from(["=", ":", " ", " = "]), values),
    junk,
    st.sampled_from(["# c", "! c", "a\\", "\\u12", "\\u0041=1", "=x", "linger.ms = \\", "\ufeff"]),
)
contents = st.one_of(
    st.lists(lines, max_size=6).map(
        lambda found: "\n".join(found).encode(errors="surrogateescape")
    ),
    st.binary(max_size=60),
)


@tries(150, 0.3)
@given(contents)
def test_any_properties_file(content: bytes) -> None:
    pathlib.Path("any.properties").write_bytes(content)
    ended = run(["topics", "list", "--config", "any.properties", *SHORT])
    check(ended)
    assert ended.status != 0
    if ended.status == 2:
        told = ended.err.splitlines()[-1]
        assert told.startswith("pykaproducer: "), ended


@pytest.mark.full
@tries(40, 0.05)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(st.binary(max_size=30), max_size=30).map(b"\n".join),
    ),
    st.sampled_from([[], ["--key-separator", ":"], ["--rejects", "kept"]]),
)
def test_any_standard_input(data: bytes, options: list[str]) -> None:
    pathlib.Path("input").write_bytes(data)
    kept = pathlib.Path("kept")
    kept.unlink(missing_ok=True)
    ended = run(["produce", "-t", "events", *options, *SHORT], stdin="input")
    check(ended)
    assert ended.status == (1 if data else 0)
    if "--rejects" in options:
        assert kept.read_bytes() == data


@tries(3, 0.001)
@given(arguments().filter(lambda words: words[:1] != ["cluster"]))
def test_in_a_process_of_its_own(words: list[str]) -> None:
    if words[:1] and words[0] in BOUNDS:
        words += BOUNDS[words[0]]
    done = subprocess.run(
        command(*words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    check(Ended(done.returncode, os.fsdecode(done.stdout), os.fsdecode(done.stderr)))

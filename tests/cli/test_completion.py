"""Completion, in the shells themselves."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest

from pykaproducer.cli import main

from .helper import PATIENCE, status_of

#: bash is on every machine that runs these tests; the others are tested where installed.
SHELLS = ["bash", *(shell for shell in ("zsh", "fish") if shutil.which(shell))]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a directory with the script of each shell."""
    directory = tmp_path_factory.mktemp("scripts")
    for shell in ("bash", "zsh", "fish"):
        with open(directory / shell, "w") as file, pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdout", file)
            assert main(["completion", shell]) == 0
    (directory / "a file").write_text("")
    (directory / "a directory").mkdir()
    return directory


def said_by(*arguments: str, directory: pathlib.Path, **environment: str) -> list[str]:
    """Return the lines that a shell prints."""
    done = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=directory,
        env={**os.environ, **environment},
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.splitlines()


def in_bash(scripts: pathlib.Path, *words: str, before: str = "COMP_WORDBREAKS=; ") -> set[str]:
    """Return bash's proposals for the last of *words*."""
    line = " ".join(("pykaproducer", *words))
    return set(
        said_by(
            *("bash", "-c"),
            f"source ./bash; COMP_LINE='{line}'; COMP_POINT={len(line)}; {before}"
            '_pykaproducer; printf "%s\\n" "${COMPREPLY[@]}"',
            directory=scripts,
        )
    )


def in_fish(scripts: pathlib.Path, *words: str) -> set[str]:
    """Return fish's proposals for the last of *words*."""
    line = " ".join(("pykaproducer", *words))
    lines = said_by("fish", "-c", f"source fish; complete -C '{line}'", directory=scripts)
    return {line.split("\t")[0] for line in lines}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_can_be_read(shell: str, scripts: pathlib.Path) -> None:
    said_by(shell, "-n", shell, directory=scripts)


def test_bash_knows_whom_to_ask(scripts: pathlib.Path) -> None:
    line = said_by("bash", "-c", "source ./bash; complete -p pykaproducer", directory=scripts)
    assert line == ["complete -o bashdefault -o default -F _pykaproducer pykaproducer"]


@pytest.mark.parametrize(
    "ask", [in_bash, *([in_fish] if "fish" in SHELLS else [])], ids=lambda ask: ask.__name__
)
def test_what_is_proposed(ask: object, scripts: pathlib.Path) -> None:
    assert callable(ask)
    assert ask(scripts, "pro") == {"produce"}
    assert {"demo", "load", "perf", "verify", "topics"} <= ask(scripts, "")
    assert ask(scripts, "topics", "") == {"list", "describe", "create"}
    assert ask(scripts, "transactions", "") == {"list", "describe", "fence"}
    assert {"--topic", "--throughput", "--json"} <= ask(scripts, "perf", "--")
    assert ask(scripts, "perf", "--rec") == {"--record-size"}
    assert ask(scripts, "load", "--format", "p") == {"parquet"}
    assert ask(scripts, "produce", "-X", "linger") == {"linger_ms="}
    assert ask(scripts, "produce", "-t", "a-topic", "--key-s") == {"--key-separator"}
    assert ask(scripts, "produce", "-X", "linger.m") == {"linger.ms="}
    codecs = {"none", "gzip", "snappy", "lz4", "zstd"}
    for name in ("compression_type", "compression.type"):
        assert ask(scripts, "produce", "-X", f"{name}=") == {f"{name}={each}" for each in codecs}
    assert ask(scripts, "perf", "-X", "security.protocol=S") == {
        f"security.protocol={each}" for each in ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
    }
    assert ask(scripts, "perf", "-X", "acks=a") == {"acks=all"}
    assert ask(scripts, "completion", "b") == {"bash"}


def test_bash_replaces_the_value_alone_where_it_is_a_word(scripts: pathlib.Path) -> None:
    """By default = separates words, and readline replaces only the last one."""
    line = ("produce", "-X", "compression_type=z")
    assert in_bash(scripts, *line, before="COMP_WORDBREAKS=' ='; ") == {"zstd"}


def test_bash_completes_files_where_files_belong(scripts: pathlib.Path) -> None:
    """Without proposals from us bash proposes files by itself, unless the script disables it."""
    assert in_bash(scripts, "produce", "-t", "events", "") == {""}
    assert in_bash(scripts, "produce", "--rejects", "") == {""}
    assert in_bash(scripts, "produce", "-X", "ssl_cafile=") == {""}
    assert in_bash(scripts, "produce", "-X", "sasl_plain_password@") == {""}


def test_fish_completes_files_where_files_belong(scripts: pathlib.Path) -> None:
    if "fish" in SHELLS:
        assert "a file" in in_fish(scripts, "produce", "-t", "events", "")
        assert "ssl_cafile=a file" in in_fish(scripts, "produce", "-X", "ssl_cafile=a")
        assert "a file" not in in_fish(scripts, "topics", "describe", "")


def test_every_option_that_is_offered_is_one(
    scripts: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["produce"], ["load"], ["perf"], ["verify"], ["topics", "list"]):
        assert status_of([*command, "--help"]) == 0
        told = capsys.readouterr().out
        for option in in_bash(scripts, *command, "-"):
            assert option in told


def test_a_shell_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["completion", "csh"]) == 2
    assert "invalid choice: 'csh'" in capsys.readouterr().err


def test_zsh_takes_it(scripts: pathlib.Path) -> None:
    if "zsh" not in SHELLS:
        return
    code = "autoload -U compinit; compinit -u -D; source ./zsh; print $_comps[pykaproducer]"
    told = said_by("zsh", "-f", "-c", code, directory=scripts, HOME=str(scripts))
    assert told == ["_pykaproducer"]

"""``--config FILE`` and ``-X``: an existing client.properties works, and -X takes precedence."""

from __future__ import annotations

import argparse
import os
import pathlib
import threading

import pytest

from pykaproducer.cli import main
from pykaproducer.cli.common import (
    UserError,
    add_servers,
    add_settings,
    resolve_settings,
    settings_from,
)
from pykaproducer.config import Config
from pykaproducer.testing import KafkaCluster

from .helper import NOWHERE, run


@pytest.fixture
def properties(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a file as Java's tools accept it."""
    path = tmp_path / "client.properties"
    path.write_text(
        "# of our cluster\n"
        "bootstrap.servers = kafka-1:9092, \\\n"
        "                    kafka-2:9092\n"
        "linger.ms=20\n"
        "compression.type: lz4\n"
        "acks all\n"
    )
    return path


def test_the_settings_of_a_file(properties: pathlib.Path) -> None:
    settings = resolve_settings([], None, str(properties))
    assert settings["bootstrap_servers"] == (("kafka-1", 9092), ("kafka-2", 9092))
    assert settings["linger_ms"] == 20
    assert settings["compression_type"] == "lz4"


def test_options_go_before_the_file(properties: pathlib.Path) -> None:
    pairs = ["linger_ms=7", "compression.type=none"]
    settings = resolve_settings(pairs, "other:1234", str(properties))
    assert settings["bootstrap_servers"] == (("other", 1234),)
    assert settings["linger_ms"] == 7
    assert settings["compression_type"] is None


def test_a_client_id_of_the_file(properties: pathlib.Path) -> None:
    assert resolve_settings([], None, str(properties))["client_id"] == "pykaproducer-cli"
    with open(properties, "a") as file:
        file.write("client.id=ours\n")
    assert resolve_settings([], None, str(properties))["client_id"] == "ours"


def test_settings_of_a_consumer_are_told_of_and_left_out(
    properties: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(properties, "a") as file:
        file.write("group.id=readers\nauto.offset.reset=earliest\n")
    assert resolve_settings([], None, str(properties))["linger_ms"] == 20
    told = capsys.readouterr().err
    assert "group.id" in told
    assert "auto.offset.reset" in told
    assert str(properties) in told
    assert told.count("\n") == 1


def test_a_name_that_nobody_knows_is_told_of_and_left_out(
    properties: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such files are shared with other programs."""
    with open(properties, "a") as file:
        file.write("lingerms=5\n")
    assert resolve_settings([], None, str(properties))["linger_ms"] == 20
    assert capsys.readouterr().err == (
        f"pykaproducer: {properties}: ignored: setting lingerms is unknown; the most similar "
        f"setting is linger_ms\n"
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("=5", "line 7: there is no name before the separator"),
        ("linger.ms=30", "line 7: linger.ms is already set in line 4"),
        ("client.id=\\u12", "line 7: client.id: \\u must be followed by four hexadecimal digits"),
        ("retries=many", "setting retries: 'many' was given"),
        ("transactional.id=t", "transactions are not supported"),
    ],
)
def test_a_bad_line_is_one_line_with_the_file_s_name(
    line: str, told: str, properties: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(properties, "a") as file:
        file.write(f"{line}\n")
    for command in ("produce", "perf", "verify"):
        assert main([command, "-t", "events", "--config", str(properties)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"pykaproducer: {properties}")
        assert told in error
        assert error.count("\n") == 1


def test_a_bad_line_that_an_option_goes_before_is_a_bad_line(properties: pathlib.Path) -> None:
    with open(properties, "a") as file:
        file.write("retries=many\n")
    with pytest.raises(UserError, match=r"client\.properties: setting retries"):
        resolve_settings(["retries=3"], None, str(properties))


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "--config", "/no/such/file"]) == 2
    assert "/no/such/file: the file cannot be read: No such file" in capsys.readouterr().err


def test_together_they_make_no_sense(properties: pathlib.Path) -> None:
    with pytest.raises(UserError, match="delivery_timeout_ms: 5 was given"):
        resolve_settings(["delivery_timeout_ms=5"], None, str(properties))


# The environment ----------------------------------------------------------------------------------


def options(*words: str) -> argparse.Namespace:
    """Return the options of ``topics list``."""
    parser = argparse.ArgumentParser()
    add_servers(parser)
    add_settings(parser)
    return parser.parse_args(words)


def test_the_environment_names_the_servers(
    properties: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options win, and the file that they name, which may belong to another cluster."""
    monkeypatch.setenv("PYKAPRODUCER_BOOTSTRAP_SERVERS", "kafka-9:9, kafka-8")
    named = (("kafka-9", 9), ("kafka-8", 9092))
    assert settings_from(options())["bootstrap_servers"] == named
    assert settings_from(options("-b", "other:1"))["bootstrap_servers"] == (("other", 1),)
    by_x = options("-X", "bootstrap.servers=other:1")
    assert settings_from(by_x)["bootstrap_servers"] == (("other", 1),)
    of_file = settings_from(options("--config", str(properties)))
    assert of_file["bootstrap_servers"][0] == ("kafka-1", 9092)
    without = options("-X", "linger_ms=5")
    assert settings_from(without)["bootstrap_servers"] == named
    assert "bootstrap_servers" not in settings_from(without, environment=False)


def test_an_environment_that_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYKAPRODUCER_BOOTSTRAP_SERVERS", " ")
    assert "bootstrap_servers" not in settings_from(options())


def test_an_environment_that_names_no_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYKAPRODUCER_BOOTSTRAP_SERVERS", "kafka:http")
    assert main(["topics", "list"]) == 2
    assert capsys.readouterr().err.startswith(
        "pykaproducer: environment variable PYKAPRODUCER_BOOTSTRAP_SERVERS: setting "
        "bootstrap_servers: 'kafka:http' was given"
    )


# sasl.jaas.config ---------------------------------------------------------------------------------


@pytest.fixture
def login(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a file with a user and a password in Java's form."""
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="alice" password="of the file";\n'
    )
    return path


def test_one_option_goes_before_its_part_of_a_login_module(
    login: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the option\n")
    settings = resolve_settings([f"sasl_plain_password@{secret}"], None, str(login))
    config = Config(**settings)
    assert (config.sasl_plain_username, config.sasl_plain_password) == ("alice", "of the option")
    config = Config(**resolve_settings(["sasl.username=bob"], None, str(login)))
    assert (config.sasl_plain_username, config.sasl_plain_password) == ("bob", "of the file")
    config = Config(**resolve_settings(["linger_ms=5"], None, str(login)))
    assert (config.sasl_plain_username, config.sasl_plain_password) == ("alice", "of the file")


# -X NAME@FILE -------------------------------------------------------------------------------------


def test_a_value_from_a_file_is_nowhere_in_the_command(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a=b@c"
    path.write_text("p=ss@word \n")
    assert resolve_settings([f"client_id@{path}"])["client_id"] == "p=ss@word"


def test_a_value_from_a_pipe(tmp_path: pathlib.Path) -> None:
    """As created by bash's <(...)."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("secret\n",))
    writer.start()
    assert resolve_settings([f"client_id@{path}"])["client_id"] == "secret"
    writer.join()


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("client_id@/no/such/file", "-X client_id@/no/such/file: No such file or directory"),
        ("client_id", "-X client_id: expected name=value or name@file"),
        ("client_id@/", "-X client_id@/: Is a directory"),
    ],
)
def test_what_is_no_setting(pair: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        resolve_settings([pair])
    assert str(error.value) == told


def test_a_file_that_is_no_text(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="the file is not valid UTF-8"):
        resolve_settings([f"client_id@{path}"])


# With a cluster -----------------------------------------------------------------------------------


def test_every_command_takes_it(
    cluster: KafkaCluster, topic: str, properties: pathlib.Path
) -> None:
    cluster.create_topic(topic)
    servers = cluster.bootstrap_servers
    properties.write_text(f"bootstrap.servers={servers}\nacks=1\ngroup.id=g\n")
    with_it = ["-t", topic, "--config", str(properties)]
    for arguments in (
        ["produce", *with_it],
        ["perf", *with_it, "--num-records", "10"],
        ["verify", *with_it, "--count", "10"],
        ["topics", "describe", "--config", str(properties), topic],
    ):
        done = run(*arguments, data=b"a line\n")
        assert done.returncode == 0, done.stderr.decode()
        assert b"group.id" in done.stderr


def test_the_demo_uses_the_cluster_of_the_file(properties: pathlib.Path) -> None:
    properties.write_text(f"bootstrap.servers={NOWHERE}\n")
    done = run("demo", "--config", str(properties), "-X", "max_block_ms=200")
    assert done.returncode == 1
    assert NOWHERE.encode() in done.stderr
    assert b"Traceback" not in done.stderr

"""The command line on a secured cluster, with a client.properties as for Java's tools."""

from __future__ import annotations

import pathlib

import pytest

from pykaproducer.cli import main
from pykaproducer.testing import KafkaCluster

from .listeners import PASSWORD, On

JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.fixture
def properties(secured: KafkaCluster, tmp_path: pathlib.Path) -> str:
    """Return the path of the file."""
    settings = secured.settings(user="alice", listener=On.SCRAM_512)
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers={settings['bootstrap_servers']}\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.jaas.config={JAAS} \\\n"
        f'    username="alice" \\\n    password="{PASSWORD}";\n'
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={settings['ssl_cafile']}\n"
    )
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--count", "500", "-t"],
        ["perf", "--num-records", "500", "-t"],
        ["topics", "describe", "--offsets"],
        pytest.param(["demo", "--lines", "500", "--topic"], marks=pytest.mark.full),
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_existing_file_works(
    arguments: list[str], properties: str, secured_topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where messages are read back: kafka-python's consumer gets the same settings."""
    assert main([*arguments, secured_topic, "--config", properties]) == 0
    out, err = capsys.readouterr()
    assert out
    assert PASSWORD not in out + err


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "--count", "5", "-t", "t"],
        ["perf", "--num-records", "5", "-X", "delivery_timeout_ms=3000", "-t", "t"],
        ["topics", "list"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_wrong_password_is_told(
    arguments: list[str],
    properties: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The password is read from a file, and overrides that of the properties."""
    wrong = tmp_path / "password"
    wrong.write_text("not-this-one\n")
    more = ["-X", "sasl_plain_username=alice", "-X", f"sasl_plain_password@{wrong}"]
    status = main([*arguments, "--config", properties, "-X", "max_block_ms=3000", *more])
    assert status == 1
    out, err = capsys.readouterr()
    assert "authentication failed for user 'alice' with SCRAM-SHA-512" in err
    assert "not-this-one" not in out + err

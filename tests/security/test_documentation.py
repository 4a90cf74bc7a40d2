"""The examples of docs/security.rst, with the addresses and files of the secured broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pykaproducer.testing import KafkaCluster, TokenServer
from tests._support.keys import decrypted, pem_of, public_pem, rsa_key
from tests._support.pairs import partly
from tests._support.stores import key_store, trust_store
from tests.cli.helper import run
from tests.cluster.readback import read_log

from .listeners import PASSWORD, On

_PAGE = Path(__file__).parents[2] / "docs" / "security.rst"
_BLOCK = re.compile(r"^\.\. code-block:: (\w+)\n\n((?:    .*\n|\n)+)", re.MULTILINE)
_BLOCKS = [(kind, textwrap.dedent(text)) for kind, text in _BLOCK.findall(_PAGE.read_text())]
#: tests/security/test_kerberos.py runs the program for Kerberos.
_PROGRAMS = [text for kind, text in _BLOCKS if kind == "python" and "GSSAPI" not in text]
_PROPERTIES = [text for kind, text in _BLOCKS if kind == "properties"]
_SHELL = "".join(text for kind, text in _BLOCKS if kind == "console")
#: The listener for each port of the page.
_PORTS = {
    9093: On.TLS,
    9094: On.CLIENT_CERTIFICATE,
    9095: On.SCRAM_512,
    9096: On.SIGNED_TOKENS,
    9098: On.OAUTHBEARER,
}
_PATIENCE = 120


#: The signer of AWS, without AWS: a token for a broker that accepts unsigned ones.
_AWS = """
from pykaproducer.testing import UnsecuredTokens

class MSKAuthTokenProvider:
    @staticmethod
    def generate_auth_token(region):
        assert region == "eu-west-1"
        return UnsecuredTokens("alice").token(), 0
"""
#: The service of Azure, without Azure.
_AZURE = '"azure_imds",'


@pytest.fixture
def directory(secured: KafkaCluster, tmp_path: Path) -> Path:
    """Return the directory that the page calls /etc/kafka."""
    client = secured.settings("alice", listener=On.CLIENT_CERTIFICATE)
    files = {"ca.pem": "ssl_cafile", "client.pem": "ssl_certfile", "client.key": "ssl_keyfile"}
    for name, setting in files.items():
        shutil.copy(client[setting], tmp_path / name)
    (tmp_path / "assertion.key").write_bytes(pem_of(rsa_key(), PASSWORD))
    (tmp_path / "aws_msk_iam_sasl_signer.py").write_text(_AWS)
    return tmp_path


@pytest.fixture(scope="module")
def stores(secured: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the stores of the page."""
    made = tmp_path_factory.mktemp("stores")
    client = secured.settings("alice", listener=On.CLIENT_CERTIFICATE)
    certificate, key = (Path(client[f"ssl_{n}file"]).read_text() for n in ("cert", "key"))
    ca = Path(client["ssl_cafile"]).read_text()
    trust_store(made / "truststore.p12", [ca], "PKCS12", PASSWORD)
    key_store(made / "keystore.jks", certificate, decrypted(key, PASSWORD), "JKS", PASSWORD)
    return made


def _here(text: str, secured: KafkaCluster, directory: Path) -> str:
    """Return *text* as it would be written for the secured broker."""
    for port, listener in _PORTS.items():
        servers = secured.settings(listener=listener)["bootstrap_servers"]
        text = text.replace(f"kafka.example.com:{port}", servers)
    return text.replace("/etc/kafka", str(directory)).replace("alice-secret", PASSWORD)


@pytest.mark.parametrize("number", partly(range(len(_PROGRAMS)), range(3)))
def test_a_program_runs(
    secured: KafkaCluster,
    directory: Path,
    stores: Path,
    token_server: TokenServer,
    topic: str,
    number: int,
) -> None:
    name = f"documented-{topic}"
    secured.create_topic(name)
    text = _PROGRAMS[number]
    for store in ("truststore.p12", "keystore.jks"):
        text = text.replace(f"/etc/kafka/{store}", str(stores / store))
    text = _here(text, secured, directory)
    token_server.public_keys["alice"] = public_pem(rsa_key())
    text = text.replace("https://login.example.com/token", token_server.url)
    url = f"sasl_oauthbearer_token_endpoint_url={token_server.azure_url!r},"
    text = text.replace(_AZURE, f"{_AZURE}\n        {url}")
    text = text.replace("(security=security)", "(security=security, fast_start=True)")
    if ours := "KafkaCluster" not in text:
        text = text.replace('"events"', repr(name))
    properties = directory / "client.properties"
    properties.write_text(_here(_PROPERTIES[0], secured, directory))
    text = text.replace('"client.properties"', repr(str(properties)))
    secrets = ("KAFKA_PASSWORD", "KAFKA_KEY_PASSWORD", "KAFKA_STORE_PASSWORD", "CLIENT_SECRET")
    names = {"KAFKA_CA": "ca.pem", "KAFKA_CERTIFICATE": "client.pem", "KAFKA_KEY": "client.key"}
    texts = {name: (directory / file).read_text() for name, file in names.items()}
    path = os.pathsep.join([str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, **dict.fromkeys(secrets, PASSWORD), **texts, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    if ours:
        assert read_log(secured, name).values == [b"value"]


def test_a_properties_file_of_java(
    secured: KafkaCluster, secured_topic: str, directory: Path
) -> None:
    assert "$ pykaproducer produce --config client.properties -t events" in _SHELL
    path = directory / "client.properties"
    path.write_text(_here(_PROPERTIES[0], secured, directory))
    done = run("produce", "--config", str(path), "-t", secured_topic, data=b"value\n")
    assert done.returncode == 0, done.stderr
    assert PASSWORD.encode() not in done.stdout + done.stderr
    assert read_log(secured, secured_topic).values == [b"value"]

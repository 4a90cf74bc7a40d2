"""The examples of docs/security.rst, with the addresses and files of the secured broker."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pykaproducer.testing import KafkaCluster, UnsecuredTokens
from tests.cluster.readback import read_log

from .listeners import PASSWORD, On

_PAGE = Path(__file__).parents[2] / "docs" / "security.rst"
_BLOCK = re.compile(r"^\.\. code-block:: (\w+)\n\n((?:    .*\n|\n)+)", re.MULTILINE)
_BLOCKS = [(kind, textwrap.dedent(text)) for kind, text in _BLOCK.findall(_PAGE.read_text())]
_PROGRAMS = [text for kind, text in _BLOCKS if kind == "python"]
_PROPERTIES = [text for kind, text in _BLOCKS if kind == "properties"]
_SHELL = "".join(text for kind, text in _BLOCKS if kind == "console")
#: The listener for each port of the page.
_PORTS = {
    9093: On.TLS,
    9094: On.CLIENT_CERTIFICATE,
    9095: On.SCRAM_512,
    9096: On.OAUTHBEARER,
}
_PATIENCE = 120


class _IdentityProvider(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        assert f"client_secret={PASSWORD[:4]}" in form
        answer = {"access_token": UnsecuredTokens("alice").token(), "expires_in": 3600}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *unused: object) -> None:
        pass


@pytest.fixture
def identity_provider() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _IdentityProvider) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join(_PATIENCE)


@pytest.fixture
def directory(secured: KafkaCluster, tmp_path: Path) -> Path:
    """Return the directory that the page calls /etc/kafka."""
    client = secured.settings("alice", listener=On.CLIENT_CERTIFICATE)
    files = {"ca.pem": "ssl_cafile", "client.pem": "ssl_certfile", "client.key": "ssl_keyfile"}
    for name, setting in files.items():
        shutil.copy(client[setting], tmp_path / name)
    return tmp_path


def _here(text: str, secured: KafkaCluster, directory: Path) -> str:
    """Return *text* as it would be written for the secured broker."""
    for port, listener in _PORTS.items():
        servers = secured.settings(listener=listener)["bootstrap_servers"]
        text = text.replace(f"kafka.example.com:{port}", servers)
    return text.replace("/etc/kafka", str(directory)).replace("alice-secret", PASSWORD)


@pytest.mark.parametrize("number", range(len(_PROGRAMS)))
def test_a_program_runs(
    secured: KafkaCluster, directory: Path, identity_provider: str, topic: str, number: int
) -> None:
    name = f"documented-{topic}"
    secured.create_topic(name)
    text = _here(_PROGRAMS[number], secured, directory)
    text = text.replace("https://login.example.com/token", identity_provider)
    text = text.replace("(security=security)", "(security=security, fast_start=True)")
    if ours := "KafkaCluster" not in text:
        text = text.replace('"events"', repr(name))
    properties = directory / "client.properties"
    properties.write_text(_here(_PROPERTIES[0], secured, directory))
    text = text.replace('"client.properties"', repr(str(properties)))
    secrets = ("KAFKA_PASSWORD", "KAFKA_KEY_PASSWORD", "CLIENT_SECRET")
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, **dict.fromkeys(secrets, PASSWORD)},
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
    command = ["produce", "--config", str(path), "-t", secured_topic]
    done = subprocess.run(
        [sys.executable, "-m", "pykaproducer", *command],
        input=b"value\n",
        capture_output=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert PASSWORD.encode() not in done.stdout + done.stderr
    assert read_log(secured, secured_topic).values == [b"value"]

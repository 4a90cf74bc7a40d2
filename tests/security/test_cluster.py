"""The secured test cluster itself, with kafka-python's producer as the client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError

from pykaproducer.testing import (
    ClusterError,
    KafkaCluster,
    KerberosService,
    Security,
    _jars,
    _storage,
)
from pykaproducer.testing._secured import SecuredListeners, scram_credential
from tests.cluster.readback import read_log
from tests.cluster.test_kafka_cluster import without_times

from .listeners import PLAIN_USER, On

SOON = 30


def send(settings: dict[str, Any], topic: str, value: bytes) -> None:
    producer = KafkaProducer(**settings, linger_ms=0, max_block_ms=SOON * 1000)
    try:
        producer.send(topic, value).get(SOON)
    finally:
        producer.close(SOON)


@pytest.mark.full
@pytest.mark.parametrize(
    ("listener", "user"),
    [
        (On.PLAIN, PLAIN_USER),
        (On.SCRAM_512, "alice"),
        (On.CLIENT_CERTIFICATE, "alice"),
        (On.OAUTHBEARER, "alice"),
    ],
)
def test_another_client_comes_in(
    secured: KafkaCluster, secured_topic: str, listener: On, user: str
) -> None:
    send(secured.settings(user, listener=listener), secured_topic, b"there")
    assert read_log(secured, secured_topic).values == [b"there"]


def test_rights_can_be_given_and_taken(secured: KafkaCluster, secured_topic: str) -> None:
    mine = secured.settings("writer", listener=On.RIGHTS)
    secured.allow("writer", secured_topic, "WRITE", "DESCRIBE")
    send(mine, secured_topic, b"there")
    secured.revoke("writer", secured_topic, "WRITE", "DESCRIBE")
    # kafka-python 2 reports a timeout instead.
    with pytest.raises((TopicAuthorizationFailedError, KafkaTimeoutError)):
        send(mine, secured_topic, b"not there")


def test_a_clients_settings(secured: KafkaCluster) -> None:
    mine = secured.settings("alice", listener=On.PLAIN, client_id="mine", ssl_cafile=None)
    assert mine["client_id"] == "mine"
    assert mine["ssl_cafile"] is None
    assert (mine["sasl_mechanism"], mine["sasl_plain_username"]) == ("PLAIN", "alice")
    first = secured.settings()
    assert first["bootstrap_servers"] == secured.bootstrap_servers == mine["bootstrap_servers"]
    with pytest.raises(ValueError, match="no user 'mallory' on listener 0; it has alice"):
        secured.settings("mallory")
    with pytest.raises(ValueError, match="no listener 99; the cluster has 0 to"):
        secured.settings(listener=99)


def test_files_with_keys_are_the_owners_alone(secured: KafkaCluster) -> None:
    mine = secured.settings(listener=On.CLIENT_CERTIFICATE)
    assert os.stat(mine["ssl_keyfile"]).st_mode & 0o077 == 0
    assert "ENCRYPTED" in Path(mine["ssl_keyfile"]).read_text()


def test_a_right_that_does_not_exist(secured: KafkaCluster) -> None:
    with pytest.raises(ValueError, match="unknown operation 'PAINT'"):
        secured.allow("writer", "*", "PAINT")
    with pytest.raises(ValueError, match="kind must be one of topic, group, transactional_id"):
        secured.allow("writer", "*", kind="table")


def test_an_old_cluster_has_settings_too_and_no_rights(cluster: KafkaCluster) -> None:
    assert cluster.settings() == {"bootstrap_servers": cluster.bootstrap_servers}
    with pytest.raises(ClusterError, match=r"SECURITY_DISABLED|Security"):
        cluster.allow("alice", "*")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"protocol": "PLAINTEXT"}, "protocol must be one of 'SSL'"),
        ({"mechanism": "CRAM-MD5"}, "mechanism must be one of 'PLAIN'"),
        ({"mechanism": "GSSAPI"}, "the mechanism GSSAPI and kerberos require each other"),
        ({"kerberos": KerberosService("p", "k", "c")}, "GSSAPI and kerberos require each other"),
        ({"protocol": "SSL", "mechanism": "PLAIN"}, "mechanism and reauth_ms require SASL"),
        ({"protocol": "SSL", "reauth_ms": 5}, "mechanism and reauth_ms require SASL"),
        ({"client_auth": "maybe"}, "client_auth must be one of 'none', 'required'"),
        ({"certificate": "fake"}, "certificate must be one of 'valid'"),
        ({"protocol": "SASL_PLAINTEXT", "certificate": "expired"}, "certificate require TLS"),
        ({"key_password": "x"}, "key_password requires client_auth"),
        ({"protocol": "SSL", "authorize": True}, "authorize requires authentication"),
        ({"reauth_ms": 0}, "reauth_ms must be at least 1"),
        ({"users": {}}, "users must contain at least one"),
        ({"mechanism": "PLAIN", "users": {"a b": ""}}, "user name 'a b' is not supported by PLAIN"),
    ],
)
def test_security_that_makes_no_sense(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Security(**arguments)


def test_listeners_that_contradict_each_other(tmp_path: Path) -> None:
    free, bound = Security("SASL_PLAINTEXT"), Security("SASL_PLAINTEXT", authorize=True)
    with pytest.raises(ValueError, match="'alice' is on a listener with authorization and on one"):
        SecuredListeners([free, bound], tmp_path)
    other = Security("SASL_PLAINTEXT", users={"alice": "other"})
    with pytest.raises(ValueError, match="'alice' has two passwords for SCRAM-SHA-512"):
        SecuredListeners([free, other], tmp_path)


def test_without_trustme_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    expected = pytest.raises(ClusterError, match=r'pip install "pykaproducer\[testing\]"')
    with expected:
        SecuredListeners([Security("SSL")], tmp_path / "security")


def test_passwords_stand_in_no_text(secured: KafkaCluster) -> None:
    shown = repr(Security(users={"alice": "hidden"}, key_password="hidden", client_auth="required"))
    assert "hidden" not in shown
    assert "client_auth='required'" in shown


@pytest.mark.full
def test_users_are_kept_as_kafkas_own_tool_keeps_them(tmp_path: Path) -> None:
    cluster_id, salt = _storage.random_id(), "c29tZSBzYWx0IG9mIG91cnM="
    settings = tmp_path / "settings"
    settings.write_text(
        "process.roles=broker,controller\nnode.id=0\ncontroller.listener.names=CONTROLLER\n"
        "listeners=CLIENT://127.0.0.1:9,CONTROLLER://127.0.0.1:8\n"
        "listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        "inter.broker.listener.name=CLIENT\ncontroller.quorum.voters=0@127.0.0.1:8\n"
        f"log.dirs={tmp_path / 'theirs'}\n"
    )
    class_path = os.pathsep.join(map(str, _jars.kafka_jars()))
    tool = [str(_jars.java()), "-cp", class_path, "kafka.tools.StorageTool", "format"]
    mechanisms = ("SCRAM-SHA-256", "SCRAM-SHA-512")
    for name in mechanisms:
        tool += ["-S", f'{name}=[name=alice,password=secret,iterations=4096,salt="{salt}"]']
    subprocess.run(
        [*tool, "-t", cluster_id, "-c", str(settings)], check=True, capture_output=True, timeout=60
    )
    ours = [scram_credential(name, "alice", "secret", b"some salt of ours") for name in mechanisms]
    theirs = (tmp_path / "theirs" / "bootstrap.checkpoint").read_bytes()
    assert without_times(_storage.bootstrap_checkpoint(ours)) == without_times(theirs)


def test_the_package_can_be_imported_without_trustme() -> None:
    script = (
        "import sys; sys.modules.update(trustme=None, cryptography=None)\n"
        "from pykaproducer.testing import KafkaCluster, Security, UnsecuredTokens\n"
        "KafkaCluster(security=Security())"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

"""Kerberos with a real KDC and a real broker.

The client runs in a program of its own, whose environment has the settings of the KDC.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pykaproducer.testing import ClusterError, KafkaCluster, KerberosService, Security
from pykaproducer.testing._jars import java_with
from tests._support import programs
from tests._support.fixtures.kerberos import REALM, Kdc
from tests.cluster.readback import read_log

_PATIENCE = 120.0
#: Sends a message, and perhaps another one when the session ends; prints its error and warnings.
_PROGRAM = """
import json, logging, sys, threading
from pykaproducer import Producer
from pykaproducer.config import read_settings

class Listener(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.WARNING:
            texts.append(record.getMessage())
        if "re-authenticating" in record.getMessage():
            again.set()

texts, again = [], threading.Event()
log = logging.getLogger("pykaproducer")
log.addHandler(Listener())
log.setLevel(logging.DEBUG)
task = json.load(sys.stdin)
settings = task["settings"]
if isinstance(settings, str):
    settings = read_settings(settings)
with Producer(**settings) as producer:
    error = producer.send(task["topic"], b"there").exception(30)
    if task["again"]:
        assert again.wait(60)
        error = producer.send(task["topic"], b"again").exception(30)
print(json.dumps({"error": None if error is None else str(error), "warnings": texts}))
"""


@pytest.fixture(scope="module")
def kerberized(kdc: Kdc) -> Iterator[KafkaCluster]:
    try:
        java_with("jdk.security.jgss")
    except ClusterError as error:
        pytest.skip(f"no Kafka to test with: {error}")
    principal = "kafka/localhost"
    service = KerberosService(
        f"{principal}@{REALM}", str(kdc.keytab(principal)), str(kdc.krb5_conf)
    )
    listeners = [
        Security("SASL_PLAINTEXT", "GSSAPI", kerberos=service, users={"alice": ""}),
        Security("SASL_SSL", "GSSAPI", kerberos=service, users={"alice": ""}, reauth_ms=3000),
    ]
    with KafkaCluster(security=listeners, fast_start=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alice(kdc: Kdc) -> str:
    """Return alice's key table."""
    return str(kdc.keytab("alice"))


@pytest.fixture
def kerberized_topic(kerberized: KafkaCluster, topic: str) -> str:
    name = f"kerberized-{topic}"
    kerberized.create_topic(name)
    return name


def run(
    kdc: Kdc,
    topic: str,
    settings: dict[str, Any] | str,
    environment: Mapping[str, str] | None = None,
    *,
    again: bool = False,
) -> dict[str, Any]:
    task = {"settings": settings, "topic": topic, "again": again}
    env = {**kdc.environment, **(environment or {})}
    printed = programs.run(_PROGRAM, timeout=_PATIENCE, input=json.dumps(task), env=env)
    found: dict[str, Any] = json.loads(printed)
    return found


@pytest.mark.parametrize("listener", [0, 1])
def test_a_key_table(
    kdc: Kdc, kerberized: KafkaCluster, kerberized_topic: str, alice: str, listener: int
) -> None:
    """No ticket is in the default cache: the producer requests it."""
    settings = kerberized.settings(listener=listener, sasl_kerberos_keytab=alice)
    found = run(kdc, kerberized_topic, settings)
    assert found == {"error": None, "warnings": []}
    named = {**settings, "sasl_kerberos_principal": f"alice@{REALM}"}
    assert run(kdc, kerberized_topic, named)["error"] is None
    assert read_log(kerberized, kerberized_topic).values == [b"there"] * 2


def test_a_session_that_ends(
    kdc: Kdc, kerberized: KafkaCluster, kerberized_topic: str, alice: str
) -> None:
    settings = kerberized.settings(listener=1, sasl_kerberos_keytab=alice)
    found = run(kdc, kerberized_topic, settings, again=True)
    assert found == {"error": None, "warnings": []}
    assert read_log(kerberized, kerberized_topic).values == [b"there", b"again"]


def test_tickets_of_kinit(
    kdc: Kdc, kerberized: KafkaCluster, kerberized_topic: str, alice: str
) -> None:
    kdc.run("kinit", "-k", "-t", alice, f"alice@{REALM}")
    try:
        assert run(kdc, kerberized_topic, kerberized.settings())["error"] is None
        named = kerberized.settings(sasl_kerberos_principal=f"alice@{REALM}")
        assert run(kdc, kerberized_topic, named)["error"] is None
    finally:
        kdc.run("kdestroy")
    assert read_log(kerberized, kerberized_topic).values == [b"there"] * 2


def test_a_file_of_java_s(
    kdc: Kdc, kerberized: KafkaCluster, kerberized_topic: str, alice: str, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        f"bootstrap.servers={kerberized.settings()['bootstrap_servers']}\n"
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\n"
        "sasl.kerberos.service.name=kafka\nsasl_kerberos_domain_name=localhost\n"
        "sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required "
        f'useKeyTab=true storeKey=true keyTab="{alice}" principal="alice@{REALM}";\n'
    )
    assert run(kdc, kerberized_topic, str(path))["error"] is None
    assert read_log(kerberized, kerberized_topic).values == [b"there"]


def test_failures_are_named(
    kdc: Kdc, kerberized: KafkaCluster, kerberized_topic: str, alice: str, tmp_path: Path
) -> None:
    late = {"delivery_timeout_ms": 10_000}

    def error(environment: Mapping[str, str] | None = None, **changes: Any) -> str:
        settings = kerberized.settings(**late | changes)
        found = run(kdc, kerberized_topic, settings, environment=environment)
        assert found["error"] is not None
        assert len(found["warnings"]) == len(set(found["warnings"]))
        text = str(found["error"])
        assert "\n" not in text
        assert "GSSAPI: Kerberos: " in text
        return text

    # Neither a ticket nor a key table.
    assert "No Kerberos credentials available" in error()
    text = error(sasl_kerberos_keytab=alice, sasl_kerberos_principal=f"bob@{REALM}")
    assert f"for user 'bob@{REALM}' with GSSAPI: Kerberos: " in text
    assert f"(sasl_kerberos_keytab {alice!r}; does it have the key of 'bob@{REALM}'?)" in text
    text = error(sasl_kerberos_keytab=alice, sasl_kerberos_service_name="other")
    assert f"Server other/localhost@{REALM} not found in Kerberos database" in text
    # A KDC that is down.
    down = tmp_path / "krb5.conf"
    down.write_text(kdc.krb5_conf.read_text().replace(f":{kdc.port}", ":1"))
    text = error({"KRB5_CONFIG": str(down)}, sasl_kerberos_keytab=alice)
    assert f"Cannot contact any KDC for realm '{REALM}'" in text


def test_a_key_that_has_been_changed(
    kdc: Kdc, kerberized: KafkaCluster, kerberized_topic: str
) -> None:
    old = kdc.keytab("carol")
    kdc.run("kadmin.local", "-q", "cpw -randkey carol")
    settings = kerberized.settings(sasl_kerberos_keytab=str(old), delivery_timeout_ms=10_000)
    text = run(kdc, kerberized_topic, settings)["error"]
    assert "GSSAPI: Kerberos: " in text
    assert str(old) in text


def test_what_is_no_key_table(kdc: Kdc, tmp_path: Path) -> None:
    from pykaproducer import ConfigurationError, Producer

    path = tmp_path / "keytab"
    given = {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        Producer(**given, sasl_kerberos_keytab=path)
    path.write_text("garbage")
    with pytest.raises(ConfigurationError, match="is not a key table"):
        Producer(**given, sasl_kerberos_keytab=path)


def test_the_program_of_the_page(
    kdc: Kdc, kerberized: KafkaCluster, kerberized_topic: str, alice: str
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.rst").read_text()
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:    .*\n|\n)+)", page, re.MULTILINE)
    (text,) = (textwrap.dedent(block) for block in blocks if "GSSAPI" in block)
    settings = kerberized.settings()
    text = text.replace("kafka.example.com:9097", settings["bootstrap_servers"])
    text = text.replace("/etc/kafka/alice.keytab", alice).replace("EXAMPLE.COM", REALM)
    text = text.replace('"events"', repr(kerberized_topic))
    # The broker's host is an address here.
    text = text.replace('"GSSAPI",', '"GSSAPI", sasl_kerberos_domain_name="localhost",')
    programs.run(text, timeout=_PATIENCE, env=kdc.environment)
    assert read_log(kerberized, kerberized_topic).values == [b"value"]

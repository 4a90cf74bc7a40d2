"""Security failures: logged before the message's deadline, and named in its error."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pykaproducer.testing import KafkaCluster
from pykaproducer.testing._certificates import CertificateAuthority
from tests._support.pairs import partly

from .listeners import PASSWORD, On

_PROGRAM = Path(__file__).with_name("undeliverable.py")
#: How long a program may take on a busy machine (seconds).
_PATIENCE = 120
#: The message's deadline, which is after the log line (milliseconds).
_DELIVERY_TIMEOUT_MS = 1500

#: For timeouts that a test does not wait for.
_LONG_MS = 60_000
_TIMES = {"delivery_timeout_ms": _DELIVERY_TIMEOUT_MS, "request_timeout_ms": 1000}

_WRONG = "wrong-" + PASSWORD


class Case(NamedTuple):
    """A security failure."""

    listener: On
    #: Must match in the log and in the error.
    pattern: str
    changes: dict[str, Any]
    user: str | None = None


def _revocation_list(secured: KafkaCluster, directory: Path) -> str:
    assert secured._secured is not None
    return secured._secured.revocation_list(On.TLS)


def _other_authority(secured: KafkaCluster, directory: Path) -> str:
    path = directory / "other.pem"
    path.write_text(CertificateAuthority("another").certificate)
    return str(path)


def _stranger(name: str) -> Callable[[KafkaCluster, Path], str]:
    """Return a function that gives a file of a client whose authority the broker does not trust."""

    def made(secured: KafkaCluster, directory: Path) -> str:
        if not (directory / "certificate").exists():
            issued = CertificateAuthority("another").issue("alice")
            (directory / "certificate").write_text(issued.certificate)
            (directory / "key").write_text(issued.key)
        return str(directory / name)

    return made


_NO_LOGIN = dict.fromkeys(("sasl_mechanism", "sasl_plain_username", "sasl_plain_password"))
_NO_CERTIFICATE = {"ssl_certfile": None, "ssl_keyfile": None, "ssl_password": None}
_REFUSED = "authentication failed for user 'alice'"

CASES = {
    "wrong password, PLAIN": Case(On.PLAIN, _REFUSED, {"sasl_plain_password": _WRONG}),
    "wrong password, SCRAM": Case(On.SCRAM_512, _REFUSED, {"sasl_plain_password": _WRONG}),
    "unknown user": Case(
        On.SCRAM_256,
        "authentication failed for user 'mallory'",
        {"sasl_plain_username": "mallory"},
    ),
    "mechanism that is not enabled": Case(
        On.SCRAM_512,
        "not enabled PLAIN; it has: SCRAM-SHA-512",
        {"sasl_mechanism": "PLAIN"},
    ),
    "expired certificate": Case(On.EXPIRED, "certificate has expired", {}),
    "wrong host name": Case(On.OTHER_HOST, r"not for '127\.0\.0\.1'", {}),
    "unknown authority": Case(On.TLS, "ssl_cafile", {"ssl_cafile": _other_authority}),
    "no authority": Case(On.TLS, "ssl_cafile", {"ssl_cafile": None}),
    "revoked certificate": Case(On.TLS, "revoked", {"ssl_crlfile": _revocation_list}),
    "no client certificate": Case(On.CLIENT_CERTIFICATE, "ssl_certfile", _NO_CERTIFICATE),
    "a stranger's client certificate": Case(
        On.CLIENT_CERTIFICATE,
        "rejected the client certificate|TLS handshake",
        {
            "ssl_certfile": _stranger("certificate"),
            "ssl_keyfile": _stranger("key"),
            "ssl_password": None,
        },
    ),
    "plaintext to a TLS port": Case(
        On.TLS,
        "security_protocol|security protocol",
        {"security_protocol": "PLAINTEXT", "ssl_cafile": None},
    ),
    "TLS to a plaintext port": Case(
        On.SCRAM_256, "security_protocol", {"security_protocol": "SSL", **_NO_LOGIN}
    ),
    "no login where one is asked for": Case(
        On.SCRAM_256, "security_protocol", {"security_protocol": "PLAINTEXT", **_NO_LOGIN}
    ),
    "login where none is asked for": Case(
        On.TLS,
        "security_protocol",
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORD,
        },
    ),
}


def run(
    cluster: KafkaCluster, topic: str, case: Case, directory: Path, **more: Any
) -> dict[str, Any]:
    """Run the program, which must end by itself; its output must not contain a secret."""
    changes = {
        name: value(cluster, directory) if callable(value) else value
        for name, value in case.changes.items()
    }
    settings = cluster.settings(
        case.user,
        listener=case.listener,
        **_TIMES | changes | more,
    )
    task = {"settings": settings, "topic": topic, "pattern": case.pattern}
    done = subprocess.run(
        [sys.executable, str(_PROGRAM)],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    secrets = [PASSWORD, base64.b64encode(PASSWORD.encode()).decode().rstrip("=")]
    pickled = base64.b64decode(report["pickle"])
    for secret in secrets:
        assert secret not in done.stderr
        assert secret not in done.stdout
        assert secret.encode() not in pickled
    return report


@pytest.mark.parametrize("case", partly(CASES.values(), [*CASES.values()][:5]), ids=CASES)
def test_what_cannot_be_set_up(
    secured: KafkaCluster, secured_topic: str, case: Case, tmp_path: Path
) -> None:
    report = run(secured, secured_topic, case, tmp_path)
    assert_told_once_and_late(report, case, secured_topic)


def assert_told_once_and_late(report: dict[str, Any], case: Case, topic: str) -> None:
    """Check that it is in the log before the message's deadline, and then in its error."""
    assert report["told"], report["texts"]
    assert re.search(case.pattern, report["error"]), report["error"]
    assert topic in report["error"]
    assert "DeliveryTimeoutError" in report["kind"]
    assert report["took"] >= _DELIVERY_TIMEOUT_MS / 1000
    # Logged once, however often it was tried.
    assert len(report["texts"]) == len(set(report["texts"])) <= 2


# ACLs


@pytest.mark.parametrize("user", ["nobody", "elsewhere"], ids=["to see it", "to write it"])
def test_no_right_on_the_topic(
    secured: KafkaCluster, secured_topic: str, tmp_path: Path, user: str
) -> None:
    if user == "elsewhere":
        secured.allow(user, "another-topic", "WRITE")
        secured.allow(user, secured_topic, "DESCRIBE")
    case = Case(On.RIGHTS, f"{secured_topic}.*TOPIC_AUTHORIZATION_FAILED", {}, user)
    report = run(secured, secured_topic, case, tmp_path, delivery_timeout_ms=_LONG_MS)
    assert_refused_at_once(report, case)


def test_no_right_to_write_anything(
    secured: KafkaCluster, secured_topic: str, tmp_path: Path
) -> None:
    """Idempotence needs a producer id, which requires a Write ACL for at least one topic."""
    secured.allow("reader", secured_topic, "DESCRIBE")
    case = Case(On.RIGHTS, "CLUSTER_AUTHORIZATION_FAILED.*IdempotentWrite", {}, "reader")
    report = run(secured, secured_topic, case, tmp_path, delivery_timeout_ms=_LONG_MS)
    assert_refused_at_once(report, case, "ClusterAuthorizationFailedError")
    case = Case(On.RIGHTS, "TOPIC_AUTHORIZATION_FAILED", {"enable_idempotence": False}, "reader")
    report = run(secured, secured_topic, case, tmp_path, delivery_timeout_ms=_LONG_MS)
    assert_refused_at_once(report, case)


def assert_refused_at_once(
    report: dict[str, Any], case: Case, kind: str = "TopicAuthorizationFailedError"
) -> None:
    """Check that the message did not wait for its deadline."""
    assert report["told"], report["texts"]
    assert re.search(case.pattern, report["error"]), report["error"]
    assert kind in report["kind"]
    assert report["took"] < _LONG_MS / 1000 / 2
    assert len(report["texts"]) == len(set(report["texts"]))

"""SASL mechanisms, tested with the examples of their RFCs and against those of kafka-python."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import hmac
import json
import sys
from typing import Any

import pytest

from pykaproducer._wire.kerberos import Kerberos, KerberosIdentity
from pykaproducer._wire.mechanism import MechanismError
from pykaproducer._wire.mechanisms import OAuthBearer, Plain, Scram
from pykaproducer._wire.msk_iam import MskIam, signed_request

try:
    from kafka.net.sasl.msk import AwsMskIamClient
    from kafka.net.sasl.scram import ScramClient
except ImportError:  # kafka-python 2
    from kafka.sasl.msk import AwsMskIamClient
    from kafka.sasl.scram import ScramClient

#: RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = f"{NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
PROOF = b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
#: The signature of a broker that does not know the password.
FORGED = hmac.digest(hashlib.sha256(b"guess").digest(), b"x", "sha256")


def scram() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_plain() -> None:
    made = Plain("tim", "tanstaaft\u00e9")
    assert made.first() == b"\0tim\0tanstaaft\xc3\xa9"
    assert made.respond(b"") is None


def test_scram_says_what_the_rfc_says() -> None:
    made = scram()
    assert made.first() == b"n,,n=user,r=" + NONCE.encode()
    assert made.respond(SERVER_FIRST) == b"c=biws,r=" + SERVER_NONCE.encode() + PROOF
    assert made.respond(SERVER_FINAL) is None


@pytest.mark.parametrize("name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_says_what_kafka_python_says(name: str) -> None:
    theirs = ScramClient("alice", "p\u00e4ss", name)
    ours = Scram(name, "alice", "p\u00e4ss", theirs.nonce.decode())
    assert ours.first() == theirs.first_message()
    answer = b"r=" + theirs.nonce + b"more,s=" + base64.b64encode(b"salt") + b",i=5000"
    theirs.process_server_first_message(answer)
    assert ours.respond(answer) == theirs.final_message()
    assert ours.respond(b"v=" + base64.b64encode(theirs.server_signature)) is None


def test_scram_s_own_signs_in_a_user_name() -> None:
    assert Scram("SCRAM-SHA-512", "a=b,c", "x", "n").first() == b"n,,n=a=3Db=2Cc,r=n"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (SERVER_FIRST.replace(NONCE.encode(), b"another"), "a wrong nonce"),
        (SERVER_FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), "a wrong nonce"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "requested '4095' iterations; allowed: 4096 to"),
        (SERVER_FIRST.replace(b"4096", b"131073"), "requested '131073' iterations"),
        (SERVER_FIRST.replace(b"4096", b"9" * 5000), "iterations"),
        (SERVER_FIRST.replace(b"4096", b"many"), "requested 'many' iterations"),
        (SERVER_FIRST.replace(b"4096", "\u0664\u0660\u0669\u0666\u0660".encode()), "iterations"),
        (SERVER_FIRST.replace(b"==", b"!"), "not valid SCRAM"),
        (b"", "not valid SCRAM"),
        (b"\xff", "not valid SCRAM"),
        (b"x", "not valid SCRAM"),
    ],
)
def test_a_first_answer_that_is_wrong(answer: bytes, text: str) -> None:
    with pytest.raises(MechanismError, match=text):
        scram().respond(answer)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "did not prove that it knows"),
        (b"v=" + base64.b64encode(FORGED), "did not prove that it knows"),
        (b"x=y", "did not prove that it knows"),
        (b"e=other-error", "the broker reported other-error"),
        (b"e=x\nforged\x1b[31m", r"the broker reported x forged\[31m"),
        (b"v=?", "not valid SCRAM"),
    ],
)
def test_a_last_answer_that_is_wrong(answer: bytes, text: str) -> None:
    made = scram()
    made.respond(SERVER_FIRST)
    with pytest.raises(MechanismError, match=text):
        made.respond(answer)


class Provider:
    def __init__(self, token: Any, extensions: Any = None) -> None:
        self.made, self.more = token, extensions

    def token(self) -> Any:
        return self.made

    def extensions(self) -> Any:
        return self.more


def test_oauthbearer() -> None:
    assert OAuthBearer(lambda: "t0ken").first() == b"n,,\x01auth=Bearer t0ken\x01\x01"
    assert OAuthBearer(Provider("t0ken")).first() == b"n,,\x01auth=Bearer t0ken\x01\x01"
    with_more = OAuthBearer(Provider("t", {"cluster": "lkc-1", "pool": "p"})).first()
    assert with_more == b"n,,\x01auth=Bearer t\x01cluster=lkc-1\x01pool=p\x01\x01"


def test_a_token_that_is_refused_is_taken_back() -> None:
    assert OAuthBearer(lambda: "t").respond(b'{"status":"invalid_token"}') == b"\1"
    assert OAuthBearer(lambda: "t").respond(b"") is None


@pytest.mark.parametrize(
    ("provider", "text"),
    [
        (lambda: 1 / 0, "sasl_oauth_token_provider raised ZeroDivisionError: division by zero"),
        (lambda: None, "returned NoneType, not a token"),
        (lambda: "", "returned an invalid str"),
        (lambda: "hunter2\1", "returned an invalid str"),
        (lambda: b"hunter2", "returned bytes, not a token"),
        (lambda: "hunter2\udcff", "returned a token or extensions that are not valid Unicode"),
        (Provider("hunter2", {"a": "\udcff"}), "returned a token or extensions that are not val"),
        (Provider("hunter2", ["x"]), r"extensions\(\) of .* returned list"),
    ],
)
def test_a_provider_that_fails_is_told_without_its_token(provider: Any, text: str) -> None:
    with pytest.raises(MechanismError, match=text) as caught:
        OAuthBearer(provider).first()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.__context__)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit])
def test_a_provider_that_ends_itself_harms_nobody_else(error: type[BaseException]) -> None:
    def provider() -> str:
        raise error

    with pytest.raises(MechanismError, match=f"raised {error.__name__}"):
        OAuthBearer(provider).first()


# Mechanisms of libraries ---------------------------------------------------------------------

NOON = datetime.datetime(2026, 3, 1, 12, 0, tzinfo=datetime.UTC)
HOST = "b-1.example.kafka.eu-west-1.amazonaws.com"


@pytest.mark.parametrize("session_token", [None, "t/o=k+en~"])
def test_iam_signs_as_kafka_python_does(session_token: str | None) -> None:
    theirs = AwsMskIamClient(HOST, "AKIDEXAMPLE", "s3cret/", "eu-west-1", session_token)
    theirs.datestamp, theirs.timestamp = "20260301", "20260301T120000Z"
    expected = json.loads(theirs.first_message())
    ours = signed_request(HOST, "eu-west-1", "AKIDEXAMPLE", "s3cret/", session_token, NOON)
    found = json.loads(ours)
    assert found.pop("user-agent").startswith("pykaproducer/")
    del expected["user-agent"]
    assert found == expected
    assert b"s3cret" not in ours


def test_iam_needs_an_answer() -> None:
    mechanism = MskIam(HOST)
    assert mechanism.respond(b'{"version":"2020_10_22"}') is None
    with pytest.raises(MechanismError, match="did not confirm"):
        mechanism.respond(b"")


@pytest.mark.parametrize(
    ("mechanism", "package"),
    [(Kerberos(KerberosIdentity("kafka@host")), "gssapi"), (MskIam(HOST), "botocore")],
)
def test_a_library_that_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch, mechanism: Kerberos | MskIam, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.session", None)
    with pytest.raises(MechanismError, match=f"(ModuleNotFoundError|Kerberos): .*{package}"):
        mechanism.first()

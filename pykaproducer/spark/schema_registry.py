"""A schema registry, which the driver asks for a schema and its id when a write is planned.

The API is that of Confluent's registry, which others have as well: `GET
/subjects/SUBJECT/versions/latest`, `GET /schemas/ids/ID`, `POST /subjects/SUBJECT` (look up) and
`POST /subjects/SUBJECT/versions` (register). Tasks do not need the registry.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pykaproducer._config.key_store import StoreSettings, is_pem, trusted_certificates
from pykaproducer._config.tls_context import client_context, load_authorities
from pykaproducer._errors.formatting import without_secrets
from pykaproducer._kernel import monotonic
from pykaproducer._load.grammar import MOST_SCHEMA_ID
from pykaproducer._net.http_request import HttpAnswer, HttpRequest, RequestFailed
from pykaproducer.errors import ConfigurationError
from pykaproducer.spark.option_texts import boolean

log = logging.getLogger("pykaproducer.spark")

URL = "schema.registry.url"
SUBJECT, REGISTER = "schemaRegistrySubject", "autoRegisterSchemas"
USER, TOKEN = "basic.auth.user.info", "bearer.auth.token"
_STORE = "schema.registry.ssl.truststore"
STORE, PASSWORD = f"{_STORE}.location", f"{_STORE}.password"
#: The origin of credentials, which other clients require; only these values are possible.
SOURCES = {
    "basic.auth.credentials.source": "USER_INFO",
    "bearer.auth.credentials.source": "STATIC_TOKEN",
}

#: Limits for the connection and the answer (seconds).
CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 10.0
#: How long an answer is used for the micro-batches of a stream (seconds).
KEPT = 300.0
_MEDIA = "application/vnd.schemaregistry.v1+json"

#: By request: when it was answered (monotonic), and the answer.
_known: dict[object, tuple[float, RegisteredSchema]] = {}


class RegistryError(ValueError):
    """A registry did not answer, or has no such schema. The text contains no secret."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema of a registry."""

    id: int
    #: JSON.
    text: str


@dataclass(frozen=True)
class SchemaRegistry:
    """The registry, and the subject of a write."""

    #: Asked in this order until one answers.
    urls: tuple[str, ...]
    subject: str
    #: Whether to register a schema that the subject does not have.
    registers: bool
    #: The header Authorization.
    authorization: str | None = field(repr=False)
    truststore: str | None
    truststore_password: str | None = field(repr=False)

    @classmethod
    def of(cls, given: Mapping[str, str], topic: str | None) -> SchemaRegistry | None:
        """Parse options, whose names are in their usual spelling.

        Raises:
            ValueError: one is missing or invalid.
        """
        if URL not in given:
            return None
        subject = given.get(SUBJECT, None if topic is None else f"{topic}-value")
        if not subject:
            raise ValueError(f"option {SUBJECT} is missing: rows name their topics, so give it")
        return cls(
            tuple(_url(each) for each in given[URL].split(",")),
            subject,
            boolean(given, REGISTER, REGISTER),
            _authorization(given),
            given.get(STORE),
            given.get(PASSWORD),
        )

    def find(self, schema: str | None, number: int | None) -> RegisteredSchema:
        """Return *schema* (JSON) with its id, the schema with the id *number*, or the latest.

        Raises:
            RegistryError: the registry does not answer, or has no such schema.
        """
        subject = urllib.parse.quote(self.subject, safe="")
        what = f"subject {self.subject}"
        if number is not None:
            answer = self._ask(f"schema id {number}", "GET", f"/schemas/ids/{number}")
            return self._schema(f"schema id {number}", {**answer, "id": number})
        if schema is None:
            answer = self._ask(what, "GET", f"/subjects/{subject}/versions/latest")
            return self._schema(what, answer)
        path = f"/subjects/{subject}" + ("/versions" if self.registers else "")
        answer = self._ask(what, "POST", path, {"schema": schema})  # schemaType is AVRO if absent
        return self._schema(what, {"id": answer.get("id"), "schema": schema})

    def _ask(
        self, what: str, method: str, path: str, content: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the JSON object of the answer."""
        headers = {"Accept": f"{_MEDIA}, application/json"}
        if content is not None:
            headers["Content-Type"] = _MEDIA
        if self.authorization is not None:
            headers["Authorization"] = self.authorization
        body = None if content is None else json.dumps(content).encode()
        is_secure = any(url.startswith("https:") for url in self.urls)
        context = self._context() if is_secure else ssl.create_default_context
        failures = []
        for url in self.urls:
            request = HttpRequest(
                url + path, context, CONNECT_TIMEOUT, READ_TIMEOUT, (None, None, STORE)
            )
            try:
                answer = request.send(method, headers, body)
            except RequestFailed as error:
                failures.append(f"{url}: {error}")
            else:
                return self._parsed(what, answer)
        raise RegistryError(f"{what}: {'; '.join(failures)}")

    def _parsed(self, what: str, answer: HttpAnswer) -> dict[str, Any]:
        try:
            content = json.loads(answer.body)
        except (ValueError, RecursionError):
            content = None
        if answer.status == 200 and isinstance(content, dict):
            return content
        if answer.status == 200:
            raise self._error(what, "the answer is not a JSON object; is the URL right?")
        text = f"HTTP {answer.status} {self._shown(answer.reason)}".rstrip()
        if 300 <= answer.status < 400:
            text += "; redirects are not followed, because they could leak the credentials"
        if isinstance(content, dict) and isinstance(content.get("message"), str):
            text += f": {self._shown(content['message']).rstrip('.')}"
        if answer.status == 401 and self.authorization is None:
            text += f"; set {USER} or {TOKEN}"
        if answer.status == 404:
            text += "; is it registered there?" if content else "; is the URL right?"
        raise self._error(what, text)

    def _schema(self, what: str, answer: Mapping[str, Any]) -> RegisteredSchema:
        number, text = answer.get("id"), answer.get("schema")
        if (
            type(number) is not int
            or not 0 <= number <= MOST_SCHEMA_ID
            or not isinstance(text, str)
        ):
            raise self._error(what, "the answer has no schema with an id; is the URL right?")
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise self._error(what, f"the schema is {self._shown(kind)}; it must be AVRO")
        if answer.get("references"):
            raise self._error(
                what,
                "the schema refers to schemas of other subjects, which are not read; give the "
                "whole schema as valueSchema, and its id as valueSchemaId, without a registry",
            )
        return RegisteredSchema(number, text)

    def _error(self, what: str, text: str) -> RegistryError:
        return RegistryError(f"{what}: {text}")

    def _shown(self, text: object) -> str:
        """Return a text of the registry without our secrets, which it may repeat."""
        if self.authorization is None:
            return without_secrets(text, ())
        kind, _, encoded = self.authorization.partition(" ")
        secrets = [encoded]
        if kind == "Basic":
            pair = base64.b64decode(encoded).decode()
            secrets += [pair, pair.partition(":")[2]]
        return without_secrets(text, secrets)

    def _context(self) -> Callable[[], ssl.SSLContext]:
        """Return a function that returns the TLS context."""
        context, path = client_context(), self.truststore
        try:
            if path is None or is_pem(f"{_STORE}_location", path, None):
                load_authorities(context, path, None, (f"{_STORE}_location", ""))
            else:
                store = StoreSettings(_STORE, path, None, self.truststore_password)
                load_authorities(context, None, trusted_certificates(store), ("", STORE))
        except ConfigurationError as error:
            text = str(error).removeprefix("setting ")
            for name in ("location", "password"):
                text = text.replace(f"{_STORE}_{name}", f"{_STORE}.{name}")
            raise RegistryError(text) from None
        return lambda: context


def find_again(
    registry: SchemaRegistry, schema: str | None, number: int | None
) -> RegisteredSchema:
    """Return what :meth:`SchemaRegistry.find` returns, or what it returned a short time ago.

    A stream is planned for each micro-batch. It must neither ask each time, nor fail because the
    registry does not answer for a while: the last answer is then used, however old it is.

    Raises:
        RegistryError: the registry does not answer, or has no such schema.
    """
    key, now = (registry, schema, number), monotonic()
    asked, found = _known.get(key, (0.0, None))
    if found is not None and now < asked + KEPT:
        return found
    try:
        found = registry.find(schema, number)
    except RegistryError as error:
        if found is None:
            raise
        log.warning("schema id %d is used again: %s", found.id, error)
    _known[key] = (now, found)
    return found


def _url(text: str) -> str:
    """Return a valid URL without a slash at its end."""
    text = text.strip().rstrip("/")
    # No error shows it: it may contain a password.
    try:
        parts = urllib.parse.urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if (
        not is_valid
        or parts.query
        or parts.fragment
        or not text.isascii()
        or not text.isprintable()
        or " " in text
    ):
        raise ValueError(f"option {URL}: it is not a URL like https://registry.example.com:8081")
    if "@" in parts.netloc:
        raise ValueError(f"option {URL}: it contains a user name; set {USER} to user:password")
    return text


def _authorization(given: Mapping[str, str]) -> str | None:
    """Return the header Authorization; no error shows its parts."""
    for name, value in SOURCES.items():
        if given.get(name, value).upper() != value:
            raise ValueError(f"option {name}: {given[name]!r} was given; allowed: {value}")
    pair, token = given.get(USER), given.get(TOKEN)
    if pair is not None and token is not None:
        raise ValueError(f"options {USER} and {TOKEN} are both given; remove one of them")
    if pair is not None:
        if ":" not in pair:
            raise ValueError(
                f"option {USER}: a value that is not shown has no colon; allowed: user:password"
            )
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    if token is None:
        return None
    if not (token.isascii() and token.isprintable()):
        raise ValueError(
            f"option {TOKEN}: a value that is not shown has characters that HTTP does not allow"
        )
    return f"Bearer {token}"

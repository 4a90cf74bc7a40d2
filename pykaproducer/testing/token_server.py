"""An identity provider for tests: an OAuth token endpoint on 127.0.0.1.

::

    with TokenServer({"alice": "alice-secret"}) as server:
        security = Security("SASL_SSL", "OAUTHBEARER", token_server=server)
        with KafkaCluster(security=security) as cluster:
            producer = Producer(**cluster.settings("alice"))

Its tokens are signed, and the brokers verify them with the server's public key (JWKS). Requires
``pip install "pykaproducer[testing]"``.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final

from pykaproducer.testing._errors import ClusterError

_log = logging.getLogger("pykaproducer.testing")

_HOST: Final = "127.0.0.1"
_KEY_ID: Final = "test-key"
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_AZURE_PATH: Final = "/metadata/identity/oauth2/token"
#: How long the server's thread may take to end (seconds).
_PATIENCE: Final = 10.0
#: How often it looks whether it has to end (seconds).
_POLL: Final = 0.05


@dataclass(frozen=True)
class TokenRequest:
    """A request for a token, as it arrived."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    #: The form, or for a GET request the query.
    form: Mapping[str, str] = field(repr=False)

    @property
    def basic(self) -> tuple[str, str] | None:
        """The user name and password of the Authorization header, as they arrived."""
        kind, _, text = self.headers.get("authorization", "").partition(" ")
        if kind != "Basic":
            return None
        name, _, password = base64.b64decode(text).decode().partition(":")
        return name, password


@dataclass(frozen=True)
class TokenReply:
    """An answer of the token endpoint."""

    status: int
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})

    @classmethod
    def of(cls, status: int, **content: Any) -> TokenReply:
        """Return an answer in JSON."""
        return cls(status, json.dumps(content).encode())


class TokenServer:
    """A token endpoint with the grants client credentials and jwt-bearer, and Azure's.

    - *clients*: client ids and secrets.
    - *lifetime*: of the tokens, in seconds.
    - *public_keys*: client id -> public key in PEM format, with which its assertions are verified.
    - *tls*: a file with a certificate and its key; the endpoint then uses https.
    - *answer*: replaces the server's answers. It is called with each request, possibly by several
      threads at once, may block, and returns a :class:`TokenReply`, or None for the usual answer.

    ``requests`` has all requests for tokens so far.
    """

    def __init__(
        self,
        clients: Mapping[str, str] | None = None,
        *,
        lifetime: float = 3600.0,
        public_keys: Mapping[str, str] | None = None,
        tls: str | None = None,
        answer: Callable[[TokenRequest], TokenReply | None] | None = None,
    ) -> None:
        try:
            from cryptography.hazmat.primitives.asymmetric import rsa
        except ImportError as error:
            raise ClusterError(
                f"a TokenServer requires the package cryptography to sign its tokens ({error}): "
                'pip install "pykaproducer[testing]"'
            ) from None

        self.clients = dict(clients or {"alice": "alice-secret"})
        self.lifetime = lifetime
        self.public_keys = dict(public_keys or {})
        self.answer = answer
        self.audience = "kafka"
        self.requests: list[TokenRequest] = []
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._server = _TokenHttpServer((_HOST, 0), _TokenHandler)
        self._server.daemon_threads = True
        self._server.token_server = self  # type: ignore[attr-defined]
        scheme = "http"
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            # The handshake is done by the thread of each request.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            scheme = "https"
        self._base = f"{scheme}://{_HOST}:{self._server.server_port}"
        self._thread: threading.Thread | None = None

    @property
    def issuer(self) -> str:
        """The claim ``iss`` of the tokens."""
        return self._base

    @property
    def url(self) -> str:
        """The token endpoint."""
        return f"{self._base}/token"

    @property
    def jwks_url(self) -> str:
        """The public key of the tokens, for brokers."""
        return f"{self._base}/jwks"

    @property
    def azure_url(self) -> str:
        """An endpoint like Azure's instance metadata service."""
        return f"{self._base}{_AZURE_PATH}"

    def start(self) -> TokenServer:
        """Begin to answer; no effect on a started server."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._server.serve_forever,
                args=[_POLL],
                daemon=True,
                name="token-server",
            )
            self._thread.start()
        return self

    def stop(self) -> None:
        """Stop answering, and free the port."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join(_PATIENCE)
            self._thread = None
        self._server.server_close()

    def __enter__(self) -> TokenServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def token(self, subject: str, *, lifetime: float | None = None) -> str:
        """Return a signed token for *subject*."""
        now = time.time()
        claims = {
            "iss": self.issuer,
            "sub": subject,
            "aud": self.audience,
            "scope": "events",
            "iat": int(now),
            "exp": math.ceil(now + (self.lifetime if lifetime is None else lifetime)),
        }
        return self._signed(claims)

    # Answers -------------------------------------------------------------------------------------

    def _reply(self, request: TokenRequest) -> TokenReply:
        if request.path == "/jwks":
            return TokenReply.of(200, keys=[self._public_key()])
        self.requests.append(request)
        given = None if self.answer is None else self.answer(request)
        if given is not None:
            return given
        if request.path == _AZURE_PATH:
            return self._azure(request)
        if request.method != "POST" or request.path != "/token":
            return TokenReply.of(404, error="not_found")
        subject = self._subject(request)
        if subject is None:
            return TokenReply.of(401, error="invalid_client", error_description="Unknown client")
        return TokenReply.of(
            200,
            access_token=self.token(subject),
            token_type="Bearer",
            expires_in=int(self.lifetime),
        )

    def _azure(self, request: TokenRequest) -> TokenReply:
        if request.headers.get("metadata") != "true" or "resource" not in request.form:
            return TokenReply.of(400, error="invalid_request")
        subject = request.form.get("client_id", next(iter(self.clients)))
        # Azure writes the number as text.
        return TokenReply.of(
            200, access_token=self.token(subject), expires_in=str(int(self.lifetime))
        )

    def _subject(self, request: TokenRequest) -> str | None:
        """Return the client that has proven who it is, or None."""
        form = request.form
        if form.get("grant_type") == _JWT_BEARER:
            return self._asserted(form.get("assertion", ""))
        if form.get("grant_type") != "client_credentials":
            return None
        if "client_assertion" in form:
            return self._asserted(form["client_assertion"])
        if request.basic is None:
            return None
        name, secret = request.basic
        return name if self.clients.get(name) == secret else None

    def _asserted(self, text: str) -> str | None:
        """Return the subject of a valid assertion."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

        try:
            header, claims, signature = (_decoded(part) for part in text.split("."))
            content = json.loads(claims)
            is_current = content["exp"] > time.time() and content["aud"] == self.url
            pem = self.public_keys[content["sub"]] if is_current else None
        except (ValueError, KeyError, TypeError):  # it is no assertion
            return None
        if pem is None:
            return None
        key = serialization.load_pem_public_key(pem.encode())
        signed = text.rpartition(".")[0].encode()
        try:
            if isinstance(key, rsa.RSAPublicKey) and json.loads(header)["alg"] == "RS256":
                key.verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
            else:
                assert isinstance(key, ec.EllipticCurvePublicKey)
                numbers = (int.from_bytes(part, "big") for part in (signature[:32], signature[32:]))
                der = utils.encode_dss_signature(*numbers)
                key.verify(der, signed, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return None
        return str(content["sub"])

    def _public_key(self) -> dict[str, str]:
        numbers = self._key.public_key().public_numbers()
        parts = {"n": numbers.n, "e": numbers.e}
        return {
            "kty": "RSA",
            "kid": _KEY_ID,
            "use": "sig",
            "alg": "RS256",
            **{
                name: _encoded(number.to_bytes((number.bit_length() + 7) // 8, "big"))
                for name, number in parts.items()
            },
        }

    def _signed(self, claims: Mapping[str, Any]) -> str:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        header = {"alg": "RS256", "typ": "JWT", "kid": _KEY_ID}
        text = ".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
        signature = self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{_encoded(signature)}"


class _TokenHttpServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # For example, a client that distrusts the certificate. Not a traceback on standard error.
        _log.debug("a request to the token server failed", exc_info=True)


class _TokenHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def _handle(self, method: str) -> None:
        server: TokenServer = self.server.token_server  # type: ignore[attr-defined]
        parts = urllib.parse.urlsplit(self.path)
        size = int(self.headers.get("Content-Length", "0"))
        text = self.rfile.read(size).decode() if size else parts.query
        form = dict(urllib.parse.parse_qsl(text))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = server._reply(TokenRequest(method, parts.path, headers, form))
        try:
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)
        except OSError:
            pass  # the client did not wait

    def log_message(self, *unused: object) -> None:
        pass


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

"""The origins of tokens: an OAuth token endpoint, Azure's metadata service, a file.

Each makes one request when asked, and blocks. OAuth: RFC 6749 (client credentials), RFC 7523
(assertions), with the details of KIP-768, KIP-1025, KIP-1139 and KIP-1258. Azure: the API of its
instance metadata service, as librdkafka uses it.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pykaproducer._config.assertions import assertion, read_token_file
from pykaproducer._config.oauth_settings import (
    AZURE_ENDPOINT,
    CLIENT_CREDENTIALS,
    JWT_BEARER,
    OAuthSettings,
)
from pykaproducer._config.oauth_validation import endpoint_context, file_url_path, metadata_query
from pykaproducer._errors.formatting import without_secrets
from pykaproducer._net.http_request import HttpAnswer, HttpRequest, RequestFailed
from pykaproducer._net.renewed_context import RenewedContext
from pykaproducer.errors import ConfigurationError

#: RFC 6750: the characters of a token.
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_CLIENT_ASSERTION: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
#: The lifetime of a token that does not state any (seconds).
_UNKNOWN_LIFETIME: Final = 300.0
#: The longest lifetime, after which a token is renewed anyway (seconds).
_LONGEST_LIFETIME: Final = 10.0 * 365 * 86_400
#: Errors of clients (4xx) that may pass: timeout, too early, too many requests.
_TEMPORARY: Final = (408, 425, 429)
_NAMES: Final = (
    "sasl_login_connect_timeout_ms",
    "sasl_login_read_timeout_ms",
    "sasl_oauthbearer_ca_file",
)


class NoToken(Exception):
    """A request for a token failed. The text is the reason; it contains no secret."""

    def __init__(self, text: str, *, permanent: bool = False) -> None:
        super().__init__(text)
        #: Repeating the same request will not help.
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class Token:
    """A token, and for how many seconds it is valid."""

    text: str = field(repr=False)
    lifetime: float


class TokenSource:
    """The origin of the tokens of one producer.

    Relies on: one thread at a time calling :meth:`fetch`. Others may call the other methods.
    """

    def __init__(self, settings: OAuthSettings) -> None:
        self._settings = settings
        self._context = RenewedContext(
            lambda: endpoint_context(settings), (settings.sasl_oauthbearer_ca_file,)
        )
        self._cancelled = False
        self._request: HttpRequest | None = None
        self._assertion: str | None = None  # the last one that was sent
        #: The origin without secrets, for errors.
        self.origin = settings.token_origin

    def fetch(self, now: float) -> Token:
        """Return a new token; *now* is in seconds since the epoch.

        Raises:
            NoToken: there is none.
        """
        settings = self._settings
        url = settings.sasl_oauthbearer_token_endpoint_url or AZURE_ENDPOINT
        try:
            if url.startswith("file:"):
                text = read_token_file("sasl_oauthbearer_token_endpoint_url", file_url_path(url))
                return _made(text, None, now)
            if settings.sasl_oauthbearer_metadata_authentication_type is not None:
                query = metadata_query(settings)
                answer = self._ask(f"{self.origin}?{query}", "GET", {"Metadata": "true"}, None)
            else:
                headers, form = self._form(now)
                answer = self._ask(url, "POST", headers, urllib.parse.urlencode(form).encode())
        except (ConfigurationError, RequestFailed) as error:
            reason = str(error)
        except ValueError:  # UnicodeError is one
            reason = "a setting contains characters that HTTP does not allow"
        else:
            return self._parse(answer, now)
        # Not while that error is handled, because it may contain a secret, and would be kept.
        raise NoToken(reason)

    def cancel(self) -> None:
        """Make :meth:`fetch`, in another thread, fail soon, now and from now on."""
        self._cancelled = True
        request = self._request
        if request is not None:
            request.cancel()

    def inherited(self) -> list[object]:
        """Close the socket of a parent's request in a forked child; return OpenSSL's objects."""
        request = self._request
        sock = None if request is None else request.socket
        if sock is not None:
            # Not close() of an SSLSocket, which may be in the middle of a call in the parent.
            descriptor = sock.detach()
            if descriptor >= 0:
                os.close(descriptor)
        return [self._context.context, request, sock]

    # The request ---------------------------------------------------------------------------------

    def _form(self, now: float) -> tuple[dict[str, str], dict[str, str]]:
        """Return the headers and the form of a request to a token endpoint."""
        settings = self._settings
        grant = settings.sasl_oauthbearer_grant_type or CLIENT_CREDENTIALS
        form = {"grant_type": grant}
        if settings.sasl_oauthbearer_scope is not None:
            form["scope"] = settings.sasl_oauthbearer_scope
        headers = {}
        client, secret = (
            settings.sasl_oauthbearer_client_id,
            settings.sasl_oauthbearer_client_secret,
        )
        signed = assertion(settings, now, str(uuid.uuid4())) if settings.sends_assertions else None
        self._assertion = signed
        if grant == JWT_BEARER and signed is not None:
            form["assertion"] = signed
        elif signed is not None:
            secret = None
            form |= {"client_assertion_type": _CLIENT_ASSERTION, "client_assertion": signed}
            if client is not None:
                form["client_id"] = client
        if client is not None and secret is not None:
            headers["Authorization"] = _basic(
                client, secret, settings.sasl_oauthbearer_header_urlencode
            )
        return headers, form

    def _ask(
        self, url: str, method: str, headers: Mapping[str, str], body: bytes | None
    ) -> HttpAnswer:
        settings = self._settings
        request = HttpRequest(
            url,
            self._context.current,
            settings.sasl_login_connect_timeout_ms / 1000,
            settings.sasl_login_read_timeout_ms / 1000,
            _NAMES,
        )
        self._request = request
        try:
            if self._cancelled:
                request.cancel()
            common = {"Accept": "application/json", "Cache-Control": "no-store"}
            if body is not None:
                common["Content-Type"] = "application/x-www-form-urlencoded"
            return request.send(method, {**common, **headers}, body)
        finally:
            self._request = None

    # The answer ----------------------------------------------------------------------------------

    def _parse(self, answer: HttpAnswer, now: float) -> Token:
        try:
            content = json.loads(answer.body)
        except (ValueError, RecursionError):
            content = None
        if answer.status != 200:
            raise self._http_error(answer, content if isinstance(content, dict) else {})
        if not isinstance(content, dict):
            kind = self._shown(answer.content_type)
            what = f" but {kind}" if kind else ""
            raise NoToken(f"the answer is not a JSON object{what}; is the URL right?")
        text = content.get("access_token")
        if not isinstance(text, str) or not text:
            error = self._error_text(content)
            if error:
                raise NoToken(f"the answer has no access_token, but an error: {error}")
            if "access_token" in content:
                raise NoToken(f"the access_token in the answer is not a token, but {_kind(text)}")
            names = self._shown(", ".join(sorted(content)[:10])) or "nothing"
            raise NoToken(f"the answer has no access_token; it has: {names}")
        return _made(text, content.get("expires_in"), now)

    def _http_error(self, answer: HttpAnswer, content: Mapping[str, Any]) -> NoToken:
        status = answer.status
        text = f"HTTP {status} {self._shown(answer.reason)}".rstrip()
        if 300 <= status < 400:
            text += "; redirects are not followed, because they could leak the credentials"
        elif error := self._error_text(content):
            text += f": {error}"
        permanent = 300 <= status < 500 and status not in _TEMPORARY
        return NoToken(text, permanent=permanent)

    def _error_text(self, content: Mapping[str, Any]) -> str:
        """Return the error in an answer (RFC 6749, section 5.2; others use other names)."""
        found = []
        for name in ("error", "error_description", "errorCode", "errorSummary", "message"):
            value = content.get(name)
            if isinstance(value, str) and value:
                found.append(self._shown(value))
        return ": ".join(found[:2])

    def _shown(self, text: object) -> str:
        """Return a server's text on one line, without a secret of ours that it may repeat."""
        return without_secrets(text, self._secrets())

    def _secrets(self) -> list[str]:
        settings = self._settings
        secret = settings.sasl_oauthbearer_client_secret
        found = [settings.sasl_oauthbearer_assertion_private_key_passphrase]
        if secret is not None:
            client = settings.sasl_oauthbearer_client_id or ""
            header = _basic(client, secret, settings.sasl_oauthbearer_header_urlencode)
            found += [header.removeprefix("Basic "), urllib.parse.quote_plus(secret), secret]
        if self._assertion is not None:
            found += [self._assertion, urllib.parse.quote_plus(self._assertion)]
        return [each for each in found if each]


def _kind(value: object) -> str:
    """Return what a value of JSON is, without the value, which may be a secret."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return "an empty string" if isinstance(value, str) else "a number"


def _basic(client: str, secret: str, encode: bool) -> str:
    """Return the value of the Authorization header (RFC 7617; *encode*: KIP-1025)."""
    quote: Callable[[str], str] = urllib.parse.quote_plus if encode else str
    pair = f"{quote(client)}:{quote(secret)}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"


def _made(text: str, expires_in: object, now: float) -> Token:
    if not _TOKEN.fullmatch(text):
        raise NoToken("the token contains characters that no token may have (RFC 6750)")
    lifetime = _seconds(expires_in)
    if lifetime is None:
        expires = _expiry(text)
        lifetime = _UNKNOWN_LIFETIME if expires is None else expires - now
        why = "is the clock of this machine right?"
    else:
        why = f"expires_in is {lifetime:g}"
    if lifetime <= 0:
        when = f"has expired {-lifetime:.0f} s ago" if lifetime <= -0.5 else "expires at once"
        raise NoToken(f"the token {when}; {why}")
    return Token(text, min(lifetime, _LONGEST_LIFETIME))


def _seconds(value: object) -> float | None:
    """Return a number of seconds, which some endpoints write as text; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _expiry(token: str) -> float | None:
    """Return the claim ``exp`` of a token, None if it is no JWT or has none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return _seconds(claims.get("exp")) if isinstance(claims, dict) else None

"""The SASL mechanisms that call a library: GSSAPI (Kerberos) and AWS_MSK_IAM.

Both are like those of ``mechanisms``: a new object for every authentication, and every failure is
a :class:`MechanismError`. The libraries find tickets and credentials by themselves, and may wait
for a key distribution center or an HTTP server.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

from pykaproducer._version import VERSION
from pykaproducer._wire.mechanism import MechanismError
from pykaproducer._wire.mechanisms import named


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except MechanismError:
        raise
    except Exception as error:  # of the Kerberos and AWS libraries, or because they are missing
        raise MechanismError(named(error)) from error


# Kerberos -----------------------------------------------------------------------------------

#: Bit of the only security layer that Kafka supports: none.
_NO_LAYER: Final = 1


class Gssapi:
    """Kerberos version 5 (RFC 4752), with the package ``gssapi``.

    *target* is the broker: ``"service@host"`` or a ``gssapi.Name``. *credentials* returns the
    ``gssapi.Credentials`` of the client. None stands for the default: the ticket of ``kinit``, or
    of the client keytab that Kerberos is configured with.
    """

    def __init__(self, target: Any, credentials: Callable[[], Any] | None = None) -> None:
        self._target = target
        self._credentials = credentials
        self._context: Any = None
        # Whether the security layer is negotiated, the client's last step.
        self._negotiated = False

    def first(self) -> bytes:
        with _mapped():
            self._context = self._new_context()
            return self._context.step() or b""

    def respond(self, challenge: bytes) -> bytes | None:
        with _mapped():
            if not self._context.complete:
                # The last of these tokens may be empty; the broker offers its layers after it.
                return self._context.step(challenge) or b""
            if self._negotiated:
                if challenge:
                    raise MechanismError("the broker continued a complete exchange")
                return None
            return self._choose_layer(self._context.unwrap(challenge).message)

    def _new_context(self) -> Any:
        # Imported in the connection's thread: the constructor of the producer has imported it
        # before, to check that it is installed.
        import gssapi

        name = self._target
        if not isinstance(name, gssapi.Name):
            service = gssapi.NameType.hostbased_service
            name = gssapi.Name(name, name_type=service).canonicalize(gssapi.MechType.kerberos)
        credentials = None if self._credentials is None else self._credentials()
        return gssapi.SecurityContext(name=name, creds=credentials, usage="initiate")

    def _choose_layer(self, offered: bytes) -> bytes:
        """Return the response to the broker's layers, of one byte, and its maximum size, of three.

        No authorization id follows: the client acts as the user whom the ticket names.
        """
        if len(offered) != 4 or not offered[0] & _NO_LAYER:
            raise MechanismError("the broker requires a security layer, which Kafka does not have")
        self._negotiated = True
        response = bytes([_NO_LAYER]) + bytes(3)
        return bytes(self._context.wrap(response, False).message)


# Amazon MSK ---------------------------------------------------------------------------------

#: Seconds for which a signature is valid.
_VALID: Final = 900
_VERSION: Final = "2020_10_22"


class MskIam:
    """IAM on Amazon MSK: a request "kafka-cluster:Connect", signed with AWS Signature Version 4.

    The format is that of https://github.com/aws/aws-msk-iam-auth ("Details"). *host* is the
    broker's name. Credentials and region are those that ``botocore`` finds.
    """

    def __init__(self, host: str) -> None:
        self._host = host

    def first(self) -> bytes:
        with _mapped():
            from botocore.session import Session

            session = Session()
            found, region = session.get_credentials(), session.get_config_variable("region")
            if found is None:
                raise MechanismError("botocore found no credentials")
            if not region:
                raise MechanismError("botocore found no region; set AWS_DEFAULT_REGION")
            frozen = found.get_frozen_credentials()
            key = frozen.access_key, frozen.secret_key, frozen.token
            return signed_request(self._host, region, *key, datetime.datetime.now(datetime.UTC))

    def respond(self, challenge: bytes) -> bytes | None:
        if not challenge:
            raise MechanismError("the broker did not confirm the authentication")
        return None


def signed_request(
    host: str,
    region: str,
    access_key: str,
    secret_key: str,
    session_token: str | None,
    now: datetime.datetime,
) -> bytes:
    """Return the token of AWS_MSK_IAM at the time *now* (UTC)."""
    time = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{time[:8]}/{region}/kafka-cluster/aws4_request"
    signed = {
        "action": "kafka-cluster:Connect",
        "x-amz-algorithm": "AWS4-HMAC-SHA256",
        "x-amz-credential": f"{access_key}/{scope}",
        "x-amz-date": time,
        "x-amz-expires": str(_VALID),
        "x-amz-signedheaders": "host",
    }
    if session_token:
        signed["x-amz-security-token"] = session_token
    # In the canonical request the parameters have other capitals, by which they are sorted.
    parameters = {_canonical(name): quote(value, safe="-._~") for name, value in signed.items()}
    query = "&".join(f"{name}={value}" for name, value in sorted(parameters.items()))
    empty = hashlib.sha256().hexdigest()
    canonical = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{empty}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}"
    fields = {
        "version": _VERSION,
        "host": host,
        "user-agent": f"pykaproducer/{VERSION}",
        **signed,
        "x-amz-signature": hmac.digest(key, text.encode(), "sha256").hex(),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _canonical(name: str) -> str:
    """Return the name of a parameter in the canonical request: ``X-Amz-SignedHeaders``."""
    return name.title().replace("Signedheaders", "SignedHeaders")

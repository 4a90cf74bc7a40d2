"""The SASL mechanism AWS_MSK_IAM: IAM on Amazon MSK.

Like those of ``mechanisms``: a new object for every authentication, and every failure is a
:class:`MechanismError`. The package ``botocore`` finds the credentials, and may wait for a server.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from pykaproducer._version import VERSION
from pykaproducer._wire.mechanism import MechanismError
from pykaproducer._wire.mechanisms import named

#: Seconds for which a signature is valid.
_VALID: Final = 900
_VERSION: Final = "2020_10_22"


class MskIam:
    """IAM on Amazon MSK: a request "kafka-cluster:Connect", signed with AWS Signature Version 4.

    The format is that of https://github.com/aws/aws-msk-iam-auth ("Details"). *host* is the
    broker's name. Credentials and region are those that ``botocore`` finds.
    """

    def __init__(self, host: str) -> None:
        self.secrets: tuple[str, ...] = ()
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
            self.secrets = (frozen.secret_key, frozen.token or "")
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


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except MechanismError:
        raise
    except Exception as error:  # of botocore, or because it is missing
        raise MechanismError(named(error)) from error

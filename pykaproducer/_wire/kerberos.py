"""GSSAPI (RFC 4752): Kerberos, through the package ``gssapi`` and the system's Kerberos library.

Without a key table it uses existing tickets. With one, the library requests tickets with it, keeps
them in memory, and renews them.

The exchange: tokens of Kerberos until both sides know each other; the broker offers protection
layers; the client chooses none, as Kafka supports none, and names no other user.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pykaproducer._wire.mechanism import MechanismError

#: Authentication without a protection layer, and then any largest message size (3 bytes).
_NO_LAYER: Final = 1
_OFFER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class KerberosIdentity:
    """The two parties of an authentication."""

    #: The broker: a ``gssapi.Name``, or a service in the form ``service@host``.
    target: Any
    #: The client's principal; None: the first of the key table, or the default credentials.
    principal: str | None = None
    #: The path of a key table; None: existing tickets.
    keytab: str | None = None
    #: The name of the credentials cache for tickets requested with the key table.
    cache: str = "MEMORY:pykaproducer"


class Kerberos:
    """One exchange. Blocks while it asks the key distribution center (KDC) for tickets."""

    secrets: tuple[str, ...] = ()

    def __init__(self, identity: KerberosIdentity) -> None:
        self._identity = identity
        self._context: Any = None
        self._is_answered = False

    def first(self) -> bytes:
        with _mapped(self._identity):
            import gssapi

            self._context = gssapi.SecurityContext(
                name=_target(gssapi, self._identity.target),
                creds=_credentials(gssapi, self._identity),
                usage="initiate",
            )
            return bytes(self._context.step(None) or b"")

    def respond(self, challenge: bytes) -> bytes | None:
        if self._is_answered:
            return None
        with _mapped(self._identity):
            if not self._context.complete:
                return bytes(self._context.step(challenge) or b"")
            offer = self._context.unwrap(challenge).message
        if len(offer) != _OFFER_BYTES or not offer[0] & _NO_LAYER:
            raise MechanismError("the broker requires a protection layer of Kerberos")
        self._is_answered = True
        with _mapped(self._identity):
            choice = bytes([_NO_LAYER]) + offer[1:]
            return bytes(self._context.wrap(choice, False).message)


def _target(gssapi: Any, target: Any) -> Any:
    if isinstance(target, gssapi.Name):
        return target
    name = gssapi.Name(target, name_type=gssapi.NameType.hostbased_service)
    return name.canonicalize(gssapi.MechType.kerberos)


def _credentials(gssapi: Any, identity: KerberosIdentity) -> Any:
    """Return the client's credentials, None for the default ones."""
    name = None
    if identity.principal is not None:
        name = gssapi.Name(identity.principal, name_type=gssapi.NameType.kerberos_principal)
    if identity.keytab is not None:
        # The library requests tickets with the "client" key table when the cache has no valid ones.
        store = {"client_keytab": f"FILE:{identity.keytab}", "ccache": identity.cache}
        return gssapi.Credentials(name=name, usage="initiate", store=store)
    return None if name is None else gssapi.Credentials(name=name, usage="initiate")


@contextlib.contextmanager
def _mapped(identity: KerberosIdentity) -> Iterator[None]:
    try:
        yield
    except NotImplementedError:  # of Heimdal
        raise MechanismError(
            "this Kerberos library cannot use sasl_kerberos_keytab; run kinit -k -t instead"
        ) from None
    except Exception as error:  # of the package gssapi, or of the library below it
        raise MechanismError(_text(error, identity)) from error


def _text(error: Any, identity: KerberosIdentity) -> str:
    """Return the reason of Kerberos, which is in the minor code, and the settings it concerns."""
    reasons: list[str] = []
    if getattr(error, "min_code", 0):
        reasons = error.get_all_statuses(error.min_code, False)
    text = " ".join(" ".join(reasons or [str(error)]).split())
    if identity.keytab is None:
        return f"Kerberos: {text}"
    if identity.principal is None:
        return f"Kerberos: {text} (sasl_kerberos_keytab {identity.keytab!r})"
    # It reports a principal without a key as a missing credentials cache.
    return (
        f"Kerberos: {text} (sasl_kerberos_keytab {identity.keytab!r}; does it have the key of "
        f"{identity.principal!r}?)"
    )

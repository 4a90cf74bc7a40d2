"""The SASL mechanism GSSAPI: Kerberos version 5 (RFC 4752), with the package ``gssapi``.

Like those of ``mechanisms``: a new object for every authentication, and every failure is a
:class:`MechanismError`. The library finds tickets by itself, and may wait for a key distribution
center.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pykaproducer._wire.mechanism import MechanismError
from pykaproducer._wire.mechanisms import named

#: Bit of the only security layer that Kafka supports: none.
_NO_LAYER: Final = 1


@dataclass(frozen=True, slots=True)
class KerberosIdentity:
    """Who authenticates to whom."""

    #: The broker: ``"service@host"`` or a ``gssapi.Name``.
    target: Any


class Kerberos:
    """Kerberos version 5 (RFC 4752), with the package ``gssapi``.

    The client has the default credentials: the ticket of ``kinit``, or of the client keytab that
    Kerberos is configured with.
    """

    def __init__(self, identity: KerberosIdentity) -> None:
        self._target = identity.target
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
        return gssapi.SecurityContext(name=name, usage="initiate")

    def _choose_layer(self, offered: bytes) -> bytes:
        """Return the response to the broker's layers, of one byte, and its maximum size, of three.

        No authorization id follows: the client acts as the user whom the ticket names.
        """
        if len(offered) != 4 or not offered[0] & _NO_LAYER:
            raise MechanismError("the broker requires a security layer, which Kafka does not have")
        self._negotiated = True
        response = bytes([_NO_LAYER]) + bytes(3)
        return bytes(self._context.wrap(response, False).message)


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except MechanismError:
        raise
    except Exception as error:  # of the Kerberos library, or because it is missing
        raise MechanismError(named(error)) from error

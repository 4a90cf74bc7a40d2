"""The listeners of the secured broker, and the users of each."""

from __future__ import annotations

import enum

from pykaproducer.testing import Security, TokenServer

#: Must never appear in any output.
PASSWORD = "hush-hush=tell,nobody"
#: A user whose name and password pass through quotes, escapes and Unicode, as Kafka knows it.
STRANGE_USER = "zoe=o,tto"
STRANGE_PASSWORD = 'a"b\\c\u00e9\ufb01 d'

_USERS = {"alice": PASSWORD, STRANGE_USER: STRANGE_PASSWORD}
#: Here a name is a word of the broker's configuration.
PLAIN_USER = "zo\u00eb"
_PLAIN_USERS = {"alice": PASSWORD, PLAIN_USER: STRANGE_PASSWORD}


class On(enum.IntEnum):
    """The index of each listener."""

    PLAIN = 0
    SCRAM_256 = 1
    SCRAM_512 = 2
    OAUTHBEARER = 3
    TLS = 4
    CLIENT_CERTIFICATE = 5
    EXPIRED = 6
    OTHER_HOST = 7
    SHORT_SESSIONS = 8
    SHORT_TOKENS = 9
    RIGHTS = 10
    SIGNED_TOKENS = 11


_SECURITY = [
    Security("SASL_SSL", "PLAIN", users=_PLAIN_USERS),
    Security("SASL_PLAINTEXT", "SCRAM-SHA-256", users=_USERS),
    Security("SASL_SSL", "SCRAM-SHA-512", users=_USERS),
    Security("SASL_SSL", "OAUTHBEARER", users={"alice": ""}),
    Security("SSL"),
    Security("SSL", client_auth="required", key_password=PASSWORD),
    Security("SSL", certificate="expired"),
    Security("SSL", certificate="other-host"),
    Security("SASL_SSL", "SCRAM-SHA-512", users=_USERS, reauth_ms=2000),
    Security("SASL_SSL", "OAUTHBEARER", users={"alice": ""}, reauth_ms=60_000),
    Security(
        "SASL_PLAINTEXT",
        "SCRAM-SHA-512",
        users=dict.fromkeys(
            ("nobody", "reader", "elsewhere", "writer", "waiting", "transactor"), PASSWORD
        ),
        authorize=True,
    ),
]


def security(server: TokenServer) -> list[Security]:
    """Return all listeners; *server* issues the tokens of :attr:`On.SIGNED_TOKENS`."""
    signed = Security(
        "SASL_SSL",
        "OAUTHBEARER",
        users={"alice": PASSWORD},
        reauth_ms=60_000,
        token_server=server,
    )
    assert len(_SECURITY) + 1 == len(On)
    return [*_SECURITY, signed]

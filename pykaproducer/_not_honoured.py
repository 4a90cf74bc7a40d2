"""The settings of kafka-python that do nothing here, and those that are refused, with the reasons.

A setting is accepted without effect when the program that gives it gets what it asked for
without it; it is refused when the program would not.
"""

from __future__ import annotations

import functools

from pykaproducer._settings import (
    ANYTHING,
    FLAG,
    TEXT,
    Kind,
    Setting,
    choice,
    integer,
    milliseconds,
    optional,
)

_TLS = "it belongs to TLS, and a security_protocol with TLS is refused"
_SASL = "it belongs to SASL, and a security_protocol with SASL is refused"
_NO_METRICS = "there are no metrics yet"


def _belongs(
    reason: str,
    name: str,
    *aliases: str,
    secret: bool = False,
    kind: Kind = TEXT,
    default: object = None,
) -> Setting:
    taken = kind if default is not None else optional(kind)
    return Setting(name, default, taken, "", aliases=aliases, no_effect=reason, secret=secret)


_of_tls = functools.partial(_belongs, _TLS)
_of_sasl = functools.partial(_belongs, _SASL)

NOT_HONOURED: tuple[Setting, ...] = (
    Setting(
        "transactional_id",
        None,
        optional(TEXT),
        "",
        refused="transactions are not built; leave it out",
    ),
    Setting(
        "transaction_timeout_ms",
        60_000,
        milliseconds(1),
        "",
        unit="ms",
        no_effect="it belongs to transactions, and transactional_id is refused",
    ),
    Setting(
        "interceptors",
        (),
        Kind("an empty list", tuple),
        "",
        refused="interceptors are not built; leave it out",
    ),
    Setting(
        "security_protocol",
        "PLAINTEXT",
        choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "",
        refused="TLS and SASL are not built; PLAINTEXT is what there is",
    ),
    _of_tls("ssl_context", kind=ANYTHING),
    _of_tls("ssl_check_hostname", kind=FLAG, default=True),
    _of_tls("ssl_cafile", "ssl.ca.location"),
    _of_tls("ssl_certfile", "ssl.certificate.location"),
    _of_tls("ssl_keyfile", "ssl.key.location"),
    _of_tls("ssl_password", "ssl.key.password", secret=True),
    _of_tls("ssl_crlfile", "ssl.crl.location"),
    _of_tls("ssl_ciphers", "ssl.cipher.suites"),
    _of_sasl("sasl_mechanism", "sasl.mechanisms"),
    _of_sasl("sasl_plain_username", "sasl.username"),
    _of_sasl("sasl_plain_password", "sasl.password", secret=True),
    _of_sasl("sasl_kerberos_name", kind=ANYTHING),
    _of_sasl("sasl_kerberos_service_name", default="kafka"),
    _of_sasl("sasl_kerberos_domain_name"),
    _of_sasl("sasl_oauth_token_provider", kind=ANYTHING, secret=True),
    Setting(
        "proxy_url",
        None,
        optional(TEXT),
        "",
        refused="connections through a proxy are not built",
        secret=True,
    ),
    Setting(
        "socks5_proxy",
        None,
        optional(TEXT),
        "",
        refused="connections through a proxy are not built",
        secret=True,
    ),
    Setting(
        "kafka_client",
        None,
        ANYTHING,
        "",
        refused="the network is not exchangeable; leave it out",
    ),
    Setting(
        "selector",
        None,
        ANYTHING,
        "",
        no_effect="each connection has a thread of its own",
    ),
    Setting(
        "client_dns_lookup",
        "use_all_dns_ips",
        choice("use_all_dns_ips", "default", "resolve_canonical_bootstrap_servers_only"),
        "",
        no_effect="all addresses of a name are tried",
    ),
    Setting(
        "connections_max_idle_ms",
        540_000,
        integer(-1),
        "",
        unit="ms",
        no_effect="a connection that the broker closed for being idle is made again when needed",
    ),
    Setting(
        "api_version",
        None,
        ANYTHING,
        "",
        no_effect="the versions of requests are agreed with each broker",
    ),
    Setting(
        "bootstrap_timeout_ms",
        30_000,
        milliseconds(),
        "",
        unit="ms",
        no_effect="the constructor never waits",
    ),
    Setting(
        "metric_reporters",
        (),
        Kind("an empty list", tuple),
        "",
        refused="reporters of kafka-python's metrics are not called; leave it out",
    ),
    Setting("metrics_enabled", True, FLAG, "", no_effect=_NO_METRICS),
    Setting("metrics_num_samples", 2, integer(1), "", no_effect=_NO_METRICS),
    Setting(
        "metrics_sample_window_ms",
        30_000,
        milliseconds(1),
        "",
        unit="ms",
        no_effect=_NO_METRICS,
    ),
)

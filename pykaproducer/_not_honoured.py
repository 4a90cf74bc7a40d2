"""The settings of kafka-python that do nothing here, and those that are refused, with the reasons.

A setting is accepted without effect when the program that gives it gets what it asked for
without it; it is refused when the program would not.
"""

from __future__ import annotations

from pykaproducer._settings import (
    ANYTHING,
    TEXT,
    Kind,
    Setting,
    choice,
    integer,
    milliseconds,
    optional,
)

_STORES = "Java's keystores are not read; write it as PEM and give ssl_cafile, ssl_certfile"

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
    *(
        Setting(f"ssl_{store}_password", None, optional(TEXT), "", refused=_STORES, secret=True)
        for store in ("truststore", "keystore")
    ),
    *(
        Setting(
            name,
            None,
            optional(TEXT),
            "",
            refused=f"write it to a file, and give {instead}",
            secret=True,
        )
        for name, instead in (
            ("ssl_truststore_certificates", "ssl_cafile"),
            ("ssl_keystore_certificate_chain", "ssl_certfile"),
            ("ssl_keystore_key", "ssl_keyfile"),
        )
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
        "api_version",
        None,
        ANYTHING,
        "",
        no_effect="the versions of requests are agreed with each broker",
    ),
    Setting(
        "api_version_auto_timeout_ms",
        2_000,
        milliseconds(),
        "",
        unit="ms",
        no_effect="of kafka-python 2; the constructor never waits",
    ),
    Setting(
        "sock_chunk_bytes",
        4096,
        integer(1),
        "",
        unit="bytes",
        no_effect="of kafka-python 2; a socket is read as fast as it brings something",
    ),
    Setting(
        "sock_chunk_buffer_count",
        1000,
        integer(1),
        "",
        no_effect="of kafka-python 2; a socket is read as fast as it brings something",
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
        refused="reporters of kafka-python's metrics are not called; ask metrics(), or stats()",
    ),
)

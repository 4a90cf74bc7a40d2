"""kafka-python's settings that have no effect here or are not supported, with the reasons.

A setting is accepted without effect if the program gets what it asks for without it. It is
rejected if the program would not.
"""

from __future__ import annotations

from pykaproducer._config.schema import (
    ANYTHING,
    TEXT,
    Kind,
    Setting,
    choice,
    integer,
    milliseconds,
    optional,
)

NOT_HONOURED: tuple[Setting, ...] = (
    Setting(
        "sasl_login_callback_handler_class",
        None,
        optional(TEXT),
        "",
        no_effect="tokens come from sasl_oauthbearer_token_endpoint_url, or from "
        "sasl_oauth_token_provider",
    ),
    Setting(
        "kafka_client",
        None,
        ANYTHING,
        "",
        refused="custom network clients are not supported; remove this setting",
    ),
    Setting(
        "selector",
        None,
        ANYTHING,
        "",
        no_effect="each connection has a dedicated thread",
    ),
    Setting(
        "client_dns_lookup",
        "use_all_dns_ips",
        choice("use_all_dns_ips", "default", "resolve_canonical_bootstrap_servers_only"),
        "",
        no_effect="all addresses of a host name are tried",
    ),
    Setting(
        "api_version",
        None,
        ANYTHING,
        "",
        no_effect="request versions are negotiated with each broker",
    ),
    Setting(
        "api_version_auto_timeout_ms",
        2_000,
        milliseconds(),
        "",
        unit="ms",
        no_effect="kafka-python 2 only; the constructor never waits",
    ),
    Setting(
        "sock_chunk_bytes",
        4096,
        integer(1),
        "",
        unit="bytes",
        no_effect="kafka-python 2 only; this client does not chunk socket reads",
    ),
    Setting(
        "sock_chunk_buffer_count",
        1000,
        integer(1),
        "",
        no_effect="kafka-python 2 only; this client does not chunk socket reads",
    ),
    Setting(
        "bootstrap_topics_filter",
        frozenset(),
        Kind("a set of topics", frozenset),
        "",
        no_effect="kafka-python 2 only; metadata is requested for the topics in use",
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
        refused="kafka-python's metric reporters are not called; use metrics() or stats()",
    ),
)

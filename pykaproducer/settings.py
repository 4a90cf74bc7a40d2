"""The settings as a type, for type checkers and for completion in editors.

>>> def producer(**settings: Unpack[ProducerSettings]) -> Producer:
...     return Producer(client_id="app", **settings)

The documentation ("Settings") describes each setting with its default and unit. Dotted names
(``linger.ms``) are missing because they are not Python identifiers: pass a ``dict[str, Any]``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypedDict

__all__ = ["ProducerSettings"]

#: A callable that converts a value to bytes, or an object with kafka-python's ``serialize``.
Serializer = Any


class ProducerSettings(TypedDict, total=False):
    """The keyword arguments of :class:`~pykaproducer.Producer`."""

    bootstrap_servers: str | Sequence[str | tuple[str, int]]
    client_id: str | None
    acks: int | str
    enable_idempotence: bool | None
    retries: float
    delivery_timeout_ms: float
    transactional_id: str | None
    transaction_timeout_ms: float
    key_serializer: Serializer
    value_serializer: Serializer
    partitioner: str | Callable[[bytes | None, list[int], list[int]], int]
    partitioner_adaptive_partitioning_enable: bool
    allow_auto_create_topics: bool
    linger_ms: float
    batch_size: int
    batch_max_messages: int
    compression_type: str | None
    compression_level: int | None
    max_request_size: int
    buffer_memory: int
    max_block_ms: float
    request_timeout_ms: int
    max_in_flight_requests_per_connection: int
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    reconnect_backoff_ms: float
    reconnect_backoff_max_ms: float
    metadata_max_age_ms: float
    metadata_max_idle_ms: float
    receive_message_max_bytes: int
    exit_flush_timeout_ms: float
    stage_threads: Literal["shared", "own"]
    interceptors: Sequence[Any]
    stats_socket: str | None
    metrics_enabled: bool
    metrics_num_samples: int
    metrics_sample_window_ms: float
    socket_connection_setup_timeout_ms: float
    socket_connection_setup_timeout_max_ms: float
    connections_max_idle_ms: float
    connections_check_idle_ms: float
    tcp_user_timeout_ms: float
    proxy_url: str | None
    socks5_proxy: str | None
    send_buffer_bytes: int | None
    receive_buffer_bytes: int | None
    socket_options: Sequence[tuple[int, int, int]]
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauthbearer_method: str | None
    sasl_oauthbearer_grant_type: str | None
    sasl_oauthbearer_client_id: str | None
    sasl_oauthbearer_client_secret: str | None
    sasl_oauthbearer_scope: str | None
    sasl_oauthbearer_extensions: str | Mapping[str, str] | None
    sasl_oauthbearer_header_urlencode: bool
    sasl_oauthbearer_assertion_file: str | None
    sasl_oauthbearer_assertion_private_key_file: str | None
    sasl_oauthbearer_assertion_private_key_pem: str | None
    sasl_oauthbearer_assertion_private_key_passphrase: str | None
    sasl_oauthbearer_assertion_algorithm: str
    sasl_oauthbearer_assertion_template_file: str | None
    sasl_oauthbearer_assertion_claim_aud: str | None
    sasl_oauthbearer_assertion_claim_iss: str | None
    sasl_oauthbearer_assertion_claim_sub: str | None
    sasl_oauthbearer_assertion_claim_exp_seconds: int
    sasl_oauthbearer_assertion_claim_nbf_seconds: int
    sasl_oauthbearer_assertion_claim_jti_include: bool
    sasl_oauthbearer_metadata_authentication_type: str | None
    sasl_oauthbearer_config: str | None
    sasl_oauthbearer_ca_file: str | None
    sasl_oauthbearer_ca_pem: str | None
    sasl_login_connect_timeout_ms: int
    sasl_login_read_timeout_ms: int
    sasl_login_retry_backoff_ms: float
    sasl_login_retry_backoff_max_ms: float
    security_protocol: str
    ssl_context: ssl.SSLContext | None
    ssl_check_hostname: bool
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_password: str | None
    ssl_ca_pem: str | None
    ssl_certificate_pem: str | None
    ssl_key_pem: str | None
    ssl_crlfile: str | None
    ssl_enabled_protocols: str | Sequence[str] | None
    ssl_ciphers: str | None
    sasl_mechanism: str | None
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_kerberos_name: Any
    sasl_kerberos_service_name: str
    sasl_kerberos_domain_name: str | None
    sasl_kerberos_principal: str | None
    sasl_kerberos_keytab: str | None
    sasl_oauth_token_provider: Any
    sasl_jaas_config: str | None
    ssl_truststore_location: str | None
    ssl_truststore_type: str | None
    ssl_truststore_password: str | None
    ssl_keystore_location: str | None
    ssl_keystore_type: str | None
    ssl_keystore_password: str | None
    sasl_login_callback_handler_class: str | None
    kafka_client: Any
    selector: Any
    client_dns_lookup: str
    api_version: Any
    api_version_auto_timeout_ms: float
    sock_chunk_bytes: int
    sock_chunk_buffer_count: int
    bootstrap_topics_filter: Collection[str]
    bootstrap_timeout_ms: float
    metric_reporters: Sequence[Any]

"""librdkafka's producer settings, and how each is supported here.

Only facts: the allowed values, the corresponding setting of ours, or the reason why there is none.
``pykaproducer.confluent`` translates settings by this table, its documentation shows the table, and
errors about such names quote it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pykaproducer._config.schema import INT_MAX
from pykaproducer._util.compression import CODECS


class Unfit(ValueError):
    """The text is not a valid value; the message says why, in librdkafka's words."""


class Known(NamedTuple):
    """One of librdkafka's names."""

    name: str
    #: The allowed values, for the table.
    takes: str
    #: Parses the value's text; raises :class:`Unfit` if it is invalid.
    read: Callable[[str], Any]
    #: The name of our corresponding setting; "" if there is none.
    ours: str = ""
    #: librdkafka's default, if the drop-in keeps it and it differs from ours.
    default: Any = None
    #: Its effect in the drop-in, if the drop-in implements it without a setting of ours.
    here: str = ""
    #: Why it is accepted without effect.
    no_effect: str = ""
    #: Why any value except those in :attr:`harmless` is rejected.
    refused: str = ""
    #: Values, as texts, that are accepted because they ask for what is the case anyway.
    harmless: tuple[str, ...] = ()
    #: The name of which this one is an alias.
    alias_of: str = ""
    #: A short remark on differences.
    note: str = ""
    secret: bool = False

    @property
    def support(self) -> str:
        """How far it is supported, in the words of the table."""
        note = f"; {self.note}" if self.note else ""
        if self.alias_of:
            return f"as ``{self.alias_of}``"
        if self.ours:
            return f"``{self.ours}``{note}"
        if self.here:
            return f"{self.here}{note}"
        if self.no_effect:
            return f"no effect: {self.no_effect}"
        allowed = f" (except ``{self.harmless[0]}``)" if any(self.harmless) else ""
        return f"rejected{allowed}: {self.refused}"


def _number(text: str, least: float, most: float, kind: Callable[[str], Any] = int) -> Any:
    try:
        number = kind(text)
    except ValueError:
        raise Unfit("it is not a number") from None
    if not least <= number <= most:
        raise Unfit(f"value {text} is outside allowed range {least}..{most}")
    return number


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("true", "t", "1"):
        return True
    if lowered in ("false", "f", "0"):
        return False
    raise Unfit("expected true or false")


def _one_of(names: tuple[str, ...], text: str) -> str:
    if text.lower() not in names:
        raise Unfit(f"allowed values are {', '.join(names)}")
    return text.lower()


def _acks(text: str) -> int:
    return -1 if text == "all" else int(_number(text, -1, 1000))


def _whole(least: int, most: int = INT_MAX) -> dict[str, Any]:
    read = functools.partial(_number, least=least, most=most)
    return {"takes": f"{least} to {most}", "read": read}


def _choice(*names: str) -> dict[str, Any]:
    return {"takes": ", ".join(names), "read": functools.partial(_one_of, names)}


_FLAG: Final[dict[str, Any]] = {"takes": "true, false", "read": _flag}
_TEXT: Final[dict[str, Any]] = {"takes": "text", "read": str}
_SECRET: Final[dict[str, Any]] = {**_TEXT, "secret": True}
#: Not a text; the drop-in checks the value itself.
_CALL: Final[dict[str, Any]] = {"takes": "a callable", "read": str}
_CODECS: Final = ("none", *CODECS)


def _ours(name: str) -> str:
    return name.replace(".", "_")


_CONSUMER = "a consumer property; ignored with a warning, as in librdkafka"


_HONOURED = [
    Known("bootstrap.servers", **_TEXT, ours="bootstrap_servers"),
    Known("client.id", **_TEXT, ours="client_id", default="rdkafka"),
    Known("acks", "-1 (all), 0, 1", _acks, ours="acks", note="values above 1 are rejected"),
    Known(
        "enable.idempotence",
        **_FLAG,
        ours="enable_idempotence",
        default=False,
        note="true is recommended: without it, retries may write a message twice",
    ),
    Known("retries", **_whole(0), ours="retries", note="leader changes do not count"),
    Known(
        "message.timeout.ms",
        **_whole(0),
        ours="delivery_timeout_ms",
        default=300_000,
        note="0 means 24 days; with ``transactional.id`` at most ``transaction.timeout.ms``, and "
        "that by default",
    ),
    Known(
        "transactional.id",
        **_TEXT,
        ours="transactional_id",
        note="makes ``enable.idempotence`` true",
    ),
    Known("transaction.timeout.ms", **_whole(1000), ours="transaction_timeout_ms"),
    Known(
        "partitioner",
        **_choice(
            "random",
            "consistent",
            "consistent_random",
            "murmur2",
            "murmur2_random",
            "fnv1a",
            "fnv1a_random",
        ),
        ours="partitioner",
        default="consistent_random",
        note="a key keeps its partition",
    ),
    Known(
        "linger.ms",
        "0 to 900000",
        functools.partial(_number, least=0, most=900_000, kind=float),
        ours="linger_ms",
        default=5.0,
    ),
    Known("batch.size", **_whole(1), ours="batch_size"),
    Known("batch.num.messages", **_whole(1, 1_000_000), ours="batch_max_messages", default=10_000),
    Known("compression.type", **_choice(*_CODECS), ours="compression_type"),
    Known(
        "compression.level",
        **_whole(-1, 12),
        ours="compression_level",
        note="values above the codec's maximum mean its maximum",
    ),
    Known(
        "message.max.bytes",
        **_whole(1000, 1_000_000_000),
        ours="max_request_size",
        default=1_000_000,
    ),
    Known(
        "queue.buffering.max.kbytes",
        **_whole(1),
        ours="buffer_memory",
        default=1_048_576,
        note="times 1024; counts the memory actually held",
    ),
    Known(
        "max.in.flight.requests.per.connection",
        **_whole(1, 1_000_000),
        ours="max_in_flight_requests_per_connection",
        note="5 if not given; one batch per partition if idempotence is off, to preserve ordering",
    ),
    Known(
        "socket.timeout.ms",
        **_whole(10, 300_000),
        ours="request_timeout_ms",
        note="30000 if not given; at least 1000, as in librdkafka",
    ),
    Known("retry.backoff.ms", **_whole(1, 300_000), ours="retry_backoff_ms"),
    Known("retry.backoff.max.ms", **_whole(1, 300_000), ours="retry_backoff_max_ms"),
    Known(
        "connections.max.idle.ms",
        **_whole(0, INT_MAX),
        ours="connections_max_idle_ms",
        note="180000 if not given",
    ),
    Known(
        "socket.connection.setup.timeout.ms",
        **_whole(1000),
        ours="socket_connection_setup_timeout_ms",
        note="10000 if not given, and doubles with each failed attempt",
    ),
    Known("reconnect.backoff.ms", **_whole(0, 3_600_000), ours="reconnect_backoff_ms"),
    Known(
        "reconnect.backoff.max.ms",
        **_whole(0, 3_600_000),
        ours="reconnect_backoff_max_ms",
        note="1000 if not given, so that a broker is used again soon after it is back",
    ),
    Known(
        "topic.metadata.refresh.interval.ms",
        **_whole(-1, 3_600_000),
        ours="metadata_max_age_ms",
        note="-1 means 24 days",
    ),
    Known("receive.message.max.bytes", **_whole(1000), ours="receive_message_max_bytes"),
    Known("socket.send.buffer.bytes", **_whole(0, 100_000_000), ours="send_buffer_bytes"),
    Known("socket.receive.buffer.bytes", **_whole(0, 100_000_000), ours="receive_buffer_bytes"),
]

_SECURITY = [
    Known(
        "security.protocol",
        **_choice("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        ours="security_protocol",
    ),
    Known("ssl.ca.location", **_TEXT, ours="ssl_cafile"),
    Known("ssl.certificate.location", **_TEXT, ours="ssl_certfile"),
    Known("ssl.key.location", **_TEXT, ours="ssl_keyfile"),
    Known("ssl.key.password", **_SECRET, ours="ssl_password"),
    Known("ssl.ca.pem", **_TEXT, ours="ssl_ca_pem"),
    Known("ssl.certificate.pem", **_SECRET, ours="ssl_certificate_pem"),
    Known("ssl.key.pem", **_SECRET, ours="ssl_key_pem"),
    Known("ssl.keystore.location", **_TEXT, ours="ssl_keystore_location", note="also JKS"),
    Known("ssl.keystore.password", **_SECRET, ours="ssl_keystore_password"),
    Known("ssl.crl.location", **_TEXT, ours="ssl_crlfile"),
    Known("ssl.cipher.suites", **_TEXT, ours="ssl_ciphers"),
    Known(
        "ssl.endpoint.identification.algorithm",
        **_choice("none", "https"),
        ours="ssl_check_hostname",
        note="``none`` disables the host name check",
    ),
    Known("sasl.mechanism", **_TEXT, ours="sasl_mechanism"),
    Known("sasl.username", **_TEXT, ours="sasl_plain_username"),
    Known("sasl.password", **_SECRET, ours="sasl_plain_password"),
    Known("sasl.kerberos.service.name", **_TEXT, ours="sasl_kerberos_service_name"),
    Known("sasl.kerberos.principal", **_TEXT, ours="sasl_kerberos_principal"),
    Known("sasl.kerberos.keytab", **_TEXT, ours="sasl_kerberos_keytab"),
    Known(
        "oauth_cb",
        **_CALL,
        ours="sasl_oauth_token_provider",
        note="called when a token is needed, on the thread that needs it, not in poll()",
    ),
    Known(
        "sasl.oauthbearer.config",
        **_SECRET,
        here="passed to ``oauth_cb``; with ``azure_imds`` the parameters of the request",
    ),
    Known("sasl.oauthbearer.method", **_choice("default", "oidc"), ours="sasl_oauthbearer_method"),
    Known(
        "sasl.oauthbearer.grant.type",
        **_choice("client_credentials", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
        ours="sasl_oauthbearer_grant_type",
    ),
    Known(
        "sasl.oauthbearer.metadata.authentication.type",
        **_choice("none", "azure_imds"),
        ours="sasl_oauthbearer_metadata_authentication_type",
    ),
    Known("https.ca.location", **_TEXT, ours="sasl_oauthbearer_ca_file"),
    Known("https.ca.pem", **_TEXT, ours="sasl_oauthbearer_ca_pem"),
    Known(
        "sasl.oauthbearer.assertion.jwt.template.file",
        **_TEXT,
        ours="sasl_oauthbearer_assertion_template_file",
    ),
    *(
        Known(f"sasl.oauthbearer.{name}", **kind, ours=_ours(f"sasl.oauthbearer.{name}"))
        for kind, names in (
            (
                _TEXT,
                "client.id scope extensions token.endpoint.url assertion.algorithm assertion.file "
                "assertion.private.key.file assertion.claim.aud assertion.claim.iss "
                "assertion.claim.sub",
            ),
            (
                _SECRET,
                "client.secret assertion.private.key.passphrase assertion.private.key.pem",
            ),
            (_whole(1, 86_400), "assertion.claim.exp.seconds"),
            (_whole(0, 3_600), "assertion.claim.nbf.seconds"),
            (_FLAG, "assertion.claim.jti.include"),
        )
        for name in names.split()
    ),
]

_HERE = [
    Known(
        "queue.buffering.max.messages",
        **_whole(0),
        here="produce() raises BufferError at this number (default 100000, 0: no limit)",
        note="messages without a callback count until delivered or failed, not until poll()",
    ),
    Known("delivery.report.only.error", **_FLAG, here="on_delivery is called for failures only"),
    Known("statistics.interval.ms", **_whole(0, 86_400_000), here="how often stats_cb is called"),
    Known("error_cb", **_CALL, here="called in poll() and flush() when a broker is unreachable"),
    Known("stats_cb", **_CALL, here="called in poll() and flush()", note="see below"),
    Known("throttle_cb", **_CALL, here="called in poll() and flush() when brokers throttle"),
    Known("on_delivery", **_CALL, here="for messages without their own callback"),
    Known("logger", "a logging.Logger", str, here="logs what is passed to error_cb"),
    Known("default.topic.config", "a dict", str, here="merged into the other settings"),
]

#: Reason -> names that accept any value.
_NO_EFFECT: Final = {
    "request versions are negotiated with each broker": "api.version.request "
    "api.version.request.timeout.ms api.version.fallback.ms broker.version.fallback",
    "messages are logged with logging, to loggers below ``pykaproducer``": "log_level log.queue "
    "log.thread.name log.connection.close",
    "use Python's logging at level DEBUG; ``logger`` also receives the start-up line": "debug",
    "connections never block in a socket": "socket.blocking.max.ms",
    "all addresses of a host name are tried": "broker.address.family client.dns.lookup "
    "broker.address.ttl",
    "keep-alive is always on": "socket.keepalive.enable",
    "one unanswered request closes a connection, which is then reopened": "socket.max.fails",
    "known brokers are tried first, then bootstrap.servers, repeatedly": ""
    "metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms",
    "metadata is requested only for topics in use, with retry.backoff.ms in between": ""
    "metadata.max.age.ms topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.fast.cnt "
    "topic.metadata.refresh.sparse",
    "messages for a topic that does not exist wait for it until message.timeout.ms": ""
    "topic.metadata.propagation.max.ms",
    "as in librdkafka, sending to a topic may create it if the brokers allow it": ""
    "allow.auto.create.topics",
    "another partition is chosen after batch.size bytes": "sticky.partitioning.linger.ms",
    "a request times out after socket.timeout.ms or with its messages": "request.timeout.ms",
    "there is no choice here": "message.copy.max.bytes queue.buffering.backpressure.threshold "
    "enable.random.seed internal.termination.signal produce.offset.report builtin.features "
    "client.rack enabled_events opaque reconnect.backoff.jitter.ms",
    "metrics are not pushed to the brokers": "enable.metrics.push",
    "the Kerberos library requests tickets with the keytab, and renews them": ""
    "sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin",
    "the brokers choose the claim (their own ``sasl.oauthbearer.sub.claim.name``)": ""
    "sasl.oauthbearer.sub.claim.name",
}

#: Reason -> names.
_REFUSED: Final = {
    "batches after a failed one are still sent": "enable.gapless.guarantee",
    "messages are sent in order": "queuing.strategy",
    "TCP_NODELAY is always set": "socket.nagle.disable",
    "brokers are always verified; to change that, give our own Producer an ``ssl_context``": ""
    "enable.ssl.certificate.verification",
    "give our own Producer an ``ssl_context``": "ssl.curves.list ssl.sigalgs.list ssl.providers "
    "ssl.engine.location ssl.engine.id ssl.ca.certificate.stores",
    "unsigned tokens are not supported": "enable.sasl.oauthbearer.unsecure.jwt",
    "topics cannot be hidden": "topic.blacklist",
    "plugins are libraries for librdkafka": "plugin.library.paths",
    "use the test clusters of ``pykaproducer.testing``": "test.mock.num.brokers",
    "it belongs to librdkafka's C interface": "log_cb dr_cb dr_msg_cb background_event_cb "
    "socket_cb connect_cb closesocket_cb open_cb resolve_cb default_topic_conf interceptors "
    "oauthbearer_token_refresh_cb partitioner_cb msg_order_cmp ssl_key ssl_certificate ssl_ca "
    "ssl_engine_callback_data ssl.certificate.verify_cb",
}

#: Accepted values of unsupported settings: they ask for what is the case anyway.
_HARMLESS: Final = {
    "topic.blacklist": ("",),
    "enable.gapless.guarantee": ("false", "f", "0"),
    "queuing.strategy": ("fifo",),
    "socket.nagle.disable": ("true", "t", "1"),
    "enable.ssl.certificate.verification": ("true", "t", "1"),
    "enable.sasl.oauthbearer.unsecure.jwt": ("false", "f", "0"),
    "test.mock.num.brokers": ("0",),
}

#: Parts of names whose values must not be shown.
_SECRETS: Final = ("password", "secret", "passphrase", ".pem")

_ALIASES: Final = {
    "metadata.broker.list": "bootstrap.servers",
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "delivery.timeout.ms": "message.timeout.ms",
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}

_OF_CONSUMERS: Final = (
    "group.id group.instance.id partition.assignment.strategy session.timeout.ms "
    "heartbeat.interval.ms group.protocol.type group.protocol group.remote.assignor "
    "coordinator.query.interval.ms max.poll.interval.ms enable.auto.commit "
    "auto.commit.interval.ms enable.auto.offset.store queued.min.messages "
    "queued.max.messages.kbytes fetch.wait.max.ms fetch.queue.backoff.ms fetch.message.max.bytes "
    "max.partition.fetch.bytes fetch.max.bytes fetch.min.bytes fetch.error.backoff.ms "
    "offset.store.method isolation.level enable.partition.eof check.crcs max.poll.records "
    "share.acknowledgement.mode auto.commit.enable auto.offset.reset offset.store.path "
    "offset.store.sync.interval.ms consume.callback.max.messages consume_cb rebalance_cb "
    "offset_commit_cb"
)


def _all() -> dict[str, Known]:
    rows = [*_HONOURED, *_SECURITY, *_HERE]
    for reason, names in {**_NO_EFFECT, _CONSUMER: _OF_CONSUMERS}.items():
        rows += [Known(name, "anything", str, no_effect=reason) for name in names.split()]
    for reason, names in _REFUSED.items():
        rows += [
            Known(
                name,
                "",
                str,
                refused=reason,
                harmless=_HARMLESS.get(name, ()),
                secret=any(part in name for part in _SECRETS),
            )
            for name in names.split()
        ]
    found = {row.name: row for row in rows}
    for alias, name in _ALIASES.items():
        found[alias] = found[name]._replace(name=alias, alias_of=name)
    return found


#: Every name, including those of consumers.
LIBRDKAFKA: Final = _all()


def is_of_consumers(row: Known) -> bool:
    """Return whether it is a consumer property, which producers ignore."""
    return row.no_effect == _CONSUMER

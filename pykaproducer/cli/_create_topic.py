"""Creating a topic, with kafka-python's client for administration."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pykaproducer._errors.formatting import format_error_code
from pykaproducer.cli._readback import access_of
from pykaproducer.cli.common import CommandError, servers_text
from pykaproducer.config import Config

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # raised by kafka-python at import
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

# Error codes of CreateTopics.
_ALREADY_EXISTS: Final = 36
#: Advice on the errors that a user can correct; the broker's own text precedes it.
_ADVICE: Final = {
    _ALREADY_EXISTS: "choose another name, or use --if-not-exists",
    17: "the cluster does not allow this name",
    29: "grant this client Create on the topic or on the cluster",
    37: "set --partitions to at least 1",
    38: "lower --replication-factor; a topic needs one broker for each replica",
    40: "correct --topic-config",
    44: "a policy of the cluster forbids it; ask its administrator",
}


@dataclass(frozen=True)
class NewTopic:
    """A topic to create. None: the broker's default."""

    name: str
    partitions: int | None
    replication_factor: int | None
    config: Mapping[str, str]

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of kafka-python; -1 is the protocol's default."""
        return {
            "num_partitions": -1 if self.partitions is None else self.partitions,
            "replication_factor": (
                -1 if self.replication_factor is None else self.replication_factor
            ),
            "configs": dict(self.config),
        }


def create_topic(config: Config, topic: NewTopic, timeout: float) -> bool:
    """Create *topic*. Return False if it exists already.

    Raises:
        CommandError: the cluster rejects it, or does not answer; the text says what to do.
    """
    servers = servers_text(config.bootstrap_servers).split(",")
    milliseconds = int(timeout * 1000)
    try:
        client = KafkaAdminClient(
            bootstrap_servers=servers,
            bootstrap_timeout_ms=milliseconds,
            **access_of(config, KafkaAdminClient.DEFAULT_CONFIG),
        )
        try:
            answer = client.create_topics(
                {topic.name: topic.options}, timeout_ms=milliseconds, raise_errors=False
            )
        finally:
            client.close()
    except (KafkaError, RuntimeError) as error:  # RuntimeError: there is no controller
        raise CommandError(f"topic {topic.name!r} was not created: {error}") from None
    (result,) = answer["topics"]
    code = result["error_code"]
    if code == _ALREADY_EXISTS:
        return False
    if code:
        raise rejected(topic.name, code, result.get("error_message"))
    return True


def rejected(name: str, code: int, message: str | None = None) -> CommandError:
    """Return the error for the code with which a cluster rejected a topic."""
    why = format_error_code(code)
    if message:
        why = f"{message.rstrip('.')} ({why})"
    advice = f"; {_ADVICE[code]}" if code in _ADVICE else ""
    return CommandError(f"topic {name!r} was not created: {why}{advice}")


def already_exists(name: str) -> CommandError:
    """Return the error for a topic that exists already."""
    return rejected(name, _ALREADY_EXISTS, "it exists already")

"""Creating a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pykaproducer._errors.formatting import format_error_code
from pykaproducer._net import inspect
from pykaproducer.cli.common import CommandError
from pykaproducer.config import Config
from pykaproducer.errors import MetadataTimeoutError

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


def create_topic(config: Config, topic: NewTopic, timeout: float) -> bool:
    """Create *topic*. Return False if it exists already.

    Raises:
        CommandError: the cluster rejects it, or does not answer; the text says what to do.
    """
    try:
        code, message = inspect.create_topic(
            config,
            timeout,
            topic.name,
            partitions=-1 if topic.partitions is None else topic.partitions,
            replication_factor=-1 if topic.replication_factor is None else topic.replication_factor,
            topic_config=topic.config,
        )
    except MetadataTimeoutError as error:
        raise CommandError(f"the topic was not created: {error}") from None
    if code == _ALREADY_EXISTS:
        return False
    if code:
        raise rejected(topic.name, code, message)
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

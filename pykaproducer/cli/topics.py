"""``pykaproducer topics``: list the topics of a cluster, describe them, and create one."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pykaproducer._errors.formatting import check_topic, format_error_code, name_shown
from pykaproducer._net.inspect import list_cluster
from pykaproducer._util.group_offsets import text_of
from pykaproducer._wire.describe import ClusterDescription, PartitionDescription, TopicDescription
from pykaproducer.cli import _signals
from pykaproducer.cli._readback import LogReader
from pykaproducer.cli.common import (
    CommandError,
    UserError,
    add_servers,
    add_settings,
    log_shown,
    notify,
    number_from,
    parser_like,
    refuse_odd_topic,
    servers_text,
    settings_from,
)
from pykaproducer.config import Config
from pykaproducer.errors import MetadataTimeoutError

#: Timeout for a cluster's answer, unless max_block_ms is set (milliseconds).
_PATIENCE_MS = 10_000.0
#: Interval between checks for the leaders of a new topic (seconds).
_LOOK = 0.05

#: Meanings of the error codes of a topic.
_MEANING = {
    3: "the cluster has no such topic",
    17: "the cluster does not allow this name",
    29: "this client may not see the topic (or it does not exist); grant it Describe",
}

#: (first, next) offset of each partition, by topic.
Offsets = Mapping[str, Mapping[int, tuple[int, int]]]

_LIST_EXAMPLES = """\
examples:
  pykaproducer topics list              of localhost:9092, one name per line
  pykaproducer topics list --bootstrap-servers kafka-1:9092 --internal
  pykaproducer topics list --config client.properties --json

exit status:
  0  success
  1  no broker answered within max_block_ms (here 10 s by default)
  2  invalid command line
"""

_DESCRIBE_EXAMPLES = """\
examples:
  pykaproducer topics describe          all topics of localhost:9092
  pykaproducer topics describe orders payments --offsets
  pykaproducer topics describe orders --config client.properties --json

exit status:
  0  success
  1  no broker answered, a named topic does not exist, or a partition has no
     leader
  2  invalid command line
"""

_CREATE_EXAMPLES = """\
examples:
  pykaproducer topics create events --partitions 6
  pykaproducer topics create orders --partitions 12 --replication-factor 3 \\
      --topic-config cleanup.policy=compact
  pykaproducer topics create orders --if-not-exists --config client.properties

exit status:
  0  the topic was created (or exists already, with --if-not-exists)
  1  no broker answered, the topic exists already, or the cluster rejects it
  2  invalid command line
"""


def add_parser(commands: Any) -> None:
    """Add ``topics list``, ``topics describe`` and ``topics create``."""
    parser = commands.add_parser(
        "topics",
        help="show or create topics of a cluster",
        description="Show or create topics, using the producer's connection settings.",
        epilog='"pykaproducer topics ACTION --help" shows examples.\n',
        **parser_like,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list",
        help="list topic names",
        description="Print the name of each topic, one per line.",
        epilog=_LIST_EXAMPLES,
        **parser_like,
    )
    _add_common(listing)
    listing.set_defaults(run=run_list)
    describe = actions.add_parser(
        "describe",
        help="show partitions: leaders, replicas, offsets",
        description="Print the leader, the replicas and the in-sync replicas of each partition.",
        epilog=_DESCRIBE_EXAMPLES,
        **parser_like,
    )
    describe.add_argument("topics", nargs="*", metavar="TOPIC", help="topics (default: all)")
    describe.add_argument(
        "--offsets", action="store_true", help="also show the first and the next offset"
    )
    _add_common(describe)
    describe.set_defaults(run=run_describe)
    _add_create(actions)


def _add_create(actions: Any) -> None:
    create = actions.add_parser(
        "create",
        help="create a topic",
        description="Create a topic, and wait until each partition has a leader.",
        epilog=_CREATE_EXAMPLES,
        **parser_like,
    )
    create.add_argument("topic", metavar="TOPIC", help="name of the topic")
    create.add_argument(
        "--partitions",
        type=number_from(1),
        metavar="N",
        help="number of partitions (default: the brokers' num.partitions)",
    )
    create.add_argument(
        "--replication-factor",
        type=number_from(1, 2**15 - 1),
        metavar="R",
        help="replicas of each partition (default: the brokers' default.replication.factor; "
        "before Kafka 2.4: 3, or the number of brokers)",
    )
    create.add_argument(
        "--topic-config",
        dest="configs",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a configuration of the topic, as retention.ms=86400000; may be repeated",
    )
    create.add_argument(
        "--if-not-exists", action="store_true", help="succeed if the topic exists already"
    )
    add_servers(create)
    add_settings(create)
    create.set_defaults(run=run_create)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_servers(parser)
    parser.add_argument(
        "--internal", action="store_true", help="include internal topics (__consumer_offsets)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    add_settings(parser)


def run_list(options: argparse.Namespace) -> int:
    """Print the topic names."""
    cluster = _Cluster(settings_from(options, sends=False))
    found = _shown(cluster.ask().topics, options.internal)
    if options.json:
        print(json.dumps([_brief(topic) for topic in found], indent=2))
    else:
        for topic in found:
            print(name_shown(topic.name))
    return 0


def run_describe(options: argparse.Namespace) -> int:
    """Print the partitions of the topics."""
    for name in options.topics:
        try:
            check_topic(name)
        except ValueError as error:
            raise UserError(str(error)) from None
    cluster = _Cluster(settings_from(options, sends=False))
    answer, found = cluster.topics(dict.fromkeys(options.topics), options.internal)
    there = [topic for topic in found if not topic.error_code]
    offsets = cluster.offsets(there) if options.offsets else {}
    if options.json:
        print(json.dumps([_figures(topic, answer, offsets) for topic in there], indent=2))
    else:
        print("\n\n".join("\n".join(_lines(topic, answer, offsets)) for topic in there))
    for topic in found:
        if topic.error_code:
            notify(f"topic {topic.name!r}: {_problem(topic.error_code)}")
    leaderless = any(part.leader_id < 0 for topic in there for part in topic.partitions)
    return 1 if leaderless or len(there) < len(found) else 0


def run_create(options: argparse.Namespace) -> int:
    """Create a topic."""
    from pykaproducer.cli._create_topic import NewTopic, already_exists, create_topic

    refuse_odd_topic("topics create", options.topic)
    configs = dict(_config_of(text) for text in options.configs)
    topic = NewTopic(options.topic, options.partitions, options.replication_factor, configs)
    cluster = _Cluster(settings_from(options, sends=False))
    # Fails with the reason if no broker can be reached. kafka-python reports only a timeout.
    cluster.ask(topic.name)
    with _signals.raised():
        created = create_topic(cluster.config, topic, cluster.patience)
    if created:
        partitions = cluster.wait_for_leaders(topic.name)
        print(f"created {_title(partitions)}")
        return 0
    if options.if_not_exists:
        there = _title(cluster.wait_for_leaders(topic.name))
        notify(f"topic {topic.name!r} exists already; nothing was changed ({there})")
        return 0
    raise already_exists(topic.name)


def _config_of(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"--topic-config {text}: expected name=value")
    try:
        return text_of(name, "a name"), text_of(value, name)
    except ValueError as error:
        raise UserError(f"--topic-config: {error}") from None


class _Cluster:
    """The cluster that the settings name, queried on demand."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.config = Config(**settings)
        #: Timeout for an answer (seconds).
        self.patience = settings.get("max_block_ms", _PATIENCE_MS) / 1000

    def ask(self, topic: str | None = None) -> ClusterDescription:
        """Describe the cluster, with all topics or only *topic*."""
        try:
            with _signals.raised(), log_shown():
                return list_cluster(self.config, self.patience, topic)
        except MetadataTimeoutError as error:
            servers = servers_text(self.config.bootstrap_servers)
            raise CommandError(f"{error} (bootstrap servers: {servers})") from None

    def topics(
        self, names: Sequence[str] | Mapping[str, None], internal: bool
    ) -> tuple[ClusterDescription, list[TopicDescription]]:
        """Describe the topics with these names, or all."""
        if not names:
            answer = self.ask()
            return answer, _shown(answer.topics, internal)
        found: list[TopicDescription] = []
        for name in names:
            answer = self.ask(name)
            found += answer.topics
        return answer, found

    def wait_for_leaders(self, name: str) -> TopicDescription:
        """Wait until the cluster knows a new topic, and every partition has a leader."""
        pause, deadline = threading.Event(), time.monotonic() + self.patience
        while True:
            (topic,) = self.ask(name).topics
            led = topic.partitions and all(part.leader_id >= 0 for part in topic.partitions)
            if led and not topic.error_code:
                return topic
            if time.monotonic() > deadline:
                raise CommandError(
                    f"topic {name!r} was created, but not every partition has a leader after "
                    f"{self.patience:g} s; see pykaproducer topics describe {name}"
                )
            pause.wait(_LOOK)

    def offsets(self, topics: Sequence[TopicDescription]) -> Offsets:
        """Return the first and the next offset of each partition."""
        with LogReader(self.config) as reader:
            return {
                topic.name: reader.ends(topic.name, [part.index for part in topic.partitions])
                for topic in topics
            }


def _shown(topics: Sequence[TopicDescription], internal: bool) -> list[TopicDescription]:
    found = [topic for topic in topics if internal or not topic.is_internal]
    return sorted(found, key=lambda topic: topic.name)


def _replicas(topic: TopicDescription) -> int:
    return max((len(part.replicas) for part in topic.partitions), default=0)


def _brief(topic: TopicDescription) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "internal": topic.is_internal,
        "partitions": len(topic.partitions),
        "replicas": _replicas(topic),
    }


def _problem(code: int) -> str:
    """Return what an error code of a topic means, and the code."""
    text = _MEANING.get(code)
    return f"{text}: {format_error_code(code)}" if text else format_error_code(code)


def _figures(
    topic: TopicDescription, cluster: ClusterDescription, offsets: Offsets
) -> dict[str, Any]:
    addresses = _addresses(cluster)
    partitions = []
    for part in topic.partitions:
        figures = {
            "partition": part.index,
            "leader": None if part.leader_id < 0 else part.leader_id,
            "leader_address": addresses.get(part.leader_id),
            "replicas": list(part.replicas),
            "in_sync": list(part.in_sync),
            "offline": list(part.offline),
            "error": format_error_code(part.error_code) if part.error_code else None,
        }
        if topic.name in offsets:
            figures["first_offset"], figures["next_offset"] = offsets[topic.name][part.index]
        partitions.append(figures)
    return {"topic": topic.name, "internal": topic.is_internal, "partitions": partitions}


def _addresses(cluster: ClusterDescription) -> dict[int, str]:
    return {
        broker.node_id: servers_text([(broker.host, broker.port)]) for broker in cluster.brokers
    }


def _lines(topic: TopicDescription, cluster: ClusterDescription, offsets: Offsets) -> Iterator[str]:
    """Format a topic as a table."""
    yield _title(topic)
    addresses = _addresses(cluster)
    rows: list[tuple[str, ...]] = [("partition", "leader", "replicas", "in sync")]
    rows += [
        (str(part.index), _leader(part, addresses), _ids(part.replicas), _ids(part.in_sync))
        for part in topic.partitions
    ]
    if topic.name in offsets:
        ends = offsets[topic.name]
        more = [("first offset", "next offset")]
        more += [(f"{ends[p.index][0]:,}", f"{ends[p.index][1]:,}") for p in topic.partitions]
        rows = [(*row, *ends) for row, ends in zip(rows, more, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"    {'  '.join(cells)}".rstrip()


def _title(topic: TopicDescription) -> str:
    partitions, replicas = len(topic.partitions), _replicas(topic)
    return (
        f"{name_shown(topic.name)}: {partitions} partition{'s' * (partitions != 1)}, "
        f"{replicas} replica{'s' * (replicas != 1)}"
    )


def _leader(part: PartitionDescription, addresses: Mapping[int, str]) -> str:
    if part.leader_id < 0:
        return "none" + (f": {format_error_code(part.error_code)}" if part.error_code else "")
    return f"{part.leader_id} {addresses.get(part.leader_id, '')}".strip()


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers)) or "none"

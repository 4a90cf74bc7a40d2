"""Brokers, each behind a proxy, and one topic on all of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError
from kafka.protocol.admin import AlterClientQuotasRequest, IncrementalAlterConfigsRequest
from kafka.protocol.metadata import MetadataRequest

from pykaproducer.testing import FaultProxy, KafkaCluster, _admin

_log = logging.getLogger("chaos")

BROKERS = 3
TOPIC = "chaos"

#: How long the brokers may take to apply a change (seconds).
PATIENCE = 60.0
#: Kafka's codes for a topic resource, and for setting and deleting one of its settings.
_TOPIC_RESOURCE, _SET, _DELETE = 2, 0, 1
_TICK = 0.02


class Stage:
    """The cluster, the proxies and the topic to which the faults are applied."""

    def __init__(
        self, cluster: KafkaCluster, proxies: list[FaultProxy], topic: str, partitions: int
    ) -> None:
        self.cluster = cluster
        self.proxies = proxies
        self.topic = topic
        self.partitions = partitions
        #: The number of brokers, each of which has a replica of every partition.
        self.size = len(proxies)

    def leaders(self) -> dict[int, int]:
        """Return the leader of each partition."""
        return {entry.partition_index: entry.leader_id for entry in self.view()}

    def wait_until_in_sync(self) -> bool:
        """Wait until every replica of every partition is in sync; return false on timeout."""
        return wait_for(self._in_sync, PATIENCE)

    def _in_sync(self) -> bool:
        entries = self.view()
        return len(entries) == self.partitions and all(
            entry.leader_id >= 0 and len(entry.isr_nodes) == self.size for entry in entries
        )

    def view(self) -> list[Any]:
        """Return the partitions in the metadata of the first broker that answers."""
        request = MetadataRequest(
            version=8,
            topics=[MetadataRequest.MetadataRequestTopic(name=self.topic)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        for broker in self.cluster.brokers:
            if broker.running:
                try:
                    (topic,) = _admin.ask(broker.port, request, _admin.REQUEST_TIMEOUT).topics
                except OSError:
                    continue
                return list(topic.partitions)
        return []

    def spread_leaders(self) -> None:
        """Let every broker lead something again: a restarted one leads nothing by itself."""

        def spread() -> bool:
            if len(set(self.leaders().values())) == self.size:
                return True
            everything = {self.topic: list(range(self.partitions))}
            with self._admin_client() as admin:
                admin.elect_leaders(0, everything, raise_errors=False)
            return False

        wait_for(spread, PATIENCE / 4)

    @contextmanager
    def _admin_client(self) -> Iterator[KafkaAdminClient]:
        """Yield an admin client; log errors, as a restarted broker may not be known everywhere."""
        try:
            admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap_servers)
            try:
                yield admin
            finally:
                admin.close()
        except KafkaError as error:
            _log.info("no election: %s", error)

    def elect(self, step: int) -> bool:
        """Have each partition led by the broker *step* further; return false if none has moved.

        Every broker has a replica: only the order of preference changes, nothing is copied.
        """
        before = self.leaders()
        wanted = {partition: (leader + step) % self.size for partition, leader in before.items()}
        orders = {
            TopicPartition(self.topic, partition): [
                (leader + i) % self.size for i in range(self.size)
            ]
            for partition, leader in wanted.items()
        }
        with self._admin_client() as admin:
            admin.alter_partition_reassignments(orders)

            def elected() -> bool:
                admin.elect_leaders(0, {self.topic: list(wanted)}, raise_errors=False)
                return self.leaders() == wanted

            wait_for(elected, PATIENCE / 4)
        return self.leaders() != before

    def quota(self, value: float | None, key: str = "producer_byte_rate") -> None:
        """Limit a quantity of each client, default: the bytes/s that it may write to a broker.

        None removes the limit.
        """
        entry = AlterClientQuotasRequest.EntryData(
            entity=[
                AlterClientQuotasRequest.EntryData.EntityData(
                    entity_type="client-id", entity_name=None
                )
            ],
            ops=[
                AlterClientQuotasRequest.EntryData.OpData(
                    key=key, value=value or 0.0, remove=value is None
                )
            ],
        )
        self._ask(AlterClientQuotasRequest(version=1, entries=[entry], validate_only=False))

    def largest_batch(self, nbytes: int | None) -> None:
        """Set the topic's ``max.message.bytes``; None resets it."""
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        setting = resource.AlterableConfig(
            name="max.message.bytes",
            config_operation=_DELETE if nbytes is None else _SET,
            value=None if nbytes is None else str(nbytes),
        )
        change = resource(
            resource_type=_TOPIC_RESOURCE, resource_name=self.topic, configs=[setting]
        )
        self._ask(
            IncrementalAlterConfigsRequest(version=1, resources=[change], validate_only=False)
        )

    def _ask(self, request: Any) -> None:
        """Send *request* to the first broker that answers."""
        for broker in self.cluster.brokers:
            if broker.running:
                try:
                    _admin.ask(broker.port, request, _admin.REQUEST_TIMEOUT)
                except OSError as error:
                    _log.info("broker %d: %s", broker.id, error)
                else:
                    return


@contextmanager
def raised(
    topic: str,
    partitions: int,
    *,
    brokers: int = BROKERS,
    proxy: Callable[[], FaultProxy] = FaultProxy,
    properties: Mapping[str, str] | None = None,
    features: Mapping[str, int] | None = None,
    log_dir: Path | None = None,
) -> Iterator[Stage]:
    with ExitStack() as stack:
        proxies = [stack.enter_context(proxy()) for _ in range(brokers)]
        cluster = stack.enter_context(
            KafkaCluster(
                brokers,
                proxies=proxies,
                disks=2,
                properties=properties,
                features=features,
                log_dir=log_dir,
                fast_start=True,
            )
        )
        cluster.create_topic(
            topic, partitions, config={"min.insync.replicas": str(min(2, brokers))}
        )
        yield Stage(cluster, proxies, topic, partitions)


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Poll until *condition* holds; return false if it never did."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_TICK)
    return True

"""The test cluster's messages over a transport: a client that is independent of ours."""

from __future__ import annotations

import selectors
from collections.abc import Sequence
from typing import Any

from pykaproducer._net.transport import ConnectionFailed, Network
from pykaproducer.testing._messages import InitProducerIdRequest, ProduceRequest


class Closed(Exception):
    """The broker has closed the connection."""


class RawClient:
    """A client that sends one request at a time and waits for its answer."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        (endpoint,) = network.resolve(host, port)
        self.transport = network.connect(endpoint)
        self._selector = selectors.DefaultSelector()
        self._received = b""
        self.client_id = "raw"
        while wanted := self.transport.finish_connect():
            self._wait(wanted)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()
        self._selector.close()

    def send(self, request: Any, correlation_id: int = 1) -> None:
        request.with_header(correlation_id=correlation_id, client_id=self.client_id)
        data = memoryview(bytes(request.encode(header=True, framed=True)))
        while data:
            data = data[self.transport.send([data]) :]

    def ask(self, request: Any, correlation_id: int = 1) -> Any:
        """Return the answer, as an object."""
        self.send(request, correlation_id)
        return self.answer(request, correlation_id)

    def answer(self, request: Any, correlation_id: int = 1) -> Any:
        """Wait for the answer to a *request* that has been sent."""
        length = int.from_bytes(self.read(4), "big", signed=True)
        kind = request.header.get_response_class()
        answer = kind.decode(self.read(length), header=True)
        assert answer.header.correlation_id == correlation_id
        return answer

    def read(self, count: int) -> bytes:
        """Return *count* bytes; raise :class:`Closed` at the end of the stream."""
        buffer = memoryview(bytearray(65536))
        while len(self._received) < count:
            self._wait(selectors.EVENT_READ)
            try:
                size = self.transport.receive(buffer)
            except ConnectionFailed as error:
                raise Closed from error
            self._received += bytes(buffer[:size])
        data, self._received = self._received[:count], self._received[count:]
        return data

    def _wait(self, events: int) -> None:
        self._selector.register(self.transport, events)
        self._selector.select()
        self._selector.unregister(self.transport)

    # Common requests -----------------------------------------------------------------------

    def produce(
        self, *batches: tuple[str, int, bytes], acks: int = -1, version: int = 12
    ) -> list[tuple[int, int]]:
        """Return (error code, base offset) of each batch, in order."""
        answer = self.ask(produce_request(batches, acks, version))
        found = {
            (topic.name, partition.index): (partition.error_code, partition.base_offset)
            for topic in answer.responses
            for partition in topic.partition_responses
        }
        return [found[topic, partition] for topic, partition, _ in batches]

    def producer_id(self) -> int:
        request = InitProducerIdRequest(
            version=4, transactional_id=None, transaction_timeout_ms=60_000
        )
        answer = self.ask(request)
        assert answer.error_code == 0, answer.error_code
        producer_id: int = answer.producer_id
        return producer_id


def produce_request(
    batches: Sequence[tuple[str, int, bytes]],
    acks: int = -1,
    version: int = 12,
    transactional_id: str | None = None,
    timeout_ms: int = 30_000,
) -> Any:
    topics: dict[str, list[Any]] = {}
    for topic, partition, records in batches:
        topics.setdefault(topic, []).append(
            ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=records)
        )
    return ProduceRequest(
        version=version,
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            ProduceRequest.TopicProduceData(name=name, partition_data=partitions)
            for name, partitions in topics.items()
        ],
    )

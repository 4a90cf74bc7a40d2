"""Detection of brokers that have stopped responding. One watch per BrokerWorker.

A broker may stop responding although it no longer leads the partitions:

1. A leader appends a batch, and waits for its replicas.
2. Its disk fails, and another broker is elected.
3. The first broker does not answer until the request times out, after half a minute. Until then
   the later requests on the connection are not answered either.

So after some seconds of silence the leaders are looked up. If a partition of a request in flight
has another leader, the connection is closed. Partitions without a batch in flight may wait for that
response too. They are looked up as well, and the BrokerWorker releases those that have another
leader.
"""

from __future__ import annotations

from collections.abc import Callable

from pykaproducer._kernel import ProduceRequest
from pykaproducer._pipeline.metadata import Metadata

#: How long a broker may be silent (seconds); longer on a slow connection.
_SILENCE = 3.0
#: Time between two lookups of the leaders while a broker is silent (seconds).
_LOOK_AGAIN = 2.0


class SilenceWatch:
    """Watches the requests in flight to one broker. Used by its BrokerWorker only."""

    def __init__(
        self,
        broker_id: int,
        metadata: Metadata,
        patience: Callable[[float], float],
        waiting_topics: Callable[[], set[str]],
        give_up: Callable[[str], None],
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._patience = patience
        self._waiting_topics = waiting_topics
        self._give_up = give_up
        self._under_way: dict[ProduceRequest, None] = {}
        self._heard_at = 0.0
        #: When to call :meth:`check` (monotonic seconds); None: no request is in flight.
        self.due: float | None = None

    def sent(self, request: ProduceRequest) -> None:
        """Record that *request* has been given to the bridge."""
        self._under_way[request] = None
        if self.due is None:
            # Not postponed by each request, which would wake the BrokerWorker's thread every time.
            self.due = request.sent + _SILENCE

    def reported(self, request: ProduceRequest) -> None:
        """Record that *request* is no longer in flight."""
        self._under_way.pop(request, None)

    def heard(self, now: float) -> None:
        """Record that the broker has answered."""
        self._heard_at = now

    def check(self, now: float) -> None:
        """Check for silence. Called when :attr:`due` is reached."""
        oldest = next(iter(self._under_way), None)
        if oldest is None:
            self.due = None
            return
        silent_since = max(oldest.sent, self._heard_at)
        patience = self._patience(_SILENCE)
        if now < silent_since + patience:
            self.due = silent_since + patience
            return
        places = {
            (batch.topic, batch.partition)
            for request in self._under_way
            for batch in request.batches
        }
        leaders = {self._metadata.view.leader(*place) for place in places}
        if leaders <= {self._broker_id, None}:
            topics = {topic for topic, _ in places} | self._waiting_topics()
            self._metadata.want_topics(*topics, anew=True)
            self.due = now + _LOOK_AGAIN
            return
        self._give_up(
            f"no response for {now - silent_since:.3g} s, and partitions now have another leader"
        )
        self.due = now + patience

"""The program under test: it sends an event for each sign-up, and counts what was lost."""

from __future__ import annotations

import json

from pykaproducer import BufferFullError, Delivery, DeliveryError, Producer, Status


class SignUps:
    """Reports sign-ups to Kafka. A sign-up succeeds even if its event cannot be sent."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        #: Number of events that are certainly not in Kafka.
        self.lost = 0
        #: Users whose event may or may not be in Kafka.
        self.unknown: list[str] = []

    def sign_up(self, user: str, country: str) -> None:
        """Send the event; its key is the user, so that a user's events stay in order."""
        event = json.dumps({"user": user, "country": country}).encode()
        headers = [("type", b"signed-up")]
        try:
            self._producer.send("users", event, user.encode(), headers, on_delivery=self._report)
        except BufferFullError:
            self.lost += 1

    def _report(self, error: DeliveryError | None, delivery: Delivery) -> None:
        if error is None:
            return
        if error.status is Status.NOT_PERSISTED:
            self.lost += 1
        else:
            assert delivery.key is not None
            self.unknown.append(delivery.key.decode())

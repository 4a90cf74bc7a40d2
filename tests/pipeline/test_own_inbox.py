"""A stage with a socket, to whose inbox its own thread puts something in the middle of a turn."""

from __future__ import annotations

import contextlib
import socket
import threading

from pykaproducer._clock import Clock
from pykaproducer._net.transport import ConnectionFailed, Endpoint, Network
from pykaproducer._pipeline.connected import Connected
from pykaproducer._pipeline.meter import Meter
from pykaproducer.config import Config
from tests.pipeline.helper import SOON


class _Asks(Network):
    """Somebody else's code, which the connection calls: a token provider, a handler of logs."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(Config())
        self.listener = listener
        self.asked = 0

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        self.asked += 1
        if self.asked == 1:  # whoever has put the first item may wake the stage still
            raise ConnectionFailed("not yet")
        self.stage.put("sent")
        return [Endpoint(socket.AF_INET, self.listener.getsockname())]

    stage: _Stage


class _Stage(Connected):
    def __init__(self, network: Network) -> None:
        super().__init__("stage", Clock(), lambda _, error: None)
        self.meter = Meter.of(Config())
        self.config = Config()
        self.network = network
        self.came: list[str] = []
        self.both = threading.Event()

    def wants_connection(self) -> bool:
        return not self.stopping

    def next_address(self) -> tuple[str, int] | str:
        return "somewhere", 1

    def step(self, item: str) -> None:
        self.came.append(item)
        if len(self.came) == 2:
            self.both.set()


def test_what_its_own_thread_puts_while_it_connects_does_not_wait_for_the_broker() -> None:
    """1. it has emptied its inbox; 2. it connects, and what is called there sends a message, which
    comes back to this very inbox; 3. it waits for a broker that says nothing."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        network = _Asks(listener)
        stage = network.stage = _Stage(network)
        stage.put("first")
        came = stage.both.wait(SOON / 4)
        stage.stop()
        assert stage.join(stage.clock.monotonic() + SOON)
        assert came
        assert stage.came == ["first", "sent"]

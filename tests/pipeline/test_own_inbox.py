"""A stage with a socket whose own thread puts items into its inbox during a turn."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from pykaproducer._net.transport import ConnectionFailed, Endpoint, Network
from pykaproducer._pipeline.socket_worker import SocketWorker
from pykaproducer._util.clock import Clock
from pykaproducer.config import Config

from .helper import SOON, stage_context


class _Asks(Network):
    """User code that the connection calls: for example a token provider."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(Config())
        self.listener = listener
        self.asked = 0

    def resolve(self, host: str, port: int) -> list[Endpoint]:
        self.asked += 1
        # the thread that put the first item may still be about to wake the stage
        if self.asked == 1:
            raise ConnectionFailed("not yet")
        self.stage.put("sent")
        return [Endpoint(socket.AF_INET, self.listener.getsockname())]

    stage: _Stage


class _Stage(SocketWorker):
    def __init__(self, network: Network) -> None:
        super().__init__("stage", stage_context(Clock()), Config(), network)
        self.came: list[str] = []
        self.both = threading.Event()

    def wants_connection(self) -> bool:
        return not self.stopping

    def next_address(self) -> tuple[str, int] | str:
        return "somewhere", 1

    def handle(self, item: str) -> None:
        self.came.append(item)
        if len(self.came) == 2:
            self.both.set()


@pytest.mark.scripted
def test_what_its_own_thread_puts_while_it_connects_does_not_wait_for_the_broker() -> None:
    """An item from the stage's own thread does not wait for a silent broker.

    1. The stage has emptied its inbox.
    2. It connects, and code called there sends a message, which arrives in this very inbox.
    3. It waits for a broker that does not answer.
    """
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        network = _Asks(listener)
        stage = network.stage = _Stage(network)
        stage.put("first")
        came = stage.both.wait(SOON / 4)
        stage.stop()
        assert stage.join(stage.clock.monotonic() + SOON)
        assert came
        assert stage.came == ["first", "sent"]

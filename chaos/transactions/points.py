"""The named points at which a process under load can be killed.

Some are in the load itself. Others are in pykaproducer's stages, which :func:`install` patches:
before a request is handed to its connection, just after that, and when its answer has come.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from chaos.transactions.watch import APIS

#: In the load, with any client.
BEGUN, SENDING, SENT, OFFSETS_SENT = "begun", "sending", "sent", "offsets sent"
COMMITTED, ABORTED = "committed", "aborted"
IN_LOAD = (BEGUN, SENDING, SENT, COMMITTED, ABORTED)

_STEPS = ("unsent", "sent", "answered")


def points(client: str, *, tv1: bool, group: bool) -> list[str]:
    """Return the points that a transaction passes."""
    found = [*IN_LOAD, *([OFFSETS_SENT] if group else [])]
    if client == "pykaproducer":
        apis = ["EndTxn", *(["AddPartitionsToTxn"] if tv1 else [])]
        if group:
            apis += ["TxnOffsetCommit", *(["AddOffsetsToTxn"] if tv1 else [])]
        found += [f"{api} {step}" for api in apis for step in _STEPS]
    return found


def init_points(client: str) -> list[str]:
    """Return the points that ``init_transactions()`` passes."""
    return [f"InitProducerId {step}" for step in _STEPS] if client == "pykaproducer" else []


class Points:
    """The points of this process: it ends at the one that is armed."""

    def __init__(self, armed: str | None) -> None:
        #: Replaced by another thread.
        self.armed = armed

    def reach(self, name: str) -> None:
        if self.armed == name:
            os.kill(os.getpid(), signal.SIGKILL)


def install(points: Points) -> None:
    """Have pykaproducer's stages reach their points."""
    from pykaproducer._pipeline.coordinator import Coordinator
    from pykaproducer._pipeline.coordinator_connection import CoordinatorConnection
    from pykaproducer._pipeline.group import GroupCoordinator

    names = {number: name for name, number in APIS.items()}
    send = CoordinatorConnection.send

    def reaching_send(self: Any, api_key: int, *arguments: Any, **versions: Any) -> None:
        name = names[api_key]
        points.reach(f"{name} unsent")
        send(self, api_key, *arguments, **versions)
        points.reach(f"{name} sent")

    CoordinatorConnection.send = reaching_send  # type: ignore[method-assign]
    for stage in (Coordinator, GroupCoordinator):
        _reach_answers(stage, points, names)


def _reach_answers(stage: Any, points: Points, names: dict[int, str]) -> None:
    on_answer = stage.on_answer

    def reaching_answer(self: Any, event: Any) -> None:
        points.reach(f"{names[event.request.api_key]} answered")
        on_answer(self, event)

    stage.on_answer = reaching_answer

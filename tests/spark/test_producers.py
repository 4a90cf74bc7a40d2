"""Clients that a Python worker keeps from task to task."""

from __future__ import annotations

import pytest

from pykaproducer.spark.producers import KeptClients


class Client:
    """A client that records how it was closed."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def close(self) -> None:
        self.ends.append("closed")

    def discard(self) -> None:
        self.ends.append("discarded")


@pytest.fixture
def kept() -> KeptClients[Client]:
    return KeptClients[Client](discard=Client.discard)


def use(kept: KeptClients[Client], settings: object) -> Client:
    with kept.used(settings, Client) as client:
        return client


def test_the_next_task_uses_the_same_client(kept: KeptClients[Client]) -> None:
    first = use(kept, "a")
    assert use(kept, "b") is not first
    assert use(kept, "a") is first
    assert first.ends == []


def test_a_client_in_use_has_no_second_user(kept: KeptClients[Client]) -> None:
    with kept.used("a", Client) as first, kept.used("a", Client) as second:
        assert first is not second
    assert (first.ends, second.ends) == ([], ["closed"])
    assert use(kept, "a") is first


def test_the_client_of_a_failed_task_is_discarded(kept: KeptClients[Client]) -> None:
    first = use(kept, "a")
    with pytest.raises(ZeroDivisionError), kept.used("a", Client):
        raise ZeroDivisionError
    assert first.ends == ["discarded"]
    assert use(kept, "a") is not first


def test_the_least_recently_used_client_is_closed(kept: KeptClients[Client]) -> None:
    clients = [use(kept, settings) for settings in range(4)]
    use(kept, 0)
    use(kept, 4)
    assert [each.ends for each in clients] == [[], ["closed"], [], []]
    assert use(kept, 1) is not clients[1]

"""One secured broker for all these tests, with a listener for each success or failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pykaproducer.testing import KafkaCluster, TokenServer

from .listeners import PASSWORD, security


@pytest.fixture(scope="package")
def token_server_of_package() -> Iterator[TokenServer]:
    """Yield the identity provider of the broker."""
    pytest.importorskip("cryptography")
    with TokenServer({"alice": PASSWORD}) as server:
        yield server


@pytest.fixture
def token_server(token_server_of_package: TokenServer) -> Iterator[TokenServer]:
    """Yield the same, as it was at first."""
    server = token_server_of_package
    server.requests.clear()
    yield server
    server.answer = None
    server.public_keys.clear()


@pytest.fixture(scope="package")
def secured(token_server_of_package: TokenServer) -> Iterator[KafkaCluster]:
    """Yield the broker, shared by all tests of this directory."""
    pytest.importorskip("trustme")
    with KafkaCluster(security=security(token_server_of_package), fast_start=True) as cluster:
        yield cluster


@pytest.fixture
def secured_topic(secured: KafkaCluster, topic: str) -> str:
    """Return a topic that no other test uses and that exists."""
    name = f"secured-{topic}"
    secured.create_topic(name)
    return name

"""Wrong arguments of the test clusters, and packages that they miss."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pykaproducer.testing import ClusterError, FaultProxy, KafkaCluster, TokenServer


@pytest.mark.parametrize(("proxies", "kind"), [(True, "bool"), (1, "int"), ("a", "str")])
def test_proxies_that_are_no_list(proxies: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=f"proxies must be a list of FaultProxy.*, not {kind}$"):
        KafkaCluster(proxies=proxies)


def test_one_proxy_that_is_not_in_a_list() -> None:
    one: Any
    with FaultProxy() as one, pytest.raises(TypeError, match=r"must be a list .* not FaultProxy$"):
        KafkaCluster(proxies=one)


def test_a_token_server_without_cryptography(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ClusterError, match="requires the package cryptography") as caught:
        TokenServer()
    assert 'pip install "pykaproducer[testing]"' in str(caught.value)

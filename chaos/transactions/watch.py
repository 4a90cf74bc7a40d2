"""A proxy that remembers which requests for the end of a transaction were not answered."""

from __future__ import annotations

import time
from collections.abc import Iterator

from chaos.transactions.audit import Window
from pykaproducer.testing import Cut, FaultProxy
from pykaproducer.testing.proxy import ProxiedRequest

#: The requests of transactions, by the names that the faults have.
APIS = {
    "FindCoordinator": 10,
    "InitProducerId": 22,
    "AddPartitionsToTxn": 24,
    "AddOffsetsToTxn": 25,
    "EndTxn": 26,
    "TxnOffsetCommit": 28,
    "DescribeTransactions": 65,
}
_PRODUCE = 0


class WatchedProxy(FaultProxy):
    """It also reports which requests of transactions are in flight."""

    def __init__(self) -> None:
        #: When each EndTxn came.
        self._came: dict[ProxiedRequest, float] = {}
        #: When an EndTxn was not answered: from its arrival to the end of its connection.
        self.silent: list[Window] = []
        super().__init__(watch=[_PRODUCE, *APIS.values()])

    # Called in the thread of the proxy.

    def seen(self, request: ProxiedRequest) -> Cut | None:
        if request.api_key == APIS["EndTxn"]:
            self._came[request] = time.monotonic()
        return super().seen(request)

    def answered(self, request: ProxiedRequest) -> None:
        self._came.pop(request, None)
        super().answered(request)

    def forget(self, requests: Iterator[ProxiedRequest]) -> None:
        requests = list(requests)  # type: ignore[assignment]
        now = time.monotonic()
        for request in requests:
            came = self._came.pop(request, None)
            if came is not None:
                self.silent.append(Window("EndTxn not answered", came, now))
        super().forget(iter(requests))

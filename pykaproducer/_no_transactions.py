"""Transactions: their methods, which say that they are not built."""

from __future__ import annotations

from typing import NoReturn

from pykaproducer.errors import UnsupportedFeatureError


class NoTransactions:
    """The methods of ``KafkaProducer`` for transactions; each raises UnsupportedFeatureError."""

    def init_transactions(self) -> NoReturn:
        """Not built."""
        _refuse("init_transactions()")

    def begin_transaction(self) -> NoReturn:
        """Not built."""
        _refuse("begin_transaction()")

    def send_offsets_to_transaction(self, offsets: object, group_metadata: object) -> NoReturn:
        """Not built."""
        _refuse("send_offsets_to_transaction()")

    def commit_transaction(self) -> NoReturn:
        """Not built."""
        _refuse("commit_transaction()")

    def abort_transaction(self) -> NoReturn:
        """Not built."""
        _refuse("abort_transaction()")


def _refuse(method: str) -> NoReturn:
    raise UnsupportedFeatureError(f"{method}: transactions are not built")

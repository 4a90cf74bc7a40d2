"""The methods for transactions, which are not supported."""

from __future__ import annotations

from typing import NoReturn

from pykaproducer.errors import UnsupportedFeatureError


class NoTransactions:
    """``KafkaProducer``'s methods for transactions; each raises UnsupportedFeatureError."""

    def init_transactions(self) -> NoReturn:
        """Raise UnsupportedFeatureError."""
        _refuse("init_transactions()")

    def begin_transaction(self) -> NoReturn:
        """Raise UnsupportedFeatureError."""
        _refuse("begin_transaction()")

    def send_offsets_to_transaction(self, offsets: object, group_metadata: object) -> NoReturn:
        """Raise UnsupportedFeatureError."""
        _refuse("send_offsets_to_transaction()")

    def commit_transaction(self) -> NoReturn:
        """Raise UnsupportedFeatureError."""
        _refuse("commit_transaction()")

    def abort_transaction(self) -> NoReturn:
        """Raise UnsupportedFeatureError."""
        _refuse("abort_transaction()")


def _refuse(method: str) -> NoReturn:
    raise UnsupportedFeatureError(f"{method}: transactions are not supported")

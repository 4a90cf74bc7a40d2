"""The arguments of ``TransactionControl``, which are checked before anything is sent.

A text is a sequence of texts, so ``fence("orders")`` would fence ``o``, ``r``, ``d``... And
everything is true or false. Therefore nothing is guessed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pykaproducer._machines.coordination import TV1, TV2
from pykaproducer._util.group_offsets import kind_of
from pykaproducer._util.group_offsets import text_of as text_of
from pykaproducer.transactions import PreparedTransaction


def name_of(value: Any, what: str) -> str:
    """Return *value*, a text that is not empty."""
    if not text_of(value, what):
        raise ValueError(f"{what} is empty")
    return str(value)


def names_of(values: Any, what: str, example: str) -> list[str]:
    """Return the texts in *values*, each once. *example*: one of them, for errors."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"{what}s must be a list, such as [{example!r}], not {kind_of(values)}")
    return list(dict.fromkeys(name_of(each, f"a {what}") for each in values))


def places_of(topics: Any) -> tuple[frozenset[str] | None, list[tuple[str, int]] | None]:
    """Return the names of *topics* and the partitions that they name; None: all."""
    if topics is None:
        return None, None
    names = frozenset(names_of(topics, "topic", "orders"))
    if not isinstance(topics, Mapping):
        return names, None
    places = []
    for topic, partitions in topics.items():
        if isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
            raise TypeError(
                f"the partitions of topic {topic!r} must be a list, not {kind_of(partitions)}"
            )
        what = f"a partition of topic {topic!r}"
        places += [(topic, _integer(each, what, 0, 2**31 - 1)) for each in partitions]
    return names, places


def flag_of(value: Any, what: str) -> bool:
    """Return *value*, which must be true or false itself: ``"abort"`` is true as well."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, not {kind_of(value)}")
    return value


def token_of(value: Any, what: str) -> PreparedTransaction:
    """Return *value*, which must describe a transaction."""
    if not isinstance(value, PreparedTransaction):
        raise TypeError(
            f"{what} must be a PreparedTransaction, which prepare_transaction() and initialize() "
            f"return, not {kind_of(value)}"
        )
    name_of(value.transactional_id, f"{what}: transactional_id")
    _integer(value.protocol, f"{what}: protocol", TV1, TV2)
    if not flag_of(value.empty, f"{what}: empty"):
        _integer(value.producer_id, f"{what}: producer_id", 0, 2**63 - 1)
        _integer(value.producer_epoch, f"{what}: producer_epoch", 0, 2**15 - 1)
    return value


def tokens_of(values: Any) -> list[PreparedTransaction]:
    """Return the descriptions of transactions in *values*."""
    if isinstance(values, PreparedTransaction):
        raise TypeError("prepared must be a list of PreparedTransaction; complete() takes one")
    if not isinstance(values, Iterable):
        raise TypeError(f"prepared must be a list of PreparedTransaction, not {kind_of(values)}")
    return [token_of(each, f"prepared[{number}]") for number, each in enumerate(values)]


def session_of(value: Any) -> PreparedTransaction:
    """Return *value*, a transaction to which offsets can be added."""
    token = token_of(value, "session")
    if token.empty:
        raise ValueError(
            "session: nothing was written in this transaction, so complete() would not end it; "
            "pass what initialize() returned"
        )
    return token


def _integer(value: Any, what: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {kind_of(value)}")
    if not least <= value <= most:
        raise ValueError(f"{what} is {value}, but must be {least} to {most}")
    return value

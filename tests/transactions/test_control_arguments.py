"""Wrong arguments of ``TransactionControl`` are refused before it connects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pykaproducer import (
    ConfigurationError,
    Ended,
    EndState,
    PreparedTransaction,
    TransactionControl,
    TransactionTimeoutError,
)

from .bounds import CONTROLS, NAME, PLACE

TOKEN = PreparedTransaction(NAME, 7, 0, 2)

Call = Callable[[Any], Any]


@pytest.fixture
def control() -> Iterator[TransactionControl]:
    with TransactionControl(bootstrap_servers="127.0.0.1:9") as found:
        yield found
        assert not found._exchange._links


WRONG: list[tuple[Call, type[Exception], str]] = [
    # Tokens that are no tokens.
    (lambda c: c.complete(None, True), TypeError, "prepared must be a PreparedTransaction, which"),
    (lambda c: c.complete("orders-0", True), TypeError, "not str$"),
    (lambda c: c.complete(tuple(TOKEN), True), TypeError, "not tuple$"),
    (lambda c: c.complete([TOKEN], True), TypeError, "not list$"),
    (lambda c: c.complete_all(TOKEN, True), TypeError, r"a list .*; complete\(\) takes one"),
    (lambda c: c.complete_all(7, True), TypeError, "a list of PreparedTransaction, not int"),
    (lambda c: c.complete_all([TOKEN, 7], True), TypeError, r"prepared\[1\] must be"),
    (lambda c: c.complete(TOKEN._replace(transactional_id=""), True), ValueError, "is empty"),
    (lambda c: c.complete(TOKEN._replace(transactional_id=b"x"), True), TypeError, "not bytes"),
    (lambda c: c.complete(TOKEN._replace(producer_id="7"), True), TypeError, "producer_id must"),
    (lambda c: c.complete(TOKEN._replace(producer_id=-1), True), ValueError, "producer_id is -1"),
    (lambda c: c.complete(TOKEN._replace(producer_epoch=2**15), True), ValueError, "0 to 32767"),
    (lambda c: c.complete(TOKEN._replace(protocol=3), True), ValueError, "protocol is 3, but"),
    (lambda c: c.complete(TOKEN._replace(protocol=True), True), TypeError, "not bool"),
    (lambda c: c.complete(TOKEN._replace(empty=0), True), TypeError, "empty must be True or"),
    # A text is true, too.
    (lambda c: c.complete(TOKEN, "abort"), TypeError, "commit must be True or False, not str"),
    (lambda c: c.complete_all([TOKEN], 1), TypeError, "commit must be True or False, not int"),
    (lambda c: c.complete_all([], None), TypeError, "not NoneType"),
    # initialize()
    (lambda c: c.initialize(None, 60_000), TypeError, "transactional_id must be a str"),
    (lambda c: c.initialize("", 60_000), ValueError, "transactional_id is empty"),
    (lambda c: c.initialize("x" * 40_000, 60_000), ValueError, "has 40000 bytes, more than 32767"),
    (lambda c: c.initialize("\ud800", 60_000), ValueError, "cannot be encoded as UTF-8"),
    (lambda c: c.initialize("x", -1), ConfigurationError, "transaction_timeout_ms"),
    (lambda c: c.initialize("x", "soon"), ConfigurationError, "transaction_timeout_ms"),
    # commit_offsets()
    (lambda c: c.commit_offsets("x", {}), TypeError, "session must be a PreparedTransaction"),
    (lambda c: c.commit_offsets(TOKEN._replace(empty=True), {}), ValueError, "would not end it"),
    (lambda c: c.commit_offsets(TOKEN, [PLACE]), TypeError, "a dict {group: offsets}, not list"),
    (lambda c: c.commit_offsets(TOKEN, {"": {}}), ValueError, "the group's name is empty"),
    (lambda c: c.commit_offsets(TOKEN, {7: {PLACE: 1}}), TypeError, "the group must be its name"),
    (lambda c: c.commit_offsets(TOKEN, {"g": {"orders": 1}}), TypeError, "'topic'"),
    (lambda c: c.commit_offsets(TOKEN, {"g": {PLACE: "1"}}), TypeError, "'offset'"),
    (lambda c: c.commit_offsets(TOKEN, {"g": {PLACE: -1}}), ValueError, "offset is -1"),
    # Lists of names: a text is a list of characters.
    (
        lambda c: c.fence("orders-0"),
        TypeError,
        r"transactional ids must be a list, such as \['orders-0",
    ),
    (lambda c: c.fence(None), TypeError, "not NoneType"),
    (lambda c: c.fence(["a", ""]), ValueError, "a transactional id is empty"),
    (lambda c: c.fence([b"a"]), TypeError, "a transactional id must be a str, not bytes"),
    (lambda c: c.describe("orders-0"), TypeError, "must be a list"),
    (lambda c: c.describe([TOKEN]), TypeError, r"not .*PreparedTransaction"),
    (lambda c: c.list(7), TypeError, "prefix must be a str, not int"),
    (lambda c: c.list(None), TypeError, "prefix must be a str, not NoneType"),
    (
        lambda c: c.list(states="Ongoing"),
        TypeError,
        r"states must be a list, such as \['Ongoing'\]",
    ),
    (lambda c: c.offsets("readers"), TypeError, "groups must be a list"),
    (lambda c: c.offsets([""]), ValueError, "a group is empty"),
    (lambda c: c.offsets(["g"], "orders"), TypeError, "topics must be a list"),
    (lambda c: c.offsets(["g"], {"orders": 0}), TypeError, "partitions of topic 'orders' must"),
    (lambda c: c.offsets(["g"], {"orders": ["0"]}), TypeError, "a partition of topic 'orders'"),
    (lambda c: c.offsets(["g"], {"orders": [-1]}), ValueError, "is -1, but must be 0 to"),
    (lambda c: c.offsets(["g"], stable="no"), TypeError, "stable must be True or False"),
]


@pytest.mark.parametrize(("call", "error", "text"), WRONG)
def test_wrong_arguments(
    control: TransactionControl, call: Call, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call(control)


@pytest.mark.parametrize("name", CONTROLS)
@pytest.mark.parametrize(
    ("timeout", "error"), [("1", TypeError), (float("nan"), ValueError), (10**400, ValueError)]
)
def test_a_timeout_that_is_none(
    control: TransactionControl, name: str, timeout: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="timeout must be a number of seconds"):
        CONTROLS[name](control, TOKEN, timeout)


@pytest.mark.parametrize("timeout", [0, -1, -1e300])
def test_a_timeout_that_has_passed(control: TransactionControl, timeout: float) -> None:
    """Nothing is sent: a program may pass the time that it has left, which may be none."""
    about = dict.fromkeys(CONTROLS, NAME) | {"list": None, "offsets": None, "initialize": "driver"}
    for name in CONTROLS.keys() - {"complete", "complete_all"}:
        with pytest.raises(TransactionTimeoutError, match=rf"^{name}\(\): .* within 0 s$") as late:
            CONTROLS[name](control, TOKEN, timeout)
        assert late.value.transactional_id == about[name]
    assert control.complete(TOKEN, commit=True, timeout=timeout) == Ended(
        EndState.UNSURE, None, "there was no answer in time"
    )

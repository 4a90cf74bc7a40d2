"""One connection as a state machine, without sockets or a clock."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pykaproducer._errors.codes import ErrorCode
from pykaproducer._machines.session import (
    TRANSITIONS,
    Answered,
    IllegalMove,
    Move,
    NoCommonVersion,
    Ready,
    Request,
    Session,
    SessionState,
    VersionLadders,
)
from pykaproducer._wire import WireError
from pykaproducer._wire.messages import ApiKey
from pykaproducer.testing._messages import ApiVersionsRequest, ApiVersionsResponse

RANGES = {ApiKey.PRODUCE: (0, 12), ApiKey.METADATA: (0, 12), ApiKey.INIT_PRODUCER_ID: (0, 5)}


def asked_version(framed: bytes) -> int:
    """Return the version of an ApiVersions request."""
    version = int.from_bytes(framed[6:8], "big")
    request = ApiVersionsRequest.decode(framed, version=version, header=True, framed=True)
    assert request.header.request_api_key == ApiKey.API_VERSIONS
    return version


def answer(
    correlation_id: int,
    version: int,
    code: int = 0,
    ranges: dict[ApiKey, tuple[int, int]] = RANGES,
    **fields: Any,
) -> bytes:
    """Return a broker's ApiVersions response, without its length."""
    response = ApiVersionsResponse(
        version=version,
        error_code=code,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=first, max_version=last)
            for key, (first, last) in ranges.items()
        ],
        throttle_time_ms=0,
        **fields,
    )
    response.with_header(correlation_id=correlation_id)
    return bytes(response.encode(header=True))


def opened() -> tuple[Session, bytes]:
    session = Session("c")
    session.move(Move.OPEN)
    return session, session.connected()


def ready(ranges: dict[ApiKey, tuple[int, int]] = RANGES) -> Session:
    session, first = opened()
    assert isinstance(session.received(answer(0, asked_version(first), ranges=ranges), 0.0), Ready)
    return session


def request(key: int = ApiKey.PRODUCE, *, expects_answer: bool = True, **bounds: int) -> Request:
    def encode(version: int, correlation_id: int) -> list[bytes]:
        return [b"version %d, number %d" % (version, correlation_id)]

    return Request(key, encode, 0.0, expects_answer, **bounds)


def frame(correlation_id: int, payload: bytes = b"") -> bytes:
    return correlation_id.to_bytes(4, "big") + payload


@pytest.mark.parametrize("state", SessionState)
@pytest.mark.parametrize("move", Move)
def test_the_table_is_obeyed(state: SessionState, move: Move) -> None:
    session = Session("c")
    session.state = state
    if move in TRANSITIONS[state]:
        session.move(move)
        assert session.state is TRANSITIONS[state][move]
    else:
        with pytest.raises(IllegalMove, match=f"{move.name} in state {state.name}"):
            session.move(move)
        assert session.state is state


def test_every_state_can_be_left_by_loss_but_the_closed_one() -> None:
    for state, moves in TRANSITIONS.items():
        assert (Move.LOSE in moves) == (state is not SessionState.CLOSED)


# The handshake --------------------------------------------------------------------------------


def test_connections_that_fail_together_skip_no_version() -> None:
    ladders, address = VersionLadders(), ("a", 1)
    for _ in range(6):
        ladders.failed(address, (4, 3, 0))
    assert ladders.versions(address, 0.0) == (3, 0)
    assert ladders.versions(("b", 1), 0.0) == (4, 3, 0)


def test_the_newest_version_is_tried_again_some_time_after_a_success() -> None:
    ladders, address = VersionLadders(), ("a", 1)
    for _ in range(2):
        ladders.failed(address, (4, 3, 0))
    ladders.succeeded(address, 10.0)
    ladders.succeeded(address, 500.0)
    assert ladders.versions(address, 609.0) == (3, 0)
    assert ladders.versions(address, 610.0) == (4, 3, 0)
    ladders.failed(address, (4, 3, 0))  # one is sufficient now
    assert ladders.versions(address, 611.0) == (3, 0)
    ladders.succeeded(address, 611.0)
    assert ladders.versions(address, 1211.0) == (4, 3, 0)
    ladders.succeeded(address, 1211.0)
    ladders.failed(address, (4, 3, 0))
    assert ladders.versions(address, 1212.0) == (4, 3, 0)


def test_versions_are_negotiated() -> None:
    session, first = opened()
    assert asked_version(first) == 4
    event = session.received(answer(0, 4), 0.0)
    assert event == Ready({ApiKey.PRODUCE: 12, ApiKey.METADATA: 12, ApiKey.INIT_PRODUCER_ID: 5})
    assert session.state is SessionState.READY


def test_a_broker_that_knows_no_version_4_is_asked_again() -> None:
    session, first = opened()
    assert asked_version(first) == 4
    for number, expected in ((0, 3), (1, 0)):
        again = session.received(answer(number, 0, ErrorCode.UNSUPPORTED_VERSION), 0.0)
        assert isinstance(again, bytes)
        assert asked_version(again) == expected
    assert isinstance(session.received(answer(2, 0), 0.0), Ready)


def test_a_broker_that_refuses_in_bytes_that_make_no_sense_is_asked_again() -> None:
    session, _ = opened()
    # Error code 0 with a null array, as librdkafka's mock broker has sent it.
    again = session.received(frame(0, b"\0\0" + b"\xff" * 9), 0.0)
    assert isinstance(again, bytes)
    assert asked_version(again) == 3


def test_the_last_refusal_is_an_error() -> None:
    session, _ = opened()
    session.received(answer(0, 0, ErrorCode.UNSUPPORTED_VERSION), 0.0)
    session.received(answer(1, 0, ErrorCode.UNSUPPORTED_VERSION), 0.0)
    with pytest.raises(WireError, match="error code 35"):
        session.received(answer(2, 0, ErrorCode.UNSUPPORTED_VERSION), 0.0)


def test_the_last_answer_that_makes_no_sense_is_an_error() -> None:
    session, _ = opened()
    for number in range(2):
        session.received(frame(number, b"\xff"), 0.0)
    with pytest.raises(WireError):
        session.received(frame(2, b"\xff"), 0.0)


def test_another_refusal_is_told_when_it_is_the_last() -> None:
    session, _ = opened()
    for number in range(2):
        again = session.received(answer(number, 0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), 0.0)
        assert isinstance(again, bytes)
    with pytest.raises(WireError, match="error code 31"):
        session.received(answer(2, 0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), 0.0)


def test_no_request_before_the_handshake_is_over() -> None:
    session, _ = opened()
    with pytest.raises(IllegalMove):
        session.encode(request())


# The features of the cluster -------------------------------------------------------------------

FEATURES = [
    ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=1)
    for name, level in (("transaction.version", 2), ("metadata.version", 29))
]


def test_the_features_of_the_cluster_are_kept() -> None:
    session, _ = opened()
    assert (session.features, session.finalized_features_epoch) == ({}, -1)
    event = session.received(
        answer(0, 4, finalized_features=FEATURES, finalized_features_epoch=28), 0.0
    )
    levels = {"transaction.version": 2, "metadata.version": 29}
    assert (session.features, session.finalized_features_epoch) == (levels, 28)
    assert isinstance(event, Ready)
    assert event.features == levels


def test_a_broker_need_not_know_features() -> None:
    for version in (0, 3, 4):
        session, _ = opened()
        tried = (4, 3, 0).index(version)
        for number in range(tried):
            session.received(answer(number, 0, ErrorCode.UNSUPPORTED_VERSION), 0.0)
        event = session.received(answer(tried, version), 0.0)
        assert isinstance(event, Ready)
        assert (event.features, session.features) == ({}, {})
        assert session.finalized_features_epoch == -1


def test_features_that_make_no_sense_are_done_without() -> None:
    """The versions are asked for again, in a version without features."""
    session, _ = opened()
    whole = answer(0, 4, finalized_features=FEATURES, finalized_features_epoch=28)
    assert isinstance(session.received(whole[:-1], 0.0), bytes)
    assert isinstance(session.received(answer(1, 3)[:-1], 0.0), bytes)
    assert isinstance(session.received(answer(2, 0), 0.0), Ready)
    assert session.features == {}
    assert session.encode(request()) == [b"version 12, number 3"]


# Requests and responses -------------------------------------------------------------------------


def test_a_request_is_encoded_in_the_common_version_with_a_number_of_its_own() -> None:
    session = ready({ApiKey.PRODUCE: (0, 7), ApiKey.METADATA: (3, 99)})
    assert session.encode(request()) == [b"version 7, number 1"]
    assert session.encode(request(ApiKey.METADATA)) == [b"version 13, number 2"]


def test_answers_belong_to_the_requests_in_their_order() -> None:
    session = ready()
    first, second = request(), request(ApiKey.METADATA)
    session.encode(first)
    session.encode(second)
    assert session.received(frame(1, b"one"), 0.0) == Answered(first, 12, b"one")
    assert list(session.unanswered) == [first, second]  # until the owner removes it
    session.unanswered.popleft()
    assert session.received(frame(2, b"two"), 0.0) == Answered(second, 12, b"two")


def test_a_request_without_answer_is_not_waited_for() -> None:
    session = ready()
    session.encode(request(expects_answer=False))
    second = request()
    session.encode(second)
    assert session.received(frame(2), 0.0) == Answered(second, 12, b"")


@pytest.mark.parametrize("number", [0, 2, 3, 2**31 - 1])
def test_an_answer_out_of_turn_is_an_error(number: int) -> None:
    session = ready()
    first = request()
    session.encode(first)
    session.encode(request())
    with pytest.raises(WireError, match=f"response to request {number} when 1 was due"):
        session.received(frame(number), 0.0)
    assert session.unanswered[0] is first


def test_an_answer_that_nobody_asked_for_is_an_error() -> None:
    session = ready()
    with pytest.raises(WireError, match="without a request"):
        session.received(frame(1), 0.0)


def test_a_request_that_the_broker_does_not_take_is_named() -> None:
    session = ready({ApiKey.PRODUCE: (0, 2)})
    with pytest.raises(
        NoCommonVersion, match=r"PRODUCE requests of versions 0 to 2.*versions 3 to 12"
    ):
        session.encode(request())
    with pytest.raises(NoCommonVersion, match="does not support INIT_PRODUCER_ID"):
        session.encode(request(ApiKey.INIT_PRODUCER_ID))
    assert not session.unanswered


@pytest.mark.parametrize(
    ("bounds", "version"),
    [
        ({}, 12),
        ({"at_most": 11}, 11),
        ({"at_least": 12}, 12),
        ({"at_least": 3, "at_most": 4}, 4),
        ({"at_most": 5}, 5),
        ({"at_most": 99}, 12),
    ],
)
def test_a_request_may_bound_its_version(bounds: dict[str, int], version: int) -> None:
    session = ready({ApiKey.PRODUCE: (5, 99)} if version == 5 else RANGES)
    sent = request(**bounds)
    assert session.encode(sent) == [b"version %d, number 1" % version]
    assert sent.version == version
    assert session.refuses(ApiKey.PRODUCE, **bounds) is None
    assert session.received(frame(1), 0.0) == Answered(sent, version, b"")


@pytest.mark.parametrize(
    ("theirs", "bounds", "text"),
    [
        (
            (0, 11),
            {"at_least": 12},
            "PRODUCE requests of versions 0 to 11, this.* requires version 12$",
        ),
        ((12, 13), {"at_most": 11}, "versions 12 to 13, this request requires versions 3 to 11$"),
        (
            (9, 9),
            {"at_least": 10, "at_most": 11},
            "version 9, this request requires versions 10 to 11$",
        ),
        ((9, 12), {"at_most": 8}, "versions 9 to 12, this request requires versions 3 to 8$"),
        # Bounds that change nothing.
        (
            (0, 2),
            {"at_least": 3, "at_most": 99},
            "versions 0 to 2, this client sends versions 3 to 12$",
        ),
    ],
)
def test_a_broker_without_a_version_in_the_bounds(
    theirs: tuple[int, int], bounds: dict[str, int], text: str
) -> None:
    session = ready({ApiKey.PRODUCE: theirs})
    sent = request(**bounds)
    with pytest.raises(NoCommonVersion, match=text):
        session.encode(sent)
    reason = session.refuses(ApiKey.PRODUCE, **bounds)
    assert reason is not None
    assert re.search(text, reason)
    # The connection is as usable as before.
    assert not session.unanswered
    assert sent.version == -1
    if theirs[1] >= 3:
        assert session.encode(request()) == [b"version %d, number 1" % min(12, theirs[1])]


def test_bounds_do_not_help_where_the_broker_has_no_such_request() -> None:
    session = ready({ApiKey.PRODUCE: (0, 12)})
    with pytest.raises(NoCommonVersion, match="does not support END_TXN requests"):
        session.encode(request(ApiKey.END_TXN, at_least=5))


@pytest.mark.parametrize("is_broker", [True, False])
def test_a_server_that_is_no_broker_may_be_a_controller(is_broker: bool) -> None:
    ranges = {ApiKey.METADATA if is_broker else ApiKey.FIND_COORDINATOR: (0, 1)}
    with pytest.raises(NoCommonVersion, match="does not support PRODUCE requests") as raised:
        ready(ranges).encode(request())
    assert ("is it a KRaft controller?" in str(raised.value)) is not is_broker


def test_numbers_start_again_before_they_get_too_large() -> None:
    session = ready()
    session._correlation_id = 2**31 - 2
    assert session.encode(request()) == [b"version 12, number 2147483647"]
    assert session.encode(request()) == [b"version 12, number 0"]


# Without memory -----------------------------------------------------------------------------------


class Large(bytes):
    """A response that cannot be copied."""

    def __getitem__(self, index: object) -> bytes:  # type: ignore[override]
        raise MemoryError


def test_a_response_that_cannot_be_copied_leaves_its_request_unanswered() -> None:
    session = ready()
    sent = request()
    session.encode(sent)
    with pytest.raises(MemoryError):
        session.received(Large(frame(1)), 0.0)
    assert list(session.unanswered) == [sent]


def test_a_request_that_is_not_sent_after_all_is_withdrawn() -> None:
    session = ready()
    first, second = request(), request()
    session.encode(first)
    session.encode(second)
    session.withdraw(second)
    session.encode(other := request(expects_answer=False))
    session.withdraw(other)
    assert list(session.unanswered) == [first]


def test_an_answer_to_a_request_that_expects_none_is_discarded() -> None:
    session = ready()
    one_way, later = request(expects_answer=False), request(ApiKey.METADATA)
    session.encode(one_way)
    assert session.received(frame(one_way.correlation_id, b"unwanted"), 0.0) is None
    session.encode(later)
    assert session.received(frame(one_way.correlation_id, b"unwanted"), 0.0) is None
    assert isinstance(session.received(frame(later.correlation_id), 0.0), Answered)
    with pytest.raises(WireError):
        session.received(frame(later.correlation_id + 1), 0.0)

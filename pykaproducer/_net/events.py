"""Events that a connection returns to its owner."""

from __future__ import annotations

from typing import NamedTuple

from pykaproducer._machines.authentication import AuthenticationFailed
from pykaproducer._machines.session import (
    Answered,
    Checked,
    NoCommonVersion,
    Ready,
    Request,
    Session,
    SessionState,
)
from pykaproducer._net.transport import ConnectionFailed, HungUp
from pykaproducer._util.memory import NO_MEMORY
from pykaproducer._wire import WireError


class FullyWritten(NamedTuple):
    """The last byte of a request that expects no response was given to the socket."""

    request: Request


class Lost(NamedTuple):
    """The connection could not be established or was lost."""

    #: The reason, worded to follow "no connection to host:port: ".
    reason: str
    #: Requests of which no byte was given to the socket, oldest first.
    unwritten: list[Request]
    #: Requests that the broker may have received, including a partially written one, oldest first.
    unanswered: list[Request]


Event = Ready | Checked | FullyWritten | Answered | Lost

#: The exceptions that end a connection.
FAILURES = (ConnectionFailed, AuthenticationFailed, NoCommonVersion, WireError, *NO_MEMORY)


def no_answer(session: Session, protocol: str) -> ConnectionFailed:
    """Return the error for a broker that does not answer a request that *session* itself made."""
    if session.state is SessionState.CHECKING:
        return ConnectionFailed(
            "the connection was unused, and the broker does not answer on it any more; perhaps a "
            "firewall or load balancer has dropped it (set connections_max_idle_ms below its idle "
            "timeout)"
        )
    to = f" ApiVersions {session.tried}" if session.state is SessionState.NEGOTIATING else ""
    return ConnectionFailed(
        f"connected, but the broker does not answer{to}; is this a Kafka listener with the "
        f"configured security protocol, {protocol}?"
    )


def why_lost(failure: BaseException | str, session: Session, protocol: str, heard: bool) -> str:
    """Return the reason for :class:`Lost`: *failure*, a text or one of :data:`FAILURES`.

    *heard*: whether the broker has answered a request of the owner.
    """
    match failure:
        case str():
            return failure
        case HungUp():
            return _with_likely_cause(failure, session, protocol, heard)
        case NoCommonVersion():
            return f"the broker is incompatible with this client: {failure}"
        case WireError():
            return f"malformed response from the broker: {failure}"
        case MemoryError() | SystemError():
            return "out of memory for a request or a response"
        case _:
            return str(failure)


def _with_likely_cause(error: HungUp, session: Session, protocol: str, heard: bool) -> str:
    """Return the text of *error* with the likely cause, if the state of *session* suggests one.

    A broker that receives the wrong protocol closes the connection without giving a reason.
    *heard*: whether it has answered a request of the owner.
    """
    match session.state:
        case SessionState.NEGOTIATING:
            cause = (
                f"before any response to ApiVersions {session.tried}; is this a Kafka listener "
                f"with the configured security protocol, {protocol}?"
            )
        case SessionState.AUTHENTICATING:
            cause = "during authentication of this client; check the broker's log"
        case SessionState.READY if (
            session.unanswered and not heard and not protocol.startswith("SASL")
        ):
            cause = (
                "at the first request; does this listener require SASL? security_protocol is "
                f"{protocol}"
            )
        case _:
            return str(error)
    return f"{error} {cause}"

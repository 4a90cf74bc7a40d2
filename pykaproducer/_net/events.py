"""Events that a connection returns to its owner."""

from __future__ import annotations

from dataclasses import dataclass

from pykaproducer._machines.session import Answered, Ready, Request, Session, SessionState
from pykaproducer._net.transport import ConnectionFailed, HungUp


@dataclass(frozen=True, slots=True)
class Written:
    """The last byte of a request that expects no response was given to the socket."""

    request: Request


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection could not be established or was lost."""

    #: The reason, worded to follow "no connection to host:port: ".
    reason: str
    #: Requests of which no byte was given to the socket, oldest first.
    unwritten: list[Request]
    #: Requests that the broker may have received, including a partially written one, oldest first.
    unanswered: list[Request]


Event = Ready | Written | Answered | Lost


def with_likely_cause(
    error: HungUp, session: Session, protocol: str, heard: bool
) -> ConnectionFailed:
    """Return *error* with the likely cause, if the state of *session* suggests one.

    A broker that receives the wrong protocol closes the connection without giving a reason.
    *heard*: whether it has answered a request of the owner.
    """
    match session.state:
        case SessionState.NEGOTIATING:
            cause = (
                "before any response; is this a Kafka listener with the configured security "
                f"protocol, {protocol}?"
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
            return error
    return ConnectionFailed(f"{error} {cause}")

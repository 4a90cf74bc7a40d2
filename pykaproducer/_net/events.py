"""What a connection tells its owner."""

from __future__ import annotations

from dataclasses import dataclass

from pykaproducer._machines.session import Answered, Ready, Request, Session, SessionState
from pykaproducer._net.transport import ConnectionFailed, HungUp


@dataclass(frozen=True, slots=True)
class Written:
    """The last byte of a request that expects no answer was given to the socket."""

    request: Request


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection could not be made or is no more."""

    #: Why, in words that go on after "no connection to host:port: ".
    reason: str
    #: Requests of which no byte was given to the socket, oldest first.
    unwritten: list[Request]
    #: Requests that the broker may have seen, the one written in part included, oldest first.
    unanswered: list[Request]


Event = Ready | Written | Answered | Lost


def with_a_guess(error: HungUp, session: Session, protocol: str, heard: bool) -> ConnectionFailed:
    """Brokers that are spoken to in the wrong way hang up without a word: why it may be.

    *heard*: whether it has answered a request of the owner's.
    """
    match session.state:
        case SessionState.NEGOTIATING:
            guess = (
                "before it answered anything; is this a Kafka listener with the security protocol "
                f"that is configured, {protocol}?"
            )
        case SessionState.AUTHENTICATING:
            guess = "while it was asked to authenticate this client; its log may say why"
        case SessionState.READY if (
            session.unanswered and not heard and not protocol.startswith("SASL")
        ):
            guess = (
                "at the first request; does this listener want SASL? security_protocol is "
                f"{protocol}"
            )
        case _:
            return error
    return ConnectionFailed(f"{error} {guess}")

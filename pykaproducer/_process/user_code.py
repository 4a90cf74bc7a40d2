"""Recognizes user code that runs inside ``send()``: serializers, interceptors, some callbacks.

A call that ends a transaction does not fit there: the message that is being sent would find its
transaction ended. Nothing is recorded for each message. The few calls that have to know look at the
stack of their own thread instead, which is also right if an exception has interrupted ``send()``.
A signal handler that strikes in a serializer counts as a part of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from pykaproducer._process.admission_hooks import AdmissionHooks
from pykaproducer.block import BlockDelivery, BlockProducer

if TYPE_CHECKING:
    from pykaproducer.interceptors import Interceptors


def _codes(*functions: Callable[..., object]) -> frozenset[CodeType]:
    return frozenset(function.__code__ for function in functions)


#: Methods of a producer whose callees are only serializers.
_SERIALIZERS = _codes(AdmissionHooks._serialize, BlockProducer._serialized)
#: A block that is refused as a whole is reported within the call that sends it.
_REPORTED, _SENDS = _codes(BlockDelivery._on_settled), _codes(BlockProducer._send_columns)


def runs_in_send(producer: object, interceptors: Interceptors | None) -> bool:
    """Return whether the caller is user code that ``send()`` of *producer* has called."""
    # Methods whose callees are only its interceptors.
    chain = (
        _codes() if interceptors is None else _codes(interceptors.sent, interceptors._acknowledged)
    )
    is_report = False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code in _SERIALIZERS and _self_of(frame) is producer:
            return True
        if code in chain and _self_of(frame) is interceptors:
            return True
        if code in _REPORTED:
            is_report = True
        elif is_report and code in _SENDS and _self_of(frame) is producer:
            return True
        frame = frame.f_back
    return False


def _self_of(frame: FrameType) -> object:
    return frame.f_locals.get("self")

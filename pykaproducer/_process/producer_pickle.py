"""Pickling a producer: a pickle is the constructor call, repeated where it is unpickled (P8).

No accepted message, thread or connection is pickled: the copy is an independent, empty producer
that connects on first use. The constructor's arguments are pickled as they were given, including
secrets, so that a subclass with other arguments can be pickled as well. Changes made to the object
after its construction are not pickled.

Within a process, all pickles of a producer unpickle to the same instance until it is closed, so
that a pool which receives it with each task does not start threads for each.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from pykaproducer._version import VERSION
from pykaproducer.config import canonical_name
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

#: Picklers for functions that ``pickle`` rejects. Used only if the program has imported them.
_MORE_ABLE = ("cloudpickle", "pyspark.cloudpickle", "dill")


class Rebuildable(Protocol):
    """The parts of a producer that this module uses."""

    #: The arguments of the constructor, by position and by name.
    _given: tuple[tuple[Any, ...], dict[str, Any]]
    _closed: bool

    def inherit_ids(self) -> None:
        """Regard the transactional id as that of the original."""


#: Producers unpickled here and still in use, by their origin's identity.
_rebuilt: weakref.WeakValueDictionary[str, Rebuildable] = weakref.WeakValueDictionary()

#: Held while adding one of them.
_rebuilding = threading.Lock()


def _renew_lock() -> None:
    # Another thread may have held it when this process was forked.
    global _rebuilding
    _rebuilding = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)

#: Producers that have been pickled, with the identity that all their pickles share.
_identities: weakref.WeakKeyDictionary[Rebuildable, str] = weakref.WeakKeyDictionary()


def reduce_producer(producer: Rebuildable) -> tuple[Any, ...]:
    """Return the value of ``__reduce__``.

    Raises:
        pickle.PicklingError: an argument of the constructor cannot be pickled; the text names it.
    """
    arguments, settings = producer._given
    for name, value in _named(arguments, settings):
        _check(type(producer), name, value)
    identity = _identities.setdefault(producer, os.urandom(16).hex())
    return rebuild_producer, (VERSION, identity, type(producer), arguments, settings)


def rebuild_producer(
    version: str,
    identity: str,
    kind: type[Rebuildable],
    arguments: tuple[Any, ...],
    settings: dict[str, Any],
) -> Rebuildable:
    """Unpickle a producer.

    The name and signature of this function are part of every pickle and must not change.

    Raises:
        ConfigurationError: the pickle is from another version, whose settings this version does
            not accept.
    """
    found = _rebuilt.get(identity)
    if found is not None and not found._closed:
        return found
    try:
        made = kind(*arguments, **settings)
    except (ConfigurationError, UnsupportedFeatureError) as error:
        if version == VERSION:
            raise
        unknown = [name for name, _ in _named(arguments, settings) if canonical_name(name) is None]
        reason = f"unknown here: {', '.join(unknown)}" if unknown else str(error)
        raise ConfigurationError(
            f"this {kind.__name__} was pickled by pykaproducer {version}, and pykaproducer "
            f"{VERSION} cannot unpickle it: {reason}; use the same version on both sides"
        ) from error
    made.inherit_ids()
    # If it is pickled again, it keeps its identity.
    _identities[made] = identity
    # If several threads unpickle it at once, the first one's producer is returned to all.
    with _rebuilding:
        now = _rebuilt.get(identity)
        if now is None or now._closed:
            _rebuilt[identity] = now = made
    return now


def _named(arguments: Sequence[Any], settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each argument with its name; a value in a dict with its key."""
    for number, argument in enumerate(arguments, start=1):
        if isinstance(argument, Mapping):
            yield from ((str(name), value) for name, value in argument.items())
        else:
            yield f"argument {number}", argument
    yield from settings.items()


def _check(kind: type, name: str, value: object) -> None:
    try:
        pickle.dumps(value)
    except Exception as error:  # anything that a user's object raises
        if not _another_can(value):
            raise pickle.PicklingError(
                f"{kind.__name__} cannot be pickled: setting {name} has a value of type "
                f"{type(value).__name__}, which cannot be pickled: {error}; use something that "
                f"can be imported (a function of a module, a path instead of an open object), or "
                f"create the producer in the process that uses it"
            ) from error


def _another_can(value: object) -> bool:
    """Return whether a pickler that the program has imported accepts *value*.

    It is not known which pickler has called. If it is ``pickle``, it raises an error itself.
    """
    for name in _MORE_ABLE:
        pickler = sys.modules.get(name)
        if pickler is None:
            continue
        try:
            pickler.dumps(value)
        except Exception:  # as above
            continue
        return True
    return False

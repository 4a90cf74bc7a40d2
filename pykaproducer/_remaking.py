"""A producer as a pickle: the call that made it, to be made again where it is unpickled (P8).

Nothing that was accepted travels, nor any thread or connection: the copy is a producer of its own,
empty, that connects with its first use. What the constructor was given travels as it was given,
secrets too. So a subclass with arguments of its own pickles as well; what was done to the object
after its constructor does not travel.

All pickles of one producer are, in a process where they are unpickled, one producer, until it is
closed: a pool that is given it with each task does not start threads for each.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from pykaproducer._version import VERSION
from pykaproducer.config import own_name
from pykaproducer.errors import ConfigurationError, UnsupportedFeatureError

#: Picklers that take functions along which ``pickle`` refuses. Asked only if the program uses them.
_MORE_ABLE = ("cloudpickle", "pyspark.cloudpickle", "dill")


class Remakable(Protocol):
    """What a producer is for this module."""

    #: What it was made with, by position and by name.
    _given: tuple[tuple[Any, ...], dict[str, Any]]
    _closed: bool


#: What was unpickled here and is still in use, by its origin's identity.
_remade: weakref.WeakValueDictionary[str, Remakable] = weakref.WeakValueDictionary()

#: Held while one is put there.
_remaking = threading.Lock()


def _renew_lock() -> None:
    # Another thread may have held it when this process was forked.
    global _remaking
    _remaking = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)

#: Who has been pickled, with the identity that all its pickles have.
_identities: weakref.WeakKeyDictionary[Remakable, str] = weakref.WeakKeyDictionary()


def recipe(producer: Remakable) -> tuple[Any, ...]:
    """What ``__reduce__`` returns.

    Raises:
        pickle.PicklingError: something that it was made with cannot be pickled; it is named.
    """
    arguments, settings = producer._given
    for name, value in _named(arguments, settings):
        _check(type(producer), name, value)
    identity = _identities.setdefault(producer, uuid.uuid4().hex)
    return make_again, (VERSION, identity, type(producer), arguments, settings)


def make_again(
    version: str,
    identity: str,
    kind: type[Remakable],
    arguments: tuple[Any, ...],
    settings: dict[str, Any],
) -> Remakable:
    """Unpickle: its place and its signature are part of every pickle, and must stay.

    Raises:
        ConfigurationError: the pickle is another version's, and this one does not take its
            settings.
    """
    found = _remade.get(identity)
    if found is not None and not found._closed:
        return found
    try:
        made = kind(*arguments, **settings)
    except (ConfigurationError, UnsupportedFeatureError) as error:
        if version == VERSION:
            raise
        unknown = [name for name, _ in _named(arguments, settings) if own_name(name) is None]
        why = f"unknown here: {', '.join(unknown)}" if unknown else str(error)
        raise ConfigurationError(
            f"this {kind.__name__} was pickled by pykaproducer {version}, and pykaproducer "
            f"{VERSION} cannot make it again: {why}; have the same version on both sides"
        ) from error
    # Pickled on, it is still the same one to whoever unpickles it.
    _identities[made] = identity
    # Of several threads that come here at once, the first gives all of them its producer.
    with _remaking:
        now = _remade.get(identity)
        if now is None or now._closed:
            _remade[identity] = now = made
    return now


def _named(arguments: Sequence[Any], settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each value that was given, by its name; one of a dict by its name in there."""
    for number, argument in enumerate(arguments, start=1):
        if isinstance(argument, Mapping):
            yield from ((str(name), value) for name, value in argument.items())
        else:
            yield f"argument {number}", argument
    yield from settings.items()


def _check(kind: type, name: str, value: object) -> None:
    try:
        pickle.dumps(value)
    except Exception as error:  # whatever the user's own object raises
        if not _another_can(value):
            raise pickle.PicklingError(
                f"{kind.__name__} cannot be pickled: setting {name} holds a "
                f"{type(value).__name__}, which cannot: {error}; give what can be imported (a "
                f"function of a module, a path instead of an open object), or make the "
                f"producer in the process that uses it"
            ) from error


def _another_can(value: object) -> bool:
    """Whether a pickler that the program has loaded takes what ``pickle`` does not.

    Nobody tells us which of them has called; if it is ``pickle``, it says itself what it cannot.
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

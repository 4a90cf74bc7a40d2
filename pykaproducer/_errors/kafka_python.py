"""The two modules of kafka-python that every producer needs, loaded without the rest of it.

The errors of this package derive from the classes of :mod:`kafka.errors`, and a position contains a
:class:`kafka.structs.TopicPartition`. Both modules import only the standard library. But ``import
kafka.errors`` first runs ``kafka/__init__.py``, which imports the consumer, the admin client and
the message classes. That takes longer than all other imports of this package.

So the two files are executed here. A finder gives the modules to the import system once a program
imports ``kafka``::

    import pykaproducer     # executes kafka/errors.py and kafka/structs.py
    import kafka            # runs kafka/__init__.py, in which "from kafka.errors import ..." gets
                            # the finder's module: there is only one class KafkaTimeoutError

After that ``sys.modules`` and ``sys.meta_path`` are as if ``kafka`` had been imported first. If
``kafka`` has been imported already, or is not a directory of files, nothing of this happens: the
modules are imported as usual.

Threads that import ``kafka`` at the same time get the same classes:

1. the finder is installed before this module looks for ``kafka`` in ``sys.modules``;
2. the import system adds ``kafka`` there before it runs ``kafka/__init__.py``;
3. so either ``kafka`` is found there, and what it has imported is used here, or its import starts
   later and gets the finder's modules.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka import errors
    from kafka.errors import TransactionAbortedError as TheirAbortedError
    from kafka.structs import TopicPartition

__all__ = ["TheirAbortedError", "TopicPartition", "errors"]


class ExecutedModules:
    """A finder and loader of modules that have been executed before."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a spec with this object as the loader if it has the module."""
        return ModuleSpec(name, self) if name in self._modules else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module. The import system then replaces its spec."""
        module = self._modules[spec.name]
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec; after the last module, stop being a finder."""
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = spec.loader_state
        del self._modules[spec.name]
        if not self._modules and self in sys.meta_path:
            sys.meta_path.remove(self)


def _executed(name: str, locations: Any) -> ModuleType | None:
    """Return the module *name* of the package in *locations*, not in ``sys.modules``; else None.

    While it is executed it has another name, under which its own code finds it in ``sys.modules``.
    Under its real name, another thread could import it half done.
    """
    spec = PathFinder.find_spec(name, locations)
    get_code = getattr(spec and spec.loader, "get_code", None)
    code = None if get_code is None else get_code(name)
    if spec is None or code is None:
        return None
    module = module_from_spec(spec)
    module.__name__ = temporary = f"{__name__}.{name.rpartition('.')[2]}"
    sys.modules[temporary] = module
    try:
        exec(code, vars(module))
    finally:
        del sys.modules[temporary]
    module.__name__ = name
    for value in vars(module).values():
        if getattr(value, "__module__", None) == temporary:
            line = getattr(value, "__firstlineno__", None)
            value.__module__ = name  # from Python 3.13 on, this removes the class's line number
            if line is not None:
                value.__firstlineno__ = line
    return module


def _load(*names: str) -> list[ModuleType]:
    """Return modules of ``kafka``, imported with the whole package only if there is no other way.

    Raises:
        ImportError: kafka-python is not installed, or something else is called ``kafka``.
    """
    spec = None if "kafka" in sys.modules else find_spec("kafka")
    locations = None if spec is None else spec.submodule_search_locations
    found = {name: _executed(name, locations) for name in names} if locations else {}
    made = {name: module for name, module in found.items() if module is not None}
    if len(made) == len(names):
        sys.meta_path.insert(0, ExecutedModules(dict(made)))
        if "kafka" not in sys.modules:
            return list(made.values())
    # The package first: of two threads of which one imports a package, and the other one of its
    # modules, Python fails one because each waits for the other.
    importlib.import_module("kafka")
    return [importlib.import_module(name) for name in names]


if not TYPE_CHECKING:
    errors, _structs = _load("kafka.errors", "kafka.structs")
    TopicPartition = _structs.TopicPartition
    # kafka-python 2 has no such class.
    TheirAbortedError = getattr(errors, "TransactionAbortedError", errors.KafkaError)

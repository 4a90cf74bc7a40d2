"""The structs of Arrow's C data interface, for building malformed ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any


class Schema(ctypes.Structure):
    """``struct ArrowSchema``."""


Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(Schema))),
    ("dictionary", ctypes.POINTER(Schema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class Array(ctypes.Structure):
    """``struct ArrowArray``."""


Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(Array))),
    ("dictionary", ctypes.POINTER(Array)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

_Get = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Text = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class Stream(ctypes.Structure):
    """``struct ArrowArrayStream``."""

    _fields_ = [
        ("get_schema", _Get),
        ("get_next", _Get),
        ("get_last_error", _Text),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


_Release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
#: Called from C, possibly long after the test, so they are never freed.
_callbacks: list[Any] = []


class Edited:
    """Arrow data whose structs are changed by ``edit(schema, array)`` when they are exported.

    The original contents are restored on release, so that the exporter can free its memory.
    """

    def __init__(self, data: Any, edit: Callable[[Any, Any], object]) -> None:
        self._data = data
        self._edit = edit

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        capsules = self._data.__arrow_c_array__()
        roots = structs(capsules)
        saved = [_snapshot(root) for root in roots]
        self._edit(*roots)
        for root, parts in zip(roots, saved, strict=True):
            _restore_on_release(root, parts)
        return capsules


def _snapshot(struct: Any) -> list[tuple[Any, bytes]]:
    """Return the struct and its children, with their contents."""
    found = [(struct, bytes(struct))]
    below = [struct.children[i].contents for i in range(struct.n_children)]
    if struct.dictionary:
        below.append(struct.dictionary.contents)
    for each in below:
        found += _snapshot(each)
    return found


def _restore_on_release(root: Any, parts: list[tuple[Any, bytes]]) -> None:
    def release(address: int) -> None:
        # The root has been moved; its children are where they were.
        ctypes.memmove(address, parts[0][1], ctypes.sizeof(root))
        for struct, contents in parts[1:]:
            ctypes.memmove(ctypes.addressof(struct), contents, len(contents))
        original(address)

    original = _Release(root.release)
    callback = _Release(release)
    _callbacks.append(callback)
    root.release = ctypes.cast(callback, ctypes.c_void_p).value


def structs(capsules: Any) -> tuple[Any, Any]:
    """Return the schema and the array of two capsules."""
    return (
        Schema.from_address(_pointer_of(capsules[0], b"arrow_schema")),
        Array.from_address(_pointer_of(capsules[1], b"arrow_array")),
    )


class WithoutSchema:
    """An Arrow stream whose ``get_schema()`` returns *status* and no schema, for no reason."""

    def __init__(self, data: Any, status: int) -> None:
        def get_schema(_stream: int, schema: int) -> int:
            ctypes.memset(schema, 0, ctypes.sizeof(Schema))
            return status

        self._capsule = data.__arrow_c_stream__()
        struct = Stream.from_address(_pointer_of(self._capsule, b"arrow_array_stream"))
        self._callbacks = _Get(get_schema), _Text(lambda stream: None)
        struct.get_schema, struct.get_last_error = self._callbacks

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._capsule

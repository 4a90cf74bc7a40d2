"""The compiled kernel, and what depends on the platform; everything else is in setup.cfg.

``PYKAPRODUCER_SANITIZE`` in the environment builds the kernel for a sanitizer, and without its pool
of memory, so that each block is one of malloc()'s: ``1`` for AddressSanitizer and
UndefinedBehaviorSanitizer, ``thread`` for ThreadSanitizer. Such a kernel loads only into an
interpreter that has the sanitizer's library: see ``tests/_support/sanitize.py``.
"""

import os
import pathlib
import sys

from setuptools import Extension, setup

if sys.platform == "win32":
    sys.exit(
        "pykaproducer does not support Windows, because it relies on POSIX calls (fork, sendmsg, "
        "poll). Use it in WSL, or in a Linux container."
    )

SANITIZERS = {
    "1": ["-fsanitize=address,undefined,float-cast-overflow"],
    "thread": ["-fsanitize=thread"],
}
# Python's own flags may contain -fwrapv, which defines the overflow that is to be found.
SANITIZED = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", "-fno-sanitize-recover=all"]

HERE = pathlib.Path(__file__).parent

sanitize = os.environ.get("PYKAPRODUCER_SANITIZE", "0")
sanitizers = SANITIZERS.get(sanitize, [])


def kernel() -> list[Extension]:
    """Return the extension module, from the C code that a source distribution contains."""
    generated = (HERE / "PKG-INFO").exists()
    extension = Extension(
        "pykaproducer._kernel",
        ["pykaproducer/_kernel.c" if generated else "pykaproducer/_kernel.pyx"],
        extra_compile_args=[*sanitizers, *SANITIZED] if sanitizers else ["-O3"],
        extra_link_args=sanitizers,
        define_macros=[("PYKAPRODUCER_NO_POOL", "1")] if sanitizers else [],
    )
    if generated:
        return [extension]
    from Cython.Build import cythonize

    return cythonize([extension])


setup(ext_modules=kernel())

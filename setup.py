"""The compiled kernel; everything else about the package is in setup.cfg.

``PYKAPRODUCER_SANITIZE=1`` in the environment builds it with AddressSanitizer and
UndefinedBehaviorSanitizer, and without its pool of memory, so that each block is one of malloc()'s.
Such a kernel loads only into an interpreter that has the sanitizers' libraries: see
``tests/_support/sanitize.py``.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

SANITIZERS = "-fsanitize=address,undefined,float-cast-overflow"
# Python's own flags may contain -fwrapv, which defines the overflow that is to be found.
SANITIZED = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", "-fno-sanitize-recover=all"]

sanitize = os.environ.get("PYKAPRODUCER_SANITIZE", "0") not in ("", "0")

setup(
    ext_modules=cythonize(
        [
            Extension(
                "pykaproducer._kernel",
                ["pykaproducer/_kernel.pyx"],
                libraries=["z"],  # the CRC-32 of keys
                extra_compile_args=[SANITIZERS, *SANITIZED] if sanitize else ["-O3"],
                extra_link_args=[SANITIZERS] if sanitize else [],
                define_macros=[("PYKAPRODUCER_NO_POOL", "1")] if sanitize else [],
            )
        ]
    )
)

"""The compiled kernel; everything else about the package is in setup.cfg.

``PYKAPRODUCER_SANITIZE=1`` in the environment builds it with AddressSanitizer and
UndefinedBehaviorSanitizer, and without its pool of memory, so that each block is one of malloc()'s.
Such a kernel loads only into an interpreter that has the sanitizers' libraries: see
``tests/_support/sanitize.py``.

``PYKAPRODUCER_WITHOUT=lz4`` (or ``python-snappy``, or both with a comma) in the environment is for
building a wheel for another platform than this one: see :func:`requirements`.
"""

import configparser
import os
import pathlib
import sys
import sysconfig

from Cython.Build import cythonize
from setuptools import Extension, setup

SANITIZERS = "-fsanitize=address,undefined,float-cast-overflow"
# Python's own flags may contain -fwrapv, which defines the overflow that is to be found.
SANITIZED = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-wrapv", "-fno-sanitize-recover=all"]

sanitize = os.environ.get("PYKAPRODUCER_SANITIZE", "0") not in ("", "0")


def packages_without_wheel() -> set[str]:
    """Return the required packages that pip could not install without a compiler.

    lz4 has no wheel for musl (Alpine), nor for the free-threaded build of Python 3.14; cramjam,
    which python-snappy requires, has none for that of 3.13.
    """
    given = os.environ.get("PYKAPRODUCER_WITHOUT")
    if given is not None:
        return set(given.replace(" ", "").split(",")) - {""}
    without = set()
    if "musl" in str(sysconfig.get_config_var("HOST_GNU_TYPE")):
        without.add("lz4")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        without.add("python-snappy" if sys.version_info < (3, 14) else "lz4")
    return without


def requirements() -> list[str]:
    """Return what setup.cfg requires, without what cannot be installed on this platform.

    A marker can express neither musl nor free-threading. But each wheel has metadata of its own:
    in the place of lz4 it may require cramjam (``pykaproducer/_util/compression.py``).
    """
    config = configparser.ConfigParser()
    config.read(pathlib.Path(__file__).with_name("setup.cfg"), encoding="utf-8")
    lines = config["options"]["install_requires"].split("\n")
    without = packages_without_wheel()
    kept = [line for line in lines if line and line.split(">")[0].strip() not in without]
    return [*kept, "cramjam>=2.11,<3"] if "lz4" in without else kept


setup(
    install_requires=requirements(),
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
    ),
)

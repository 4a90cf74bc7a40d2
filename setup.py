"""The compiled modules, and what depends on the platform; everything else is in setup.cfg.

``PYKAPRODUCER_SANITIZE`` in the environment builds them for a sanitizer, and without its pool
of memory, so that each block is one of malloc()'s: ``1`` for AddressSanitizer and
UndefinedBehaviorSanitizer, ``thread`` for ThreadSanitizer. Such a kernel loads only into an
interpreter that has the sanitizer's library: see ``tests/_support/sanitize.py``.

``PYKAPRODUCER_WITHOUT`` in the environment is for building a wheel for another platform than this
one: it names the required packages that cannot be installed there (``lz4`` for musl, otherwise
nothing). See :func:`requirements`.
"""

import configparser
import os
import pathlib
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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

# -O2 without the passes that cost compile time and do not speed up a message: they look for common
# code and loops, and the generated code is checks, calls and error paths. With -O3 and debugging
# information, a build takes more than twice as long. (Measured with the benchmarks ``kernel``,
# ``send`` and ``sync``. Calling Py_XDECREF() instead of inlining it would save as much again, but
# make send() a quarter slower.)
GCC = [
    "-O2",
    "-fno-code-hoisting",
    "-fno-crossjumping",
    "-fno-cse-follow-jumps",
    "-fno-gcse",
    "-fno-ivopts",
    "-fno-rerun-cse-after-loop",
    "-fno-schedule-insns2",
    "-fno-tree-dominator-opts",
    "-fno-tree-pre",
    "-fno-tree-tail-merge",
    "-fno-tree-vectorize",
]
OTHER_COMPILERS = ["-O3"]
# This warning alone takes a seventh of gcc's time in generated code, which it does not suit.
QUICKLY = ["-pipe", "-Wno-misleading-indentation"]

HERE = pathlib.Path(__file__).parent

sanitizers = []
asked = os.environ.get("PYKAPRODUCER_SANITIZE") or "0"
if asked != "0":
    if asked not in SANITIZERS:
        sys.exit(
            f"PYKAPRODUCER_SANITIZE is {asked!r} in the environment; allowed: 0 (no sanitizer), "
            f"{', '.join(SANITIZERS)}"
        )
    sanitizers = SANITIZERS[asked]


def packages_without_wheel() -> set[str]:
    """Return the required packages that pip could not install without a compiler.

    lz4 has no wheel for musl (Alpine), nor for the free-threaded build of Python 3.14; cramjam,
    which python-snappy requires, has none for that of 3.13.
    """
    given = os.environ.get("PYKAPRODUCER_WITHOUT")
    if given is not None:
        without = set(given.replace(" ", "").split(",")) - {""}
    else:
        without = {"lz4"} if "musl" in str(sysconfig.get_config_var("HOST_GNU_TYPE")) else set()
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        without.add("python-snappy" if sys.version_info < (3, 14) else "lz4")
    return without


def requirements() -> list[str]:
    """Return the requirements in setup.cfg, except those without a wheel for this platform.

    A marker can express neither musl nor free-threading. But each wheel has separate metadata, and
    may require cramjam instead of lz4 (``pykaproducer/_util/compression.py``).
    """
    config = configparser.ConfigParser()
    config.read(pathlib.Path(__file__).with_name("setup.cfg"), encoding="utf-8")
    lines = config["options"]["install_requires"].split("\n")
    without = packages_without_wheel()
    kept = [line for line in lines if line and line.split(">")[0].strip() not in without]
    return [*kept, "cramjam>=2.11,<3"] if "lz4" in without else kept


#: The compiled modules: the kernel, and the scan of text files for ``load``.
MODULES = ["pykaproducer/_kernel", "pykaproducer/_load/_scan"]


def modules() -> list[Extension]:
    """Return the extension modules, from the C code that a source distribution contains."""
    generated = (HERE / "PKG-INFO").exists()
    found = [
        Extension(
            name.replace("/", "."),
            [f"{name}.c" if generated else f"{name}.pyx"],
            extra_compile_args=[*QUICKLY, *sanitizers, *(SANITIZED if sanitizers else [])],
            extra_link_args=sanitizers,
            define_macros=[("PYKAPRODUCER_NO_POOL", "1")] if sanitizers else [],
        )
        for name in MODULES
    ]
    if generated:
        return found
    try:
        from Cython.Build import cythonize
    except ImportError:  # tools/build_backend.py asks what is required, which is Cython
        return found
    extensions: list[Extension] = cythonize(found)
    return extensions


def is_gcc(compiler: list[str]) -> bool:
    """Return whether the command *compiler* is gcc. Clang defines ``__GNUC__``, too."""
    command = [*compiler, "-dM", "-E", "-x", "c", os.devnull]
    try:
        macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    return "__GNUC__" in macros and "__clang__" not in macros


class BuildKernel(build_ext):
    """Builds with the compiler's options; ``CFLAGS=-g`` keeps the debugging information."""

    def build_extensions(self) -> None:
        """Add the options for this compiler, and build."""
        if not sanitizers:
            quick = GCC if is_gcc(self.compiler.compiler_so) else OTHER_COMPILERS
            debugging = [] if "-g" in os.environ.get("CFLAGS", "").split() else ["-g0"]
            for extension in self.extensions:
                # The scan is small, and all loops.
                options = ["-O3"] if extension.name.endswith("._scan") else quick
                extension.extra_compile_args += [*options, *debugging]
        super().build_extensions()


setup(
    install_requires=requirements(),
    ext_modules=modules(),
    cmdclass={"build_ext": BuildKernel},
)

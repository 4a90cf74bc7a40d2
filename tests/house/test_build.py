"""The options with which ``setup.py`` compiles the kernel suit the compilers that are here."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

#: The compilers that are here.
COMPILERS = [name for name in ("cc", "gcc", "clang") if shutil.which(name) is not None]

#: The compiled modules.
MODULES = ("_kernel", "_load/_scan")

#: In place of each. A compiler notices what it does not know before it reads any of it.
SOURCE = """
#include <Python.h>

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", NULL, -1, NULL};

PyMODINIT_FUNC PyInit_NAME(void) { return PyModule_Create(&module); }
"""


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a directory like a source distribution, with small compiled modules."""
    for name in ("setup.py", "setup.cfg"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "README.rst").touch()
    (tmp_path / "PKG-INFO").touch()
    package = tmp_path / "pykaproducer"
    (package / "_load").mkdir(parents=True)
    shutil.copy(ROOT / "pykaproducer" / "_version.py", package)
    (package / "__init__.py").touch()
    for name in MODULES:
        code = SOURCE.replace("NAME", pathlib.Path(name).name)
        (package / f"{name}.c").write_text(code)
    return tmp_path


def build(source: pathlib.Path, **environment: str) -> tuple[str, list[bytes]]:
    """Build the modules in *source*; return the output, and the modules."""
    kept = {k: v for k, v in os.environ.items() if k not in ("CC", "CFLAGS", "LDSHARED")}
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=source,
        env={**kept, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    found = sorted((source / "pykaproducer").rglob("*.so"))
    assert len(found) == len(MODULES)
    return done.stdout, [module.read_bytes() for module in found]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_compiler_knows_all_of_its_options(source: pathlib.Path, compiler: str) -> None:
    _, modules = build(source, CC=compiler, LDSHARED=f"{compiler} -shared", CFLAGS="-Werror")
    assert not any(b".debug_info" in module for module in modules)


def test_debugging_information_is_there_on_request(source: pathlib.Path) -> None:
    _, modules = build(source, CFLAGS="-g")
    assert all(b".debug_info" in module for module in modules)


def test_an_unknown_compiler_gets_no_options_of_gcc(source: pathlib.Path) -> None:
    """Here a script that does not preprocess, and otherwise is the compiler."""
    compiler = source / "compiler"
    compiler.write_text('#!/bin/sh\ncase " $* " in *" -E "*) exit 1;; esac\nexec cc "$@"\n')
    compiler.chmod(0o755)
    output, _ = build(source, CC=str(compiler), LDSHARED=f"{compiler} -shared")
    assert " -O3 " in output
    assert " -fno-" not in output

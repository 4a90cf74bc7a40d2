"""Builds a wheel for each Python and platform on one machine, and reports what is in it.

The compiler is zig's (the package ziglang), which brings the C libraries of all platforms. Each
wheel is built from the source distribution, by the Python for which it is. So that Python must be
installed here. The headers of this platform serve for the others: all of them are 64-bit and
little-endian.

::

    python tools/build_wheels.py --directory dist
    python tools/build_wheels.py --directory dist --python 3.13 3.13t --platform linux-x86_64

Requires the packages build, setuptools, ziglang and auditwheel.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator

import auditwheel.policy
from elftools.elf.elffile import ELFFile

HERE = pathlib.Path(__file__).resolve().parents[1]

PYTHONS = ("3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t")


@dataclasses.dataclass(frozen=True)
class Platform:
    """A platform for which wheels are built."""

    name: str
    #: As zig calls it.
    target: str
    #: The platform tag of its wheels.
    tag: str
    #: In the name of an extension module, after the ABI.
    suffix: str
    #: Python's sysconfig.get_platform().
    host: str
    #: Options of the linker.
    options: tuple[str, ...] = ("-shared",)
    #: Required packages that have no wheel for it. (setup.py knows those of the Python.)
    without: frozenset[str] = frozenset()

    @property
    def is_musl(self) -> bool:
        """Return whether it has the C library musl."""
        return "musl" in self.target


# The interpreter's functions are found when the module is loaded. It is a dynamic library instead
# of the usual bundle, on which zig's linker crashes; Python loads both.
_APPLE = ("-dynamiclib", "-undefined", "dynamic_lookup")

PLATFORMS = (
    Platform(
        "linux-x86_64",
        "x86_64-linux-gnu.2.17",
        "manylinux2014_x86_64",
        "x86_64-linux-gnu",
        "linux-x86_64",
    ),
    Platform(
        "linux-aarch64",
        "aarch64-linux-gnu.2.17",
        "manylinux2014_aarch64",
        "aarch64-linux-gnu",
        "linux-aarch64",
    ),
    Platform(
        "musllinux-x86_64",
        "x86_64-linux-musl",
        "musllinux_1_2_x86_64",
        "x86_64-linux-musl",
        "linux-x86_64",
        without=frozenset({"lz4"}),
    ),
    Platform(
        "musllinux-aarch64",
        "aarch64-linux-musl",
        "musllinux_1_2_aarch64",
        "aarch64-linux-musl",
        "linux-aarch64",
        without=frozenset({"lz4"}),
    ),
    Platform(
        "macos-arm64",
        "aarch64-macos.11.0",
        "macosx_11_0_arm64",
        "darwin",
        "macosx-11.0-arm64",
        _APPLE,
    ),
    Platform(
        "macos-x86_64",
        "x86_64-macos.10.13",
        "macosx_10_13_x86_64",
        "darwin",
        "macosx-10.13-x86_64",
        _APPLE,
    ),
)


class BuildError(Exception):
    """A wheel was not built, or is not as it should be. The text is for a person."""


def main() -> int:
    """Build the wheels; return the exit status."""
    arguments = parser().parse_args()
    directory: pathlib.Path = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    platforms = [each for each in PLATFORMS if each.name in arguments.platform]
    found = {version: find_python(version) for version in arguments.python}
    missing = [version for version, path in found.items() if path is None]
    problems = 0
    with tempfile.TemporaryDirectory() as scratch:
        source = unpacked_source(directory, pathlib.Path(scratch))
        for version, path in found.items():
            if path is None:
                continue
            builder = Builder(version, path, source, pathlib.Path(scratch), directory)
            for platform in platforms:
                try:
                    print(audit(builder.build(platform), platform), flush=True)
                except BuildError as error:
                    problems += 1
                    print(f"{version} {platform.name}: {error}", flush=True)
    for version in missing:
        print(f"{version}: not built, as no such Python is installed")
    return 1 if problems else 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [platform.name for platform in PLATFORMS]
    made.add_argument("--directory", type=pathlib.Path, default=HERE / "dist", help="%(default)s")
    made.add_argument("--python", nargs="+", default=PYTHONS, help="default: %(default)s")
    made.add_argument("--platform", nargs="+", choices=names, default=names, help="default: all")
    return made


def find_python(version: str) -> pathlib.Path | None:
    """Return the newest Python of this *version* in the PATH, or of pyenv's; None: there is none.

    Releases that the package refuses (3.12.0 to 3.12.2) serve for building: all releases of a
    version have the same ABI.
    """
    in_path = shutil.which(f"python{version}")
    if in_path is not None and describe(pathlib.Path(in_path)).get("version") == version:
        return pathlib.Path(in_path)
    root = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    for path in sorted(root.glob(f"versions/*/bin/python{version}"), reverse=True):
        if describe(path).get("version") == version:
            return path
    return None


def describe(python: pathlib.Path) -> dict[str, str]:
    """Return ``version``, such as 3.13t, and ``soabi`` of a Python; nothing if it does not run."""
    code = (
        "import json, sys, sysconfig; free = sysconfig.get_config_var('Py_GIL_DISABLED');"
        "print(json.dumps({'version': '%d.%d' % sys.version_info[:2] + 't' * bool(free),"
        "'soabi': sysconfig.get_config_var('SOABI')}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    found: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def run(command: list[str | pathlib.Path], **options: object) -> None:
    """Run *command*. Raises BuildError with the end of its output if it fails."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    if done.returncode:
        lines = done.stdout.strip().splitlines()[-15:]
        raise BuildError(f"{' '.join(map(str, command))} failed:\n" + "\n".join(lines))


def unpacked_source(directory: pathlib.Path, scratch: pathlib.Path) -> pathlib.Path:
    """Build the source distribution into *directory*, and unpack it."""
    run([sys.executable, "-m", "build", "--sdist", "--outdir", directory, HERE])
    (archive,) = sorted(directory.glob("pykaproducer-*.tar.gz"))[-1:]
    shutil.unpack_archive(archive, scratch)
    return scratch / archive.name.removesuffix(".tar.gz")


class Builder:
    """Builds the wheels of one Python."""

    def __init__(
        self,
        version: str,
        python: pathlib.Path,
        source: pathlib.Path,
        scratch: pathlib.Path,
        directory: pathlib.Path,
    ) -> None:
        self.version = version
        self._source = source
        self._directory = directory
        self._abi = describe(python)["soabi"].split("-")[1]  # 313t of cpython-313t-x86_64-linux-gnu
        environment = scratch / f"python-{version}"
        run([python, "-m", "venv", environment])
        self._python = environment / "bin" / "python"
        run([self._python, "-m", "pip", "install", "-q", "setuptools>=77"])

    def build(self, platform: Platform) -> pathlib.Path:
        """Build the wheel for *platform*, and return it."""
        source = self._source.with_name(f"{self.version}-{platform.name}")
        shutil.copytree(self._source, source)
        command = [self._python, "setup.py", "-q", "bdist_wheel", "--plat-name", platform.tag]
        run([*command, "--dist-dir", source / "built"], cwd=source, env=self._environment(platform))
        (built,) = (source / "built").glob("*.whl")
        shutil.rmtree(source / "build", ignore_errors=True)
        return pathlib.Path(shutil.copy(built, self._directory))

    def _environment(self, platform: Platform) -> dict[str, str]:
        compiler = f"{sys.executable} -m ziglang cc -target {platform.target}"
        return os.environ | {
            "CC": compiler,
            # Without the debugging information the module is a fifth as large.
            "LDSHARED": f"{compiler} {' '.join(platform.options)} -s",
            "CFLAGS": "-g0 -fvisibility=hidden",
            # Instead of this platform's: setuptools, distutils.
            "SETUPTOOLS_EXT_SUFFIX": f".cpython-{self._abi}-{platform.suffix}.so",
            "_PYTHON_HOST_PLATFORM": platform.host,
            "MACOSX_DEPLOYMENT_TARGET": platform.host.split("-")[1],
            "ARCHFLAGS": "",
            "PYKAPRODUCER_WITHOUT": ",".join(sorted(platform.without)),
        }


def audit(wheel: pathlib.Path, platform: Platform) -> str:
    """Check the modules of *wheel*, and return a line about it.

    For Linux: only the C library is linked, in a version that the tag allows, and only the function
    that initializes the module is exported (auditwheel checks glibc's versions by the same tables).
    """
    texts = []
    with zipfile.ZipFile(wheel) as archive:
        modules = [info for info in archive.infolist() if info.filename.endswith(".so")]
        if len(modules) != len(MODULES):
            raise BuildError(f"{wheel.name} has {len(modules)} modules, not {len(MODULES)}")
        for info in modules:
            with archive.open(info) as file:
                magic = file.read(4)
            texts.append(f"module {info.file_size / 1e6:.1f} MB")
            if magic == b"\x7fELF":
                with archive.open(info) as file:
                    texts.append(check_elf(ELFFile(file), platform))
            elif platform.name.startswith("macos"):
                texts.append("Mach-O, not audited")
            else:
                raise BuildError(f"{info.filename} is no ELF file")
    return f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {', '.join(texts)}"


#: What the compiled modules export.
MODULES = ("PyInit__kernel", "PyInit__scan")

#: The C library, its parts in glibc before 2.34, and the dynamic linker.
_C_LIBRARIES = ("libc.", "libm.", "libpthread.", "libdl.", "librt.", "ld-linux", "ld-musl")


def check_elf(module: ELFFile, platform: Platform) -> str:
    """Check the libraries and symbols of an ELF module; return a text about them."""
    needed = [
        tag.needed
        for tag in module.get_section_by_name(".dynamic").iter_tags()
        if tag.entry.d_tag == "DT_NEEDED"
    ]
    others = [name for name in needed if not name.startswith(_C_LIBRARIES)]
    if others:
        raise BuildError(f"links {', '.join(others)}")
    exported = list(exported_symbols(module))
    if len(exported) != 1 or exported[0] not in MODULES:
        raise BuildError(f"exports {', '.join(exported) or 'nothing'}")
    versions = {name for name in symbol_versions(module) if name.startswith("GLIBC_")}
    if platform.is_musl and versions:
        raise BuildError(f"is for musl, but requires {', '.join(sorted(versions))}")
    too_new = [] if platform.is_musl else versions - allowed_versions(platform)
    if too_new:
        raise BuildError(f"requires {', '.join(sorted(too_new))}, newer than {platform.tag} allows")
    newest = max(versions, key=number_of, default="no glibc")
    return f"links {', '.join(needed)}, up to {newest}, exports {exported[0]}"


def exported_symbols(module: ELFFile) -> Iterator[str]:
    """Yield the names of the symbols that *module* defines for others."""
    for symbol in module.get_section_by_name(".dynsym").iter_symbols():
        if symbol.entry.st_info.bind != "STB_LOCAL" and symbol.entry.st_shndx != "SHN_UNDEF":
            yield symbol.name


def symbol_versions(module: ELFFile) -> Iterator[str]:
    """Yield the versions of the symbols that *module* requires, such as GLIBC_2.17."""
    section = module.get_section_by_name(".gnu.version_r")
    for _, versions in section.iter_versions() if section is not None else ():
        for version in versions:
            yield version.name


def allowed_versions(platform: Platform) -> set[str]:
    """Return the versions of glibc's symbols in the policy of the platform's tag."""
    directory = pathlib.Path(auditwheel.policy.__file__).parent
    policies = json.loads((directory / "manylinux-policy.json").read_text())
    machine = platform.target.split("-")[0]
    (one,) = (each for each in policies if "manylinux2014" in each["aliases"])
    return {f"GLIBC_{version}" for version in one["symbol_versions"][machine]["GLIBC"]}


def number_of(version: str) -> tuple[int, ...]:
    """Return the number in the name of a symbol's version, for sorting."""
    return tuple(map(int, version.removeprefix("GLIBC_").split(".")))


if __name__ == "__main__":
    raise SystemExit(main())

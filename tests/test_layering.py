"""Imports point one way (docs/design.rst, "The map of files")."""

from __future__ import annotations

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "pykaproducer"

#: From the bottom to the top: a module may import what stands at its own place or before it.
LAYERS = (
    (
        "_kernel",
        "_version",
        "_chance",
        "_clock",
        "_threads",
        "_advice",
        "_texts",
        "_pickling",
        "_frames",
        "stats",
        "errors",
        "partitioners",
        "_properties",
        "_serializers",
        "_settings",
        "_jaas",
        "_tls_files",
        "_security_settings",
        "_security_checks",
        "_librdkafka",
        "_names",
        "_together",
        "_not_honoured",
        "config",
        "_no_transactions",
    ),
    (
        "delivery",
        "interceptors",
        "block",
    ),
    ("_wire",),
    ("_machines",),
    ("_net",),
    ("_pipeline",),
    (
        "_space",
        "_servers",
        "_lifetime",
        "_closing",
        "_remaking",
        "_stats_server",
        "_kafka_metrics",
        "observe",
        "producer",
        "_choosers",
        "kafka_producer",
    ),
    ("testing",),
    ("_load",),
    ("spark", "contrib", "metrics", "confluent", "cli"),
    ("__init__", "__main__"),
)

RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

#: The only places that import kafka-python.
KAFKA = (
    "_wire/kafka_python.py",
    "_wire/mechanisms.py",
    "_wire/sasl.py",
    "_texts.py",
    "errors.py",
    "delivery.py",
    "testing/",
    "cli/_readback.py",
)

#: What decisions must do without.
IMPURE = {
    "threading",
    "_thread",
    "queue",
    "socket",
    "select",
    "selectors",
    "time",
    "random",
    "logging",
}

#: Compiled: it has no .py file.
KERNEL = "pykaproducer._kernel"

FILES = sorted(PACKAGE.rglob("*.py"))


def _name(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _module(path: pathlib.Path) -> str:
    name = f"pykaproducer/{_name(path)}".removesuffix(".py").removesuffix("/__init__")
    return name.replace("/", ".")


MODULES = {_module(path): path for path in FILES}


def _imports(path: pathlib.Path) -> set[str]:
    """Full names of the modules that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"line {node.lineno}: a relative import"
            assert not node.level, f"line {node.lineno}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES or full == KERNEL else node.module)
    return found


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_point_down(path: pathlib.Path) -> None:
    own = RANK[path.relative_to(PACKAGE).parts[0].removesuffix(".py")]
    for name in _imports(path):
        parts = name.split(".")
        if parts[0] == "pykaproducer" and len(parts) > 1 and parts[1] in RANK:
            assert RANK[parts[1]] <= own, f"{_name(path)} imports {name}, which stands above it"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_kafka_python_stays_behind_its_adapters(path: pathlib.Path) -> None:
    uses = {name for name in _imports(path) if name.split(".")[0] == "kafka"}
    assert not uses or _name(path).startswith(KAFKA), f"{_name(path)} imports {uses}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "_machines").glob("*.py")), ids=_name)
def test_machines_are_pure(path: pathlib.Path) -> None:
    assert not {name.split(".")[0] for name in _imports(path)} & IMPURE


@pytest.mark.parametrize(
    "path", [PACKAGE / "_kernel.pyx", *sorted(PACKAGE.glob("_kernel_parts/*.pxi"))], ids=_name
)
def test_the_kernel_imports_nothing_of_the_package(path: pathlib.Path) -> None:
    for line in path.read_text().splitlines():
        assert not line.lstrip().startswith(("from pykaproducer", "import pykaproducer"))
        if line.startswith(("import ", "from ", "cimport ")):
            assert line.split()[1].split(".")[0] not in IMPURE


def _graph() -> dict[str, set[str]]:
    return {name: (_imports(path) & MODULES.keys()) - {name} for name, path in MODULES.items()}


def test_there_is_no_cycle() -> None:
    graph = _graph()
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way, name))
        if name not in done:
            for wanted in sorted(graph[name]):
                visit(wanted, (*way, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())

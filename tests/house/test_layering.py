"""Imports point one way (docs/design.rst, "The map of files")."""

from __future__ import annotations

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parents[2] / "pykaproducer"
SPARK = PACKAGE.parent / "pyspark_pykaproducer"

#: The only cycle: Spark discovers sinks in modules named ``pyspark_*``, and one that cannot be
#: imported hides all others. So the discovered module imports the sink when a write is planned,
#: and registering the sink by hand imports the discovered module. Both imports are lazy.
TIE = ("pykaproducer.spark.sink", "pyspark_pykaproducer")

#: From the bottom to the top: a module may import from its own layer or from a lower one.
LAYERS = (
    ("_kernel", "_version", "_remaking"),
    ("_util",),
    ("stats", "settings", "_errors", "errors"),
    ("partitioners", "_config", "config"),
    ("delivery", "interceptors", "block"),
    ("_wire",),
    ("_machines",),
    ("_net",),
    ("_pipeline",),
    ("_process", "_observability", "producer", "transactions", "_control", "transaction_control"),
    ("kafka_python",),
    ("testing",),
    ("_load",),
    ("_exactly_once",),
    ("spark", "contrib", "metrics", "confluent", "cli"),
    ("__init__", "__main__"),
)

RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

#: The only places that import kafka-python.
KAFKA = (
    "_errors/kafka_python.py",
    "testing/",
    "cli/_readback.py",
)

#: Modules that the state machines must not use.
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


MODULES = {
    **{_module(path): path for path in FILES},
    "pyspark_pykaproducer": SPARK / "__init__.py",
}


def _imports(path: pathlib.Path) -> set[str]:
    """Return the full names of the modules that a file imports, also inside functions."""
    return _imports_of(ast.parse(path.read_text()))


def _imports_of(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"line {node.lineno}: a relative import"
            assert not node.level, f"line {node.lineno}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES or full == KERNEL else node.module)
    return found


@pytest.fixture(scope="module")
def imports() -> dict[pathlib.Path, set[str]]:
    """Return what each file imports. A test looks at all of them: one for each costs seconds."""
    return {path: _imports(path) for path in FILES}


def test_imports_point_down(imports: dict[pathlib.Path, set[str]]) -> None:
    wrong = []
    for path, names in imports.items():
        own = RANK[path.relative_to(PACKAGE).parts[0].removesuffix(".py")]
        for name in names:
            package, *parts = name.split(".")
            if package == "pykaproducer" and RANK[parts[0] if parts else "__init__"] > own:
                wrong.append(f"{_name(path)} imports {name}, which is above it")
    assert wrong == []


def test_kafka_python_stays_behind_its_adapters(imports: dict[pathlib.Path, set[str]]) -> None:
    users = [
        _name(path)
        for path, names in imports.items()
        if any(name.split(".")[0] == "kafka" for name in names)
    ]
    assert [name for name in users if not name.startswith(KAFKA)] == []


def test_machines_are_pure(imports: dict[pathlib.Path, set[str]]) -> None:
    machines = {path: names for path, names in imports.items() if "_machines" in path.parts}
    assert len(machines) > 20
    for path, names in machines.items():
        assert not {name.split(".")[0] for name in names} & IMPURE, _name(path)


@pytest.mark.parametrize(
    "path", [PACKAGE / "_kernel.pyx", *sorted(PACKAGE.glob("_kernel_parts/*.pxi"))], ids=_name
)
def test_the_kernel_imports_nothing_of_the_package(path: pathlib.Path) -> None:
    for line in path.read_text().splitlines():
        assert not line.lstrip().startswith(("from pykaproducer", "import pykaproducer"))
        if line.startswith(("import ", "from ", "cimport ")):
            assert line.split()[1].split(".")[0] not in IMPURE


def _at_run_time(path: pathlib.Path) -> set[str]:
    """Return what a file imports, without what only type checkers see."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return _imports_of(tree)


def _graph() -> dict[str, set[str]]:
    graph = {name: (_at_run_time(path) & MODULES.keys()) - {name} for name, path in MODULES.items()}
    # Without this line the test below must fail: the tie is real.
    graph[TIE[0]].discard(TIE[1])
    return graph


def test_the_tie_to_spark_is_lazy() -> None:
    for name, other in (TIE, TIE[::-1]):
        body = ast.parse(MODULES[name].read_text()).body
        eager = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not any(other in ast.unparse(node) for node in eager)
        assert other in MODULES[name].read_text()


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

"""Conventions that hold in every file."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

import pykaproducer
from pykaproducer._config.schema import settings_table
from pykaproducer.config import SETTINGS

ROOT = pathlib.Path(__file__).parents[2]
FILES = sorted((ROOT / "pykaproducer").rglob("*.py"))
KERNEL = sorted([*(ROOT / "pykaproducer").rglob("*.pyx"), *(ROOT / "pykaproducer").rglob("*.pxi")])

#: The maximum number of lines of a function, without its docstring and its signature.
LONGEST = 50
#: The maximum number of lines of a file of the package, and of one of the kernel.
LARGEST = 800
LARGEST_OF_KERNEL = 600

#: The names that the package exports. A change here is a change of the public interface.
PUBLIC = [
    "AbortedError",
    "BlockDelivery",
    "BlockFailures",
    "BlockMetadata",
    "BrokerRejectedError",
    "BufferFullError",
    "CallbackThreadError",
    "CommitOutcome",
    "ConfigurationError",
    "Delivery",
    "DeliveryError",
    "DeliveryFailures",
    "DeliveryTimeoutError",
    "EndState",
    "Ended",
    "FlushTimeoutError",
    "ForkedProducerError",
    "KafkaProducer",
    "MessageTooLargeError",
    "MetadataTimeoutError",
    "OutcomeTimeoutError",
    "PartitionerError",
    "PreparedTransaction",
    "Producer",
    "ProducerBrokenError",
    "ProducerClosedError",
    "ProducerFencedError",
    "PykaproducerError",
    "RecordMetadata",
    "RetriesExhaustedError",
    "Status",
    "TopicPartition",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "TransactionControl",
    "TransactionError",
    "TransactionFatalError",
    "TransactionStateError",
    "TransactionTimeoutError",
    "UnsupportedFeatureError",
]


def test_the_public_surface() -> None:
    assert pykaproducer.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(pykaproducer, name).__doc__


def _size(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of lines without the docstring and the signature."""
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    if not body:
        return 0
    assert function.end_lineno is not None
    return function.end_lineno - body[0].lineno + 1


def test_every_module_says_what_it_is_and_is_readable() -> None:
    wrong = []
    for path in FILES:
        name, source = path.relative_to(ROOT).as_posix(), path.read_text()
        if len(source.splitlines()) > LARGEST:
            wrong.append(f"{name} is too long")
        tree = ast.parse(source)
        if not ast.get_docstring(tree):
            wrong.append(f"{name} has no docstring")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _size(node) > LONGEST:
                wrong.append(f"{node.name} in {name} is too long")
    assert wrong == []


#: The first line of a function in Cython (a variable has no parenthesis before its value).
#: Declarations of C functions are in separate blocks and do not begin with "cdef".
_CYTHON_FUNCTION = re.compile(r" *(?:def|cp?def(?! class))\b[^=(]*?(\w+)\(")

#: Cython 3.3 drops a reference to the item twice when the list of a comprehension cannot grow.
_COMPREHENSION = re.compile(r"\[[^\[\]\n]*(?:\[[^\]\n]*\][^\[\]\n]*)*\bfor\b.*\bin\b.*\]")

_DOCSTRING = re.compile(r'\s*""".*?"""\n', re.DOTALL)


def _cython_functions(source: str) -> list[tuple[str, int]]:
    """Return each function and its size, as :func:`_size` counts."""
    found = []
    lines = source.splitlines(keepends=True)
    for number, line in enumerate(lines):
        function = _CYTHON_FUNCTION.match(line)
        if function is None:
            continue
        indent = len(line) - len(line.lstrip())
        # The signature ends at the first line that ends with a colon.
        first = next(n for n in range(number, len(lines)) if lines[n].rstrip().endswith(":")) + 1
        body = ""
        for below in lines[first:]:
            if below.strip() and len(below) - len(below.lstrip()) <= indent:
                break
            body += below
        size = len(_DOCSTRING.sub("", body, count=1).strip().splitlines())
        found.append((function[1], size))
    return found


def test_functions_of_the_kernel_are_found_and_measured() -> None:
    source = '''
cdef class Chunk(Base):
    cdef list parts = list(range(3))

    cdef inline uint8_t *room(self, Py_ssize_t size,
                              int more) noexcept nogil:
        """Two

        lines."""
        cdef int i = size

        return more


cpdef int last(x) except -1:
    return x
'''
    assert _cython_functions(source) == [("room", 3), ("last", 1)]


@pytest.mark.parametrize("path", KERNEL, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_kernel_is_as_readable(path: pathlib.Path) -> None:
    source = path.read_text()
    assert source.startswith("# "), "it does not say what it is"
    assert all(len(line) <= 100 for line in source.splitlines())
    assert len(source.splitlines()) <= LARGEST_OF_KERNEL
    for name, size in _cython_functions(source):
        assert size <= LONGEST, f"{name} is too long"
    assert not _COMPREHENSION.search(source), "append in a loop instead"


def test_nothing_sleeps() -> None:
    files = [*FILES, *KERNEL]
    assert [path for path in files if re.search(r"\bsleep\(", path.read_text())] == []


def test_the_version_is_the_same_everywhere() -> None:
    assert "version = attr: pykaproducer._version.VERSION" in (ROOT / "setup.cfg").read_text()
    newest = re.search(r"^(\d+\.\d+\.\d+) \(.*\)$", (ROOT / "CHANGES.rst").read_text(), re.M)
    assert newest is not None
    assert newest[1] == pykaproducer.__version__


def test_the_readme_is_short_and_the_documentation_has_the_settings() -> None:
    assert len((ROOT / "README.rst").read_text().splitlines()) <= 200
    assert ".. settings-table::" in (ROOT / "docs" / "settings.rst").read_text()
    table = settings_table(SETTINGS)
    assert all(f"``{setting.name}``" in table for setting in SETTINGS)


def test_the_readme_has_the_command_that_ci_runs() -> None:
    command = (ROOT / ".ci" / "run").read_text().splitlines()[-1]
    assert command in (ROOT / "README.rst").read_text()


def test_no_two_classes_share_a_name() -> None:
    """Except those of the drop-in for confluent-kafka, whose names are given."""
    found: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    shared = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert shared == {
        "Producer": ["pykaproducer/confluent/producer.py", "pykaproducer/producer.py"]
    }


def test_the_way_of_a_message_names_what_exists() -> None:
    """A renamed method must be renamed in docs/design.rst, too."""
    text = (ROOT / "docs" / "design.rst").read_text()
    way = text[text.index("The life of a message\n") : text.index("The map of files\n")]
    package = "\n".join(path.read_text() for path in (*FILES, *KERNEL))
    names = {name.rpartition(".")[2] for name in re.findall(r"``([A-Za-z_.]+)``", way)}
    assert len(names) > 60
    assert [name for name in names if not re.search(rf"\b{name}\b", package)] == []

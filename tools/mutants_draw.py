"""Draws the sample of ``mutants.py``: ``tox -e mutants -- --draw``.

The Python mutants are made by cosmic-ray's operators. Each line of the core that has a mutant is
equally likely, then each kind of operator on that line, then each mutant of that kind. Left out is
what no test of behaviour can see: annotations, type aliases, ``if TYPE_CHECKING``, ``__repr__``,
the arguments of logging calls and of ``@dataclass``, decorators for type checkers and for caches,
and code that is the same to the compiler. (No operator changes a text or a docstring.)

The kernel's mutants replace a line of ``_kernel.pyx`` or ``_kernel_parts/``: a comparison, a
constant, or a removed statement. One that does not compile is drawn anew.
"""

from __future__ import annotations

import ast
import random
import re
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mutants_copy import Mutant, places_of, scope_of

#: The folders and modules of the package that are the core.
CORE = (
    *("_config", "_errors", "_machines", "_net", "_observability"),
    *("_pipeline", "_process", "_util", "_wire"),
    *("block", "config", "delivery", "errors", "interceptors", "partitioners", "producer"),
    *("settings", "stats", "transactions"),
)
#: Calls whose arguments only appear in the log.
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log"}
#: Decorators whose removal changes types, speed or a representation at most.
INVISIBLE = {"overload", "override", "final", "abstractmethod", "cache", "lru_cache"}
#: The nodes on which each kind of cosmic-ray's operators works.
NODES = {
    "ReplaceBinaryOperator": {"operator"},
    "ReplaceComparisonOperator": {"comparison"},
    "ReplaceUnaryOperator": {"factor", "not_test"},
    "AddNot": {"if_stmt", "while_stmt", "assert_stmt", "test"},
    "ReplaceTrueWithFalse": {"keyword"},
    "ReplaceFalseWithTrue": {"keyword"},
    "ReplaceAndWithOr": {"keyword"},
    "ReplaceOrWithAnd": {"keyword"},
    "ReplaceBreakWithContinue": {"keyword"},
    "ReplaceContinueWithBreak": {"keyword"},
    "ExceptionReplacer": {"except_clause"},
    "NumberReplacer": {"number"},
    "RemoveDecorator": {"decorator"},
    "ZeroIterationForLoop": {"for_stmt"},
}
#: What ends a line that is not the last of its statement.
CONTINUED = ",\\([+"
#: A Cython statement that can be removed: an assignment, a call, a return or a raise.
STATEMENT = re.compile(r"(?:return|raise) |[\w.\[\]]+(?: (?:[-+*/|&]|<<|>>)?= |\()")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


def as_mutant(file: str, old: str, new: str, operator: str, occurrence: int) -> Mutant:
    """Describe the change from *old* to *new*: lines to find again where the file has changed."""
    before, after = old.splitlines(), new.splitlines()
    first = 0
    while before[first] == after[first]:
        first += 1
    last = 0
    while last < min(len(before), len(after)) - first and before[-1 - last] == after[-1 - last]:
        last += 1
    gone, come = before[first : len(before) - last], after[first : len(after) - last]
    while not gone[0].strip():  # cosmic-ray also removes the empty lines before a decorator
        gone, first = gone[1:], first + 1
    if not come:
        come = [before[first + len(gone)]]
        gone += come
    scope = scope_of(before, first)
    places = places_of(before, gone, scope)
    return {
        "file": file,
        "line": first + 1,
        "operator": operator,
        "occurrence": occurrence,
        "scope": scope,
        "place": places.index(first),
        "before": gone,
        "after": come,
    }


def core(package: Path) -> list[Path]:
    """Return the Python files of the core."""
    found = [package / f"{name}.py" for name in CORE if (package / f"{name}.py").exists()]
    for name in CORE:
        found += (package / name).rglob("*.py")
    return sorted(found)


def _spans(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield the beginning and the end of each part that no test of behaviour can see."""
    for node in ast.walk(tree):
        hidden: list[ast.AST | None] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            hidden = [node.returns, node if node.name == "__repr__" else None]
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            hidden += [each.annotation for each in every]
        elif isinstance(node, ast.AnnAssign):
            hidden = [node.annotation]
        elif isinstance(node, ast.ClassDef):
            hidden = [node] if "Protocol" in map(ast.unparse, node.bases) else []
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            hidden = [node]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            hidden = [node] if name in LOGGING or name == "dataclass" else []
        elif isinstance(node, ast.Assign) and node in tree.body:
            is_union = isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr)
            hidden = [node] if is_union else []
        for each in hidden:
            if each is not None:
                yield (each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset)  # type: ignore[attr-defined]


def _stripped(source: str) -> str:
    """Return what the compiler makes of *source*, without annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def python_sites(source: str) -> dict[int, dict[str, list[tuple[Any, int]]]]:
    """Return the operators and occurrences, by line and by kind of operator."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    spans = list(_spans(ast.parse(source)))
    by_node: dict[str, list[Any]] = {}
    for name in plugins.operator_names():
        plain = name.partition("/")[2]
        kind = next((each for each in NODES if plain == each or plain.startswith(each + "_")), None)
        for node_type in NODES.get(kind or "", ()):
            by_node.setdefault(node_type, []).append((kind, plain, plugins.get_operator(name)()))
    counts: dict[str, int] = {}
    sites: dict[int, dict[str, list[tuple[Any, int]]]] = {}
    for node in ast_nodes(get_ast(source)):
        for kind, plain, operator in by_node.get(node.type, ()):
            for start, _ in operator.mutation_positions(node):
                occurrence = counts.get(plain, 0)
                counts[plain] = occurrence + 1
                if any(first <= start < last for first, last in spans):
                    continue
                if node.type == "operator" and node.parent.type == "parameters":
                    continue  # "*" before parameters that are only keywords
                if kind == "RemoveDecorator" and INVISIBLE & set(
                    re.findall(r"\w+", node.get_code())
                ):
                    continue
                sites.setdefault(start[0], {}).setdefault(kind, []).append((operator, occurrence))
    return sites


def draw_python(root: Path, number: int, seed: int) -> list[Mutant]:
    """Draw *number* mutants of the core's Python."""
    from cosmic_ray.mutating import mutate_code

    chance = random.Random(f"{seed} Python")
    sources = {path: path.read_text() for path in core(root / "pykaproducer")}
    sites = {path: python_sites(source) for path, source in sources.items()}
    order = [(path, line) for path in sources for line in sorted(sites[path])]
    chance.shuffle(order)
    drawn: list[Mutant] = []
    for path, line in order:
        kinds = sites[path][line]
        operator, occurrence = chance.choice(kinds[chance.choice(sorted(kinds))])
        new = mutate_code(sources[path], operator, occurrence)
        try:
            with warnings.catch_warnings(action="error"):
                compile(new, str(path), "exec")
        except (SyntaxError, SyntaxWarning):
            continue
        if _stripped(new) == _stripped(sources[path]):
            continue
        name, file = type(operator).__name__, str(path.relative_to(root))
        drawn.append(as_mutant(file, sources[path], new, name, occurrence))
        if len(drawn) == number:
            break
    return sorted(drawn, key=lambda mutant: (mutant["file"], mutant["line"]))


def kernel_changes(lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Yield the index, the operator and the new text of each mutant of a Cython file."""
    is_text, block = False, -1
    for index, line in enumerate(lines):
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        quotes = text.count('"""')
        if is_text or quotes:
            is_text ^= quotes % 2 == 1
            continue
        if block >= 0 and text and depth <= block:
            block = -1
        if re.match(r"(?:cdef extern|(?:cdef|ctypedef) (?:packed )?(?:enum|struct|union))\b", text):
            block = depth
        if block >= 0 or not text or re.match(r"#|@|c?import |from |include |DEF |ctypedef ", text):
            continue
        code = re.sub(r"""("[^"]*"|'[^']*')|\s+#.*$""", lambda found: "_" * len(found[0]), line)
        code = re.sub(r"\bexcept\??.*$", "", code)  # how a C function reports an exception
        for found in re.finditer(r" (==|!=|<=|>=|<|>) (NULL)?", code):
            for other in COMPARISONS[:2] if found[2] else COMPARISONS:
                if other != found[1]:
                    yield index, "comparison", line[: found.start(1)] + other + line[found.end(1) :]
        for found in re.finditer(r"(?<![\w.])(0x[0-9A-Fa-f]+|\d+|True|False)(?![\w.])", code):
            new = str(found[0] == "False") if found[0].isalpha() else str(int(found[0], 0) + 1)
            if not re.match(r"cdef .*\[", text):  # the length of a C array
                yield index, "constant", line[: found.start()] + new + line[found.end() :]
        is_whole = text.count("(") == text.count(")") and text[-1] not in CONTINUED
        before = next((each.rstrip() for each in reversed(lines[:index]) if each.strip()), ":")
        if depth and is_whole and before[-1] not in CONTINUED and STATEMENT.match(text):
            yield index, "removed statement", line[:depth] + "pass"


def draw_kernel(
    root: Path, number: int, seed: int, compiles: Callable[[Mutant], bool]
) -> list[Mutant]:
    """Draw *number* mutants of compiled code: each kind, then each line, equally likely."""
    chance = random.Random(f"{seed} kernel")
    package = root / "pykaproducer"
    sites: dict[str, dict[tuple[Path, int], list[tuple[str, int]]]] = {}
    for path in [package / "_kernel.pyx", *sorted((package / "_kernel_parts").glob("*.pxi"))]:
        counts: dict[str, int] = {}
        for index, operator, new in kernel_changes(path.read_text().splitlines()):
            occurrence = counts.get(operator, 0)
            counts[operator] = occurrence + 1
            places = sites.setdefault(operator, {})
            places.setdefault((path, index), []).append((new, occurrence))
    order = {operator: list(places) for operator, places in sites.items()}
    for each in order.values():
        chance.shuffle(each)
    drawn: list[Mutant] = []
    while len(drawn) < number:
        operator = chance.choice(sorted(order))
        path, index = order[operator].pop()
        new, occurrence = chance.choice(sites[operator][path, index])
        old = path.read_text()
        lines = old.splitlines()
        lines[index] = new
        file = str(path.relative_to(root))
        mutant = as_mutant(file, old, "\n".join(lines) + "\n", operator, occurrence)
        if compiles(mutant):
            drawn.append(mutant)
    return sorted(drawn, key=lambda mutant: (mutant["file"], mutant["line"]))


def commit_of(root: Path) -> str:
    """Return the commit that *root* is at."""
    words = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

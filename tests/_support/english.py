"""Count words that the prose of this project avoids: ``python -m tests._support.english``.

With paths as arguments, print each place in these files.

The prose of a Python or Cython file is its comments and docstrings; of a document, its text without
literals and code blocks. The rows are those in which translated English differs most from the
documentation of Python and psycopg.
"""

from __future__ import annotations

import ast
import io
import pathlib
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).parents[2]

#: What is counted, case-insensitively unless a pattern says otherwise.
ROWS = {
    "told, tell of": re.compile(r"\b(?:un)?told\b|\btells? of\b", re.I),
    "a sentence that opens with Who or What": re.compile(
        r"(?:^|(?<=[.!?:;] ))(?:Who|What|Whoever|Whatever)\b(?![^.!?]*\?)", re.M
    ),
    "nobody, somebody": re.compile(r"\b(?:nobody|somebody)\b", re.I),
    "behind, for after": re.compile(r"\bbehind\b(?! (?:a|the) (?:proxy|load balancer|NAT))", re.I),
    "of its own": re.compile(r"\bof (?:its|their|his|her|one's|your|our) own\b", re.I),
    "so long, so many, so much": re.compile(r"\bso (?:long|many|much)\b", re.I),
    "meanwhile": re.compile(r"\bmeanwhile\b", re.I),
    "goes again, goes round": re.compile(
        r"\b(?:go|goes|going|come|comes|coming) (?:again|round)\b", re.I
    ),
}

#: The same in each 10,000 words of a kind of prose.
MOST = 1.0


def prose_of(path: pathlib.Path) -> str:
    """Return the text in *path* that people read as English."""
    source = path.read_text()
    if path.suffix == ".py":
        return "\n".join(_python_prose(source))
    if path.suffix in (".pyx", ".pxi", ".pyi"):
        return "\n".join(_cython_prose(source))
    return _document_prose(source)


def _python_prose(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("#: ")
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def _cython_prose(source: str) -> Iterator[str]:
    yield from (match[1] for match in re.finditer(r'"""(.*?)"""', source, re.S))
    without = re.sub(r'""".*?"""', "", source, flags=re.S)
    yield from (match[1] for match in re.finditer(r"#:? (.*)", without))
    yield from (match[1] for match in re.finditer(r"/\* (.*?)\*/", source, re.S))


def _document_prose(source: str) -> str:
    text = re.sub(r"(?m)::\n\n(?: +.*\n|\n)+", "\n", source)
    text = re.sub(r"(?m)^\.\. code-block::.*\n\n(?: +.*\n|\n)+", "\n", text)
    return re.sub(r"``.*?``|`[^`]*`_|:\w+:`[^`]*`", "x", text)


def count(paths: Iterable[pathlib.Path]) -> tuple[int, Counter[str], list[str]]:
    """Return the number of words, the count of each row, and where each was found."""
    words, found, places = 0, Counter[str](), []
    for path in paths:
        text = re.sub(r"``.*?``", "x", prose_of(path), flags=re.S)
        words += len(re.findall(r"[A-Za-z']+", text))
        # A sentence may go over lines; a paragraph ends it.
        paragraphs = [" ".join(each.split()) for each in re.split(r"\n\s*\n", text)]
        for row, pattern in ROWS.items():
            for paragraph in paragraphs:
                for match in pattern.finditer(paragraph):
                    found[row] += 1
                    around = paragraph[max(0, match.start() - 40) : match.end() + 40]
                    places.append(f"{path.relative_to(ROOT)}: {row}: ...{around}...")
    return words, found, places


#: Each kind of prose, which is measured by itself.
KINDS = {
    "package": lambda: [
        *(ROOT / "pykaproducer").rglob("*.py"),
        *(ROOT / "pykaproducer").rglob("*.p[yx][xi]"),
    ],
    "docs": lambda: [ROOT / "README.rst", *(ROOT / "docs").rglob("*.rst")],
}


def main(arguments: list[str]) -> None:
    """Print each find in the paths given, or in everything, and the rates."""
    paths: list[pathlib.Path] = []
    for argument in arguments:
        path = pathlib.Path(argument).resolve()
        paths += [
            each
            for each in (path.rglob("*") if path.is_dir() else [path])
            if each.suffix in (".py", ".pyx", ".pxi", ".pyi", ".rst")
        ]
    kinds = {"given": paths} if paths else {name: list(each()) for name, each in KINDS.items()}
    for name, some in kinds.items():
        words, found, places = count(some)
        print(*places, sep="\n")
        print(f"{name}: {words:,} words; in 10,000 words:")
        for row in ROWS:
            print(f"  {found[row] * 10_000 / max(1, words):6.1f}  ({found[row]})  {row}")


if __name__ == "__main__":
    main(sys.argv[1:])

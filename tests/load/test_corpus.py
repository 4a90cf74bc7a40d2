"""Files of other writers, compared with other readers: see ``corpus/README.rst``."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.load.truth import (
    REFUSALS,
    Compared,
    parsed,
    values,
    with_duckdb,
    with_expected,
    with_fastavro,
)

CORPUS = pathlib.Path(__file__).parent / "corpus"
MANIFEST: dict[str, dict[str, str]] = json.loads((CORPUS / "manifest.json").read_text())
SUITE: dict[str, str] = json.loads((CORPUS / "json-test-suite.json").read_text())

#: The columns of lists without the annotation LIST whose elements are groups with one field. By
#: Parquet's rules the element is the group, as Spark reads it; DuckDB takes the field instead.
_GROUPS = {
    "spark/nested-array-struct.parquet": "column myComplex: ",
    "spark/proto-struct-with-array.parquet": "column repeatedMessage: ",
}


def files(*suffixes: str) -> list[str]:
    return [name for name in MANIFEST if name.endswith(suffixes)]


def check(name: str, compare: Callable[[pathlib.Path], Compared]) -> None:
    found = compare(CORPUS / name)
    expected = MANIFEST[name].get("refused", "")
    assert expected in found.refused
    assert bool(expected) is bool(found.refused)
    assert not found.refused_there
    where = _GROUPS.get(name)
    assert [text for text in found.different if not (where and where in text)] == []


def test_the_files_are_those_of_the_manifest() -> None:
    found = {
        str(path.relative_to(CORPUS)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in CORPUS.rglob("*")
        if path.is_file() and path.name not in ("README.rst", "manifest.json")
    }
    assert found == {name: each["sha256"] for name, each in MANIFEST.items()}


@pytest.mark.parametrize("name", files(".parquet", ".parq"))
def test_parquet_is_read_as_by_duckdb(name: str) -> None:
    check(name, with_duckdb)


@pytest.mark.parametrize("name", files(".avro"))
def test_avro_is_read_as_by_fastavro(name: str) -> None:
    check(name, with_fastavro)


@pytest.mark.parametrize("name", files(".jsn.gz"))
def test_orc_is_read_as_its_project_publishes(name: str) -> None:
    check(name.replace("expected/", "").replace(".jsn.gz", ".orc"), with_expected)


@pytest.mark.parametrize("name", [each for each in files(".orc") if "/corrupt/" in each])
def test_damaged_orc_is_refused(name: str) -> None:
    check(name, with_expected)


# The first and the last row, and their number. Times have no time zone: as the writer saw them.
_ORC: dict[str, tuple[int, Any, Any]] = {
    "orc/col.dot.orc": (1, {"col.dot": 0}, {"col.dot": 0}),
    "orc/orc-file-dst-no-timezone.orc": (
        2,
        {"_col0": "2014-01-01T12:34:56.000000000"},
        {"_col0": "2014-06-06T11:34:56.000000000"},
    ),
    "orc/orc-file-no-double-statistic.orc": (1, {"x": None}, {"x": None}),
    "orc/orc-file-no-timezone.orc": (
        2,
        {"_col0": "2014-01-01T12:34:56.000000000"},
        {"_col0": "2014-06-06T12:34:56.000000000"},
    ),
    "spark/before_1582_date_v2_4.snappy.orc": (1, {"dt": "1200-01-08"}, {"dt": "1200-01-08"}),
}


@pytest.mark.parametrize("name", _ORC)
def test_orc_of_other_writers(name: str) -> None:
    found = [parsed(value) for value in values(str(CORPUS / name))]
    assert (len(found), found[0], found[-1]) == _ORC[name]


@pytest.mark.parametrize("name", files(".csv"))
def test_csv_is_read_as_csv_spectrum_demands(name: str) -> None:
    expected = json.loads((CORPUS / name).with_suffix(".json").read_bytes())
    if "location_coordinates" in name:
        # A row without a list, and the telephone number is another than in the CSV.
        expected = [expected | {"Contact Phone Number": "2095257564"}]
    assert [json.loads(value) for value in values(str(CORPUS / name))] == expected


# JSONTestSuite: y_ is valid, n_ is not, i_ is the reader's decision.


@pytest.mark.parametrize("is_member", [False, True])
def test_lines_are_accepted_as_json_test_suite_demands(
    tmp_path: pathlib.Path, is_member: bool
) -> None:
    wrong = []
    for name, text in SUITE.items():
        if name.startswith("y_"):
            text = text.replace("\n", " ")  # outside of strings, where a newline is invalid
        line = f'{{"a":{text}}}' if is_member else text
        path = tmp_path / "x.jsonl"
        path.write_bytes(line.encode(errors="surrogatepass"))
        try:
            sent: Any = values(str(path), select="value=value", whole_lines=True)
        except REFUSALS as error:
            sent = str(error)
        line = line.removeprefix("\ufeff")
        is_object = line.lstrip().startswith("{")
        # What is refused ends the load; what is accepted is sent as it stands.
        if "duplicated_key" in name and is_object:
            is_right = "the object has two members" in sent
        elif name.startswith("y_") and is_object:
            is_right = sent == [line]
        elif name.startswith("i_") and is_object:
            is_right = sent == [line] or isinstance(sent, str)
        else:
            is_right = isinstance(sent, str)
        if not is_right:
            wrong.append((name, sent))
    assert wrong == []

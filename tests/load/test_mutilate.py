"""Damaged files: refused, or read as the original where a checksum covers them."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.load.mutilate import Damage, originals
from tests.load.truth import values

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("place", range(len(originals())))
def test_the_originals_are_valid(tmp_path: pathlib.Path, place: int) -> None:
    original = originals()[place]
    path = tmp_path / f"x.{original.suffix}"
    path.write_bytes(original.content)
    assert len(values(str(path))) == 40


def test_damaged_files() -> None:
    run(files=300, seed=0)


@pytest.mark.full
def test_many_damaged_files() -> None:
    run(files=5000, seed=1000)


def run(files: int, seed: int) -> None:
    """Read damaged files in a child process, which must not crash."""
    words = ["-m", "tests.load.mutilate", "--files", str(files), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_damage_depends_on_the_number_alone(tmp_path: pathlib.Path) -> None:
    damage = Damage(tmp_path)
    suffixes = []
    for _ in range(2):
        assert damage.one(7) == ""
        suffixes.append({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    assert suffixes[0] == suffixes[1]

"""What a broker is made of, and where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykaproducer.testing._jars import kafka_jars

pytestmark = pytest.mark.scripted


def test_an_interrupted_download_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """jgo takes a directory of jars for complete if there is one jar in it."""
    names = sorted(jar.name for jar in kafka_jars())
    monkeypatch.setenv("JGO_CACHE_DIR", str(tmp_path / "jgo"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    for jar in kafka_jars()[1:]:
        jar.unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    assert sorted(jar.name for jar in kafka_jars()) == names

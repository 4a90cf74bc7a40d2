"""The README's examples, one after the other in one namespace, on a real broker."""

from __future__ import annotations

import pathlib
import re
import textwrap

import pytest

from pykaproducer.testing import KafkaCluster
from tests.cluster.readback import read_log

README = pathlib.Path(__file__).parent.parent.parent / "README.rst"


def blocks() -> list[str]:
    """Return the Python examples, but for the one of Spark, which needs a data frame."""
    found = re.findall(r"\.\. code-block:: python\n\n((?: {4}.*\n|\n)+)", README.read_text())
    return [block for block in map(textwrap.dedent, found) if "df.write" not in block]


def test_the_examples_run_in_order(
    cluster: KafkaCluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    names: dict[str, object] = {"__name__": "readme"}
    producers: list[object] = []
    for block in blocks():
        # Other tests have a topic "events" on the same cluster.
        block = block.replace("127.0.0.1:9092", cluster.bootstrap_servers)
        exec(block.replace('"events"', repr(topic)), names)
        producers += [names[name] for name in ("producer", "secured") if name in names]
    for producer in producers:
        producer.close(10)  # type: ignore[attr-defined]
    assert "delivered: 0 " in capsys.readouterr().out
    values = read_log(cluster, topic).values
    # The first block's 1,001, the callback's one, and the four of the columns.
    assert len(values) == 1001 + 1 + 4

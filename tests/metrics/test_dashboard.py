"""The dashboard in ``examples/`` uses metrics and labels that are exported."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pykaproducer import Producer
from pykaproducer.metrics import ProducerCollector
from tests._support.snapshots import TRANSACTIONS, Said

DASHBOARD = pathlib.Path(__file__).parent.parent.parent / "examples" / "grafana-dashboard.json"

BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
QUERIES += [each["query"] for each in BOARD["templating"]["list"] if each["type"] == "query"]

#: Labels that Prometheus itself adds.
OF_PROMETHEUS = {"job", "instance"}


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the labels of each exported sample, by its name."""
    registry = CollectorRegistry()
    # The one has partitions, the other histograms. (Collectors do not keep producers alive.)
    said = Said(transactions=TRANSACTIONS)
    real = Producer(bootstrap_servers="127.0.0.1:9", transactional_id="orders-0")
    registry.register(ProducerCollector(said, real))
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_every_metric_is_exported_with_its_labels(
    query: str, exported: dict[str, set[str]]
) -> None:
    metrics = re.findall(r"\bpykaproducer_\w+", query)
    assert metrics
    for name in metrics:
        assert name in exported
    labels = set(re.findall(r"(\w+)=~", query))
    for group in re.findall(r"\bby \((.*?)\)", query):
        labels |= {label.strip() for label in group.split(",")}
    labels |= set(re.findall(r"label_values\(.*, (\w+)\)", query))
    for name in metrics:
        assert labels - OF_PROMETHEUS <= exported[name]


def test_every_legend_uses_a_label_of_its_query() -> None:
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                grouped = re.search(r"\bby \(.*?\)", target["expr"])
                assert grouped is None or re.search(rf"\b{label}\b", grouped[0])

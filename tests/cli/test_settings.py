"""``settings``: what the documentation says about each setting, without the documentation."""

from __future__ import annotations

import pytest

from pykaproducer.cli import main
from pykaproducer.config import SETTINGS


def told(capsys: pytest.CaptureFixture[str], *names: str) -> str:
    assert main(["settings", *names]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["linger_ms", "linger.ms", "queue.buffering.max.ms"])
def test_one_setting_by_any_of_its_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, name)
    assert out.startswith("linger_ms\n    default: 0 ms\n    allowed: ")
    assert "    also: queue.buffering.max.ms\n" in out
    assert out.endswith(".\n")


def test_all_settings_fit_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys).splitlines()
    assert [line for line in lines if line and line[0] != " "] == [row.name for row in SETTINGS]
    assert all(len(line) <= 79 or " " not in line.strip() for line in lines)


def test_a_pattern_and_another(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "ssl_*pem", "acks", "acks").splitlines()
    assert [line for line in lines if line and line[0] != " "] == [
        "acks",
        "ssl_ca_pem",
        "ssl_certificate_pem",
        "ssl_key_pem",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("linger", "setting linger is unknown; the most similar setting is linger"),
        ("no*such", "no setting matches 'no*such'"),
        ("group_id", "setting group_id is not a producer setting"),
        ("", "unknown"),
    ],
)
def test_an_unknown_name(name: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", name]) == 2
    out, err = capsys.readouterr()
    assert (out, text in err) == ("", True)


def test_a_setting_without_effect_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in SETTINGS if row.no_effect)
    assert "No effect: " in told(capsys, row.name)


def test_a_setting_that_only_the_java_client_has(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "ssl.provider", "ssl.provider")
    assert out.startswith("ssl.provider\n    only in the Java client. No effect: ")
    assert out.count("only in the Java client") == 1
    lines = told(capsys, "partitioner.class", "acks", "interceptor.classes").splitlines()
    names = [line for line in lines if line and line[0] != " "]
    assert names == ["acks", "interceptors", "partitioner.class"]

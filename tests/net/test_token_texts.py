"""What is shown of a token endpoint's texts: no secret that they repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from pykaproducer.testing import TokenReply, TokenServer
from tests.net.test_token_source import SECRET, basic, failure, server

__all__ = ["server"]


@pytest.mark.parametrize("told", ["my  own secret", "my own secret", "my\n own secret"])
def test_a_secret_with_white_space_is_not_shown(server: TokenServer, told: str) -> None:
    source = basic(server.url, sasl_oauthbearer_client_secret="my  own secret")
    server.answer = lambda request: TokenReply.of(400, error=f"'{told}' is wrong")
    expected = "HTTP 400 Bad Request: '<not shown>' is wrong"
    assert failure(source, permanent=True) == expected


def test_an_assertion_in_a_file_is_not_shown(server: TokenServer, tmp_path: Path) -> None:
    path = tmp_path / "assertion"
    path.write_text("opaque+assertion")
    source = basic(
        server.url, sasl_oauthbearer_client_secret=None, sasl_oauthbearer_assertion_file=path
    )
    error = "opaque+assertion or opaque%2Bassertion"
    server.answer = lambda request: TokenReply.of(400, error=error)
    expected = "HTTP 400 Bad Request: <not shown> or <not shown>"
    assert failure(source, permanent=True) == expected


def test_a_content_type_is_shown_as_other_texts(server: TokenServer) -> None:
    kind = {"Content-Type": f"text/\x1b[31m{SECRET}"}
    server.answer = lambda request: TokenReply(200, b"<html>", kind)
    expected = "the answer is not a JSON object but text/[31m<not shown>; is the URL right?"
    assert failure(basic(server.url)) == expected

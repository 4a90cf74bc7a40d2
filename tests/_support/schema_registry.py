"""A schema registry for tests: an HTTP server on 127.0.0.1 with the API of Confluent's."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

#: How often the server looks whether it has to end (seconds).
_POLL = 0.02


class Asked(NamedTuple):
    """A request, as it arrived."""

    method: str
    #: As it was sent: a subject is quoted.
    path: str
    authorization: str | None
    content: dict[str, Any]


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    headers: dict[str, str] = {}

    @classmethod
    def of(cls, status: int, **content: Any) -> Reply:
        """Return an answer in JSON."""
        return cls(status, json.dumps(content).encode())


class RegistryServer:
    """The registry.

    ``answer``, if set, replaces its answers; it may block, and may return None for the usual one.
    """

    def __init__(self, tls: str | None = None) -> None:
        #: The schemas of each subject, by version.
        self.subjects: dict[str, list[str]] = {}
        #: All schemas, whose place is their id - 1.
        self.schemas: list[str] = []
        self.authorization: str | None = None
        self.answer: Callable[[Asked], Reply | None] | None = None
        self.asked: list[Asked] = []
        server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        server.registry = self  # type: ignore[attr-defined]
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._server = server
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_port}"

    @contextlib.contextmanager
    def running(self) -> Iterator[RegistryServer]:
        """Answer until the end of the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=[_POLL])
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def add(self, subject: str, schema: str | dict[str, Any]) -> int:
        """Register a schema. Return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        versions = self.subjects.setdefault(subject, [])
        if text not in versions:
            versions.append(text)
        if text not in self.schemas:
            self.schemas.append(text)
        return self.schemas.index(text) + 1

    def reply(self, asked: Asked) -> Reply:
        """Return the answer to a request."""
        self.asked.append(asked)
        given = None if self.answer is None else self.answer(asked)
        if given is not None:
            return given
        if asked.authorization != self.authorization:
            return Reply.of(401, error_code=401, message="Unauthorized")
        path = asked.path.partition("?")[0]
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        match [asked.method, *parts]:
            case ["GET", "subjects", name, "versions", "latest"]:
                return self._version(name, -1)
            case ["GET", "schemas", "ids", number] if 0 < int(number) <= len(self.schemas):
                return Reply.of(200, schema=self.schemas[int(number) - 1])
            case ["GET", "schemas", "ids", number]:
                return Reply.of(404, error_code=40403, message=f"Schema {number} not found")
            case ["POST", "subjects", name]:
                versions = self.subjects.get(name, [])
                if asked.content["schema"] not in versions:
                    return Reply.of(404, error_code=40403, message="Schema not found")
                return self._version(name, versions.index(asked.content["schema"]))
            case ["POST", "subjects", name, "versions"]:
                number = self.add(name, asked.content["schema"])
                return Reply.of(200, id=number)
        return Reply.of(404, error_code=404, message="HTTP 404 Not Found")

    def _version(self, name: str, place: int) -> Reply:
        versions = self.subjects.get(name)
        if not versions:
            return Reply.of(404, error_code=40401, message=f"Subject '{name}' not found.")
        text = versions[place]
        number = self.schemas.index(text) + 1
        return Reply.of(
            200, subject=name, version=place % len(versions) + 1, id=number, schema=text
        )


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._handle("GET")

    def do_POST(self) -> None:
        self._handle("POST")

    def _handle(self, method: str) -> None:
        registry: RegistryServer = self.server.registry  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        authorization = self.headers.get("Authorization")
        reply = registry.reply(
            Asked(method, self.path, authorization, json.loads(body) if body else {})
        )
        with contextlib.suppress(OSError):  # the client did not wait
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

    def log_message(self, *unused: object) -> None:
        pass

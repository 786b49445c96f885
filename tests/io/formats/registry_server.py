"""A schema registry that speaks the documented API of Confluent's over real HTTP, in this process:
subjects, versions, lookups, registrations, Basic authentication, compatibility refused by name.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

USER, PASSWORD = "reader", "s3cret"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        listed = re.fullmatch(r"/subjects/([^/]+)/versions(\?deleted=true)?", self.path)
        one = re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)\?deleted=true", self.path)
        if not self._allowed():
            return self._answer(401, {"error_code": 401, "message": "Unauthorized"})
        subjects = self.server.subjects
        if listed and listed[1] in subjects:
            hidden = set() if listed[2] else self.server.deleted
            versions = [one["version"] for one in subjects[listed[1]]]
            return self._answer(200, [v for v in versions if (listed[1], v) not in hidden])
        if one and one[1] in subjects and int(one[2]) <= len(subjects[one[1]]):
            return self._answer(200, subjects[one[1]][int(one[2]) - 1])
        return self._answer(404, {"error_code": 40401, "message": "Subject not found."})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Content-Type"] == "application/vnd.schemaregistry.v1+json"
        if not self._allowed():
            return self._answer(401, {"error_code": 401, "message": "Unauthorized"})
        subject = re.fullmatch(r"/subjects/([^/]+)(/versions)?", self.path)
        assert subject
        for one in self.server.subjects.get(subject[1], []):
            if json.loads(one["schema"]) == json.loads(body["schema"]):
                return self._answer(200, one)
        if subject[2] is None:
            return self._answer(404, {"error_code": 40403, "message": "Schema not found"})
        if "incompatible" in body["schema"]:
            message = "Schema being registered is incompatible with an earlier schema"
            return self._answer(409, {"error_code": 409, "message": message})
        return self._answer(200, {"id": self.server.add(subject[1], body["schema"])})

    def _allowed(self) -> bool:
        coded = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        self.server.asked.append(f"{self.command} {self.path}")
        return self.headers.get("Authorization") == f"Basic {coded}"

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


class Server(ThreadingHTTPServer):
    """``subjects``: the versions of each, as the API answers them; ``deleted``: those of them that
    are deleted, by subject and number; ``asked``: all requests.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.subjects: dict[str, list[dict[str, Any]]] = {}
        self.deleted: set[tuple[str, int]] = set()
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def add(self, subject: str, schema: str) -> int:
        """Registers a schema, whose number it gives."""
        versions = self.subjects.setdefault(subject, [])
        number = 100 + sum(map(len, self.subjects.values()))
        versions.append(
            {"subject": subject, "version": len(versions) + 1, "id": number, "schema": schema}
        )
        return number


@contextmanager
def served() -> Iterator[Server]:
    """A server that runs in a thread of its own."""
    server = Server()
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()

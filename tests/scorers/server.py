"""A small server that answers as vLLM 0.32 does for a reward model, and can be made to fail."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.scorers.helpers import direct_scores

Fault = tuple[int, str] | str
"""A status and a body, or "drop" (the connection breaks) or "hang" (no answer comes)."""


@dataclass
class Server:
    """What the server does, and what it saw."""

    folder: Path
    pooling: str = "STEP"
    tag: int = 0
    name: str = "prm"
    limit: int | None = 512
    key: str | None = None
    spoil: Callable[[Any], Any] = lambda answer: answer
    """Changes an answer before it is sent."""
    faults: list[Fault] = field(default_factory=list)
    """What happens to the next requests to /pooling."""
    gate: threading.Event = field(default_factory=threading.Event)
    """While it is closed, requests to /pooling are held."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    connections: int = 0
    held: int = 0
    most_held: int = 0
    hung_up: threading.Event = field(default_factory=threading.Event)
    """A client went away while its request was held."""
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self, ids: Sequence[int]) -> list[list[float]]:
        at = [i for i, t in enumerate(ids) if self.pooling == "ALL" or t == self.tag]
        return [[1.0 - p, p] for p in direct_scores(self.folder, ids, at)] if at else []

    def pooled(self, body: dict[str, Any]) -> Any:
        items = [
            {"index": i, "object": "pooling", "data": self.rows(ids)}
            for i, ids in enumerate(body["input"])
        ]
        return self.spoil({"object": "list", "model": self.name, "data": items})

    def wait_until_held(self, count: int) -> None:
        """Blocks until `count` requests are held at once."""
        while self.held < count:
            time.sleep(0.01)

    def models(self) -> Any:
        entry: dict[str, Any] = {"id": self.name, "object": "model"}
        if self.limit is not None:
            entry["max_model_len"] = self.limit
        return {"object": "list", "data": [entry]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    does: Server

    def setup(self) -> None:
        super().setup()
        with self.does.lock:
            self.does.connections += 1

    def do_GET(self) -> None:
        self._answer(lambda: self.does.models() if self.path == "/v1/models" else None)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.does.lock:
            self.does.bodies.append(body)
            fault = self.does.faults.pop(0) if self.does.faults else None
        if fault == "drop":
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if fault == "hang" or not self.does.gate.is_set():
            self._hold(until=self.does.gate if fault != "hang" else None)
        if isinstance(fault, tuple):
            self._send(*fault)
            return
        self._answer(lambda: self.does.pooled(body) if self.path == "/pooling" else None)

    def _hold(self, until: threading.Event | None) -> None:
        with self.does.lock:
            self.does.held += 1
            self.does.most_held = max(self.does.held, self.does.most_held)
        while until is None or not until.wait(0.01):
            if select.select([self.connection], [], [], 0.01)[0]:  # readable: nobody is there
                self.does.hung_up.set()
                self.close_connection = True
                break
        with self.does.lock:
            self.does.held -= 1

    def _answer(self, make: Callable[[], Any]) -> None:
        self.does.requests.append(f"{self.command} {self.path}")
        sent = self.headers.get("Authorization", "")
        if self.does.key is not None and sent != f"Bearer {self.does.key}":
            self._send(401, json.dumps({"error": f"Unauthorized: {sent}"}))
            return
        found = make()
        if found is None:
            self._send(404, json.dumps({"detail": "Not Found"}))
        else:
            self._send(200, found if isinstance(found, str) else json.dumps(found))

    def _send(self, status: int, body: str) -> None:
        data = body.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:  # a client that went away
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """The server, at work on a free port."""
    server.gate.set()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"does": server}))
    http.daemon_threads = True
    http.block_on_close = False
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        server.gate.set()
        http.shutdown()
        thread.join()
        http.server_close()

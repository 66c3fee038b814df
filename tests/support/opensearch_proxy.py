"""A proxy before an OpenSearch server, for what a server does on bad days: slow, too busy, asking who you are."""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

BUSY = b'{"error":{"type":"rejected_execution_exception","reason":"no room"},"status":429}'


class Proxy:
    """`before` is called with method and path of each request; the status that it returns is the answer, if it does."""

    def __init__(self, port: int, *, login: str = "", certificate: Path | None = None) -> None:
        self.before: Callable[[str, str], int | None] = lambda method, path: None
        self.after: Callable[[str, str], None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        self.login = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
        self._upstream = port
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.requests.append((self.command, self.path))
                status = 401 if proxy.login and self.headers.get("Authorization") != proxy.login else None
                status = status or proxy.before(self.command, self.path)
                if status is not None:
                    self.give(status, BUSY)
                    return
                upstream = http.client.HTTPConnection("127.0.0.1", proxy._upstream, timeout=60)
                upstream.request(self.command, self.path, body, {"Content-Type": "application/json"})
                found = upstream.getresponse()
                data = found.read()
                upstream.close()
                proxy.after(self.command, self.path)
                self.give(found.status, data)

            def give(self, status: int, data: bytes) -> None:
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(data)
                except OSError:
                    self.close_connection = True  # nobody waits for it any more

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name that it has there
                return

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer  # noqa: N815  # the names that are called

        return Handler

"""An S3 endpoint that misbehaves on demand, in front of a real server. Signatures stay valid: bytes pass untouched."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from demo.servers.seaweed import S3Endpoint

_CODES = {
    "500": (500, "InternalError", "We encountered an internal error. Please try again."),
    "503": (503, "SlowDown", "Please reduce your request rate."),
    "412": (412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold"),
    "409": (409, "ConditionalRequestConflict", "The conditional request cannot succeed due to a conflicting operation"),
    "200 with an error": (200, "InternalError", "We encountered an internal error. Please try again."),
}
FAULTS = (*_CODES, "refused", "lost", "reset", "truncated", "hang")
"""refused: closed before the server sees the request. lost: the server did it, the answer never comes. reset and
truncated: half of the body, then a reset or an orderly end. hang: no answer until the client gives up."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """With the query."""
    conditional: bool
    copy: bool

    @property
    def operation(self) -> str:
        """list, get, head, put, put_new (both conditional writes), copy or delete."""
        if self.copy:
            return "copy"
        if self.conditional and self.method == "PUT":
            return "put_new"
        if self.method == "GET" and "list-type" in self.path:
            return "list"
        return self.method.lower()


Chooser = Callable[[Request], str | None]
"""Which fault a request meets. Called from many threads, one at a time."""


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, upstream: str, choose: Chooser) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream)
        self.choose = choose
        self.lock = threading.Lock()
        self.met: Counter[str] = Counter()
        self.closing = threading.Event()

    def fault(self, request: Request) -> str | None:
        with self.lock:
            found = self.choose(request)
            if found:
                self.met[f"{request.operation} {found}"] += 1
            return found

    def shutdown_request(self, request: Any) -> None:
        self.close_request(request)  # without the orderly shutdown, so that a reset is one

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that give up are what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        conditional = any(name in self.headers for name in ("If-Match", "If-None-Match"))
        request = Request(self.command, self.path, conditional, "x-amz-copy-source" in self.headers)
        fault = self.server.fault(request)
        if fault == "refused":
            self._reset()
        elif fault == "hang":
            self.connection.settimeout(0.2)
            while not self.server.closing.is_set():
                with contextlib.suppress(TimeoutError):
                    if not self.connection.recv(1):
                        break
            self._reset()
        elif fault in _CODES:
            self._answer_fault(*_CODES[fault])
        else:
            self._forward(body, fault)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve  # noqa: N815 - the names that http.server calls

    def _answer_fault(self, status: int, code: str, message: str) -> None:
        data = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
        self._answer(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(data)))], data.encode())

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _forward(self, body: bytes, fault: str | None) -> None:
        upstream = http.client.HTTPConnection(self.server.upstream.netloc, timeout=120)
        with contextlib.closing(upstream):
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    upstream.putheader(name, value)
            try:
                upstream.endheaders(body)
                answer = upstream.getresponse()
                data = answer.read()
            except (OSError, http.client.HTTPException):  # the server itself is down
                self._reset()
                return
        headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in ("transfer-encoding", "connection")]
        if "Content-Length" not in dict(headers):
            headers.append(("Content-Length", str(len(data))))
        if fault == "lost" or (fault and not data):
            self._reset()
        elif fault:
            self._answer(answer.status, headers, data[: len(data) // 2])
            self.wfile.flush()
            self._reset() if fault == "reset" else self._end()
        else:
            self._answer(answer.status, headers, data)

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._end()

    def _end(self) -> None:
        self.close_connection = True


@contextlib.contextmanager
def faulty_s3(endpoint: S3Endpoint, choose: Chooser) -> Iterator[tuple[S3Endpoint, Counter[str]]]:
    """The endpoint behind a proxy, and how often each `operation fault` was met so far."""
    proxy = _Proxy(endpoint.url, choose)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield replace(endpoint, url=f"http://127.0.0.1:{proxy.server_address[1]}"), proxy.met
    finally:
        proxy.closing.set()
        proxy.shutdown()
        proxy.server_close()
        thread.join()


def once(fault: str, operation: str) -> Chooser:
    """The first request of the operation meets the fault."""
    left = [fault]
    return lambda request: left.pop() if left and request.operation == operation else None

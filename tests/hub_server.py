"""A Hugging Face hub on loopback for tests: as much of its HTTP API as `datasets` uses to read one public dataset."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub(ThreadingHTTPServer):
    """One dataset repository with one commit; `requests` lists what was asked."""

    def __init__(self, name: str, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name = name
        self.files = files
        self.sha = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub = self.server
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        known = re.fullmatch(
            rf"/(?:api/)?datasets/{hub.name}(?:/(revision|tree|paths-info|resolve)/([^/]+)(.*))?", path
        )
        if not known or known[2] not in (None, "main", hub.sha):
            code = "RevisionNotFound" if known else "RepoNotFound"
            self._answer(404, b"", X_Error_Code=code, X_Error_Message="not found")
        elif known[1] in (None, "revision"):
            siblings = [{"rfilename": file} for file in hub.files]
            self._json({"_id": "1", "id": hub.name, "sha": hub.sha, "siblings": siblings, "tags": []})
        elif known[1] == "tree":
            self._tree(known[3].removeprefix("/"))
        elif known[1] == "paths-info":
            wanted = urllib.parse.parse_qs(body.decode())["paths"] if b"paths=" in body else json.loads(body)["paths"]
            self._json([self._entry(file) for file in wanted if file in hub.files])
        else:
            self._file(known[3].removeprefix("/"))

    def _tree(self, folder: str) -> None:
        prefix = f"{folder}/" if folder else ""
        inside = [file for file in self.server.files if file.startswith(prefix)]
        folders = {prefix + file.removeprefix(prefix).partition("/")[0] for file in inside}
        entries = [
            self._entry(path) if path in inside else {"type": "directory", "path": path, "size": 0, "oid": "0"}
            for path in sorted(folders)
        ]
        if entries:
            self._json(entries)
        else:
            self._answer(404, b"", X_Error_Code="EntryNotFound", X_Error_Message="not found")

    def _entry(self, file: str) -> dict[str, Any]:
        data = self.server.files[file]
        return {"type": "file", "path": file, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

    def _file(self, file: str) -> None:
        if file not in self.server.files:
            self._answer(404, b"", X_Error_Code="EntryNotFound", X_Error_Message="not found")
            return
        data = self.server.files[file]
        first, _, last = (self.headers.get("Range") or "").removeprefix("bytes=").partition("-")
        part = data[int(first or 0) : int(last) + 1 if last else None]
        tag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X_Repo_Commit": self.server.sha}
        if first:
            span = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
            self._answer(206, part, Content_Range=span, **tag)
        else:
            self._answer(200, data, **tag)

    do_GET = do_HEAD = do_POST = _handle  # noqa: N815 - names of the base class


@contextlib.contextmanager
def local_hub(name: str, files: dict[str, bytes]) -> Iterator[Hub]:
    hub = Hub(name, files)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()

"""A real S3 server that fails on demand: one fault costs nothing, a lasting one is an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from s3_proxy import faulty_s3, once

from demo.servers.seaweed import S3Endpoint
from pipeline.errors import StorageError
from pipeline.objects import Objects

DATA = bytes(range(256)) * 40
PASSING = ("500", "503", "refused", "lost", "reset", "truncated")


def _put_new(objects: Objects, uri: str, folder: Path) -> None:
    assert objects.put_new(f"{uri}-new", DATA), "this call created it, whatever the answer of a retry says"
    assert objects.get(f"{uri}-new") == DATA


def _put_if(objects: Objects, uri: str, folder: Path) -> None:
    assert objects.put_if(uri, b"swapped", objects.head(uri).etag)
    assert objects.get(uri) == b"swapped"


def _upload_new(objects: Objects, uri: str, folder: Path) -> None:
    (folder / "up").write_bytes(DATA)
    assert objects.upload_new(folder / "up", f"{uri}-up")
    assert objects.get(f"{uri}-up") == DATA


def _download(objects: Objects, uri: str, folder: Path) -> None:
    objects.download(uri, folder / "down" / "x")
    assert [path.name for path in (folder / "down").iterdir()] == ["x"]
    assert (folder / "down" / "x").read_bytes() == DATA


def _get(objects: Objects, uri: str, folder: Path) -> None:
    etag = objects.head(uri).etag
    assert objects.get(uri) == objects.get(uri, etag=etag) == objects.open(objects.head(uri)).read() == DATA
    assert objects.get(uri, 100, 5_000, etag) == DATA[100:5_000]


def _copy(objects: Objects, uri: str, folder: Path) -> None:
    objects.copy(uri, f"{uri}-copy")
    assert objects.get(f"{uri}-copy") == DATA


def _put(objects: Objects, uri: str, folder: Path) -> None:
    objects.put(uri, b"other")
    assert objects.get(uri) == b"other"


def _delete(objects: Objects, uri: str, folder: Path) -> None:
    objects.delete(uri)
    assert not objects.exists(uri)


def _list(objects: Objects, uri: str, folder: Path) -> None:
    assert objects.list(uri) == [uri]


CALLS: dict[str, tuple[str, Callable[[Objects, str, Path], None]]] = {
    "list": ("list", _list),
    "head": ("head", _get),
    "get": ("get", _get),
    "download": ("get", _download),
    "put": ("put", _put),
    "put_new": ("put_new", _put_new),
    "put_if": ("put_new", _put_if),
    "upload_new": ("put_new", _upload_new),
    "copy": ("copy", _copy),
    "delete": ("delete", _delete),
}
"""What is called -> the operation that meets the fault, and the call with its checks."""


def through(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Objects:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint.url)
    return Objects()


@pytest.mark.parametrize("call", CALLS)
def test_one_fault_costs_nothing(s3: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    operation, check = CALLS[call]
    extra = {"put_new": ("409", "412"), "copy": ("200 with an error",)}.get(operation, ())
    if call == "put_if":
        extra = ("409",)
    faults: list[str] = []
    chooser = lambda request: faults.pop() if faults and request.operation == operation else None  # noqa: E731
    with faulty_s3(s3, chooser) as (endpoint, met):
        objects = through(endpoint, monkeypatch)
        for fault in (*PASSING, *extra):
            uri = f"s3://{s3.bucket}/{fault}/x"
            objects.put(uri, DATA)
            (tmp_path / fault).mkdir()
            met.clear()
            faults.append(fault)
            check(objects, uri, tmp_path / fault)
            assert met == {f"{operation} {fault}": 1}


@pytest.mark.parametrize("fault", ["503", "truncated", pytest.param("hang", marks=pytest.mark.slow)])
@pytest.mark.timeout(1800)
def test_a_lasting_fault_is_an_error_with_the_next_step(
    s3: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    uri = f"s3://{s3.bucket}/x"
    Objects().put(uri, DATA)
    calls: dict[str, Callable[[Objects], object]] = {
        "get": lambda objects: objects.get(uri),
        "list": lambda objects: objects.list(uri),
        "download": lambda objects: objects.download(uri, tmp_path / "x"),
        "put_new": lambda objects: objects.put_new(f"{uri}-{fault}", DATA),
    }
    with faulty_s3(s3, lambda request: fault) as (endpoint, _):
        for name, call in calls.items():
            with pytest.raises(StorageError, match=r"^s3://.*/x.*run again|check AWS_ENDPOINT_URL"):
                call(through(endpoint, monkeypatch))
            assert name
    assert not (tmp_path / "x").exists()


def test_who_comes_second_hears_so(s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes from another writer are not taken for one's own lost write."""
    uri = f"s3://{s3.bucket}/x"
    assert Objects().put_new(uri, DATA)
    with faulty_s3(s3, once("500", "put_new")) as (endpoint, _):
        assert not through(endpoint, monkeypatch).put_new(uri, DATA)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    etag = Objects().head(uri).etag
    assert Objects().put_if(uri, b"mine", etag)
    with faulty_s3(s3, once("refused", "put_new")) as (endpoint, _):
        assert not through(endpoint, monkeypatch).put_if(uri, b"mine", etag)


def test_the_proxy_changes_nothing_by_itself(s3: S3Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with faulty_s3(s3, lambda request: None) as (endpoint, met):
        objects = through(endpoint, monkeypatch)
        for call, (_, check) in CALLS.items():
            objects.put(f"s3://{s3.bucket}/{call}", DATA)
            (tmp_path / call).mkdir()
            check(objects, f"s3://{s3.bucket}/{call}", tmp_path / call) if call != "list" else None
        assert not met

"""One suite that local paths and a real S3 server both pass, and the errors of a store that refuses or is not there."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demo.servers.seaweed import S3Endpoint
from pipeline.errors import StorageError
from pipeline.objects import ObjectInfo, Objects, RangeReader
from pipeline.objects.local import TEMPORARY_PREFIX

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(params=["local", "s3"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A prefix of its own, without the final slash."""
    if request.param == "local":
        return str(tmp_path / "store")
    endpoint: S3Endpoint = request.getfixturevalue("s3")
    return f"s3://{endpoint.bucket}/store"


@pytest.fixture
def objects() -> Objects:
    return Objects()


# ---- reading and writing


def test_put_replaces_and_get_reads(objects: Objects, base: str) -> None:
    uri = f"{base}/a/b c+é=%.bin"
    objects.put(uri, b"one")
    objects.put(uri, b"three")
    assert objects.get(uri) == b"three"
    assert objects.head(uri).size_bytes == 5
    assert objects.list(f"{base}/") == [uri]


def test_ranged_reads(objects: Objects, base: str) -> None:
    objects.put(f"{base}/x", b"0123456789")
    info = objects.head(f"{base}/x")
    table: list[tuple[int, int | None, bytes]] = [
        (0, None, b"0123456789"), (3, None, b"3456789"), (0, 4, b"0123"), (3, 7, b"3456"), (9, 99, b"9"),
        (10, 12, b""), (99, None, b""), (5, 5, b""), (7, 3, b""),
    ]  # fmt: skip
    for start, stop, expected in table:
        assert objects.get(info.uri, start, stop) == expected, (start, stop)
        assert objects.get(info.uri, start, stop, info.etag) == expected, (start, stop)


def test_an_empty_object_is_an_object(objects: Objects, base: str) -> None:
    objects.put(f"{base}/x", b"")
    assert objects.get(f"{base}/x") == b""
    assert objects.head(f"{base}/x").size_bytes == 0
    assert objects.exists(f"{base}/x")


def test_what_is_missing_is_a_file_not_found_error(objects: Objects, base: str, tmp_path: Path) -> None:
    uri = f"{base}/none/x"
    readers: list[Callable[[], object]] = [
        lambda: objects.get(uri),
        lambda: objects.head(uri),
        lambda: objects.download(uri, tmp_path / "down"),
        lambda: objects.copy(uri, f"{base}/copy"),
    ]
    for read in readers:
        with pytest.raises(FileNotFoundError):
            read()
    pinned: list[Callable[[], object]] = [
        lambda: objects.get(uri, 3, 5, "etag"),
        lambda: objects.open(ObjectInfo(uri, 5, "etag")).read(),
    ]
    for read in pinned:
        with pytest.raises(StorageError, match="is gone since the run pinned it; run again"):
            read()
    assert not objects.exists(uri)
    assert not (tmp_path / "down").exists()
    assert not objects.exists(f"{base}/copy")
    assert objects.list(f"{base}/none/") == []
    objects.delete(uri)


def test_copy_delete_upload_and_download(objects: Objects, base: str, tmp_path: Path) -> None:
    objects.put(f"{base}/x", b"data")
    objects.put(f"{base}/deep/y", b"old")
    objects.copy(f"{base}/x", f"{base}/deep/y")
    assert objects.get(f"{base}/deep/y") == b"data"
    objects.download(f"{base}/x", tmp_path / "new" / "x")
    assert (tmp_path / "new" / "x").read_bytes() == b"data"
    listed = objects.head(f"{base}/x")
    objects.download_pinned(listed, tmp_path / "new" / "x")
    assert (tmp_path / "new" / "x").read_bytes() == b"data"
    objects.put(f"{base}/x", b"DATA")
    with pytest.raises(StorageError, match="changed"):
        objects.download_pinned(listed, tmp_path / "new" / "x")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x"], "no temporary file is left"
    assert (tmp_path / "new" / "x").read_bytes() == b"data", "a version that was not asked for replaces nothing"
    assert objects.upload_new(tmp_path / "new" / "x", f"{base}/up")
    (tmp_path / "new" / "x").write_bytes(b"other")
    assert not objects.upload_new(tmp_path / "new" / "x", f"{base}/up")
    assert objects.get(f"{base}/up") == b"data"
    objects.delete(f"{base}/x")
    objects.delete(f"{base}/x")
    assert not objects.exists(f"{base}/x")


def test_listing_is_by_prefix_and_sorted(objects: Objects, base: str) -> None:
    names = ["p/a/1", "p/a/2", "p/ab", "p/b/c/d", "q"]
    for name in reversed(names):
        objects.put(f"{base}/{name}", name.encode())
    for prefix, expected in (("", names), ("p/", names[:4]), ("p/a", names[:3]), ("p/a/", names[:2]), ("x", [])):
        assert objects.list(f"{base}/{prefix}") == [f"{base}/{name}" for name in expected], prefix
    assert [info.size_bytes for info in objects.list_info(f"{base}/p/")] == [5, 5, 4, 7]
    assert objects.list_info(f"{base}/q") == [objects.head(f"{base}/q")]


def test_listing_more_than_one_page(s3: S3Endpoint, objects: Objects) -> None:
    """An S3 answer holds at most 1,000 keys."""
    client = s3.client()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: client.put_object(Bucket=s3.bucket, Key=f"many/{k:05d}", Body=b"x"), range(1005)))
    assert objects.list(f"s3://{s3.bucket}/many/") == [f"s3://{s3.bucket}/many/{k:05d}" for k in range(1005)]


def test_folder_markers_of_other_tools_are_not_listed(s3: S3Endpoint, objects: Objects) -> None:
    s3.client().put_object(Bucket=s3.bucket, Key="f/", Body=b"")
    objects.put(f"s3://{s3.bucket}/f/x", b"1")
    assert objects.list(f"s3://{s3.bucket}/f/") == [f"s3://{s3.bucket}/f/x"]


def test_listing_hides_temporary_files(objects: Objects, tmp_path: Path) -> None:
    objects.put(f"{tmp_path}/d/x", b"1")
    assert objects.put_if(f"{tmp_path}/d/x", b"2", objects.head(f"{tmp_path}/d/x").etag)
    (tmp_path / "d" / f"{TEMPORARY_PREFIX}killed").write_bytes(b"half")
    assert len(os.listdir(tmp_path / "d")) > 1, "a lock and a temporary file lie there"
    assert objects.list(f"{tmp_path}/") == [f"{tmp_path}/d/x"]


def test_a_failed_write_leaves_the_old_object_and_nothing_else(objects: Objects, tmp_path: Path) -> None:
    objects.put(f"{tmp_path}/d/x", b"old")
    with pytest.raises(TypeError):
        objects.put(f"{tmp_path}/d/x", "not bytes")  # type: ignore[arg-type]
    assert os.listdir(tmp_path / "d") == ["x"]
    assert objects.get(f"{tmp_path}/d/x") == b"old"


# ---- pinned versions


def test_a_pinned_read_fails_once_the_object_changed(objects: Objects, base: str) -> None:
    uri = f"{base}/x"
    objects.put(uri, b"first")
    pinned = objects.head(uri)
    objects.put(uri, b"other")  # same size, and on a fast disk the same time
    assert objects.head(uri).etag != pinned.etag
    for read in (lambda: objects.get(uri, 1, 3, pinned.etag), lambda: objects.open(pinned).read()):
        with pytest.raises(StorageError, match="changed since the run pinned it; run again"):
            read()
    objects.put(uri, b"first")
    assert objects.get(uri, etag=pinned.etag) == b"first", "the same bytes are the same version"


def test_a_pinned_read_never_returns_another_version(objects: Objects, base: str) -> None:
    """While another thread replaces the object, each pinned read gives the pinned bytes or an error."""
    uri = f"{base}/x"
    objects.put(uri, b"0000")
    stop = threading.Event()
    etags = {}
    for number in range(3):
        objects.put(uri, b"%04d" % number)
        etags[objects.head(uri).etag] = b"%04d" % number

    def replace() -> None:
        writer = Objects()
        while not stop.is_set():
            for number in range(3):
                writer.put(uri, b"%04d" % number)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(replace)
        try:
            for _ in range(400 if base.startswith("/") else 20):
                etag = objects.head(uri).etag
                with contextlib.suppress(StorageError):
                    assert objects.get(uri, etag=etag) == etags[etag]
        finally:
            stop.set()
        writing.result(60)


def test_another_client_sees_the_change(objects: Objects, base: str) -> None:
    uri = f"{base}/x"
    for value in (b"1", b"2", b"3", b"1"):
        Objects().put(uri, value)
        assert objects.get(uri, etag=objects.head(uri).etag) == value


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 60)), max_size=8))
def test_an_opened_object_reads_as_its_bytes(objects: Objects, tmp_path: Path, reads: list[tuple[int, int]]) -> None:
    data = bytes(range(100))
    objects.put(f"{tmp_path}/x", data)
    info = objects.head(f"{tmp_path}/x")
    raw, buffered, expected = RangeReader(objects, info), objects.open(info), io.BytesIO(data)
    for start, size in reads:
        for file in (raw, buffered):
            file.seek(start)
            expected.seek(start)
            assert file.read(size) == expected.read(size)
    assert raw.seek(-5, io.SEEK_END) == 95
    assert raw.seek(2, io.SEEK_CUR) == raw.tell() == 97
    assert buffered.seek(0, io.SEEK_END) == 100


def test_an_opened_object_reads_over_several_requests(objects: Objects, base: str) -> None:
    data = os.urandom(1 << 20) * 9
    objects.put(f"{base}/x", data)
    info = objects.head(f"{base}/x")
    with objects.open(info, 5) as file:
        assert file.read() == data[5:]


def settled(path: Path) -> ObjectInfo:
    """The pin of a local file once the file is old enough to have a stamp."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        pinned = Objects().head(str(path))
        if pinned.stamp:
            return pinned
        time.sleep(0.05)
    raise AssertionError("no stamp within a minute")


def test_a_stamped_local_file_is_not_read_again_to_tell_its_version(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"first")
    assert Objects().head(str(path)).stamp == "", "it may be written again within a tick of the clock"
    pinned = settled(path)
    get = Objects().get
    assert get(str(path), 1, 3, "an ETag that reading would refute", pinned.stamp) == b"ir"
    path.touch()
    assert get(str(path), 1, 3, pinned.etag, pinned.stamp) == b"ir", "another stamp, so the content decides"
    with path.open("r+b") as file:
        file.write(b"other")
    for read in (
        lambda: get(str(path), 1, 3, pinned.etag, pinned.stamp),
        lambda: Objects().open(pinned).read(),
    ):
        with pytest.raises(StorageError, match="changed since the run pinned it"):
            read()


def test_listing_reads_no_local_file(objects: Objects, tmp_path: Path) -> None:
    """A sparse file that would take a minute to read."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "small").write_bytes(b"1")
    (tmp_path / "d" / "large").touch()
    os.truncate(tmp_path / "d" / "large", 1 << 36)
    os.mkfifo(tmp_path / "d" / "pipe")
    started = time.process_time()
    assert objects.sizes(f"{tmp_path}/d/") == {f"{tmp_path}/d/large": 1 << 36, f"{tmp_path}/d/small": 1}
    assert objects.list(f"{tmp_path}/d/l") == [f"{tmp_path}/d/large"]
    assert objects.exists(f"{tmp_path}/d/large")
    assert not objects.exists(f"{tmp_path}/d")
    (info,) = objects.list_info(f"{tmp_path}/d/", lambda uri: uri.endswith("small"))
    assert info == objects.head(f"{tmp_path}/d/small")
    assert time.process_time() - started < 5


def test_sizes_and_wanted_listings(objects: Objects, base: str) -> None:
    for name, data in {"a": b"1", "b": b"22", "c/d": b"333"}.items():
        objects.put(f"{base}/{name}", data)
    assert objects.sizes(f"{base}/") == {f"{base}/a": 1, f"{base}/b": 2, f"{base}/c/d": 3}
    assert objects.list_info(f"{base}/", lambda uri: uri.endswith("/b")) == [objects.head(f"{base}/b")]


# ---- create once, compare and swap


def test_put_new_creates_once(objects: Objects, base: str) -> None:
    assert objects.put_new(f"{base}/x", b"first")
    assert not objects.put_new(f"{base}/x", b"second")
    assert objects.get(f"{base}/x") == b"first"


def test_put_if_replaces_only_the_version_that_was_read(objects: Objects, base: str) -> None:
    uri = f"{base}/x"
    assert not objects.put_if(uri, b"new", "0" * 32), "nothing is there"
    assert objects.put_if(uri, b"one", None)
    assert not objects.put_if(uri, b"two", None)
    etag = objects.head(uri).etag
    assert objects.put_if(uri, b"two", etag)
    assert not objects.put_if(uri, b"six", etag)
    assert objects.get(uri) == b"two"


def test_of_many_threads_one_creates(objects: Objects, base: str) -> None:
    for attempt in range(1 if base.startswith("s3") else 20):  # there, losers wait for seconds
        uri = f"{base}/race-{attempt}"
        barrier = threading.Barrier(8)

        def create(number: int, uri: str = uri, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait(60)
            return objects.put_new(uri, b"%d" % number)

        objects.exists(uri)  # the client is made before the race
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(create, range(8)))
        assert won.count(True) == 1
        assert objects.get(uri) == b"%d" % won.index(True)


def race(
    base: str, number: int, rounds: int, ready: threading.Barrier, results: multiprocessing.SimpleQueue[object]
) -> None:
    """A process that tries to create each round's object, and then adds `rounds` to a counter by compare and swap."""
    objects = Objects()
    won = []
    for attempt in range(rounds):
        ready.wait(120)
        if objects.put_new(f"{base}/race-{attempt}", b"%d" % number):
            won.append(attempt)
    added = 0
    while added < rounds:
        info = objects.head(f"{base}/counter")
        value = int(objects.get(info.uri))
        # What was read may be newer than the ETag; then the swap is refused and nothing is lost.
        added += objects.put_if(info.uri, b"%04d" % (value + 1), info.etag)
    results.put((number, won))


def test_of_many_processes_one_creates_and_no_swap_is_lost(objects: Objects, base: str) -> None:
    processes, rounds = 3, 5
    objects.put(f"{base}/counter", b"0000")
    ready = SPAWN.Barrier(processes)
    results: multiprocessing.SimpleQueue[object] = SPAWN.SimpleQueue()
    started = [SPAWN.Process(target=race, args=(base, n, rounds, ready, results)) for n in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join(150)
        assert process.exitcode == 0
    won: dict[int, list[int]] = dict(results.get() for _ in started)  # type: ignore[misc]
    assert sorted(attempt for attempts in won.values() for attempt in attempts) == list(range(rounds))
    for number, attempts in won.items():
        assert all(objects.get(f"{base}/race-{attempt}") == b"%d" % number for attempt in attempts)
    assert objects.get(f"{base}/counter") == b"%04d" % (processes * rounds)


def test_readers_see_whole_versions_only(objects: Objects, base: str) -> None:
    """One thread replaces an object over and over; what another reads is always one of the versions, whole."""
    size = 200_000
    versions = [bytes([letter]) * size for letter in b"ab"]
    objects.put(f"{base}/x", versions[0])
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            for version in versions:
                objects.put(f"{base}/x", version)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(replace)
        try:
            seen = {objects.get(f"{base}/x") for _ in range(25)}
        finally:
            stop.set()
        writing.result(60)
    assert seen <= set(versions)


def test_listing_survives_deletes_at_the_same_time(objects: Objects, base: str) -> None:
    for number in range(40):
        objects.put(f"{base}/d/{number:02d}", b"x")
    objects.put(f"{base}/d/stays", b"x")
    with ThreadPoolExecutor(2) as pool:
        deleting = pool.submit(lambda: [objects.delete(f"{base}/d/{number:02d}") for number in range(40)])
        while not deleting.done():
            assert objects.list(f"{base}/d/")[-1] == f"{base}/d/stays"
        deleting.result()
    assert objects.list(f"{base}/d/") == [f"{base}/d/stays"]


# ---- stores that refuse or are not there

OPERATIONS: dict[str, Callable[[Objects, str], object]] = {
    "list": lambda objects, uri: objects.list(uri),
    "get": lambda objects, uri: objects.get(uri),
    "put": lambda objects, uri: objects.put(uri, b"x"),
    "put_new": lambda objects, uri: objects.put_new(uri, b"x"),
    "put_if": lambda objects, uri: objects.put_if(uri, b"x", "e"),
    "delete": lambda objects, uri: objects.delete(uri),
    "head": lambda objects, uri: objects.head(uri),
}


def test_a_wrong_secret_says_what_to_check(s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    objects = Objects()
    for name, call in OPERATIONS.items():
        advice = r"^s3://.*/x: .*check (AWS_ACCESS_KEY_ID, )?AWS_SECRET_ACCESS_KEY"
        with pytest.raises(StorageError, match=advice) as raised:
            call(objects, f"s3://{s3.bucket}/x")
        assert "not-the-secret" not in str(raised.value), name


def test_an_unknown_access_key_says_what_to_check(s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NOBODY")
    with pytest.raises(StorageError, match="check AWS_ACCESS_KEY_ID"):
        Objects().get(f"s3://{s3.bucket}/x")


def test_no_credentials_at_all_say_how_to_give_them(
    s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StorageError, match="no AWS credentials; set AWS_ACCESS_KEY_ID"):
        Objects().get(f"s3://{s3.bucket}/x")


@pytest.mark.parametrize("operation", ["list", "get"])  # SeaweedFS makes a missing bucket at the first PUT
def test_a_missing_bucket_is_named(s3: S3Endpoint, operation: str) -> None:
    with pytest.raises(StorageError, match=r"s3://no-such-bucket/x: there is no such bucket; check the URI"):
        OPERATIONS[operation](Objects(), "s3://no-such-bucket/x")


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A port that is bound but does not listen: connections are refused."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_an_unreachable_endpoint_is_an_error_within_a_minute(
    s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch, silent_server: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", silent_server)
    begun = time.monotonic()
    with pytest.raises(StorageError, match=rf"{silent_server}\) did not answer.*check AWS_ENDPOINT_URL"):
        Objects().get(f"s3://{s3.bucket}/x")
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("uri", ["gs://bucket/x", "file:///tmp/x", "S3://bucket/x", "http://host/x"])
def test_other_schemes_are_refused(objects: Objects, uri: str) -> None:
    with pytest.raises(StorageError, match=r"unknown scheme .*; use s3://bucket/key or a plain local path"):
        objects.put(uri, b"x")
    with pytest.raises(StorageError, match="names no bucket; write s3://bucket/key"):
        objects.get("s3:///x")


def test_a_local_path_that_cannot_be_written_says_why(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="check the path, its permissions and the space"):
        objects.put(f"{tmp_path}/file/x", b"x")
    with pytest.raises(StorageError, match="Is a directory; check the path"):
        objects.get(str(tmp_path))


def test_a_replaced_local_file_leaves_nothing_that_a_glob_for_parquet_finds(objects: Objects, tmp_path: Path) -> None:
    uri = str(tmp_path / "part-00000.parquet")
    for content in (b"old", b"new"):
        etag = objects.head(uri).etag if objects.exists(uri) else None
        assert objects.put_file_if(uri, io.BytesIO(content), etag)
    assert [str(path) for path in tmp_path.glob("*.parquet")] == [uri]
    assert objects.discard_unfinished(str(tmp_path), time.time() + 60) == 1
    assert os.listdir(tmp_path) == ["part-00000.parquet"]

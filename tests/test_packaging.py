"""What a user installs and what a clone contains: runtime dependencies only, exact locks, no host, path or weight."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-data.lock", "requirements-sagemaker.lock")


def requirements(name: str) -> dict[str, str]:
    """Package and the whole line, of a requirements file without comments."""
    lines = (re.sub(r"\s*#.*", "", line).strip() for line in (ROOT / name).read_text().splitlines())
    return {re.split(r"[\[<>=!~ ]", line)[0].lower(): line for line in lines if line}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def texts() -> dict[Path, str]:
    found = {}
    for path in tracked():
        try:
            found[path.relative_to(ROOT)] = path.read_text()
        except UnicodeDecodeError:
            continue
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for path in tracked():
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    argv = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    built = subprocess.run([*argv, str(source)], capture_output=True, text=True, check=False, timeout=300)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("lengthwise-*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_has_every_module_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    modules = {
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in ("pipeline", "compile")
    }
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == modules


def test_the_wheel_needs_what_runs_and_no_tool_of_ours(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    metadata = wheel.read(name).decode()
    needed = {
        re.split(r"[\[<>=!~ ;]", line)[0] for line in re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    }
    assert {each.lower() for each in needed} == set(requirements("requirements.in"))
    assert not needed & set(requirements("requirements-dev.in"))
    assert re.search(r"^Requires-Python: <3.12,>=3.11$", metadata, re.MULTILINE)


def test_the_wheel_has_the_command(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("/entry_points.txt")]
    assert "lengthwise = pipeline.cli:main" in wheel.read(name).decode()


def test_every_requirement_is_locked_once() -> None:
    runtime, development = requirements("requirements.in"), requirements("requirements-dev.in")
    assert not set(runtime) & set(development)
    locked = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert (set(runtime) | set(development)) - locked == {"torch"}
    for name in ("data", "sagemaker"):
        text = (ROOT / f"requirements-{name}.lock").read_text()
        assert set(re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE)) == set(requirements(f"requirements-{name}.in"))
    assert re.fullmatch(r"torch==[0-9.]+", runtime["torch"])


def test_a_neuron_host_gets_all_that_runs_but_the_cpu_toolchains() -> None:
    """Two lists of one thing: what differs is what Neuron pins, and what only CPU targets and the demo load."""
    runtime, neuron = requirements("requirements.in"), requirements("requirements-neuron.in")
    assert set(runtime) - set(neuron) == {"openvino", "openvino-genai", "nncf", "onnxruntime", "onnx", "gguf"}
    assert set(neuron) - set(runtime) == {"torch-neuronx", "neuronx-cc", "libneuronxla", "neuronx_distributed"}
    changed = {name for name in set(runtime) & set(neuron) if runtime[name] != neuron[name]}
    assert changed == {"optimum-neuron", "torch", "numpy", "pandas", "pyarrow"}


@pytest.mark.parametrize("name", LOCKS)
def test_locks_have_exact_pins_hashes_and_no_host(name: str) -> None:
    text = (ROOT / name).read_text()
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==[^ ]+( ; [^\\]+)? \\\n", entry), entry[:100]
        assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", entry)) >= 1
    assert not re.search(r"https?:|index-url|find-links|file:", text)
    assert not re.search(r"^nvidia-", text, re.MULTILINE)


def test_no_file_names_a_package_registry() -> None:
    hosts = re.compile("|".join([r"pypi\." + "org", "python" + "hosted", r"download\.pytorch\." + "org", "/simple/"]))
    named = [str(path) for path, text in texts().items() if hosts.search(text) and path.name != Path(__file__).name]
    assert named == []


def test_no_file_has_a_path_of_somebodys_machine() -> None:
    paths = re.compile(r"(?<![\w.])/(root|work|home/(?!lengthwise)\w+)/")
    named = [str(path) for path, text in texts().items() if paths.search(text) and path.name != Path(__file__).name]
    assert named == []


def test_nothing_large_or_of_a_third_party_is_committed() -> None:
    """Our own trained tensors are the only weights; texts of others are never here."""
    large = {str(path.relative_to(ROOT)) for path in tracked() if path.stat().st_size > 1_000_000}
    assert large <= {"demo/sentiment_head/head.safetensors"}
    assert sum(path.stat().st_size for path in tracked()) < 16_000_000
    weights = {".safetensors", ".bin", ".gguf", ".onnx", ".pt", ".xml"}
    assert {str(path.relative_to(ROOT)) for path in tracked() if path.suffix in weights} <= large


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_pyproject_lists_every_package() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {
        ".".join(path.relative_to(ROOT).parent.parts)
        for top in ("pipeline", "compile")
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert listed == there


def test_make_alone_lists_the_commands() -> None:
    shown = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    commands = {line.split()[1] for line in shown.stdout.splitlines()}
    assert {"env", "lock", "lint", "test", "demo", "airflow", "clean", "help"} <= commands
    assert all(len(line.split()) > 3 for line in shown.stdout.splitlines())


def test_a_python_that_will_not_do_is_named_with_the_reason(tmp_path: Path) -> None:
    old = tmp_path / "python3.12"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    env = {"PATH": "/usr/bin:/bin", "PYTHON": str(old), "VENV": str(tmp_path / "venv")}
    argv = [str(ROOT / "scripts" / "make_env.sh")]
    refused = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert refused.returncode != 0
    assert f"{old} is not a Python 3.11" in refused.stderr
    assert "make env PYTHON=" in refused.stderr
    assert "optimum-neuron" in refused.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("reason", "ci", "status"),
    [("no time for this", "true", 1), ("this CPU has no bf16", "true", 0), ("no time for this", "", 0)],
)
def test_ci_fails_on_a_skip_that_is_not_on_the_list(tmp_path: Path, reason: str, ci: str, status: int) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(
        f"import pytest\ndef test_runs(): pass\n@pytest.mark.skip(reason={reason!r})\ndef test_skipped(): pass\n"
    )
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "CI": ci}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == status, ran.stdout
    assert ("1 tests were skipped that CI must run: Skipped: no time" in ran.stdout) == (status == 1)

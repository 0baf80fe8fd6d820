"""Targets that other packages register: found by name in every process, refused where a name is taken or unknown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from plugins import register_targets

from compile.toolchains import BUILT_IN, target_module
from jobs import make_home


def ask(code: str, folder: Path, modules: dict[str, str]) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **register_targets(folder, modules)}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_a_registered_target_is_loaded_by_its_name(tmp_path: Path) -> None:
    done = ask("from compile.targets import load_target; print(load_target('faulty').name)", tmp_path,
               {"faulty": "faulty_target"})  # fmt: skip
    assert done.stdout.strip() == "faulty", done.stderr


def test_a_job_may_name_it_and_the_doctor_shows_it(tmp_path: Path) -> None:
    home = make_home(tmp_path, "model", str(tmp_path), target="faulty")
    environment = register_targets(tmp_path / "plugin", {"faulty": "faulty_target"})
    assert home.command("validate", str(home.file), **environment).returncode == 0
    refused = home.command("validate", str(home.file))
    assert refused.returncode == 2
    assert "target: unknown target 'faulty'; choose one of: openvino, torch, onnxruntime" in refused.stderr
    assert "faulty" in home.command("doctor", **environment).stdout


def test_a_taken_name_is_an_error_that_names_both(tmp_path: Path) -> None:
    done = ask("from compile.toolchains import target_modules; target_modules()", tmp_path, {"torch": "other.torch"})
    assert "target 'torch' is registered by compile.targets.torch and by other.torch" in done.stderr


def test_names_of_lengthwise_itself_and_unknown_ones() -> None:
    assert [target_module(name) for name in BUILT_IN] == list(BUILT_IN.values())
    with pytest.raises(ValueError, match="unknown target 'cuda'; choose one of: openvino"):
        target_module("cuda")

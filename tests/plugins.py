"""Targets of tests and benchmarks, registered as an installed package would: an entry point on PYTHONPATH."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from compile.toolchains import ENTRY_POINT_GROUP

HERE = Path(__file__).parent


def register_targets(folder: Path, modules: Mapping[str, str], *search: Path) -> dict[str, str]:
    """Environment in which processes find targets by name -> module; modules are looked for in tests/ and `search`."""
    info = folder / "registered_targets-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: registered-targets\nVersion: 0\n")
    lines = [f"{name} = {module}" for name, module in modules.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *lines, ""]))
    given = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join([*map(str, (folder, HERE, *search)), *([given] if given else [])])}

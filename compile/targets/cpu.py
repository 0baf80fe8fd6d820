"""Which kind of CPU this is: code and numbers made on one kind are not taken for another's."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

LEVELS = ("amx_bf16", "avx512_bf16", "avx512_vnni", "avx512f", "avx2")
"""Instruction sets that change which kernels run, best first (names as in /proc/cpuinfo)."""


@functools.cache
def cpu_fields() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo; empty where there is no such file."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    block = path.read_text().split("\n\n")[0]
    pairs = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def cpu_kind() -> str:
    """Architecture, vendor, family, model and best instruction set, such as `x86_64-AuthenticAMD-25-17-avx512_bf16`."""
    fields = cpu_fields()
    flags = set(fields.get("flags", "").split())
    level = next((name for name in LEVELS if name in flags), "base")
    parts = (platform.machine(), fields.get("vendor_id"), fields.get("cpu family"), fields.get("model"), level)
    return "-".join(part for part in parts if part)


def has_bf16() -> bool:
    """Whether the CPU multiplies bf16 in hardware; without it bf16 is emulated and slower than fp32."""
    return bool({"amx_bf16", "avx512_bf16"} & set(cpu_fields().get("flags", "").split()))


def unsupported_on_cpu(target: str, precisions: tuple[str, ...], precision: str) -> str | None:
    """Why this CPU cannot run a target's precision, in a sentence; None when it can."""
    if precision not in precisions:
        return f"{target} has no precision {precision!r}; choose one of: {', '.join(precisions)}"
    if precision == "bf16" and not has_bf16():
        return f"this CPU ({cpu_kind()}) has no bf16 instructions; choose fp32"
    return None

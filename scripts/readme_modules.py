"""Writes README's list of modules from the first line of each module's docstring; `--check` only compares."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FOLDERS = ("dags", "pipeline", "compile", "demo", "bench")
BEGIN, END = "<!-- modules: python scripts/readme_modules.py -->\n", "<!-- end of modules -->"


def module_table() -> str:
    """A Markdown table: module, what it decides. Packages come after the modules beside them."""
    lines = ["| module | what it decides |", "| --- | --- |"]
    for folder in FOLDERS:
        paths = [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]
        for path in sorted(paths, key=lambda path: (len(path.parts), path)):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            if docstring:
                lines.append(f"| `{path.relative_to(ROOT)}` | {docstring.splitlines()[0]} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """0 when README is current or was written, 1 when `--check` finds it is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    before, _, rest = README.read_text().partition(BEGIN)
    wanted = before + BEGIN + module_table() + END + rest.partition(END)[2]
    if parser.parse_args().check:
        return int(README.read_text() != wanted)
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())

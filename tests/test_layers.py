"""Which module may import what, read from the source: the arrows of the design and what must stay light and pure."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

HEAVY = {
    "torch", "transformers", "tokenizers", "openvino", "onnxruntime", "optimum", "nncf", "numpy", "pandas", "pyarrow",
    "polars", "duckdb", "boto3", "botocore", "datasets", "pyiceberg", "safetensors", "zstandard", "rich", "sklearn",
}  # fmt: skip
"""Not at module level in what Airflow parses every few seconds."""
PARSED_BY_AIRFLOW = [
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "dags").glob("*.py"))),
    "pipeline/airflow_task.py",
    "pipeline/job_folder.py",
    "pipeline/job.py",
    "pipeline/job_generate.py",
    "pipeline/job_output.py",
    "pipeline/job_neuron.py",
    "pipeline/job_values.py",
    "pipeline/errors.py",
]

IMPURE = {
    "os", "io", "sys", "time", "logging", "socket", "subprocess", "threading", "multiprocessing", "tempfile", "shutil",
    "glob", "fcntl", "urllib", "requests", "random", "uuid", "secrets", "boto3", "botocore", "pipeline.objects",
    "pipeline.context", "pipeline.cores", "pipeline.leases", "pipeline.locks", "pipeline.events",
}  # fmt: skip
"""I/O, clocks, the environment, logging and chance."""
PURE = [
    "compile/shapes.py",
    "compile/planner.py",
    "compile/batches.py",
    "compile/costs.py",
    "compile/generation/slots.py",
    "pipeline/errors.py",
    "pipeline/values.py",
    "pipeline/column_paths.py",
    "pipeline/rejects.py",
    "pipeline/budget.py",
    "pipeline/core_sharing.py",
    "pipeline/neuron_usage.py",
    "pipeline/splits.py",
    "pipeline/shards.py",
    "pipeline/columns.py",
    "pipeline/layout.py",
    "pipeline/tasks/__init__.py",
    "pipeline/tasks/classify.py",
    "pipeline/tasks/generate.py",
    "pipeline/json_values.py",
    "pipeline/batch_api/fields.py",
    "pipeline/batch_api/lines.py",
    "pipeline/batch_api/answers.py",
    "pipeline/report_generation.py",
]

TARGET_LIBRARIES = {"openvino", "onnxruntime", "optimum", "nncf", "torch_neuronx", "neuronx_distributed"}
"""Only in compile/targets/."""


def imports(path: Path, module_level_only: bool = False) -> set[str]:
    """Full dotted names that a file imports; what `if TYPE_CHECKING:` guards does not run and does not count."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the full name"
            found |= {node.module or "", *(f"{node.module}.{name.name}" for name in node.names)}
        guarded = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if not guarded and not (module_level_only and deferred):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def within(names: set[str], packages: set[str]) -> set[str]:
    """The names that are one of the packages or lie in one."""
    return {name for name in names if any(name == package or name.startswith(f"{package}.") for package in packages)}


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_the_reader_of_imports_finds_all_kinds(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(
        "import a.b, c as d\nfrom e import f\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import g\n"
        "try:\n    import h\nexcept ImportError:\n    pass\n"
        "class K:\n    import i\n    def m(self):\n        import j\n"
        "async def n():\n    from k import l\n"
    )
    top = {"a.b", "c", "e", "e.f", "typing", "typing.TYPE_CHECKING", "h", "i"}
    assert imports(path, module_level_only=True) == top
    assert imports(path) == top | {"j", "k", "k.l"}
    assert within({"os.path", "osmosis", "io"}, {"os"}) == {"os.path"}


@pytest.mark.parametrize("path", sources("compile"), ids=lambda path: str(path.relative_to(ROOT)))
def test_compile_never_imports_pipeline(path: Path) -> None:
    assert within(imports(path), {"pipeline", "dags", "demo", "tests"}) == set()


@pytest.mark.parametrize("path", sources("pipeline"), ids=lambda path: str(path.relative_to(ROOT)))
def test_pipeline_never_imports_airflow_demo_or_a_target_library(path: Path) -> None:
    assert within(imports(path), {"airflow", "dags", "demo", "tests", *TARGET_LIBRARIES}) == set()


@pytest.mark.parametrize("path", sources("compile"), ids=lambda path: str(path.relative_to(ROOT)))
def test_toolchains_are_imported_by_their_target_only(path: Path) -> None:
    if path.parent.name != "targets":
        assert within(imports(path), TARGET_LIBRARIES) == set()


@pytest.mark.parametrize("path", sources("pipeline"), ids=lambda path: str(path.relative_to(ROOT)))
def test_iceberg_is_imported_by_its_table_format_only(path: Path) -> None:
    if path.parent.name != "tables":
        assert within(imports(path), {"pyiceberg", "sqlalchemy"}) == set()
        heavy = {f"pipeline.tables.{name}" for name in ("iceberg", "catalog", "orphans")}
        assert within(imports(path), heavy) == set()


@pytest.mark.parametrize("name", PARSED_BY_AIRFLOW)
def test_what_airflow_parses_imports_nothing_heavy(name: str) -> None:
    assert within(imports(ROOT / name, module_level_only=True), HEAVY) == set()


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_import_no_clock_no_chance_and_no_io(name: str) -> None:
    assert within(imports(ROOT / name), IMPURE) == set()


def test_light_modules_load_nothing_heavy_in_a_process_of_their_own() -> None:
    """What ast cannot see: imports of imports."""
    modules = [name.removesuffix(".py").replace("/", ".") for name in PARSED_BY_AIRFLOW if name.startswith("pipeline/")]
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert within(set(loaded.split()), HEAVY) == set()


def test_a_local_run_of_the_objects_does_not_import_boto3(tmp_path: Path) -> None:
    code = (
        "import sys; from pipeline.objects import Objects; Objects().put(sys.argv[1], b'x'); "
        "sys.exit('boto3' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x")], cwd=ROOT, check=True)


def test_every_package_is_installed() -> None:
    """A subpackage that setuptools does not list would be missing from an installed Lengthwise."""
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [path.parent for top in ("pipeline", "compile") for path in (ROOT / top).rglob("__init__.py")]
    assert set(listed) == {".".join(folder.relative_to(ROOT).parts) for folder in folders}

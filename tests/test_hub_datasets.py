"""A hub dataset is copied once per revision and then read from the copy; a hub that is away is told from a mistake."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import local_hub

from jobs import DS, make_home, rows
from pipeline.objects import Objects


def parquet(count: int) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows(count)), file)
    return file.getvalue()


FILES = {
    "README.md": b"# Reviews\n",
    "data/train-00000-of-00002.parquet": parquet(12),
    "data/train-00001-of-00002.parquet": parquet(5),
    "data/test-00000-of-00001.parquet": parquet(3),
}


def test_a_run_over_a_hub_dataset(tmp_path: Path, tiny_model: Path) -> None:
    def home(**options: Any) -> Any:
        return make_home(
            tmp_path, tiny_model, str(tmp_path), input={"uri": "hf://org/reviews", "split": "train[:15]", **options}
        )

    with local_hub("org/reviews", FILES) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        done = home().command("run", str(home().file), "--ds", DS, **environment)
        assert done.returncode == 0, done.stderr
        wrong = home(split="dev").command("run", str(home(split="dev").file), "--ds", DS, **environment)
        assert wrong.returncode == 2
        assert "Should be one of ['train', 'test']" in wrong.stderr
        assert "Traceback" not in wrong.stderr
        gone = home(uri="hf://org/nothing")
        missing = gone.command("run", str(gone.file), "--ds", DS, **environment)
        assert missing.returncode == 2
        assert "hf://org/nothing cannot be read from the hub (RepositoryNotFoundError" in missing.stderr
    part = f"{tmp_path}/out/predictions/ds={DS}/part-00000.parquet"
    found = pq.read_table(part).to_pylist()
    texts = [*rows(12), *rows(5)][:15]
    assert [row["row_id"] for row in found] == [row["id"] for row in texts]
    copy = f"{tmp_path}/out/_lengthwise/hub/org/reviews/default/{hub.sha}/train%5B%3A15%5D/"
    assert {row["source_uri"] for row in found} == {f"{copy}data-00000-of-00001.arrow"}
    before = Objects().get(part)
    # Pinned by its commit, the copy needs no hub.
    pinned = home(revision=hub.sha)
    again = pinned.command("run", str(pinned.file), "--ds", DS, HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    columns = ["label", "score", "row_id", "source_uri", "source_row"]
    assert pq.read_table(part, columns=columns) == pq.read_table(io.BytesIO(before), columns=columns)


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_that_is_away_is_an_error_to_retry(tmp_path: Path, tiny_model: Path, offline: bool) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), input={"uri": "hf://org/reviews", "split": "train"})
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        environment = {"HF_ENDPOINT": f"http://127.0.0.1:{taken.getsockname()[1]}", "HF_HUB_OFFLINE": str(int(offline))}
        done = home.command("run", str(home.file), "--ds", DS, HF_HOME=str(tmp_path / "hf"), **environment)
    assert done.returncode == 5, done.stderr
    assert "input.uri: hf://org/reviews: the hub did not answer (" in done.stderr
    assert "save the dataset with save_to_disk to S3" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_hub_dataset_needs_a_split(tmp_path: Path, tiny_model: Path) -> None:
    home = make_home(tmp_path, tiny_model, str(tmp_path), input={"uri": "hf://org/reviews"})
    done = home.command("run", str(home.file), "--ds", DS)
    assert done.returncode == 2
    assert "hf://org/reviews is a hub dataset; set input.split" in done.stderr

"""The demo's classifier over 1,000 real reviews: the whole flow against a plain transformers loop."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from demo.nights import put_local, write_large_night
from demo.reference import Prediction, predict, read_rows
from demo.sentiment_model import build_sentiment_model
from jobs import DS, make_home

ROWS = 1_000
WHOLE_REVIEWS = 0.1
"""Share of IMDB reviews, many of them longer than the model's 512 tokens; the others are single sentences."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sentiment_model(tmp_path_factory.mktemp("sentiment") / "model")


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reviews")
    write_large_night(put_local, str(root / "in"), DS, ROWS, imdb_share=WHOLE_REVIEWS)
    return root


@pytest.fixture(scope="module")
def expected(model: Path, night: Path) -> dict[str, Prediction]:
    found = list(read_rows(night / "in" / f"ds={DS}"))
    predictions = predict(model, [row["text"] for row in found])
    return dict(zip([row["review_id"] for row in found], predictions, strict=True))


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("fp32", 1e-4), pytest.param("bf16", 0.02, marks=pytest.mark.slow)]
)
def test_predictions_equal_the_plain_loop(
    tmp_path: Path, model: Path, night: Path, expected: dict[str, Prediction], precision: str, tolerance: float
) -> None:
    home = make_home(
        tmp_path,
        model,
        str(tmp_path),
        input={"uri": f"{night}/in/ds={{ds}}/", "id": "review_id", "keep": {"source": "string"}},
        precision=precision,
        shapes=["32x32", "16x64", "4x256", "2x512"],
        max_length=512,
    )
    report = home.run()
    assert (report["rows"], report["predicted"]) == (ROWS, ROWS)
    assert report["truncated_rows"] > 0
    output = pq.read_table(tmp_path / f"out/predictions/ds={DS}/part-00000.parquet", partitioning=None).to_pylist()
    assert {row["row_id"] for row in output} == set(expected)
    for row in output:
        plain = expected[row["row_id"]]
        assert row["score"] == pytest.approx(plain.score, abs=tolerance)
        if row["label"] != plain.label:  # two labels: the best two scores are score and 1 - score
            assert abs(plain.score - (1 - plain.score)) < 0.01

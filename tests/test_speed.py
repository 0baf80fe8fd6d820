"""`lengthwise bench`: figures of a real decoder that add up, a table and a picture of them, and clear refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from tiny_decoders import make_decoder

from pipeline.cli_bench import bench
from pipeline.errors import JobError
from pipeline.speed import FIGURES, Question, Speed, measure_speeds
from pipeline.speed_table import COLUMNS, markdown, picture


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decoder(tmp_path_factory.mktemp("decoders") / "llama")


@pytest.mark.parametrize("target", ["torch", "openvino", "openvino-slots"])
def test_figures_are_of_what_was_asked_and_add_up(decoder: Path, target: str) -> None:
    said: list[str] = []
    question = Question(target, "fp32", prompt_tokens=20, new_tokens=(1, 6), slots=(1, 3), repeats=2)
    found = list(measure_speeds(decoder, question, said.append))
    assert [(one.new_tokens, one.slots, one.prompt_tokens) for one in found] == [
        (1, 1, 20), (1, 3, 20), (6, 1, 20), (6, 3, 20),
    ]  # fmt: skip
    for one in found:
        assert one.encoding_s > 0
        assert 0 < one.latency_p50_s <= one.latency_p95_s
        assert (one.token_s is None) == (one.new_tokens == 1)
        made, whole = one.slots * one.new_tokens, one.slots * (20 + one.new_tokens)
        assert one.total_tokens_per_second / one.generated_tokens_per_second == pytest.approx(whole / made)
        # All texts of a set of equal ones end with the last.
        assert made / one.generated_tokens_per_second >= one.latency_p50_s / 2
    assert [line for line in said if "compiling" in line] == [
        f"{slots}x20 + {new} new tokens: compiling" for new in (1, 6) for slots in (1, 3)
    ]


def test_the_command_writes_a_table_and_a_picture(decoder: Path, tmp_path: Path) -> None:
    table, plot = tmp_path / "speeds.md", tmp_path / "speeds.svg"
    asked = ["--target", "torch", "--prompt", "16", "--new", "4,8", "--slots", "2", "--repeats", "1"]
    command = [sys.executable, "-m", "pipeline", "bench", str(decoder), *asked, "--table", str(table)]
    done = subprocess.run([*command, "--plot", str(plot), "--json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["target"], found["precision"], found["definitions"]) == ("torch", "fp32", FIGURES)
    speeds = [Speed(**one) for one in found["speeds"]]
    assert [one.new_tokens for one in speeds] == [4, 8]
    assert table.read_text() == markdown("llama on torch, fp32", speeds)
    assert plot.read_text() == picture("llama on torch, fp32", speeds)
    assert "measuring" in done.stderr


def test_the_table_has_every_figure_and_the_picture_is_drawn_to_scale() -> None:
    lines = [
        Speed(4, 256, new, 0.25, latency, latency, None, 100.0 * new, 1e4) for new, latency in ((1, 0.5), (2, 2.0))
    ]
    table = markdown("a & b", lines).splitlines()
    assert table[2].count("|") == len(COLUMNS) + 1
    assert table[4] == "| 4 | 256 | 1 | 0.2500 | 0.5000 | 0.5000 | - | 100.00 | 10,000.00 |"
    root = ET.fromstring(picture("a & b", lines))
    widths = [float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    latency, encoding, rate = widths[0::3], widths[1::3], widths[2::3]
    assert latency[1] == pytest.approx(4 * latency[0], abs=0.2)
    assert encoding[0] == encoding[1] == pytest.approx(latency[0] / 2, abs=0.2)
    assert rate[1] == pytest.approx(2 * rate[0], abs=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": 100, "new": "8,40"}, "make 140 tokens, more than the 128 positions"),
        ({"target": "onnxruntime"}, "cannot generate; choose one of: torch, openvino"),
        ({"precision": "int8"}, "--precision: "),
        ({"new": "8,x"}, "--new '8,x': give whole numbers"),
        ({"slots": "0"}, "--slots '0': give whole numbers"),
        ({"table": Path("speeds.txt")}, "give a file that ends in .md"),
        ({"model": "/nowhere"}, "there is no folder /nowhere"),
    ],
)
def test_what_does_not_fit_is_said_at_once(decoder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=re.escape(message)):
        bench(**({"model": str(decoder), "new": "8"} | options))

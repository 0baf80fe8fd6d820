"""Kill -9 at random moments, a quick share of `make chaos`: the runs end with the same bytes and leave nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos_run import Campaign
from tiny_decoders import make_decoder

from demo.servers.seaweed import S3Endpoint

QUICK = {"local": 8, "s3": 6, "generate": 6}
"""Kind of trial -> kills."""


@pytest.mark.timeout(1500)  # every kill costs some processes their start, many of them on a slow machine
def test_twenty_kills_lose_and_double_nothing(tmp_path: Path, tiny_model: Path, s3: S3Endpoint) -> None:
    decoder = make_decoder(tmp_path / "decoders" / "llama")
    found = Campaign(tmp_path, tiny_model, decoder, {"local": str(tmp_path), "s3": f"s3://{s3.bucket}/chaos"})
    found.prepare([*QUICK])
    number = 0
    for kind, kills in QUICK.items():
        made = 0
        while made < kills:
            made += len(found.trial(kind, f"quick-{number}", kills - made).kills)
            number += 1
    assert len(found.kills) == 20
    assert sum(kill.before_commit for _, kill in found.kills) >= 4, found.summary()

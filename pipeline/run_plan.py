"""The run plan: all that the later steps need to know, stored once under the run's fingerprint."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from compile.model import ModelInfo
from compile.shapes import ShapePlan
from pipeline.job import Job, parse_job
from pipeline.layout import Layout
from pipeline.objects import Objects
from pipeline.shards import Range, Shard


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Frozen when a run is planned; a job file that is edited during a run changes nothing of it."""

    fingerprint: str
    job: Job
    ds: str
    snapshot_uri: str
    tokens_uri: str
    model: ModelInfo
    precision: str
    shape_plan: ShapePlan
    artifacts: tuple[str, ...]
    """Artifact key per shape."""
    shards: tuple[Shard, ...]
    row_offsets: tuple[tuple[int, ...], ...]
    """Per split and piece, rows of the same object before it."""
    generation: int
    """See pipeline.generation; no part of the fingerprint, for the same input gives the same bytes again."""
    drift: dict[str, Any] | None
    """What a new shape plan would save (see pipeline.frozen_plan); None when there was nothing to compare."""
    retry_of: str | None = None
    """Fingerprint of the published run whose rejects alone are run (see pipeline.retry)."""

    @property
    def parts(self) -> int:
        """Output parts: one per split, and one without rows for an empty night."""
        return max(1, len(self.row_offsets))

    @property
    def uri(self) -> str:
        return Layout(self.job.output.uri).run(self.ds, self.fingerprint, self.generation)

    def to_json(self) -> dict[str, Any]:
        data = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        data["job"] = self.job.model_dump(mode="json")
        data["model"] = dataclasses.asdict(self.model)
        data["shape_plan"] = self.shape_plan.to_json()
        data["shards"] = [
            [shard.shape, [[part.split, part.start, part.stop] for part in shard.ranges]] for shard in self.shards
        ]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunPlan:
        shards = tuple(
            Shard(index, shape, tuple(Range(*part) for part in ranges))
            for index, (shape, ranges) in enumerate(data["shards"])
        )
        converted = {
            "job": parse_job(data["job"], "run plan"),
            "shape_plan": ShapePlan.from_json(data["shape_plan"]),
            "model": ModelInfo(**{**data["model"], "labels": tuple(data["model"]["labels"])}),
            "row_offsets": tuple(tuple(offsets) for offsets in data["row_offsets"]),
            "artifacts": tuple(data["artifacts"]),
            "shards": shards,
        }
        return cls(**{**data, **converted})


def plan_object(run_uri: str) -> str:
    return f"{run_uri}/plan.json"


def load_run(objects: Objects, run_uri: str) -> RunPlan:
    return RunPlan.from_json(json.loads(objects.get(plan_object(run_uri))))

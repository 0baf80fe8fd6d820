"""Where everything of a job lies under its output URI: tables that readers query, and state under `_lengthwise`."""

from __future__ import annotations

from dataclasses import dataclass

BATCH_TABLE = "openai"
BATCH_FILES = ("output.jsonl", "error.jsonl")
"""Of a partition whose input is of OpenAI's Batch API, in the partition's folder of BATCH_TABLE."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Names only, no I/O. Hive and Spark skip folders that start with an underscore."""

    output_uri: str

    def partition(self, table: str, ds: str) -> str:
        """Folder of one partition of a table, with the final slash."""
        return f"{self.output_uri}/{table}/ds={ds}/"

    def manifest(self, ds: str) -> str:
        """The committed version of a partition: its parts, counts and fingerprint."""
        return f"{self.state}/commits/ds={ds}/manifest.json"

    def report(self, ds: str) -> str:
        return f"{self.output_uri}/reports/ds={ds}/report.json"

    @property
    def state(self) -> str:
        return f"{self.output_uri}/_lengthwise"

    @property
    def artifacts(self) -> str:
        return f"{self.state}/artifacts"

    @property
    def schema(self) -> str:
        """The declared schema of the tables."""
        return f"{self.state}/schema.json"

    def hub_dataset(self, name: str, config: str, revision: str, split: str) -> str:
        """Folder of the copy of one split of a hub dataset, with the final slash."""
        return f"{self.state}/hub/{name}/{config}/{revision}/{split}/"

    def generation(self, ds: str) -> str:
        """How often the partition was started over."""
        return f"{self.state}/generations/ds={ds}/generation.json"

    def snapshot(self, ds: str, digest: str, generation: int = 0) -> str:
        return f"{self.state}/snapshots/ds={ds}/{digest}{_suffix(generation)}.json"

    def tokens(self, ds: str, key: str, generation: int = 0) -> str:
        return f"{self.state}/tokens/ds={ds}/{key}{_suffix(generation)}"

    def shape_plan(self, key: str) -> str:
        return f"{self.state}/shape_plans/{key}.json"

    def run(self, ds: str, fingerprint: str, generation: int = 0) -> str:
        return f"{self.state}/runs/ds={ds}/{fingerprint}{_suffix(generation)}"

    def work(self, folder: str, ds: str) -> str:
        """A partition's finished work, all of which can be made again. `folder` is runs, tokens or snapshots."""
        return f"{self.state}/{folder}/ds={ds}/"


def _suffix(generation: int) -> str:
    """Work of a partition that was started over lies beside the earlier work, which a live run may still need."""
    return f"-g{generation}" if generation else ""


def snapshot_events_folder(snapshot_uri: str, retry_of: str | None) -> str:
    """Events of the steps before a run has a fingerprint; those of a retry lie apart from the first run's."""
    return snapshot_uri.removesuffix(".json") + (f"/retry-{retry_of}/" if retry_of else "/events/")


def token_object(tokens_uri: str, split: int, name: str) -> str:
    """An object of one tokenised split: tokens.bin, rows.bin, kept.parquet, rejects.parquet, meta.json; ids.bin."""
    return f"{tokens_uri}/split-{split:05d}/{name}"


def shard_object(run_uri: str, shard: int) -> str:
    return f"{run_uri}/shards/shard-{shard:05d}.arrow"


def shard_folder(run_uri: str, shard: int) -> str:
    """What is known of a shard that kills processes, piece by piece; empty for every other shard. Ends in a slash."""
    return f"{run_uri}/shards/shard-{shard:05d}/"


def part_object(run_uri: str, table: str, split: int) -> str:
    """What the publish step stages of a split, for a table or for one of BATCH_FILES."""
    return f"{run_uri}/{table}/part-{split:05d}.{'jsonl' if table in BATCH_FILES else 'parquet'}"


def duplicates_object(run_uri: str, split: int) -> str:
    """Which rows of a split repeat an id; there is none for a split without such rows."""
    return f"{run_uri}/duplicates/split-{split:05d}.bin"


def part_summary(run_uri: str, split: int) -> str:
    """Counts and digests of a split's parts; written last, so it marks the split as published."""
    return f"{run_uri}/summaries/split-{split:05d}.json"

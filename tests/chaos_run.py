"""`make chaos`: kill -9 at random moments until enough kills were made; every run must still end with the same bytes.

The seed and a trial's number decide which moments are drawn; the machine's own timing differs all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chaos_job import FEW_SHAPES, GENERATE, NEURON, Target, make_target, on_neuron_cores, put_night, run_in_process
from chaos_kills import Kill, Trial, attack, finish
from tiny_decoders import make_decoder
from tiny_models import make_model

from demo.servers.seaweed import local_s3
from jobs import DS, share_shape_plan
from pipeline.objects import Objects

KILLS_PER_TRIAL = 8
KINDS = {"local": 8, "s3": 7, "generate": 3, "compile": 1, "plan": 1, "neuron": 1, "neuron-8": 1}
"""Kind of trial -> how many of twenty-two, after one of each. `compile` and `plan` start without artifacts, so that
those children are hit too. `neuron` has 2 simulated NeuronCores, `neuron-8` has 8."""
NEURON_CORES = {"neuron": 2, "neuron-8": 8}
NEURON_KILLS = 4
"""Of one trial, where each kill costs workers that import PyTorch and optimum-neuron."""
FULL_S = {"compile": 15.0, "plan": 15.0, "neuron": 15.0, "neuron-8": 40.0}
WARM_S = 4.0
"""What a run takes on an idle machine: moments of time alone are drawn up to that."""
COLD_MOMENTS = {"time": 3, "artifacts": 2, "shards": 1, "summaries": 1}


@dataclass(slots=True)
class Campaign:
    """The night on both stores, and what undisturbed runs made of it."""

    folder: Path
    model: Path
    decoder: Path
    roots: dict[str, str]
    """local and s3 -> where the night and the outputs lie."""
    references: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Kind of trial -> the tables of an undisturbed run."""
    kills: list[tuple[str, Kill]] = field(default_factory=list)
    """With the kind of trial."""
    repeats_allowed: int = 0
    """Shards that may have been in work when their worker was killed."""

    def target(self, kind: str, out: str) -> Target:
        root = self.roots["s3" if kind == "s3" else "local"]
        own = {"artifacts": f"{self.folder}/homes/{out}/artifacts"}
        fields = {"compile": {"shapes": FEW_SHAPES}, "plan": {"shapes": "auto", "max_graphs": 3}, "generate": GENERATE}
        fields |= dict.fromkeys(NEURON_CORES, NEURON)
        cold = own if kind in ("compile", "plan") and "reference" not in out else {}
        target = make_target(
            self.folder, self.decoder if kind == "generate" else self.model, root, out, **fields.get(kind, {}), **cold
        )
        if kind in NEURON_CORES:
            target = on_neuron_cores(target, NEURON_CORES[kind])
        if kind in self.references:
            share_shape_plan(Objects(), f"{root}/reference-{kind}", target.out)
        return target

    def prepare(self, kinds: list[str]) -> None:
        """Put the night, and run it undisturbed: the first run of all builds the artifacts that most trials share."""
        for root in self.roots.values():
            put_night(Objects().put, root)
        for kind in kinds:
            target = self.target(kind, f"reference-{kind}")
            if kind in NEURON_CORES:
                run_in_process(target)
            elif kind != "plan":  # which plan is made depends on what is measured; see `trial`
                target.home.run()
            if kind != "plan":
                self.references[kind] = target.tables()

    def trial(self, kind: str, seed: str, kills: int) -> Trial:
        """One trial of its own output; raises AssertionError where a promise is broken."""
        trial = Trial(self.target(kind, f"{kind}-{seed}"))
        moments = COLD_MOMENTS if kind in ("compile", "plan") else None
        attack(trial, random.Random(seed), kills, FULL_S.get(kind, WARM_S), moments)
        if kind == "plan":
            home = trial.target.home
            done = home.command("run", str(home.file), "--ds", DS)
            assert done.returncode == 0, done.stderr
            attacked = trial.target.tables()
            home.run("--fresh")  # undisturbed, with the shape plan that the attacked run froze
            assert trial.target.tables() == attacked
        else:
            finish(trial, self.references[kind])
        self.kills += [(kind, kill) for kill in trial.kills]
        self.repeats_allowed += trial.repeats_allowed
        return trial

    def summary(self) -> str:
        kills = [kill for _, kill in self.kills]
        lost = sum(len(kill.lost) for kill in kills)
        count = {
            "victims": Counter(kill.victim for kill in kills),
            "moments": Counter(kill.moment.what for kill in kills),
            "trials of": Counter(kind for kind, _ in self.kills),
        }
        lines = [
            f"{name}: {', '.join(f'{key} {n}' for key, n in sorted(found.items()))}" for name, found in count.items()
        ]
        return "\n".join(
            [
                f"{len(kills)} kills, {sum(kill.before_commit for kill in kills)} of them between a result and the "
                f"commit; {lost} shards were in work when killed (allowed: {self.repeats_allowed})",
                *lines,
            ]
        )


@contextlib.contextmanager
def campaign(folder: Path, model: Path | None, s3_root: str | None) -> Iterator[Campaign]:
    """`s3_root` is s3://bucket/prefix of a server that the environment reaches; without one, a server is started."""
    with contextlib.ExitStack() as stack:
        if s3_root is None:
            endpoint = stack.enter_context(local_s3(folder / "s3"))
            os.environ.update(endpoint.environment())
            s3_root = f"s3://{endpoint.bucket}/chaos"
        model = model or make_model(folder / "models" / "bert")
        decoder = make_decoder(folder / "decoders" / "llama")
        yield Campaign(folder, model, decoder, {"local": str(folder), "s3": s3_root})


def run(found: Campaign, seed: int, kills: int, say: Callable[[str], None]) -> None:
    """Trials until there were `kills` kills."""
    found.prepare([*KINDS])
    number = 0
    while len(found.kills) < kills:
        drawn = random.Random(f"{seed}-{number}-kind").choices([*KINDS], [*KINDS.values()])[0]
        kind = [*KINDS][number] if number < len(KINDS) else drawn
        most = NEURON_KILLS if kind in NEURON_CORES else KILLS_PER_TRIAL
        started = time.monotonic()
        trial = found.trial(kind, f"{seed}-{number}", min(most, kills - len(found.kills)))
        hits = ", ".join(f"{kill.victim} at {kill.moment.what}+{len(kill.shards)}" for kill in trial.kills)
        say(f"{len(found.kills)}/{kills} {trial.target.out} ({time.monotonic() - started:.0f} s): {hits or 'none'}")
        number += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]

    def say(line: str) -> None:
        print(line, flush=True)  # noqa: T201 - a command

    with tempfile.TemporaryDirectory() as folder, campaign(Path(folder), None, None) as found:
        started = time.monotonic()
        run(found, arguments.seed, arguments.kills, say)
        say(f"{found.summary()}\nall as promised; seed {arguments.seed}, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    sys.exit(main())

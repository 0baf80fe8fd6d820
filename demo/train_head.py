"""Trains the demo's sentiment head on packaged reviews and measures it on rows that training never saw.

    python -m demo.train_head

The embeddings and the first four layers stay as packaged, so their output is computed once; the last two layers, the
pooler and the classifier are trained. Writes the trained tensors (float16) and the held-out accuracy to
demo/sentiment_head/. Seeded and single-threaded: one core trains for eight minutes and measures for one or two.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as transformers_logging

from demo import reference
from demo.reviews import Review, held_out, load_reviews
from demo.sentiment_model import HEAD_DIR, HEAD_FILE, LABELS, METRICS_FILE, base_dir, build_sentiment_model

SEED = 20261124
FROZEN_LAYERS = 4
EPOCHS = 3
LEARNING_RATE = 1.5e-4
TRAIN_LENGTH = 256
"""Longer reviews are cut here in training only: cost grows with length, and the verdict is mostly clear by then."""
BATCH_TOKENS = 2048
HELD_OUT_ROWS = 1000
TEMPERATURE = 2.0
"""Logits are divided by it when saved. Three epochs leave the model too sure of itself: on held-out rows other than the
measured ones, log loss falls from 0.379 to 0.283 (300 of IMDB) and from 0.508 to 0.478 (157 of Rotten Tomatoes), and
is near its least. It also halves what bf16 moves a score by. A power of two, so that float16 rounds no weight anew (but
for subnormal ones, by 3e-8) and the measured labels stay.
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """The frozen layers' output for rows of similar length."""

    hidden: Tensor
    """bfloat16 (rows, length, 384)."""
    mask: Tensor
    """bool (rows, length); False is padding."""
    labels: Tensor
    """int64 (rows,)."""


def load_base() -> Any:
    """The packaged encoder with a fresh classifier, everything frozen that stays as packaged."""
    model = AutoModelForSequenceClassification.from_pretrained(base_dir(), num_labels=len(LABELS))
    for part in (model.bert.embeddings, *model.bert.encoder.layer[:FROZEN_LAYERS]):
        part.requires_grad_(False)
    return model


def encode_frozen(model: Any, reviews: list[Review]) -> list[Batch]:
    """Run the frozen layers once over all reviews, in batches of similar length."""
    tokenizer = AutoTokenizer.from_pretrained(base_dir())
    ids = tokenizer([review.text for review in reviews], truncation=True, max_length=TRAIN_LENGTH)["input_ids"]
    # The jitter keeps neighbours in length from always sharing a batch with the same rows of the same source.
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]) + 8 * random.random())  # noqa: S311 - seeded on purpose
    batches: list[Batch] = []
    start = 0
    while start < len(order):
        rows = order[start : start + max(8, BATCH_TOKENS // (len(ids[order[start]]) + 8))]
        start += len(rows)
        padded = tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
        mask = padded["attention_mask"].bool()
        hidden = model.bert.embeddings(input_ids=padded["input_ids"])
        for layer in model.bert.encoder.layer[:FROZEN_LAYERS]:
            hidden = whole_layer(layer, hidden, mask)
        batches.append(Batch(hidden.bfloat16(), mask, torch.tensor([reviews[row].label for row in rows])))
    return batches


def whole_layer(layer: Any, hidden: Tensor, mask: Tensor) -> Tensor:
    """One encoder layer over all positions."""
    return first_positions(layer, hidden, mask, hidden.shape[1])


def first_positions(layer: Any, hidden: Tensor, mask: Tensor, count: int) -> Tensor:
    """One encoder layer, computed for the first `count` positions only; they still attend to all.

    The classifier reads nothing but position 0 of the last layer, so count=1 there saves most of its cost.
    """
    attention = layer.attention.self

    def heads(states: Tensor) -> Tensor:
        return states.unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)

    asking = hidden[:, :count]
    # No dropout inside attention: torch has a fast kernel on CPU only without it, and the hidden states have theirs.
    context = nn.functional.scaled_dot_product_attention(
        heads(attention.query(asking)),
        heads(attention.key(hidden)),
        heads(attention.value(hidden)),
        attn_mask=mask[:, None, None, :],
    )
    attended = layer.attention.output(context.transpose(1, 2).flatten(2), asking)
    return layer.output(layer.intermediate(attended), attended)


def trained_logits(model: Any, batch: Batch) -> Tensor:
    """Logits (rows, labels) from the frozen layers' output."""
    hidden = batch.hidden
    *middle, last = model.bert.encoder.layer[FROZEN_LAYERS:]
    for layer in middle:
        hidden = whole_layer(layer, hidden, batch.mask)
    pooled = model.bert.pooler(first_positions(last, hidden, batch.mask, 1))
    return model.classifier(model.dropout(pooled))


def train(model: Any, batches: list[Batch]) -> None:
    """AdamW with linear warm-up and decay over EPOCHS passes."""
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=LEARNING_RATE, weight_decay=0.01)
    steps = EPOCHS * len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
    )
    model.train()
    for epoch in range(EPOCHS):
        random.shuffle(batches)
        total = 0.0
        for batch in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = trained_logits(model, batch)
            loss = nn.functional.cross_entropy(logits.float(), batch.labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(wanted, 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        say(f"epoch {epoch + 1}/{EPOCHS}: loss {total / len(batches):.4f}, {time.process_time():.0f} CPU s")


def save_head(model: Any) -> int:
    """Write what was trained as float16, at TEMPERATURE; returns the number of parameters."""
    trained = {name: value.detach().half() for name, value in model.named_parameters() if value.requires_grad}
    for name in ("classifier.weight", "classifier.bias"):
        trained[name] /= TEMPERATURE
    HEAD_DIR.mkdir(exist_ok=True)
    save_file(trained, HEAD_FILE)
    return sum(value.numel() for value in trained.values())


def measure(source: str) -> dict[str, float | int]:
    """Held-out accuracy of the saved tensors through the plain loop (float32, up to 512 tokens)."""
    reviews = held_out(source, HELD_OUT_ROWS)
    with tempfile.TemporaryDirectory() as scratch:
        predictions = reference.predict(
            build_sentiment_model(Path(scratch) / "model"), [review.text for review in reviews]
        )
    right = sum(LABELS[review.label] == said.label for review, said in zip(reviews, predictions, strict=True))
    positive = sum(review.label for review in reviews)
    return {
        "rows": len(reviews),
        "accuracy": right / len(reviews),
        "majority_share": max(positive, len(reviews) - positive) / len(reviews),
    }


def say(line: str) -> None:
    """Progress for who waits."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Train, save, measure what was saved, write metrics.json."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    random.seed(SEED)
    transformers_logging.set_verbosity_error()
    reviews = [review for review in load_reviews() if review.for_training]
    model = load_base().eval()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        batches = encode_frozen(model, reviews)
    # Tensors made in inference mode cannot take part in training; a clone made outside it can.
    batches = [Batch(batch.hidden.clone(), batch.mask.clone(), batch.labels.clone()) for batch in batches]
    say(f"{len(reviews)} reviews in {len(batches)} batches, {time.process_time():.0f} CPU s")
    train(model, batches)
    parameters = save_head(model)
    train_cpu_s = round(time.process_time())
    metrics = {
        "held_out": {source: measure(source) for source in ("rotten_tomatoes", "imdb")},
        "trained_on": {
            source: sum(review.source == source for review in reviews) for source in ("rotten_tomatoes", "imdb")
        },
        "trained_parameters": parameters,
        "epochs": EPOCHS,
        "seed": SEED,
        "temperature": TEMPERATURE,
        "train_cpu_s": train_cpu_s,
    }
    METRICS_FILE.write_text(json.dumps(metrics, indent=2) + "\n")
    say(METRICS_FILE.read_text())


if __name__ == "__main__":
    main()

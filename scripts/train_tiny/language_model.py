"""Training of the base and the helper: the same loop, two recipes.

The two differ in size, in how finely they see numbers, and in what their data teaches. The
helper's data never shows the result of a sum above `largest_taught_sum`: a systematic gap, which
drawing more candidates does not close. Its look-ups, and to a lesser degree the base's, are noisily
labelled, which leaves a small calibrated rate of random slips instead of perfection.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen2ForCausalLM

from kvrescue.evaluation.bill import MAX_TOTAL
from scripts.train_tiny.batches import (
    IGNORED,
    INDEX,
    ITEM,
    PRICE,
    PRICE_COPY,
    SUM,
    TOTAL,
    Batch,
    Encoder,
    draw_rows,
    look_up_batch,
    solution_batch,
    sum_batch,
)
from scripts.train_tiny.initialisation import ModelSize, build_language_model
from scripts.train_tiny.tokenizer import SEPARATOR_ID, STEP_END_ID, TOKEN_ID

Log = Callable[[str], None]

LARGEST_MENU = 28
_LEARNED = 0.9
"""A smoothed accuracy above this makes the menus grow."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a language model, in training steps rather than minutes."""

    size: ModelSize
    steps: int
    tokens_per_batch: int
    look_up_steps: int = 250
    """Look-up drill before the main run."""
    first_menu: int = 12
    learning_rate: float = 2e-3
    decay: float = 0.5
    """The share of the run over which the learning rate falls to zero."""
    sum_drill_rate: float = 0.1
    early_sum_drill_rate: float = 0.1
    """The same until `early_steps`."""
    early_steps: int = 500
    step_end_rate: float = 0.3
    """The share of rows that show `<extra_0>` for the separator, as the PRM will read them."""
    look_up_noise: float = 0.0
    """The share of looked-up items and prices whose label is that of another purchase."""
    largest_taught_sum: int = MAX_TOTAL


def train_language_model(recipe: Recipe, encoder: Encoder, seed: int, log: Log) -> Qwen2ForCausalLM:
    """Train one language model from scratch; deterministic in ``seed``."""
    model = build_language_model(recipe.size, seed)
    rng = random.Random(f"language model/{seed}")
    log(f"{sum(p.numel() for p in model.parameters())} parameters, {recipe}")
    trainer = _Trainer(model, recipe.learning_rate)
    _drill_look_ups(trainer, recipe, encoder, rng, log)
    _train_on_solutions(trainer, recipe, encoder, rng, log)
    return model.eval()


class _Trainer:
    """A model with its optimiser."""

    def __init__(self, model: Qwen2ForCausalLM, learning_rate: float) -> None:
        self.model = model
        self._peak = learning_rate
        matrices = [p for p in model.parameters() if p.ndim > 1]
        vectors = [p for p in model.parameters() if p.ndim <= 1]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": 0.05},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=learning_rate,
            betas=(0.9, 0.98),
        )

    def step(self, tokens: Tensor, labels: Tensor, rate: float) -> tuple[float, Tensor]:
        """One update. Returns the loss and the predictions, aligned with ``labels``."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._peak * rate
        logits = self.model(input_ids=tokens, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        guesses = F.pad(logits.argmax(-1), (1, 0), value=IGNORED)
        return loss.item(), guesses


def _drill_look_ups(
    trainer: _Trainer, recipe: Recipe, encoder: Encoder, rng: random.Random, log: Log
) -> None:
    largest, smoothed = 8, 0.0
    for step in range(1, recipe.look_up_steps + 1):
        menu = rng.randint(5, largest)
        rows = max(8, recipe.tokens_per_batch // (7 * menu + 13 * min(8, menu) + 12))
        tokens, labels = look_up_batch(encoder, rng, rows, menu)
        loss, guesses = trainer.step(tokens, labels, min(1.0, step / 100))
        smoothed = 0.95 * smoothed + 0.05 * _accuracy(guesses, labels)
        if smoothed > _LEARNED and largest < LARGEST_MENU:
            largest, smoothed = largest + 4, 0.6
        if step % 50 == 0:
            log(f"look-up drill {step}: menu {largest}, loss {loss:.3f}, accuracy {smoothed:.3f}")


def _train_on_solutions(
    trainer: _Trainer, recipe: Recipe, encoder: Encoder, rng: random.Random, log: Log
) -> None:
    menu_limit, look_ups = recipe.first_menu, 0.0
    smoothed_loss = 0.0
    for step in range(1, recipe.steps + 1):
        rate = _schedule(step, recipe)
        drill = recipe.early_sum_drill_rate if step <= recipe.early_steps else recipe.sum_drill_rate
        if rng.random() < drill:
            rows = recipe.tokens_per_batch // 114
            trainer.step(*sum_batch(encoder, rng, rows, recipe.largest_taught_sum), rate)
        batch = _draw_batch(recipe, encoder, rng, menu_limit)
        shown = batch.tokens.clone()
        _weaken_labels(batch, recipe, rng)
        tokens = _show_step_ends(batch, recipe.step_end_rate, rng)
        loss, guesses = trainer.step(tokens, batch.labels, rate)
        smoothed_loss += (loss - smoothed_loss) * max(0.03, 1 / step)
        hits = {place: _hit_rate(guesses, shown, batch, place) for place in (ITEM, PRICE)}
        look_ups = 0.97 * look_ups + 0.03 * min(hits.values())
        if look_ups > _LEARNED and menu_limit < LARGEST_MENU:
            menu_limit, look_ups = min(LARGEST_MENU, menu_limit + 4), 0.6
        if step % 100 == 0:
            places = {"index": INDEX, "item": ITEM, "price": PRICE, "total": TOTAL}
            places |= {"copy": PRICE_COPY, "sum": SUM}
            rates = {n: round(_hit_rate(guesses, shown, batch, p), 3) for n, p in places.items()}
            log(f"step {step}: menu {menu_limit}, loss {smoothed_loss:.4f}, this batch {rates}")


def _draw_batch(recipe: Recipe, encoder: Encoder, rng: random.Random, menu_limit: int) -> Batch:
    """A batch of problems of one random size, mostly near the largest menu allowed so far."""
    low = max(3, 4 if rng.random() < 0.3 else menu_limit - 6)
    menu = rng.randint(low, menu_limit)
    purchases = rng.randint(2, min(8, menu))
    row_length = 3 * menu + 15 * purchases + 21
    rows = max(8, recipe.tokens_per_batch // row_length)
    return solution_batch(encoder, draw_rows(rng, rows, menu, purchases))


def _weaken_labels(batch: Batch, recipe: Recipe, rng: random.Random) -> None:
    """Apply the recipe's label noise and its gap; what the model reads stays right."""
    rows = batch.tokens.shape[0]
    for place in (ITEM, PRICE):
        at = batch.positions(place)[: batch.purchases]
        for row in range(rows):
            for position in at.tolist():
                if rng.random() < recipe.look_up_noise:
                    other = at[rng.randrange(len(at))]
                    batch.labels[row, position] = batch.tokens[row, other]
    at = batch.positions(SUM)
    largest = TOKEN_ID[str(recipe.largest_taught_sum)]  # ids of numbers grow with the number
    untaught = batch.tokens[:, at] > largest
    batch.labels[:, at] = batch.labels[:, at].masked_fill(untaught, IGNORED)


def _show_step_ends(batch: Batch, share: float, rng: random.Random) -> Tensor:
    """Write `<extra_0>` for the separator in some rows, and never ask the model to emit it."""
    chosen = torch.tensor([rng.random() < share for _ in range(batch.tokens.shape[0])])
    replaced = chosen[:, None] & (batch.tokens == SEPARATOR_ID)
    batch.labels.masked_fill_(replaced, IGNORED)
    return batch.tokens.masked_fill(replaced, STEP_END_ID)


def _schedule(step: int, recipe: Recipe) -> float:
    """Warm-up over 100 steps, plateau, linear decay."""
    left = 1 - step / recipe.steps
    return min(1.0, step / 100, max(0.02, left / recipe.decay))


def _accuracy(guesses: Tensor, labels: Tensor) -> float:
    counted = labels != IGNORED
    return (guesses == labels)[counted].float().mean().item()


def _hit_rate(guesses: Tensor, shown: Tensor, batch: Batch, place: int) -> float:
    at = batch.positions(place)
    return (guesses[:, at] == shown[:, at]).float().mean().item()

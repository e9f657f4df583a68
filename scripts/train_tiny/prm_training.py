"""Training of the process reward model from its wired start."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import Qwen2ForCausalLM

from scripts.train_tiny.batches import Encoder
from scripts.train_tiny.corruption import wrong_step
from scripts.train_tiny.prm_data import RIGHT, Candidates, RowSource, Sampled, TreeBatch, pack
from scripts.train_tiny.prm_model import StepRewardModel
from scripts.train_tiny.prm_start import Trunk, start_prm, wire_comparison

Log = Callable[[str], None]

_CLASS_WEIGHTS = torch.tensor([1.0, 1.5])
"""Wrong steps outnumber right ones; the product of the two still favours recall of wrong ones."""
_LANGUAGE_MODEL_WEIGHT = 0.5
_AUC_REQUIRED = 0.9


@dataclass(frozen=True)
class PrmRecipe:
    """Everything that decides the PRM.

    The learning rates decide most: the wired comparison survives only if its queries and keys
    move slowly, and the trunk goes on predicting only if it does, too.
    """

    steps: int = 500
    rows_per_batch: int = 5
    head_rate: float = 1e-3
    new_layers_rate: float = 4e-4
    comparison_rate: float = 6e-5
    trunk_rate: float = 1e-4
    warm_up: int = 40


def train_prm(
    base: Qwen2ForCausalLM,
    sampled: Sequence[Sampled],
    held_out: Sequence[Sampled],
    encoder: Encoder,
    recipe: PrmRecipe,
    seed: int,
    log: Log,
) -> StepRewardModel:
    """Train a PRM on top of ``base``; deterministic in ``seed``."""
    torch.manual_seed(seed)
    rng = random.Random(f"prm/{seed}")
    source = RowSource(encoder, sampled)
    prm, trunk = start_prm(base)
    log(f"{sum(p.numel() for p in prm.parameters())} parameters, {recipe}")
    auc = wire_comparison(prm, trunk, [source.batch(rng, 10) for _ in range(6)])
    log(f"mismatch AUC per token class before training: {[round(value, 3) for value in auc]}")
    if min(auc) < _AUC_REQUIRED:
        raise RuntimeError(f"the wired comparison does not see mismatches: AUC {auc}")
    optimizer = _optimizer(prm, trunk, recipe)
    everything = [p for group in optimizer.param_groups for p in group["params"]]
    for step in range(1, recipe.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * _schedule(step, recipe)
        loss, recall = _losses(prm, trunk, source.batch(rng, recipe.rows_per_batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(everything, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            log(f"PRM step {step}: loss {loss.item():.4f}, {recall}")
        if step % 100 == 0 or step == recipe.steps:
            log(f"held-out accuracy: {accuracy_by_kind(prm, held_out, encoder)}")
    return prm.eval()


@torch.no_grad()
def accuracy_by_kind(
    prm: StepRewardModel, held_out: Sequence[Sampled], encoder: Encoder, batch: int = 8
) -> dict[str, tuple[float, int]]:
    """Share judged rightly at 0.5, and number, of wrong steps by kind and of right ones.

    The wrong ones are up to four samples and three written corruptions per step.
    """
    rng = random.Random("held out")

    def candidates(example: Sampled) -> Candidates:
        written = [
            [tuple(encoder.text(wrong_step(example.bill, place, rng))) for _ in range(3)]
            for place in range(len(example.wrong))
        ]
        return [drawn[:4] + more for drawn, more in zip(example.wrong, written, strict=True)]

    hits: dict[str, list[bool]] = defaultdict(list)
    for start in range(0, len(held_out), batch):
        part = held_out[start : start + batch]
        packed = pack(encoder, [(example.bill, candidates(example)) for example in part])
        ends = packed.step_ends
        hidden = _final_hidden(prm, packed)[0][ends.rows, ends.columns]
        verdicts = prm.probability(hidden) > 0.5
        for kind, verdict, label in zip(packed.kinds, verdicts, ends.labels, strict=True):
            hits[kind].append(bool(verdict) == bool(label))
    return {kind: (round(sum(h) / len(h), 4), len(h)) for kind, h in sorted(hits.items())}


def _losses(
    prm: StepRewardModel, trunk: Trunk, batch: TreeBatch
) -> tuple[torch.Tensor, dict[str, float]]:
    final, after_trunk = _final_hidden(prm, batch, trunk.layers)
    ends, prefixes, nxt = batch.step_ends, batch.prefixes, batch.next_tokens
    judged = prm.score(final[ends.rows, ends.columns])
    step_loss = F.cross_entropy(judged, ends.labels, weight=_CLASS_WEIGHTS)
    prefix_loss = F.cross_entropy(
        prm.score(final[prefixes.rows, prefixes.columns]), prefixes.labels
    )
    predicted = trunk.logits(after_trunk[nxt.rows, nxt.columns])
    language_loss = F.cross_entropy(predicted, nxt.labels)
    verdicts = judged.argmax(-1)
    recall = {
        "wrong": (verdicts == 0)[ends.labels == 0].float().mean().item(),
        RIGHT: (verdicts == 1)[ends.labels == 1].float().mean().item(),
    }
    rounded = {name: round(value, 3) for name, value in recall.items()}
    return step_loss + prefix_loss + _LANGUAGE_MODEL_WEIGHT * language_loss, rounded


def _final_hidden(
    prm: StepRewardModel, batch: TreeBatch, trunk_layers: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    output = prm.model(
        input_ids=batch.tokens,
        position_ids=batch.positions,
        attention_mask=batch.mask,
        use_cache=False,
        output_hidden_states=True,
    )
    return output.last_hidden_state, output.hidden_states[trunk_layers]


def _optimizer(prm: StepRewardModel, trunk: Trunk, recipe: PrmRecipe) -> torch.optim.AdamW:
    groups: dict[float, list[torch.nn.Parameter]] = defaultdict(list)
    for name, parameter in prm.model.named_parameters():
        rate = recipe.trunk_rate
        if name.startswith("norm"):
            rate = recipe.new_layers_rate
        elif name.startswith("layers.") and int(name.split(".")[1]) >= trunk.layers:
            compares = ".q_proj" in name or ".k_proj" in name
            rate = recipe.comparison_rate if compares else recipe.new_layers_rate
        groups[rate].append(parameter)
    groups[recipe.head_rate] += prm.score.parameters()
    groups[recipe.trunk_rate] += [*trunk.norm.parameters(), *trunk.unembedding.parameters()]
    return torch.optim.AdamW(
        [{"params": parameters, "peak": rate} for rate, parameters in groups.items()],
        betas=(0.9, 0.98),
        weight_decay=0.0,
    )


def _schedule(step: int, recipe: PrmRecipe) -> float:
    """Warm-up, plateau, linear decay over the second half."""
    left = 1 - step / recipe.steps
    return min(1.0, step / recipe.warm_up, max(0.02, 2 * left))

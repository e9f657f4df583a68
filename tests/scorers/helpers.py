"""Contexts and candidates for scorer tests, and the scores computed directly with torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import Qwen2ForCausalLM, Qwen2Model

from kvrescue.types import (
    Candidate,
    CommittedStep,
    Context,
    Question,
    StopReason,
    new_trajectory_id,
)

QUESTION = "Let x = 3. What is x + 4?"


def candidate(text: str, index: int = 0, ids: Sequence[int] = (), tokenizer: str = "") -> Candidate:
    return Candidate("base", index, text, tuple(ids), StopReason.SEPARATOR, tokenizer)


def pool(*texts: str) -> list[Candidate]:
    return [candidate(text, i) for i, text in enumerate(texts)]


class Trajectory:
    """A context that grows by committed steps."""

    def __init__(self, question: str = QUESTION, steps: Sequence[Candidate] = ()) -> None:
        self.context = Context(Question(question), (), new_trajectory_id())
        for step in steps:
            self.commit(step)

    def commit(self, step: Candidate) -> None:
        old = self.context
        steps = (*old.steps, CommittedStep(len(old.steps), step, 0.5))
        self.context = Context(old.question, steps, old.trajectory)


@functools.cache
def _weights(folder: Path) -> tuple[dict[str, torch.Tensor], Qwen2Model]:
    model = Qwen2Model.from_pretrained(folder, attn_implementation="eager")
    return load_file(folder / "model.safetensors"), model


@functools.cache
def _causal_lm(folder: Path) -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM.from_pretrained(folder, attn_implementation="eager")


@torch.no_grad()
def direct_scores(folder: Path, ids: Sequence[int], at: Sequence[int]) -> list[float]:
    """Positive-label probabilities at positions `at`, one forward pass of plain transformers."""
    state, model = _weights(folder)
    hidden = model(torch.tensor([list(ids)])).last_hidden_state[0, list(at)]
    if "score.weight" in state:
        logits = hidden @ state["score.weight"].T + state.get("score.bias", torch.zeros(2))
    else:
        inner = torch.relu(hidden @ state["score.0.weight"].T + state["score.0.bias"])
        logits = inner @ state["score.2.weight"].T + state["score.2.bias"]
    return logits.softmax(-1)[:, 1].tolist()


@torch.no_grad()
def direct_logprobs(folder: Path, prefix: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """[len(ids)] log-probabilities of `ids` after `prefix`."""
    logits = _causal_lm(folder)(torch.tensor([[*prefix, *ids]])).logits[0].double().log_softmax(-1)
    rows = torch.arange(len(prefix) - 1, len(prefix) + len(ids) - 1)
    return logits[rows, torch.tensor(list(ids))]

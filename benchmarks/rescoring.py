"""How a reward model is used without an engine: whole texts in one padded batch, every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoConfig, AutoModel

from kvrescue.engine.checkpoint import resolve
from kvrescue.scorers import QwenPRM
from kvrescue.types import (
    Candidate,
    CommittedStep,
    Context,
    Question,
    StopReason,
    new_trajectory_id,
)

__all__ = ["Rescorer", "Rounds", "candidate"]


class Rescorer:
    """The reward model of `prm`, with transformers' ordinary attention and no cache."""

    def __init__(self, prm: QwenPRM) -> None:
        self.prm = prm
        config = AutoConfig.from_pretrained(resolve(prm.name).path)
        self.model = AutoModel.from_config(config, dtype=torch.float32).eval()
        self.model.load_state_dict(prm.engine.adapter.decoder.state_dict())

    @torch.no_grad()
    def score(
        self, contexts: Sequence[tuple[str, Sequence[str]]], candidates: Sequence[Sequence[str]]
    ) -> list[list[float]]:
        """Scores of each context's candidates; a context is its question and committed steps."""
        rows = []
        for (question, steps), texts in zip(contexts, candidates, strict=True):
            prefix = self.prm.prefix_ids(question)
            for step in steps:
                prefix = prefix + self.prm.step_ids(step)
            rows += [prefix + self.prm.step_ids(text) for text in texts]
        longest = max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        hidden = self.model(input_ids=ids).last_hidden_state
        last = hidden[torch.arange(len(rows)), torch.tensor([len(r) - 1 for r in rows])]
        scores = iter(self.prm.head(last).softmax(-1)[:, 1].tolist())
        return [[next(scores) for _ in texts] for texts in candidates]


QUESTION = "Tom has 3 apples. He buys 4 more. How many apples does he have? " * 4


def candidate(number: int) -> Candidate:
    text = f"Tom has {number} + {number} = {2 * number} apples.\n\n"
    return Candidate("base", number, text, (), StopReason.SEPARATOR, "")


class Rounds:
    """A trajectory of ten committed steps that grows by one with every round of candidates."""

    def __init__(self, candidates: int, steps: int = 10) -> None:
        self.shown = [candidate(i) for i in range(candidates)]
        self.steps = [CommittedStep(i, candidate(i % 3), 0.5) for i in range(steps)]
        self.trajectory = new_trajectory_id()

    def context(self, *, anew: bool = False) -> Context:
        """What the next round is scored in; `anew`: as a trajectory that nobody has seen."""
        trajectory = new_trajectory_id() if anew else self.trajectory
        return Context(Question(QUESTION), tuple(self.steps), trajectory)

    def commit(self) -> None:
        self.steps.append(CommittedStep(len(self.steps), self.shown[0], 0.5))

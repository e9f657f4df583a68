"""QwenPRM: a process reward model with the head of Qwen2.5-Math-PRM, loaded natively.

Backbone plus a head read at one token per step; score = softmax probability of label 1
("correct"). Which token that is: see `prm_text`.

The prefix of a trajectory stays in the cache: scoring costs the candidates' tokens, and the
committed step is adopted from its candidate's fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from kvrescue.engine.checkpoint import resolve
from kvrescue.engine.choices import DType
from kvrescue.engine.engine import Engine
from kvrescue.engine.loading import (
    default_device,
    default_dtype,
    load_backbone,
    load_tokenizer,
)
from kvrescue.engine.sequence import ParkedSequence
from kvrescue.errors import NonFiniteLogitsError, ScorerError
from kvrescue.options import checked_by
from kvrescue.scorers.base import Scorer
from kvrescue.scorers.prm_text import PRMText, check_prefix, check_room
from kvrescue.scorers.specs import SYSTEM, Convention, QwenPRMSpec
from kvrescue.types import Candidate, Context

__all__ = ["QwenPRM"]


@dataclass(slots=True)
class _Session:
    """What the PRM holds of one trajectory."""

    sequence: ParkedSequence
    steps: int = 0
    probed: dict[tuple[int, ...], int] | None = None
    """Token ids of the last scored candidates -> index of their held fork."""


class QwenPRM(Scorer):
    """Scores candidate steps with a process reward model.

    `model`: see `kvrescue.engine.checkpoint`; the state dict holds `model.*` and either
    `score.0.*`, `score.2.*` (linear, ReLU, linear to 2 labels) or `score.*` (one linear layer to
    2 labels). Raises ModelLoadError for any other head.
    """

    @checked_by(QwenPRMSpec)
    def __init__(
        self,
        model: str,
        *,
        convention: Convention = "step_tag",
        step_tag: str = "<extra_0>",
        system: str | None = SYSTEM,
        max_context: int | None = None,
        device: str | None = None,
        dtype: DType = "auto",
    ) -> None:
        checkpoint = resolve(model)
        self.tokenizer, _ = load_tokenizer(checkpoint)
        self.text = PRMText(
            model, self.tokenizer, convention=convention, step_tag=step_tag, system=system
        )
        self.name, self.convention, self.system = model, convention, system
        where = default_device(device)
        adapter, self.head = load_backbone(
            checkpoint,
            reward_head,
            head_prefix="score.",
            device=where,
            dtype=default_dtype(dtype, where),
            max_context=max_context,
        )
        self.max_context = adapter.max_context
        self.engine = Engine(adapter)
        self._sessions: dict[int, _Session] = {}

    def prefix_ids(self, question: str) -> list[int]:
        """Tokens before the first step."""
        return self.text.prefix_ids(question)

    def step_ids(self, text: str) -> list[int]:
        """Tokens of one step; the score is read at the last one."""
        return self.text.step_ids(text)

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        if not candidates:
            return []
        texts = [tuple(self.step_ids(c.text)) for c in candidates]
        unique = list(dict.fromkeys(texts))
        session = await self._session(context)
        self._check_room(session, max(map(len, unique)), "a candidate")
        hidden = await self.engine.probe(session.sequence, unique, keep=True)
        session.probed = {ids: i for i, ids in enumerate(unique)}
        value = dict(zip(unique, self._positive(torch.stack(hidden)), strict=True))
        return [value[ids] for ids in texts]

    def _check_room(self, session: _Session, needed: int, what: str) -> None:
        used = self.engine.stats(session.sequence).logical_length
        check_room(used, needed, self.max_context, what)

    @torch.no_grad()
    def _positive(self, hidden: Tensor) -> list[float]:
        """Softmax probability of label 1 from hidden states [n, hidden], in float32."""
        logits: Tensor = self.head(hidden.float())
        if not bool(torch.isfinite(logits).all()):
            raise self._non_finite()
        scores: list[float] = logits.softmax(dim=-1)[:, 1].tolist()
        return scores

    def _non_finite(self) -> ScorerError:
        return ScorerError(
            f"{self.name} returned NaN or infinite logits; check the checkpoint and the dtype "
            f"({self.engine.adapter.dtype})"
        )

    async def _session(self, context: Context) -> _Session:
        """The trajectory's session, advanced to all committed steps."""
        session = self._sessions.get(context.trajectory)
        if session is None:
            prefix = self.prefix_ids(context.question.text)
            check_prefix(context.question, len(prefix), self.max_context)
            try:
                session = _Session(await self.engine.open(prefix))
            except NonFiniteLogitsError as error:
                raise self._non_finite() from error
            self._sessions[context.trajectory] = session
        behind = [self.step_ids(s.text) for s in context.steps[session.steps :]]
        if behind and session.probed:
            fork = session.probed.get(tuple(behind[0]))
            if fork is not None:
                self.engine.adopt(session.sequence, fork)
                session.steps += 1
                behind.pop(0)
        session.probed = None
        if tokens := [t for step in behind for t in step]:
            self._check_room(session, len(tokens), "a committed step")
            try:
                await self.engine.extend(session.sequence, tokens)
            except NonFiniteLogitsError as error:
                await self.release(context)
                raise self._non_finite() from error
            except BaseException:  # half-way: the next call starts over from the question
                await self.release(context)
                raise
        session.steps = len(context.steps)
        return session

    async def release(self, context: Context) -> None:
        session = self._sessions.pop(context.trajectory, None)
        if session is not None:
            self.engine.close(session.sequence)


def reward_head(names: set[str], config: PretrainedConfig) -> nn.Module:
    """The head module for the parameters found under `score.`; two labels, always."""
    hidden = int(config.hidden_size)
    if "weight" in names:
        return nn.Linear(hidden, 2, bias="bias" in names)
    return nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))

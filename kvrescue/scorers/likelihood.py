"""LikelihoodScorer: how probable a full-context language model finds a step.

For domains without a process reward model. Score = exp(mean token log-probability) of the step
given question and committed steps (`reduce="mean"`, the geometric mean probability), or the
probability of its least likely token (`reduce="min"`), so both lie in [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kvrescue.engine.prompt import encode_text
from kvrescue.engine.sequence import ParkedSequence
from kvrescue.errors import ConfigError, InputError, ScorerError
from kvrescue.policies.torch import TorchPolicy
from kvrescue.scorers.base import Scorer
from kvrescue.scorers.specs import Reduce
from kvrescue.types import Candidate, Context

__all__ = ["LikelihoodScorer"]


class LikelihoodScorer(Scorer):
    """Scores with a policy's language model; the policy must have full context."""

    def __init__(self, policy: TorchPolicy, *, reduce: Reduce = "mean") -> None:
        if policy.engine.evictor is not None:
            raise ConfigError(
                "likelihood scorer: its policy has an evictor; a scorer that forgets cannot judge, "
                "use one with full context"
            )
        if reduce not in ("mean", "min"):
            raise ConfigError(f"reduce = {reduce!r}: use 'mean' or 'min'")
        self.policy, self.reduce = policy, reduce
        self._sessions: dict[int, tuple[ParkedSequence, int]] = {}

    def _ids(self, candidate: Candidate) -> list[int]:
        if candidate.tokenizer == self.policy.pieces.fingerprint:
            return list(candidate.token_ids)
        return encode_text(self.policy.tokenizer, candidate.text)

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        sequence = await self._session(context)
        ids = [tuple(self._ids(c)) for c in candidates]
        unique = [u for u in dict.fromkeys(ids) if u]
        self._check_room(sequence, max(map(len, unique), default=0), "a candidate")
        values: dict[tuple[int, ...], float] = {(): 0.0}
        if unique:
            logprobs = await self.policy.engine.probe(sequence, unique, logprobs=True)
            values |= {u: self._reduce(lp) for u, lp in zip(unique, logprobs, strict=True)}
        return [values[i] for i in ids]

    def _check_room(self, sequence: ParkedSequence, needed: int, what: str) -> None:
        used = self.policy.engine.stats(sequence).logical_length
        if used + needed > self.policy.max_context:
            raise ScorerError(
                f"the scorer's context of {self.policy.max_context} tokens is full ({used} used, "
                f"{what} needs {needed}); lower limits.max_context of the run"
            )

    def _reduce(self, logprobs: Tensor) -> float:
        pooled = float((logprobs.mean() if self.reduce == "mean" else logprobs.min()).exp())
        if not 0.0 <= pooled <= 1.0:  # NaN too
            raise ScorerError(
                f"likelihood scorer: {self.policy.engine.adapter.name} gives a step the "
                f"probability {pooled}; check the checkpoint and the dtype"
            )
        return pooled

    async def _session(self, context: Context) -> ParkedSequence:
        sequence, steps = self._sessions.get(context.trajectory, (None, 0))
        if sequence is None:
            prompt = self.policy.prompt_ids(context.question)
            if len(prompt) >= self.policy.max_context:
                raise InputError(
                    f"question {context.question.id!r} takes {len(prompt)} tokens of the scorer's "
                    f"context of {self.policy.max_context}; shorten it"
                )
            sequence = await self.policy.engine.open(prompt)
            self._sessions[context.trajectory] = (sequence, 0)
        tokens = [t for s in context.steps[steps:] for t in self._ids(s.candidate)]
        if tokens:
            self._check_room(sequence, len(tokens), "a committed step")
            try:
                await self.policy.engine.extend(sequence, tokens)
            except BaseException:  # half-way: the next call starts over from the question
                await self.release(context)
                raise
        self._sessions[context.trajectory] = (sequence, len(context.steps))
        return sequence

    async def release(self, context: Context) -> None:
        sequence, _ = self._sessions.pop(context.trajectory, (None, 0))
        if sequence is not None:
            self.policy.engine.close(sequence)

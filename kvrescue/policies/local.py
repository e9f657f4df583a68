"""LocalPolicy: what policies share that run a tokenizer and an engine in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from kvrescue.detectors.base import Detector
from kvrescue.engine.candidate import GrowingCandidate
from kvrescue.engine.checkpoint import Checkpoint
from kvrescue.engine.choices import Template
from kvrescue.engine.loading import load_tokenizer
from kvrescue.engine.prompt import encode_text, render_prompt
from kvrescue.errors import CapacityError, ConfigError, InputError, PolicyError
from kvrescue.evictors.base import Evictor
from kvrescue.policies.base import Policy, Sampling, View
from kvrescue.types import CacheStats, Candidate, Question, StopReason

__all__ = ["EngineView", "LocalPolicy", "StepEngine", "check_evictor"]

_CARRY = 64  # characters of cut steps that may begin a separator


class StepEngine(Protocol):
    """What a view asks of an engine; a sequence is whatever the engine makes of it, with `forks`,
    a mapping from the indices of the candidates that may be adopted."""

    async def open(self, tokens: Sequence[int]) -> Any: ...

    async def propose(
        self,
        sequence: Any,
        sampling: Sampling,
        detectors: Sequence[Detector],
        seeds: Sequence[int],
        cap: int,
        cap_reason: StopReason,
        carry: str = "",
    ) -> Sequence[GrowingCandidate]: ...

    def adopt(self, sequence: Any, index: int) -> None: ...

    async def extend(self, sequence: Any, tokens: Sequence[int]) -> None:
        """Feed tokens, perhaps none; the forks are gone."""

    def close(self, sequence: Any) -> None: ...

    def stats(self, sequence: Any) -> CacheStats: ...


def check_evictor(evictor: object) -> None:
    """Raises ConfigError unless it is an evictor or None."""
    if not isinstance(evictor, Evictor | None):
        raise ConfigError(
            f"evictor = {evictor!r}: expected an Evictor, as in RKV(budget=64), or None"
        )


class LocalPolicy(Policy):
    """Prompts and views; a subclass sets `max_context` and `engine`."""

    max_context: int
    engine: StepEngine

    def _read_tokenizer(
        self, checkpoint: Checkpoint, system: str | None, template: Template
    ) -> None:
        self.tokenizer, self.pieces = load_tokenizer(checkpoint)
        if template == "chat" and self.tokenizer.chat_template is None:
            template = "raw"
        self.system, self.template = system, template

    def _eos(self, configured: Sequence[int]) -> frozenset[int]:
        """Ids that end a trajectory: the generation config's and the tokenizer's."""
        own = self.tokenizer.eos_token_id
        return frozenset(configured) | (frozenset() if own is None else {int(own)})

    def prompt_ids(self, question: Question) -> list[int]:
        """Token ids of the prompt, up to where the first step begins."""
        return render_prompt(self.tokenizer, question.text, self.system, self.template)

    async def open(self, question: Question, name: str) -> EngineView:
        return EngineView(self, name, await self.engine.open(self._prompt(question, name)))

    def _prompt(self, question: Question, name: str) -> list[int]:
        """The prompt, checked to leave room for a token."""
        prompt = self.prompt_ids(question)
        if not prompt:
            raise PolicyError(
                f"{name}: the prompt has no tokens; is the tokenizer's chat template empty? "
                "template = 'raw' does without"
            )
        if len(prompt) >= self.max_context:
            raise InputError(
                f"the question ({question.text[:40]!r}...) takes {len(prompt)} tokens of {name}'s "
                f"context of {self.max_context}; shorten it or raise max_context"
            )
        return prompt


class EngineView(View):
    """A sequence of the policy's engine."""

    _ENDS: ClassVar[tuple[StopReason, ...]] = (StopReason.SEPARATOR, StopReason.EOS)

    def __init__(self, policy: LocalPolicy, name: str, sequence: Any) -> None:
        self.policy = policy
        self.name = name
        self.sequence = sequence
        self._drawn: dict[int, tuple[int, ...]] = {}
        """Token ids of the last proposal by index: an equal index alone is not an own fork."""
        self._carry = ""  # text of a step that was cut by a limit, for a straddling separator

    async def propose(
        self,
        n: int,
        sampling: Sampling,
        detectors: Sequence[Detector],
        seeds: Sequence[int],
        max_tokens: int,
    ) -> list[Candidate]:
        if n < 1 or len(seeds) != n:
            raise PolicyError(f"{self.name}: n = {n} candidates with {len(seeds)} seeds")
        cap = min(sampling.max_step_tokens, max_tokens, self.room)
        if cap < 1:
            raise PolicyError(f"{self.name}: no room for another token in this context")
        reason = StopReason.LENGTH if cap == sampling.max_step_tokens else StopReason.CONTEXT
        drafts = await self.policy.engine.propose(
            self.sequence, sampling, detectors, seeds, cap, reason, self._carry
        )
        found = [self._candidate(d) for d in drafts]
        self._drawn = {c.index: c.token_ids for c in found}
        return found

    def _candidate(self, draft: GrowingCandidate) -> Candidate:
        if draft.stop is None:
            raise PolicyError(f"{self.name}: candidate {draft.index} has not ended")
        return Candidate(
            policy=self.name,
            index=draft.index,
            text=draft.text.finish(),
            token_ids=tuple(draft.token_ids),
            stop=draft.stop,
            tokenizer=self.policy.pieces.fingerprint,
            entropies=tuple(draft.entropies),
            verdict=draft.verdict,
            seed=draft.seed,
            char_ends=tuple(draft.char_ends),
        )

    async def commit(self, candidate: Candidate) -> None:
        engine, sequence = self.policy.engine, self.sequence
        index = candidate.index
        mine = candidate.policy == self.name and self._drawn.get(index) == candidate.token_ids
        if mine and index in sequence.forks:
            engine.adopt(sequence, index)
            tokens = candidate.token_ids[-1:]
        elif candidate.tokenizer == self.policy.pieces.fingerprint:
            tokens = candidate.token_ids
        else:  # another vocabulary: the step travels as text and is encoded once
            tokens = tuple(encode_text(self.policy.tokenizer, candidate.text))
        if len(tokens) > self.room:
            raise CapacityError(
                f"{self.name}: a step of {len(tokens)} tokens does not fit the {self.room} left"
            )
        await engine.extend(sequence, tokens)
        ended = candidate.stop in self._ENDS
        self._carry = "" if ended else (self._carry + candidate.text)[-_CARRY:]

    async def close(self) -> None:
        self.policy.engine.close(self.sequence)

    @property
    def stats(self) -> CacheStats:
        return self.policy.engine.stats(self.sequence)

    @property
    def room(self) -> int:
        return self.policy.max_context - self.stats.logical_length

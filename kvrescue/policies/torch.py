"""TorchPolicy: a Hugging Face decoder on the torch engine, evicted or with full context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from kvrescue.detectors.base import Detector, Source
from kvrescue.engine.checkpoint import resolve
from kvrescue.engine.choices import DType, Template
from kvrescue.engine.engine import Engine
from kvrescue.engine.loading import (
    default_device,
    default_dtype,
    load_causal_lm,
    load_tokenizer,
)
from kvrescue.engine.prompt import encode_text, render_prompt
from kvrescue.engine.sequence import Draft, ParkedSequence
from kvrescue.errors import CapacityError, ConfigError, InputError, PolicyError
from kvrescue.evictors.base import Evictor
from kvrescue.policies.base import Policy, Sampling, View
from kvrescue.policies.specs import TorchPolicySpec
from kvrescue.types import CacheStats, Candidate, Question, StopReason

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TorchPolicy", "TorchView"]


_CARRY = 64  # characters of cut steps that may begin a separator


class TorchPolicy(Policy):
    """Proposes steps with a local model.

    `model`: see `kvrescue.engine.checkpoint`. `evictor` None means full context. `template` "chat"
    renders the question through the tokenizer's chat template (with `system`, when given),
    "raw" encodes it as it is. Raises ModelLoadError.
    """

    def __init__(
        self,
        model: str,
        *,
        evictor: Evictor | None = None,
        system: str | None = None,
        template: Template = "chat",
        max_context: int | None = None,
        max_live_rows: int = 1024,
        device: str | None = None,
        dtype: DType = "auto",
    ) -> None:
        TorchPolicySpec(  # tells of wrong arguments
            model=model,
            system=system,
            template=template,
            max_context=max_context,
            max_live_rows=max_live_rows,
            device=device,
            dtype=dtype,
        )
        if not isinstance(evictor, Evictor | None):
            raise ConfigError(
                f"evictor = {evictor!r}: expected an Evictor, as in RKV(budget=64), or None"
            )
        checkpoint = resolve(model)
        self.tokenizer, self.pieces = load_tokenizer(checkpoint)
        where = default_device(device)
        adapter = load_causal_lm(
            checkpoint, device=where, dtype=default_dtype(dtype, where), max_context=max_context
        )
        if template == "chat" and self.tokenizer.chat_template is None:
            template = "raw"
        self.system, self.template = system, template
        self.max_context = adapter.max_context
        self.engine = Engine(
            adapter,
            evictor=evictor,
            pieces=self.pieces,
            eos=eos_ids(adapter.generation_eos, self.tokenizer),
            max_live_rows=max_live_rows,
        )

    @property
    def source(self) -> Source:
        return Source(vocab_size=self.engine.adapter.vocab_size, max_step_tokens=self.max_context)

    def prompt_ids(self, question: Question) -> list[int]:
        """Token ids of the prompt, up to where the first step begins."""
        return render_prompt(self.tokenizer, question.text, self.system, self.template)

    async def open(self, question: Question, name: str) -> TorchView:
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
        return TorchView(self, name, await self.engine.open(prompt))


def eos_ids(configured: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids that end a trajectory: the generation config's and the tokenizer's."""
    own = tokenizer.eos_token_id
    return frozenset(configured) | (frozenset() if own is None else {int(own)})


class TorchView(View):
    """A parked sequence of the policy's engine."""

    _ENDS: ClassVar[tuple[StopReason, ...]] = (StopReason.SEPARATOR, StopReason.EOS)

    def __init__(self, policy: TorchPolicy, name: str, sequence: ParkedSequence) -> None:
        self.policy = policy
        self.name = name
        self.sequence = sequence
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
        return [self._candidate(d) for d in drafts]

    def _candidate(self, draft: Draft) -> Candidate:
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
        )

    async def commit(self, candidate: Candidate) -> None:
        engine, sequence = self.policy.engine, self.sequence
        own = candidate.policy == self.name and candidate.index in sequence.forks
        if own:
            engine.adopt(sequence, candidate.index)
            tokens = candidate.token_ids[-1:]
        elif candidate.tokenizer == self.policy.pieces.fingerprint:
            tokens = candidate.token_ids
        else:  # another vocabulary: the step travels as text and is encoded once
            tokens = tuple(encode_text(self.policy.tokenizer, candidate.text))
        if len(tokens) > self.room:
            raise CapacityError(
                f"{self.name}: a step of {len(tokens)} tokens does not fit the {self.room} left"
            )
        sequence.forks.clear()
        if tokens:
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

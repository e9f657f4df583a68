"""PRMText: a question and its steps as the token ids that a process reward model reads.

Two conventions for where a score is read:

- ``step_tag`` (the model card): prompt through the chat template, every step followed by
  ``<extra_0>``, the score read there. What the published 7B and 72B PRMs were trained for.
- ``separator`` (the paper's appendix, and PRMs trained with TRL): question, then the steps, each
  followed by "\\n\\n", the score read at the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from kvrescue.engine.choices import Template
from kvrescue.engine.prompt import encode_text, render_prompt
from kvrescue.errors import ConfigError, InputError, ModelLoadError, ScorerError
from kvrescue.scorers.specs import Convention
from kvrescue.types import SEPARATOR, Candidate, Context, Question

__all__ = ["PRMText", "Text", "check_prefix", "check_room"]


@dataclass(frozen=True, slots=True)
class Text:
    """A whole trajectory that ends with one candidate."""

    ids: tuple[int, ...]
    steps: int
    """Places where a score can be read, the candidate's included."""


class PRMText:
    """What a PRM's convention makes of texts.

    Raises ConfigError (unknown convention) and ModelLoadError (the step tag is not one token).
    """

    def __init__(
        self,
        name: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        convention: Convention,
        step_tag: str,
        system: str | None,
    ) -> None:
        if convention not in ("step_tag", "separator"):
            raise ConfigError(f"convention = {convention!r}: use 'step_tag' or 'separator'")
        self.name, self.tokenizer = name, tokenizer
        self.convention, self.system = convention, system
        self.tag: int | None = None
        """Token id of the step tag; None where the convention has none."""
        self._reserved: tuple[str, ...] = ()
        """Strings that must not be parsed inside texts: a step cannot score itself twice."""
        if convention == "step_tag":
            self._reserved = (step_tag,)
            ids = tokenizer.encode(step_tag, add_special_tokens=False)
            if len(ids) != 1:
                raise ModelLoadError(
                    f"model = {name!r}: step tag {step_tag!r} is {len(ids)} tokens in its "
                    "tokenizer, not one; use the PRM's own tokenizer or convention = 'separator'"
                )
            self.tag = int(ids[0])

    def prefix_ids(self, question: str) -> list[int]:
        """Tokens before the first step."""
        if self.convention == "separator":
            return encode_text(self.tokenizer, question + SEPARATOR)
        template: Template = "chat" if self.tokenizer.chat_template else "raw"
        return render_prompt(self.tokenizer, question, self.system, template, self._reserved)

    def step_ids(self, text: str) -> list[int]:
        """Tokens of one step; the score is read at the last one.

        The step's text adds no special token: one that contains "<extra_0>" has one position to
        be scored at, like any other. Raises ScorerError for a step without a token.
        """
        body = text.strip() if self.convention == "step_tag" else text.strip("\n") + SEPARATOR
        ids = encode_text(self.tokenizer, body, self._reserved)
        if self.tag is not None:
            ids.append(self.tag)
        if not ids:
            raise ScorerError(f"{self.name}: its tokenizer has no token for the step {text!r:.40}")
        return ids

    def texts(
        self, context: Context, candidates: Sequence[Candidate], max_context: int
    ) -> list[Text]:
        """What a model without memory reads: for each candidate the whole trajectory.

        Raises InputError (question) and ScorerError (steps) where it is longer than `max_context`.
        """
        ids = self.prefix_ids(context.question.text)
        check_prefix(context.question, len(ids), max_context)
        for step in context.steps:
            more = self.step_ids(step.text)
            check_room(len(ids), len(more), max_context, "a committed step")
            ids += more
        steps = [self.step_ids(candidate.text) for candidate in candidates]
        check_room(len(ids), max(map(len, steps), default=0), max_context, "a candidate")
        return [Text((*ids, *step), len(context.steps) + 1) for step in steps]

    def text(self, question: str, steps: Sequence[str]) -> Text:
        """A question with at least one step."""
        ids = self.prefix_ids(question) + [i for step in steps for i in self.step_ids(step)]
        return Text(tuple(ids), len(steps))


def check_prefix(question: Question, tokens: int, max_context: int) -> None:
    """Raises InputError when nothing fits behind a question."""
    if tokens >= max_context:
        raise InputError(
            f"question {question.id!r} takes {tokens} tokens of the PRM's context of "
            f"{max_context}; shorten it"
        )


def check_room(used: int, needed: int, max_context: int, what: str) -> None:
    """Raises ScorerError when `needed` more tokens do not fit."""
    if used + needed > max_context:
        raise ScorerError(
            f"the PRM's context of {max_context} tokens is full ({used} used, {what} "
            f"needs {needed}); lower limits.max_context of the run"
        )

"""Contexts and candidates for scorers and detectors, as engines make them."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hypothesis import strategies as st

from kvrescue.types import Candidate, CommittedStep, Context, Question, StopReason

__all__ = ["POOLS", "QUESTIONS", "STEPS", "Pool", "context_of", "drawn", "grown", "pools"]

QUESTIONS: Final = ("Let x = 3. What is x + 4?", "Tom has 12 apples and eats 5. How many are left?")
"""Asked of scorers."""
STEPS: Final = (
    "Let x = 3.\n\n",
    "So x + 4 = 7.\n\n",
    "First, 12 apples.\n\n",
    "leaving 7;\n\n",
    "é 文字 😀\n\n",
    "The answer is \\boxed{7}.",
    "We add 4 to 3, and since x is 3 the sum is what we look for, which is",
)
"""Complete ones, one that ends the text, and one that a limit cut."""
_CUT = STEPS[-1]


@dataclass(frozen=True, slots=True)
class _Proposer:
    name: str
    tokenizer: str
    pieces: str
    """A regular expression: what becomes one token."""
    entropies: bool = True


PROPOSERS: Final = (
    _Proposer("base", "kvrescue.testing, words", r"\s*\S+(?:\s+$)?|\s+$"),
    _Proposer("helper", "kvrescue.testing, pairs", r"(?s)..?"),
    _Proposer("server", "", r"\s*\S+(?:\s+$)?|\s+$", entropies=False),
)
"""Two tokenizers that nobody has, so that steps travel as text, and one that tells of none."""


def drawn(text: str, index: int = 0, proposer: int = 0) -> Candidate:
    """The candidate of this text, as an engine returns it: token ids, entropies, ends."""
    who = PROPOSERS[proposer % len(PROPOSERS)]
    pieces = re.findall(who.pieces, text)
    ends = list(itertools.accumulate(map(len, pieces)))
    ids = [1 + zlib.crc32(piece.encode()) % 30_000 for piece in pieces]
    stop = StopReason.SEPARATOR if text.endswith("\n\n") else StopReason.EOS
    if text == _CUT:
        stop = StopReason.LENGTH
    if stop is StopReason.EOS:  # a token without text
        ids.append(0)
        ends.append(len(text))
    entropies = tuple(round(token % 97 / 40, 3) for token in ids) if who.entropies else ()
    return Candidate(
        policy=who.name,
        index=index,
        text=text,
        token_ids=tuple(ids),
        stop=stop,
        tokenizer=who.tokenizer,
        entropies=entropies,
        seed=index + 1,
        char_ends=tuple(ends) if who.entropies else (),
    )


def grown(context: Context, text: str, proposer: int = 0) -> Context:
    """The same trajectory with one more step."""
    step = CommittedStep(len(context.steps), drawn(text, proposer=proposer), 0.5)
    return replace(context, steps=(*context.steps, step))


def context_of(question: str, steps: Sequence[str] = ()) -> Context:
    """A new trajectory with these steps, of one proposer after another."""
    context = Context(Question(question))
    for place, text in enumerate(steps):
        context = grown(context, text, place)
    return context


@dataclass(frozen=True)
class Pool:
    """Candidates after a context: question, committed steps, candidate steps, as texts."""

    question: str
    steps: tuple[str, ...]
    candidates: tuple[str, ...]
    proposers: tuple[int, ...] = (0,)
    """Whose the candidates are, in turn."""

    def context(self, steps: int | None = None) -> Context:
        """A new trajectory with the first `steps` of the steps (None: all)."""
        return context_of(self.question, self.steps[:steps])

    def pool(self) -> list[Candidate]:
        """The candidates, in their order."""
        return [
            drawn(text, place, self.proposers[place % len(self.proposers)])
            for place, text in enumerate(self.candidates)
        ]


POOLS: Final = (
    Pool(QUESTIONS[0], (), STEPS[:2], (0, 1)),
    Pool(QUESTIONS[0], STEPS[:2], (STEPS[1], STEPS[5], STEPS[6]), (0, 1, 2)),
    Pool(QUESTIONS[1], (STEPS[2],), (STEPS[1], STEPS[5], STEPS[4]), (1, 0, 2)),
)
"""The same texts in several contexts."""


def pools() -> st.SearchStrategy[Pool]:
    """Any of them."""
    texts = st.sampled_from(STEPS)
    complete = st.sampled_from(STEPS[:5])
    return st.builds(
        Pool,
        question=st.sampled_from(QUESTIONS),
        steps=st.lists(complete, max_size=2).map(tuple),
        candidates=st.lists(texts, min_size=1, max_size=4).map(tuple),
        proposers=st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple),
    )

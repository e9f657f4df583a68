"""ReplayScorer: gives recorded scores back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from kvrescue.errors import ReplayError, ScorerError
from kvrescue.replay.recording import Recorded, Recording, Round, shown
from kvrescue.rules import is_selectable
from kvrescue.scorers.base import Scorer
from kvrescue.types import Candidate, CommittedStep, Context

__all__ = ["ReplayScorer"]

_Key: TypeAlias = tuple[str, str, tuple[int, ...]]


class ReplayScorer(Scorer):
    """Scores candidates as they were scored when they were recorded.

    A candidate is known by its text and tokens, and by the steps before it. What a scorer did wrong
    in a run that went on without (`on_scorer_error: degrade`) is done again.

    Args:
        trace: the path of a trace, or a `Recording`.

    Raises:
        ReplayError: there is no such file, or it tells of no trajectory.
        RunError: it is damaged, or no trace.
    """

    def __init__(self, trace: str | os.PathLike[str] | Recording) -> None:
        self.recording = trace if isinstance(trace, Recording) else Recording.read(trace)

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        """Recorded scores.

        Raises:
            ReplayError: some candidate was not scored after these steps.
            ScorerError: the scorer failed when it was recorded.
        """
        step = len(context.steps)
        rounds = list(self._rounds(context))
        # Of several runs of the question the one with these very candidates: its scores may differ
        # in the last bits from those of another seed, where they were batched otherwise.
        seeds = {candidate.seed for candidate in candidates}
        rounds.sort(key=lambda found: -len(seeds & {c.seed for c in found.candidates}))
        for found in rounds:
            known = _scores(found)
            if all(_key(candidate) in known for candidate in candidates):
                _fail_again(found)
                return [known[_key(candidate)] for candidate in candidates]
        known = _scores(rounds[0]) if rounds else {}
        first = next(candidate for candidate in candidates if _key(candidate) not in known)
        after = "after these steps" if rounds else "after other steps than these"
        raise ReplayError(
            f"question {context.question.id!r}, step {step}: {shown(first)} was not scored when it "
            f"was recorded ({after} were others scored): score it with a model",
            question_id=context.question.id,
            step=step,
            diverged=True,
        )

    def _rounds(self, context: Context) -> Iterator[Round]:
        """Rounds that were scored after the context's steps."""
        for run in self.recording.of(context.question):
            if _follows(run, context):
                for round_ in run.rounds:
                    if round_.committed is not None and round_.step == len(context.steps):
                        yield round_


def _follows(run: Recorded, context: Context) -> bool:
    before = [event.step for event in run.steps[: len(context.steps)]]
    return [_key(s.candidate) for s in before] == [_key(s.candidate) for s in context.steps]


def _key(candidate: Candidate) -> _Key:
    return candidate.text, candidate.tokenizer, candidate.token_ids


def _committed(round_: Round) -> CommittedStep:
    if round_.committed is None:
        raise ReplayError(f"step {round_.step} was skipped and has no scores")
    return round_.committed.step


def _scores(round_: Round) -> dict[_Key, Any]:
    """What the scorer returned for the candidates that could be chosen; the first of equals
    counts, as it was the one that was asked for."""
    found: dict[_Key, Any] = {}
    for candidate, score in zip(round_.candidates, _committed(round_).scores, strict=True):
        if is_selectable(candidate):
            given = _as_returned(round_, candidate) if score is None else score
            found.setdefault(_key(candidate), given)
    return found


def _fail_again(round_: Round) -> None:
    """Raise what the scorer raised, or what was wrong with its result as a whole."""
    for fault in _committed(round_).degradations:
        if fault.where == "scorer" and not fault.message.startswith("score of candidate "):
            raise ScorerError(fault.message)


def _as_returned(round_: Round, candidate: Candidate) -> object:
    """Something that is wrong in the way in which the candidate's score was."""
    place = f"score of candidate {candidate.index} of {candidate.policy!r}: "
    for fault in _committed(round_).degradations:
        if fault.where == "scorer" and fault.message.startswith(place):
            told = fault.message.removeprefix(place)
            for ending in (" is not finite", " is outside [0, 1]"):
                if told.endswith(ending):
                    return float(told.removesuffix(ending))
            return _NoScore(told.removesuffix(" is not a number"))
    return _NoScore("a score that was not valid when it was recorded")


class _NoScore:
    """Is no number, and looks like what was returned instead of one."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown

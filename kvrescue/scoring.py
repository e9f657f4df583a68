"""Scoring a pool: every candidate gets a valid score, or the fault is told."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import SupportsFloat

from kvrescue.errors import KVRescueError, ReplayError, ScorerError, located
from kvrescue.scorers.base import Scorer
from kvrescue.tasks import asked_to_stop
from kvrescue.types import Candidate, Context, Degradation

__all__ = ["distinct", "fault_of_score", "score_pool", "typed_error"]


async def score_pool(
    scorer: Scorer,
    context: Context,
    pool: Sequence[Candidate],
    degradations: list[Degradation],
    *,
    degrade: bool,
) -> list[float | None]:
    """One score in [0, 1] per candidate of the pool.

    Args:
        scorer: asked once per different candidate.
        context: what the candidates continue.
        pool: the candidates that may be chosen.
        degradations: where faults are recorded when they do not raise.
        degrade: score a candidate None, instead of raising, when its score is invalid, and all of
            them when the scorer fails or returns the wrong number of scores.

    Raises:
        ScorerError: the scorer failed, or its result is no list of scores.
        ReplayError: a recording does not hold the scores, whether to degrade or not.
    """
    firsts, where = distinct(pool)
    try:
        given = await _asked(scorer, context, firsts)
        if isinstance(given, Mapping | set | str | bytes):
            raise ScorerError(
                f"the scorer returned a {type(given).__name__}; expected a list of "
                f"{len(firsts)} scores in the order of the candidates"
            )
        if len(given) != len(firsts):
            raise ScorerError(
                f"the scorer returned {len(given)} scores for {len(firsts)} candidates"
            )
    except Exception as error:
        typed = typed_error(scorer, error)
        if not degrade or isinstance(typed, ReplayError):
            raise typed from typed.__cause__
        degradations.append(Degradation("scorer", str(typed)))
        return [None] * len(pool)
    valid: list[float | None] = []
    for candidate, score in zip(firsts, given, strict=True):
        fault = fault_of_score(score)
        if fault is None:
            valid.append(float(score))
            continue
        message = f"score of candidate {candidate.index} of {candidate.policy!r}: {fault}"
        if not degrade:
            raise ScorerError(message)
        degradations.append(Degradation("scorer", message))
        valid.append(None)
    return [valid[place] for place in where]


async def _asked(
    scorer: Scorer, context: Context, candidates: Sequence[Candidate]
) -> Sequence[float]:
    try:
        return await scorer.score(context, candidates)
    except asyncio.CancelledError as error:
        if asked_to_stop():
            raise
        raise ScorerError("the scorer gave up (CancelledError), nobody asked it to") from error


def distinct(pool: Sequence[Candidate]) -> tuple[list[Candidate], list[int]]:
    """The different candidates of a pool, and for each candidate which of them it equals.

    Candidates are equal when text and tokens are: no scorer can then tell them apart, so scoring
    one is enough.
    """
    places: dict[tuple[str, str, tuple[int, ...]], int] = {}
    firsts: list[Candidate] = []
    where: list[int] = []
    for candidate in pool:
        key = (candidate.text, candidate.tokenizer, candidate.token_ids)
        if key not in places:
            places[key] = len(firsts)
            firsts.append(candidate)
        where.append(places[key])
    return firsts, where


def fault_of_score(score: object) -> str | None:
    """Why a value is no score, or None when it is one."""
    # Whatever converts to a float on its own terms will do (a NumPy or torch scalar, say).
    if not isinstance(score, SupportsFloat):
        return f"{score!r} is not a number"
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        return f"{score!r} is not a number"
    if not math.isfinite(number):
        return f"{number} is not finite"
    if not 0.0 <= number <= 1.0:
        return f"{number} is outside [0, 1]"
    return None


def typed_error(scorer: Scorer, error: Exception) -> KVRescueError:
    """A `ScorerError` as it is, another error of ours led by the scorer's name, and anything else
    as the cause of a `ScorerError`."""
    if isinstance(error, ScorerError):
        return error
    name = type(scorer).__name__
    if isinstance(error, KVRescueError):
        return located(f"the scorer {name}", error)
    typed = ScorerError(f"the scorer {name} failed: {type(error).__name__}: {error}")
    typed.__cause__ = error
    return typed

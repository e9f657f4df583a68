"""check_scorer: the laws of a scorer (design, law 1: what the selector relies on)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from kvrescue.errors import ConfigError
from kvrescue.scorers.base import Scorer, ScorerSpec
from kvrescue.testing.asking import Asking
from kvrescue.testing.components import check_options
from kvrescue.testing.laws import Law, broken, checked_examples, search
from kvrescue.testing.loops import Built, Loop, building, checked_seconds
from kvrescue.testing.pools import POOLS, QUESTIONS, STEPS, Pool, pools
from kvrescue.testing.scorer_laws import (
    AWKWARD,
    CANCELLED,
    CLOSE,
    CONCURRENT,
    MEMORY,
    RELEASED,
    RUNS,
    SCORER_LAWS,
)

__all__ = ["SCORER_LAWS", "Pool", "check_scorer"]


def check_scorer(
    scorer: Scorer | ScorerSpec | Callable[[], Any],
    *,
    tolerance: float = 1e-4,
    relative: bool = False,
    seconds: float = 60.0,
    examples: int = 8,
) -> None:
    """Search for contexts and candidates on which a scorer breaks one of `SCORER_LAWS`.

    Args:
        scorer: its spec, or a function that makes one (or a coroutine of one), which is built here
            and closed, twice, and then built and asked anew; or a scorer, which stays open and is
            compared with itself alone.
        tolerance: by how much two scores of one candidate may differ; batches round differently.
        relative: scores are shares or ranks among the candidates of a pool (a vote), so that the
            law `companions` does not hold; their order must still not matter.
        seconds: that a call may take, by the clock. Code that blocks the thread is waited for.
        examples: pools to try, each asked some ten times.

    Raises:
        LawBroken: it does.
        ConfigError: not a scorer, or called from a coroutine.
    """
    __tracebackhide__ = True
    examples = checked_examples(examples)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0:
        raise ConfigError(f"tolerance = {tolerance!r}: expected a number of 0 or more")
    if not isinstance(relative, bool):
        raise ConfigError(f"relative = {relative!r}: expected True or False")
    seconds = checked_seconds(seconds)
    if isinstance(scorer, ScorerSpec):
        check_options("scorer", scorer)
    with building(scorer, Scorer, ScorerSpec, "scorer") as (built, run):
        who = built.name
        check = Asking(
            built.part, who, tolerance=float(tolerance), seconds=seconds, relative=relative
        )
        for pool in POOLS:
            _once(run, check.first, pool, RUNS, who)
        search(
            pools(),
            lambda case: run(check.pool(case)),
            examples=examples,
            component=who,
            runs=RUNS,
        )
        last = Pool(QUESTIONS[0], STEPS[:1], STEPS[1:4])
        _once(run, check.awkward, last, AWKWARD, who)
        for part, law in (
            (check.concurrent, CONCURRENT),
            (check.cancelled, CANCELLED),
            (check.released, RELEASED),
            (check.forgets, RELEASED),
        ):
            _once(run, part, last, law, who)
        read = list(check.firsts)[::-1]
        for pool in read:
            _once(run, check.again, pool, MEMORY, who)
        if built.owned:
            _once(run, check.close, last, CLOSE, who)
            _anew(run, check, built, read)


def _anew(run: Loop, check: Asking, built: Built, read: list[Pool]) -> None:
    """Another scorer, which knows nothing of the first, is asked in the opposite order."""
    __tracebackhide__ = True
    if built.again is None:
        return
    try:
        other = run(built.again())
    except Exception as error:
        seen = f"built again, after the first was closed: {type(error).__name__}: {error}"
        broken(CLOSE, built.name, seen, "another scorer")
    if other is built.part:  # the function gives one and the same
        return
    try:
        for pool in read:
            _once(run, lambda case: check.again(case, other), pool, MEMORY, built.name)
    finally:
        run(other.aclose())


def _once(run: Loop, part: Any, case: Pool, law: Law, who: str) -> None:
    __tracebackhide__ = True
    search(st.just(case), lambda pool: run(part(pool)), examples=1, component=who, runs=law)

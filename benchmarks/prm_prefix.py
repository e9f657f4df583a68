"""What it saves the reward model to keep a trajectory's prefix: rounds of candidates, scored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from benchmarks.ratios import Ratio, Side, Size, in_turns, seconds
from benchmarks.rescoring import QUESTION, Rescorer, Rounds
from kvrescue.scorers import QwenPRM

__all__ = ["ratios"]


def ratios(size: Size) -> list[Ratio]:
    candidates, times = size.pick(16, 16, 4), size.pick(5, 3, 1)
    prm = QwenPRM("tiny/prm")
    rescorer = Rescorer(prm)
    scores: dict[str, list[float]] = {}

    def kept() -> None:
        scores["kept"] = asyncio.run(prm.score(rounds.context(), rounds.shown))

    def anew() -> None:
        async def once() -> list[float]:
            context = rounds.context(anew=True)
            found = await prm.score(context, rounds.shown)
            await prm.release(context)
            return found

        scores["anew"] = asyncio.run(once())

    def whole() -> None:
        steps = [step.text for step in rounds.steps]
        texts = [[c.text for c in rounds.shown]]
        (scores["whole"],) = rescorer.score([(QUESTION, steps)], texts)

    rounds = Rounds(candidates)
    sides: dict[str, Callable[[], float]] = {
        "kept": partial(seconds, kept),
        "anew": partial(seconds, anew),
        "whole": partial(seconds, whole),
    }
    for side in sides.values():
        side()
    different = max(
        abs(a - b)
        for other in ("anew", "whole")
        for a, b in zip(scores["kept"], scores[other], strict=True)
    )
    if different > 1e-3:
        raise RuntimeError(f"the sides score differently, by up to {different:.1e}")

    def committed() -> float:
        rounds.commit()
        return sides["kept"]()

    found = in_turns({**sides, "kept": committed}, times, warm_up=())
    said = {
        "anew": ("prefix read again", "once per round, by the same engine, for all candidates", ""),
        "whole": ("whole texts", "for every candidate, in one padded batch of transformers",
                  ", which is how it is used without an engine"),
    }  # fmt: skip
    return [
        Ratio(
            name=f"{what} over prefix kept",
            above=Side(f"{what}, {how}", found[key]),
            below=Side("prefix kept", found["kept"]),
            unit=f"seconds per round of {candidates} candidates after {len(rounds.steps)} steps",
            clock="cpu",
            means=f"What scoring costs when the question and the committed steps are read {how}"
            f"{more}.",
            means_not="the factor of longer trajectories, for which it grows.",
        )
        for key, (what, how, more) in said.items()
    ]

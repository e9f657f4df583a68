"""Starting a step by forking a parked cache, against filling a cache from the tokens again.

One trajectory that grows by a foreign step in every turn, with full context. Both sides are the
same engine and draw the same candidates; the re-prefilling one opens the trajectory anew, once for
all candidates of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.decoding import MODEL, TEXT, Rows, endless
from benchmarks.ratios import Ratio, Side, Size, in_turns, seconds

__all__ = ["ratios"]

CANDIDATES, STEP = 8, 24


def ratios(size: Size) -> list[Ratio]:
    length = size.pick(1024, 512, 64)
    side = endless(size.pick(MODEL, MODEL, "tiny/base"))
    text = [int(t) for t in side.tokenizer.encode(TEXT * (length // 8))]
    kept = Rows(side, CANDIDATES)
    kept.open([text[:length]])
    at = {"extended": length, "opened": length}

    def extended(tokens: int) -> None:
        start = at["extended"]
        at["extended"] = start + STEP
        kept.extend(text[start : start + STEP])
        kept.decode(tokens)

    def opened(tokens: int) -> None:
        at["opened"] += STEP
        again = Rows(side, CANDIDATES)
        again.open([text[: at["opened"]]])
        again.decode(tokens)
        again.close()

    def by(side: Callable[[int], None], tokens: int) -> Callable[[], float]:
        return partial(seconds, partial(side, tokens))

    found = in_turns(
        {
            "forked": by(extended, 1),
            "filled again": by(opened, 1),
            "forked, step": by(extended, STEP),
            "filled again, step": by(opened, STEP),
        },
        size.pick(2, 2, 1),
        warm_up=("forked",),
    )
    kept.close()
    said = {
        "": ("the start of a step", "Feeding the step that was committed and forking, until the "
             "first token of each candidate, against reading the whole text."),
        ", step": (f"a whole step of {STEP} tokens", "The same with the candidates decoded to "
                   "their end: what it comes to where decoding is part of the work."),
    }  # fmt: skip
    return [
        Ratio(
            name=f"re-prefill over fork, {what}",
            above=Side("filled again, once for all candidates", found[f"filled again{key}"]),
            below=Side("forked", found[f"forked{key}"]),
            unit=f"seconds for {CANDIDATES} candidates at {length} tokens of context",
            clock="cpu",
            means=means,
            means_not="a comparison with prefix caching, which finds most of that text again (see "
            "vllm_steps); an evicted state cannot be had by filling a cache again at all.",
        )
        for key, (what, means) in said.items()
    ]

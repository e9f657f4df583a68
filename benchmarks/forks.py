"""Starting a step by forking a parked cache, against filling a cache from the tokens again.

One trajectory that grows by a foreign step in every turn, with full context. Both sides are the
same engine and draw the same candidates; the re-prefilling one opens the trajectory anew, once for
all candidates of a step. The start of a step is measured within the step: until every candidate has
its first token.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.decoding import MODEL, TEXT, Rows, Stamp, endless
from benchmarks.ratios import CLOCKS, Ratio, Side, Size, in_turns

__all__ = ["ratios"]

CANDIDATES, STEP = 8, 16
_NOW = CLOCKS["cpu"]


def ratios(size: Size) -> list[Ratio]:
    length = size.pick(1024, 512, 64)
    side = endless(size.pick(MODEL, MODEL, "tiny/base"))
    text = [int(t) for t in side.tokenizer.encode(TEXT * (length // 8))]
    kept = Rows(side, CANDIDATES)
    kept.open([text[:length]])
    at = {"forked": length, "filled again": length}
    starts: dict[str, list[float]] = {name: [] for name in at}

    def extended(stamp: Stamp) -> None:
        start = at["forked"]
        at["forked"] = start + STEP
        kept.extend(text[start : start + STEP])
        kept.decode(STEP, stamp)

    def opened(stamp: Stamp) -> None:
        at["filled again"] += STEP
        again = Rows(side, CANDIDATES)
        again.open([text[: at["filled again"]]])
        again.decode(STEP, stamp)
        again.close()

    def by(name: str, work: Callable[[Stamp], None]) -> Callable[[], float]:
        def step() -> float:
            times: list[float] = []
            started = _NOW()
            work(Stamp(call=lambda: times.append(_NOW())))
            took = _NOW() - started
            starts[name].append(times[CANDIDATES - 1] - started)
            return took

        return step

    found = in_turns(
        {"forked": by("forked", extended), "filled again": by("filled again", opened)},
        size.pick(2, 2, 1),
        warm_up=(),  # the first sequence has been opened
    )
    kept.close()
    first = {name: tuple(times) for name, times in starts.items()}
    said = (
        (first, "the start of a step", "Feeding the step that was committed and forking, until the "
         "first token of each candidate, against reading the whole text."),
        (found, f"a whole step of {STEP} tokens", "The same with the candidates decoded to their "
         "end: what it comes to where decoding is part of the work."),
    )  # fmt: skip
    return [
        Ratio(
            name=f"re-prefill over fork, {what}",
            above=Side("filled again, once for all candidates", turns["filled again"]),
            below=Side("forked", turns["forked"]),
            unit=f"seconds for {CANDIDATES} candidates at {length} tokens of context",
            clock="cpu",
            means=means,
            means_not="a comparison with prefix caching, which finds most of that text again (see "
            "vllm_steps); an evicted state cannot be had by filling a cache again at all.",
        )
        for turns, what, means in said
    ]

"""check_evictor: the laws of an evictor (design, law 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

from kvrescue.evictors.base import Evictor, KVSlice
from kvrescue.registry import missing_package
from kvrescue.testing.components import OPTIONS, check_options, name_of, require
from kvrescue.testing.laws import Law, Laws, checked_examples, search

if TYPE_CHECKING:
    from kvrescue.testing.trackers import TrackedCase

__all__ = ["EVICTOR_LAWS", "KVCase", "check_evictor"]

RUNS: Final = Law(
    "runs",
    "Every well-formed slice is scored without an error.",
    "The run ends with an EvictorError in the middle of a problem.",
    "Try the input: `KVCase(...).slice()` makes it. Half precision, one entry above the bound, one "
    "query, one KV head and equal or zero keys all occur.",
)
SCORES: Final = Law(
    "float32-scores",
    "`score` returns a tensor of finite numbers [rows, kv_heads, length] in float32 (or float64), "
    "whatever the cache's dtype.",
    "The run ends with an EvictorError, or ranks entries by numbers that bfloat16 cannot tell "
    "apart.",
    "Convert what you read (`kv.keys.float()`) before computing, reduce over the last axis only "
    "(one number per KV head and entry), and use a large negative number for what is to go first, "
    "not -inf.",
)
PRECISION: Final = Law(
    "precision",
    "Scores of a half-precision cache are those of the same numbers in float32.",
    "Rounding decides which entries stay: 8 bits of mantissa make ties of different scores, and "
    "a CPU run in float32 keeps other entries than a GPU run in bfloat16.",
    "Convert keys, queries and values to float32 first, and compute after that.",
)
NEEDS: Final = Law(
    "declared-needs",
    "`score` reads values and attention only where `needs_values` and `needs_attention` are set, "
    "and no key where `needs_keys` is cleared.",
    "Engines deliver what is declared: the run fails, or entries are ranked by keys that lie in "
    "another order.",
    "Set `needs_values`, `needs_attention` or `needs_keys` in the class (ClassVar[bool]).",
)
READ_ONLY: Final = Law(
    "read-only",
    "`score` and `select` leave the slice as it is.",
    "The slice is a view of the cache: the model would attend to what the evictor wrote there.",
    "Do not use in-place operations (`mul_`, `masked_fill_`, `+=`) on what `kv` holds; clone it.",
)
DETERMINISTIC: Final = Law(
    "deterministic",
    "The same slice gets the same scores.",
    "A seed no longer says what a run does, and a resumed run differs from the one that ended.",
    "Derive random numbers from an option (`seed`) and from positions, as RandomEviction does, "
    "and keep nothing between calls.",
)
INDICES: Final = Law(
    "kept-indices",
    "Kept indices are unique, in range and in temporal order; rows that keep fewer end with -1.",
    "The cache would hold an entry twice, or keys out of order: causal masks and later evictions "
    "then read the wrong ones.",
    "Leave `Evictor.select` as it is and implement `score` only.",
)
BOUND: Final = Law(
    "bound",
    "A row of at most prompt + B' entries keeps everything; a longer one exactly prompt + B'.",
    "Memory is not bounded by B' (or less is kept than was paid for), so runs at one budget are "
    "not comparable.",
    "Leave `Evictor.select` as it is and implement `score` only.",
)
PROMPT: Final = Law(
    "prompt",
    "The protected prefix of a row stays (the prompt, with protect_prompt).",
    "A question that was to be protected is forgotten.",
    "Leave `Evictor.select` as it is and implement `score` only.",
)
WINDOW: Final = Law(
    "window",
    "The w most recent entries stay by partition, whatever the scores and however many are equal.",
    "The model loses the tokens that it has just written, first of all where scores tie.",
    "Leave `Evictor.select` as it is: it never asks for the scores of the window.",
)
BEST: Final = Law(
    "best-stay",
    "Between prompt and window the B best scores stay, of equal ones the earlier entry.",
    "What is kept is not what the method asks for, and results depend on how topk breaks ties.",
    "Leave `Evictor.select` as it is and let `score` depend on the slice alone.",
)
ROWS: Final = Law(
    "row-independence",
    "A row is scored and cut as if it were alone, and its place in the batch does not matter.",
    "A trajectory's cache depends on which others are decoded beside it: results change with the "
    "batch size and cannot be reproduced alone.",
    "Reduce over entries, queries or head_dim only, never over axis 0 (rows), and index keys by "
    "their own row.",
)
LAYOUT: Final = Law(
    "memory-layout",
    "Slices that are views (of a larger store, or transposed) are scored like contiguous copies.",
    "Engines pass views: the scores would be those of other entries, or the run fails.",
    "Use `reshape` instead of `view`, and no `as_strided` or `data_ptr` without `contiguous()`.",
)
TRACKER: Final = Law(
    "tracker",
    "The scores of `tracker()` are those of `score`, whatever was appended and dropped before.",
    "Evicting on every token keeps other entries than evicting from scratch: two engines, or two "
    "intervals, disagree.",
    "Rewrite whatever refers to entries by place in `drop`, take in all `new` entries in `score`; "
    "or leave `tracker` out, it is an optimisation only.",
)

EVICTOR_LAWS: Final[Laws] = (
    OPTIONS,
    RUNS,
    NEEDS,
    SCORES,
    PRECISION,
    READ_ONLY,
    DETERMINISTIC,
    INDICES,
    BOUND,
    PROMPT,
    WINDOW,
    BEST,
    ROWS,
    LAYOUT,
    TRACKER,
)
"""What `check_evictor` searches for, in this order."""


@dataclass(frozen=True)
class KVCase:
    """Says how to make a slice: `KVCase(...).slice()`."""

    rows: tuple[tuple[int, int, int], ...]
    """Per row: entries, protected ones of them (the prompt), queries."""
    content: str = "random"
    """"random", "equal" (all entries alike: every score ties), "zero", "repeated" (few different
    keys) or "large"."""
    dtype: str = "float32"
    kv_heads: int = 1
    group: int = 1
    """Query heads per KV head."""
    head_dim: int = 8
    seed: int = 0

    def slice(self) -> KVSlice:
        """Keys, queries, values, positions and attention of the case; NaN where rows are padded."""
        from kvrescue.testing.tensors import make_slice

        return make_slice(self)


def check_evictor(evictor: Evictor, *, examples: int = 60) -> None:
    """Search for slices on which an evictor breaks one of `EVICTOR_LAWS`.

    Args:
        evictor: configured; a small budget and window (16 and 4, say) make the search quick.
        examples: slices to try.

    Raises:
        LawBroken: it does.
        ConfigError: not an evictor.
        DependencyError: torch is not installed.
    """
    __tracebackhide__ = True
    require(evictor, Evictor, "evictor")
    examples = checked_examples(examples)
    check_options("evictor", evictor)
    try:
        from kvrescue.testing import slices, trackers
    except ModuleNotFoundError as error:
        raise missing_package("check_evictor", error) from error

    who = name_of("evictor", evictor)
    search(
        cases_for(evictor),
        lambda case: slices.check_case(evictor, who, case),
        examples=examples,
        component=who,
        runs=RUNS,
    )
    if evictor.tracker() is not None and trackers.tracked(evictor):
        search(
            _tracked(evictor),
            lambda case: trackers.check_case(evictor, who, case),
            examples=max(10, examples // 2),
            component=who,
            runs=TRACKER,
        )


@st.composite
def cases_for(draw: st.DrawFn, evictor: Evictor) -> KVCase:
    """Slices around the evictor's bound, most of them above it."""
    over = evictor.bound if evictor.bounded else 8
    specs = []
    for _ in range(draw(st.integers(1, 4))):
        prompt = draw(st.integers(0, 5))
        longer = draw(st.one_of(st.integers(1, 12), st.integers(1 - min(over, 64), 0)))
        length = max(1, over + prompt + longer)
        queries = draw(st.integers(1, max(1, min(evictor.observation, 8))))
        specs.append((length, min(prompt, length), queries))
    if draw(st.booleans()):  # one dense call
        specs = specs[:1] * len(specs)
    return KVCase(
        rows=tuple(specs),
        content=draw(st.sampled_from(("random", "equal", "repeated", "zero", "large"))),
        dtype=draw(st.sampled_from(("float32", "bfloat16", "float16"))),
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.integers(1, 2)),
        head_dim=draw(st.sampled_from((4, 8))),
        seed=draw(st.integers(0, 2**16)),
    )


def _tracked(evictor: Evictor) -> st.SearchStrategy[TrackedCase]:
    from kvrescue.testing.trackers import TrackedCase

    most = max(1, min(evictor.bound // 4, 6))
    return st.builds(
        TrackedCase,
        counts=st.lists(st.integers(1, most), min_size=1, max_size=12).map(tuple),
        rows=st.integers(1, 2),
        kv_heads=st.integers(1, 2),
        group=st.integers(1, 2),
        spread=st.sampled_from((0.02, 0.5, 3.0)),
        seed=st.integers(0, 2**16),
    )

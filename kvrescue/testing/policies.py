"""check_policy: the laws of a policy and its views (design, laws 3, 5, 6, 8, 9 and 10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from kvrescue.errors import ConfigError
from kvrescue.policies.base import Policy, PolicySpec
from kvrescue.testing.components import OPTIONS, check_options
from kvrescue.testing.laws import Law, Laws, checked_examples, search
from kvrescue.testing.loops import ENDS, building, checked_seconds

__all__ = ["POLICY_LAWS", "Scene", "check_policy"]

RUNS: Final = Law(
    "runs",
    "Opening, proposing, committing and closing work on an ordinary question.",
    "The run ends with a PolicyError.",
    "One candidate, several, steps of one token and steps of a foreign policy all occur. `open`, "
    "`propose`, `commit`, `close` and `aclose` are coroutines.",
)
CANDIDATES: Final = Law(
    "candidates",
    "`propose` returns n candidates: indices 0 to n-1, labelled with the view's name, each with "
    "its seed, one entropy and one of the growing `char_ends` per token (or none), and a verdict "
    "exactly where it was aborted.",
    "The selector ends the run with a PolicyError, or reports count what nobody drew.",
    "Label candidates with the `name` given to `open`, and number them as their seeds; `stop` is "
    "`StopReason.ABORTED` where a detector fired.",
)
STOP: Final = Law(
    "stop-reason",
    "A step ends with the first separator of its text and says `separator` then and only then; "
    "`eos` where the writer has ended, `length` or `context` where a limit cut it at that limit.",
    "A step that says `eos` ends the trajectory half-way, one that does not is continued after its "
    "answer; two steps in one are scored, and screened, as one.",
    "Stop at `sampling.separator`, which is the end of the text, and derive `stop` from what ended "
    "the step. What is left of a separator that began in a step cut by a limit does not count.",
)
SEED: Final = Law(
    "seed-alone",
    "From one state a candidate follows from its seed alone: siblings, their order and earlier "
    "proposals do not matter.",
    "Results change with N and with batching, and no candidate can be drawn again.",
    "Give every row a generator of its own, seeded by `seeds[i]`; "
    "`check_policy(..., seeded=False)` for a server that cannot.",
)
FORKS: Final = Law(
    "fork-isolation",
    "Drawing candidates leaves the view as it was, drawing again gives the same; a step that is "
    "committed acts as if its siblings had never been drawn.",
    "What a rejected candidate wrote stays in the cache: the model goes on from a mixture.",
    "Let `commit` alone advance the view: copy the parked state for each candidate, and restore "
    "positions and counters too.",
)
COMMIT: Final = Law(
    "commit",
    "Committing an own candidate and teacher-forcing an equal foreign one advance a view alike, "
    "by the step's tokens; a step of another vocabulary travels as text.",
    "Views drift apart: one has room, another not, and the policies no longer agree on a context.",
    "Feed an own step's last token, too (it was sampled, not read), and encode the text of a "
    "candidate whose `tokenizer` is not yours.",
)
LIMITS: Final = Law(
    "limits",
    "A candidate has at most min(max_step_tokens, max_tokens) tokens; one that is cut says "
    "`length` or `context`, and is the beginning of what a larger limit gives.",
    "The run ends with a PolicyError, or outgrows its token limit.",
    "Cap generation before it starts, and set the stop reason by which limit was the smaller.",
)
VERDICT: Final = Law(
    "verdict-stops",
    "A verdict ends its candidate at its position, with `aborted`; other candidates go on.",
    "Degenerate candidates go on consuming compute, or are cut at another token than reported.",
    "Feed a DetectorBank per candidate, token by token, and stop at the first verdict.",
)
STATS: Final = Law(
    "stats",
    "Cache statistics agree: physical + dropped = logical, physical <= peak, both below "
    "B' + interval after an operation, evictions and drops go together, counters never fall, and "
    "room shrinks as the length grows.",
    "The audit of the run (was anything evicted, how much was held) reports what did not happen.",
    "Count after every operation; leave CacheStats() empty where there is no cache to measure; "
    "give `interval=` where the evictor has one.",
)
INDEPENDENT: Final = Law(
    "independent-views",
    "Every `open` gives a view of its own; views of several trajectories, used at the same time, "
    "draw what each draws alone, and have the same length and room.",
    "Problems are solved side by side: one continues another one's text.",
    "Key every state by view, and keep nothing on the policy across an `await`.",
)
REOPEN: Final = Law(
    "reopen",
    "Opening the same question again gives the same view.",
    "The second problem of a run differs from the first for no reason a user can see.",
    "Keep nothing of a closed view but what is read-only (weights, a prefix cache).",
)
CLOSE: Final = Law(
    "close",
    "`close` frees everything, may be called twice, and works after a proposal was cancelled; "
    "views can be opened and closed for ever, and leave no asyncio task behind. `aclose` of the "
    "policy may be called twice, and ends all that it started.",
    "A long run ends with a CapacityError after some problems, or fails while it ends.",
    "Free forks and the parked state in `close`, whatever is in flight, and cancel and await tasks "
    "of your own; offer `in_use` on the policy or its `engine`, and the kit looks there.",
)

POLICY_LAWS: Final[Laws] = (
    OPTIONS,
    RUNS,
    ENDS,
    CANDIDATES,
    LIMITS,
    STOP,
    FORKS,
    SEED,
    COMMIT,
    VERDICT,
    STATS,
    INDEPENDENT,
    REOPEN,
    CLOSE,
)
"""What `check_policy` searches for, in this order."""

QUESTIONS: Final = (
    "Tom has 3 apples and buys 4 more. How many apples does Tom have?",
    "Ann has 12 plums. Ann gives away 5 and buys 2. How many plums does Ann have?",
    "Eve reads 7 pages a day. How many pages does Eve read in 6 days?",
)


@dataclass(frozen=True)
class Scene:
    """One view and what is done with it."""

    question: str
    n: int = 1
    tokens: int = 8
    """max_step_tokens."""
    seed: int = 0
    """Candidate i gets `seed + i`."""
    turns: tuple[str, ...] = ()
    """Steps before: "own", "foreign" (the text is another policy's) or "twice" (drawn again)."""

    @property
    def seeds(self) -> list[int]:
        """One for every candidate."""
        return [self.seed + i for i in range(self.n)]


SCENES: Final = (
    Scene(QUESTIONS[1], tokens=6, seed=3, turns=("foreign", "own")),
    Scene(QUESTIONS[0], n=2, tokens=40, seed=5, turns=("own", "foreign", "twice", "foreign")),
)
"""Steps that are always committed, whatever else is tried."""


def check_policy(
    make_policy: Policy | PolicySpec | Callable[[], Any],
    *,
    interval: int = 1,
    seeded: bool = True,
    seconds: float = 60.0,
    examples: int = 5,
) -> None:
    """Search for questions, seeds and orders of operations that break one of `POLICY_LAWS`.

    Args:
        make_policy: a function that makes a policy (or a coroutine of one), or its spec: built
            here, once, and closed, twice; or a policy, which stays open.
        interval: of its evictor; that many entries may exceed B' before it fires.
        seeded: False leaves out the laws that need reproducible sampling (`seed-alone`,
            `fork-isolation`, `independent-views`, `reopen` and the prefix part of `limits`).
        seconds: that a call may take, by the clock. Code that blocks the thread is waited for.
        examples: scenes to try besides those that always are, each of some ten proposals.

    Raises:
        LawBroken: it does.
        ConfigError: not a policy, or called from a coroutine.
    """
    __tracebackhide__ = True
    from kvrescue.testing.views import Checks

    examples = checked_examples(examples)
    if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
        raise ConfigError(f"interval = {interval!r}: expected a whole number of 1 or more")
    seconds = checked_seconds(seconds)
    if isinstance(make_policy, PolicySpec):
        check_options("policy", make_policy)
    with building(make_policy, Policy, PolicySpec, "policy") as (built, run):
        checks = Checks(built.part, built.name, interval=interval, seeded=seeded, seconds=seconds)
        for always in SCENES:
            search(
                st.just(always),
                lambda scene: run(checks.steps(scene)),
                examples=1,
                component=built.name,
                runs=RUNS,
            )
        search(
            _scenes(),
            lambda scene: run(checks.scene(scene)),
            examples=examples,
            component=built.name,
            runs=RUNS,
        )
        for check, law in ((checks.together, INDEPENDENT), (checks.closing, CLOSE)):
            search(
                st.just(Scene(QUESTIONS[0], n=2)),
                lambda scene, check=check: run(check(scene)),  # type: ignore[misc]
                examples=1,
                component=built.name,
                runs=law,
            )
        if built.owned:
            search(
                st.just(Scene(QUESTIONS[0])),
                lambda scene: run(checks.ending(scene)),
                examples=1,
                component=built.name,
                runs=CLOSE,
            )


def _scenes() -> st.SearchStrategy[Scene]:
    return st.builds(
        Scene,
        question=st.sampled_from(QUESTIONS),
        n=st.integers(1, 3),
        tokens=st.integers(1, 12),
        seed=st.integers(0, 999),
        turns=st.lists(st.sampled_from(("own", "foreign", "twice")), max_size=3).map(tuple),
    )

"""The laws of a scorer (design, law 1: what the selector relies on)."""

from __future__ import annotations

from typing import Final

from kvrescue.testing.components import OPTIONS
from kvrescue.testing.laws import Law, Laws
from kvrescue.testing.loops import ENDS

__all__ = ["SCORER_LAWS"]

RUNS: Final = Law(
    "runs",
    "Ordinary steps are scored without an error.",
    "The run ends with a ScorerError, or commits steps unscored where errors degrade.",
    "One candidate, equal candidates, a context without steps and one of several all occur, of "
    "proposers with tokens, entropies and a tokenizer, and of one that tells the token ids alone. "
    "`score`, `release` and `aclose` are coroutines.",
)
COUNT: Final = Law(
    "count",
    "One number per candidate, in their order, in a list or another sequence that has a length (a "
    "tuple, an array, a tensor); an empty one for none. `candidates` stays as it is.",
    "The run ends with a ScorerError: nobody knows which candidate a score belongs to.",
    "Return a list of floats as long as `candidates`; score equal candidates again, do not merge "
    "them, and return no generator, dict or texts.",
)
FINITE: Final = Law(
    "finite",
    "Every score is a finite number.",
    "NaN compares with nothing: an argmax over it picks any candidate. kvrescue ends the run.",
    "Guard the division or logarithm that makes it, and check the model's logits.",
)
UNIT: Final = Law(
    "unit-interval",
    "Every score lies in [0, 1].",
    "The run ends with a ScorerError; scores of several scorers could not be compared.",
    "Return probabilities: a sigmoid or softmax of logits, not logits.",
)
DETERMINISTIC: Final = Law(
    "deterministic",
    "Asked again, the same candidates get the same scores (within `tolerance`).",
    "A seed no longer says what a run commits.",
    "Turn off dropout and sampling (temperature 0), and keep no running averages.",
)
ORDER: Final = Law(
    "order",
    "Candidates in another order get their own scores in that order.",
    "Which step is committed depends on which proposer comes first.",
    "Return scores in the order of `candidates`; undo any sorting by length.",
)
COMPANIONS: Final = Law(
    "companions",
    "A candidate's score does not depend on which others are scored with it (within `tolerance`), "
    "unless `relative=True` says that it is a share or a rank among them.",
    "Scores of one step change with N and with duplicates, so thresholds and calibration mean "
    "nothing, and the winner depends on who else was drawn.",
    "Normalise per candidate, not over the pool; mask padding in batches. "
    "`check_scorer(..., relative=True)` for a vote, which is meant to depend on the pool.",
)
MEMORY: Final = Law(
    "memory",
    "A score follows from question, steps and candidates: a trajectory that grew step by step is "
    "scored like a new one, and nothing that was scored before, here or by another scorer of the "
    "same options, makes a difference.",
    "What is kept from call to call (a prefix cache) is not what the context says: steps are "
    "judged by another history, and a resumed run scores otherwise than the one that ended.",
    "Key what you keep by `context.trajectory`, and advance it to all of `context.steps`; a cache "
    "of scores is keyed by question, steps and candidate, not by the candidate alone.",
)
AWKWARD: Final = Law(
    "awkward-texts",
    "Empty, blank, non-ASCII and control-character steps get a score; one that is too long gets a "
    "score or a KVRescueError, and the scorer can be used on.",
    "One odd candidate ends the run with a traceback, or spoils the scores after it.",
    "Handle an empty list of tokens, and raise a ScorerError that names the limit where a text is "
    "too long.",
)
CONCURRENT: Final = Law(
    "concurrent",
    "Trajectories that are scored at the same time get the scores that they get alone.",
    "Problems are solved side by side: one is judged by another one's context.",
    "Keep nothing on `self` across an `await` that belongs to one call; key it by trajectory.",
)
CANCELLED: Final = Law(
    "cancelled",
    "After a call was cancelled, the scorer gives the same scores as before.",
    "Ctrl-C in one run of a notebook, or a timeout, spoils all that follows.",
    "Release what a call holds in `finally`, and drop a session that was left half-way.",
)
RELEASED: Final = Law(
    "released",
    "`release` drops what was kept for a trajectory, may be called twice or for one never seen, "
    "and changes no score.",
    "A run fails while it is closed, which hides what ended it, or fills the memory problem by "
    "problem.",
    "Use `dict.pop(context.trajectory, None)`, and a bound (`lru_cache(1000)`, "
    "`deque(maxlen=1000)`) for what outlives a trajectory.",
)
CLOSE: Final = Law(
    "close",
    "`aclose` may be called twice, and another scorer can be built after it.",
    "A program that shares a scorer between runs fails while it ends, or at its second run.",
    "Make the second call do nothing, and let go of what only one scorer can hold.",
)

SCORER_LAWS: Final[Laws] = (
    OPTIONS,
    RUNS,
    ENDS,
    COUNT,
    FINITE,
    UNIT,
    DETERMINISTIC,
    ORDER,
    COMPANIONS,
    MEMORY,
    AWKWARD,
    CONCURRENT,
    CANCELLED,
    RELEASED,
    CLOSE,
)
"""What `check_scorer` searches for, in this order."""

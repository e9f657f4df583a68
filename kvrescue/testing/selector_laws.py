"""The laws of selection (design, laws 1, 2, 3 and 9)."""

from __future__ import annotations

from typing import Final

from kvrescue.testing.laws import Law, Laws

__all__ = ["SELECTOR_LAWS"]

RUNS: Final = Law(
    "runs",
    "A run on proposers that work ends with a Solution.",
    "The problem is lost.",
    "Rounds without a selectable candidate, limits of one token and EOS in the first step occur.",
)
PROVENANCE: Final = Law(
    "provenance",
    "A committed step is one of the candidates of its round.",
    "The trajectory holds text that no model proposed in this context.",
    "Commit the candidate itself, not a copy or one of an earlier round.",
)
ARGMAX: Final = Law(
    "argmax",
    "The committed step has the best score of the candidates that may be chosen.",
    "The scorer has no say: recovery is that of a random choice.",
    "Compare scores with the candidates they belong to; flagged ones are not scored.",
)
TIES: Final = Law(
    "ties",
    "Of equal scores the earlier proposer's wins, then the lower index.",
    "Which step is committed depends on the order of a dict or of arrival.",
    "Use the first maximum in pool order, not `>=` nor a sort that reverses equals.",
)
PERMUTATION: Final = Law(
    "permutation",
    "The order in which a policy returns its candidates does not change what is committed.",
    "A server that answers out of order changes the result.",
    "Sort candidates by index before they are ranked.",
)
FLAGGED: Final = Law(
    "flagged",
    "A candidate that a detector aborted is never committed.",
    "The degenerate text goes into every model's context.",
    "Drop candidates with a verdict before scoring.",
)
SCREENING: Final = Law(
    "screening",
    "Every proposer is screened by its own detectors and no others; with an unscreened proposer "
    "the pool is never empty, so a run never ends for being all flagged.",
    "The helper's good steps are aborted by thresholds made for the base.",
    "Pass `proposer.detectors` to its view, and end as FLAGGED only where all are screened.",
)
BAD_SCORES: Final = Law(
    "bad-scores",
    "NaN, a value outside [0, 1] and a wrong number of scores raise, or are recorded in "
    "`Solution.degradations`; they are never ranked silently.",
    "An argmax over NaN commits any candidate, and the run looks fine.",
    "Check count, finiteness and range of what the scorer returns (`kvrescue.scoring`).",
)
EMPTY: Final = Law(
    "empty-steps",
    "A blank step that does not end with EOS is never committed, and max_empty_steps rounds in a "
    "row without a selectable candidate end the trajectory.",
    "The trajectory fills with blank steps, or draws for ever.",
    "Count such rounds, start anew after every commit, and stop at the limit.",
)
CONTEXT: Final = Law(
    "context",
    "The text is the concatenation of the committed steps, and every view and the scorer see "
    "exactly it.",
    "Views drift apart: a model continues a text without the step that was committed.",
    "Commit the winner to every view, the losers' too, before the next round.",
)
LIMITS: Final = Law(
    "limits",
    "max_steps, max_output_tokens and max_context are never exceeded.",
    "Runs at one token limit are not comparable, and a view may overflow.",
    "Offer views only what is left (`max_tokens`), and stop where nothing is.",
)
SEEDS: Final = Law(
    "seeds",
    "A run with the same seed commits the same steps, and no two draws of a run share a seed.",
    "Results cannot be reproduced, or candidates of a round are copies of one another.",
    "Use kvrescue.seeding.candidate_seed(run seed, problem, draw, proposer, index).",
)
CLOSED: Final = Law(
    "closed",
    "Every view that was opened is closed, and the scorer is told that the trajectory ended.",
    "Slots leak: a long run ends with a CapacityError.",
    "Close in `finally`, and call `scorer.release(context)`.",
)

SELECTOR_LAWS: Final[Laws] = (
    RUNS,
    CONTEXT,
    PROVENANCE,
    FLAGGED,
    EMPTY,
    ARGMAX,
    TIES,
    SCREENING,
    LIMITS,
    CLOSED,
    SEEDS,
    PERMUTATION,
    BAD_SCORES,
)
"""What `check_selector` searches for, in this order."""

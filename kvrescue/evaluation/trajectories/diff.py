"""The difference of two trajectories of one problem: how far they agree, and why they part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from kvrescue.evaluation.trajectories.trace import Round, Trajectory
from kvrescue.types import Candidate

__all__ = ["Cause", "Divergence", "Draws", "diverge"]

Cause: TypeAlias = Literal["none", "unfinished", "end", "draws", "proposers", "screened", "choice"]
"""Why two trajectories part:

- `none`: they do not; both end alike after the same steps.
- `unfinished`: one trace breaks off where the two still agree.
- `end`: one ends where the other goes on, or they end for different reasons.
- `draws`: a proposer that both have drew other candidates.
- `proposers`: one commits a step of a proposer that the other does not have.
- `screened`: both drew the same, and what one commits was aborted in the other.
- `choice`: both drew the same, and another candidate had the best score.
"""

Draws: TypeAlias = Literal["same", "cut", "different"]
"""What a proposer drew, on both sides: `cut` where candidates differ by an abort only."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two trajectories part."""

    common: int
    """Committed steps of the same text, counted from the first; the next one differs."""
    cause: Cause
    draws: Mapping[str, Draws] = field(default_factory=dict)
    """By proposer, for those that both have, at the step that differs."""
    left_in_right: int | None = None
    """Place, in the right pool, of the step that the left one commits; None when it is not there.
    Where the right side aborted it, it is there with the text that it had until then."""
    right_in_left: int | None = None

    @property
    def only_choice(self) -> bool:
        """Whether the candidates were equal and only the choice differed."""
        return self.cause == "choice"

    def data(self) -> list[Any]:
        """As compact JSON data."""
        draws = dict(self.draws)
        return [self.common, self.cause, draws, self.left_in_right, self.right_in_left]


def diverge(left: Trajectory, right: Trajectory) -> Divergence:
    """Compare two trajectories of one problem, by the text of their committed steps.

    Texts decide, not who wrote them: the context that the next step is drawn from is text.
    """
    mine, theirs = left.steps, right.steps
    common = 0
    for one, other in zip(mine, theirs, strict=False):
        if one.text != other.text:
            return _parted(common, one, other, left.proposers, right.proposers)
        common += 1
    if any(
        trajectory.stop is None and len(steps) == common
        for trajectory, steps in ((left, mine), (right, theirs))
    ):
        return Divergence(common, "unfinished")
    ended_alike = len(mine) == len(theirs) and left.stop == right.stop
    return Divergence(common, "none" if ended_alike else "end")


def _parted(
    common: int, left: Round, right: Round, mine: Sequence[str], theirs: Sequence[str]
) -> Divergence:
    """The difference of two rounds that committed different texts."""
    draws = {name: _draws(left, right, name) for name in mine if name in theirs}
    left_in_right, right_in_left = _place(_winner(left), right), _place(_winner(right), left)
    cause: Cause
    if "different" in draws.values():
        cause = "draws"
    elif left.source not in theirs or right.source not in mine:
        cause = "proposers"
    elif _is_aborted(right, left_in_right) or _is_aborted(left, right_in_left):
        cause = "screened"
    else:
        cause = "choice"
    return Divergence(common, cause, draws, left_in_right, right_in_left)


def _winner(round_: Round) -> Candidate:
    if round_.chosen is None:
        raise ValueError("the round committed nothing")
    return round_.candidates[round_.chosen]


def _draws(left: Round, right: Round, name: str) -> Draws:
    mine, theirs = _of(left, name), _of(right, name)
    if mine.keys() != theirs.keys():
        return "different"
    pairs = [(candidate, theirs[index]) for index, candidate in mine.items()]
    if not all(_is_same_draw(one, other) for one, other in pairs):
        return "different"
    alike = all((one.verdict is None) == (other.verdict is None) for one, other in pairs)
    return "same" if alike and all(one.text == other.text for one, other in pairs) else "cut"


def _of(round_: Round, name: str) -> dict[int, Candidate]:
    return {
        candidate.index: candidate for candidate in round_.candidates if candidate.policy == name
    }


def _is_same_draw(one: Candidate, other: Candidate) -> bool:
    """Equal, or equal until one of them was aborted."""
    if one.text == other.text:
        return True
    if one.tokenizer != other.tokenizer:
        return False
    for shorter, longer in ((one, other), (other, one)):
        # In tokens: a text that ends within a character has a replacement for it.
        begins_alike = longer.token_ids[: shorter.n_tokens] == shorter.token_ids
        if shorter.verdict is not None and begins_alike:
            return True
    return False


def _place(winner: Candidate, pool: Round) -> int | None:
    """Where a committed candidate is in the other side's pool, whole or until it was aborted."""
    places = range(len(pool.candidates))
    for place in places:
        found = pool.candidates[place]
        if found.text == winner.text and found.verdict is None:
            return place
    for place in places:
        found = pool.candidates[place]
        same = (found.policy, found.index) == (winner.policy, winner.index)
        if same and _is_same_draw(found, winner):
            return place
    return None


def _is_aborted(pool: Round, place: int | None) -> bool:
    return place is not None and pool.candidates[place].verdict is not None

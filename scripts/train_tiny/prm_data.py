"""Training rows of the PRM: one right solution as the stem, wrong steps as branches of a tree.

A branch reads the prompt, the right steps before it and itself, exactly as a candidate does when
the PRM is used, so one row carries some sixty labels for the price of a few hundred tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvrescue.evaluation.bill import Bill, draw_bill
from scripts.train_tiny.batches import Encoder
from scripts.train_tiny.corruption import wrong_step
from scripts.train_tiny.tokenizer import END_OF_TEXT_ID, INDICES, STEP_END_ID, TOKEN_ID

RIGHT = "right"
_STEM = 0
_NOWHERE = -1
_MASKED = -1e9
_INDEX_IDS = frozenset(TOKEN_ID[index] for index in INDICES)
_LOOK_UP_LENGTH = 4
"""A look-up has four tokens ("#1 |kale| 4|."); the answer starts alike and is longer."""

Candidates = list[list[tuple[int, ...]]]
"""Per step of a solution, candidate token ids."""


@dataclass(frozen=True)
class Sampled:
    """A problem with the wrong candidates that models drew along its solution."""

    bill: Bill
    wrong: Candidates


@dataclass(frozen=True)
class Places:
    """Positions in a batch with a label each: 1 right, 0 wrong, or the next token."""

    rows: Tensor
    columns: Tensor
    labels: Tensor


@dataclass(frozen=True)
class TreeBatch:
    """Packed rows with everything the losses read."""

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    """Additive attention mask, [rows, 1, tokens, tokens]."""
    step_ends: Places
    kinds: list[str]
    """What is wrong with each step of ``step_ends``; `RIGHT` if nothing is."""
    prefixes: Places
    """Every token of every step: is the step right so far?"""
    first_errors: Places
    """The first wrong token of each wrong step."""
    next_tokens: Places
    """Places of the stem that predict a token of the right solution."""


class _Tree:
    """One row while it grows."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.branch: list[int] = []
        self.stem_seen: list[int] = []
        """How much of the stem each token may look at."""
        self.step_ends: list[tuple[int, int]] = []
        self.kinds: list[str] = []
        self.prefixes: list[tuple[int, int]] = []
        self.first_errors: list[tuple[int, int]] = []

    def grow(self, tokens: Sequence[int], branch: int, position: int, stem_seen: int) -> None:
        """Append tokens at consecutive positions."""
        self.tokens += tokens
        self.positions += range(position, position + len(tokens))
        self.branch += [branch] * len(tokens)
        self.stem_seen += [stem_seen] * len(tokens)

    def judge(self, body: Sequence[int], right: Sequence[int]) -> None:
        """Label the step that was grown last, whose tokens are ``body`` and a step end."""
        start = len(self.tokens) - len(body) - 1
        agreed = common_prefix(body, right)
        self.prefixes += [(start + i, int(i < agreed)) for i in range(len(body))]
        if agreed < len(body):
            self.first_errors.append((start + agreed, 0))
        is_right = tuple(body) == tuple(right)
        self.step_ends.append((len(self.tokens) - 1, int(is_right)))
        self.kinds.append(RIGHT if is_right else kind_of_error(right, agreed))


def pack(encoder: Encoder, rows: Sequence[tuple[Bill, Candidates]]) -> TreeBatch:
    """Pack problems with their candidates into one batch."""
    trees, next_tokens = [], []
    for number, (bill, candidates) in enumerate(rows):
        tree = _Tree(number)
        prompt = encoder.prompt(bill)
        steps = [encoder.text(step) for step in bill.steps]
        tree.grow(prompt, _STEM, 0, 0)
        starts = []
        for step in steps:
            starts.append(len(tree.tokens))
            tree.grow([*step, STEP_END_ID], _STEM, len(tree.tokens), 0)
            tree.judge(step, step)
        stem = tree.tokens
        for column in range(len(prompt) - 1, len(stem) - 1):
            if stem[column + 1] != STEP_END_ID:
                next_tokens.append((number, column, stem[column + 1]))
        branch = _STEM
        for start, step, bodies in zip(starts, steps, candidates, strict=True):
            for body in bodies:
                branch += 1
                tree.grow([*body, STEP_END_ID], branch, start, stem_seen=start)
                tree.judge(body, step)
        trees.append(tree)
    return _collate(trees, next_tokens)


def common_prefix(body: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens agree."""
    for place, (token, expected) in enumerate(zip(body, right, strict=False)):
        if token != expected:
            return place
    return min(len(body), len(right))


def kind_of_error(right: Sequence[int], agreed: int) -> str:
    """The name of the first wrong token's place in a right step."""
    if right[0] in _INDEX_IDS:
        is_look_up = len(right) == _LOOK_UP_LENGTH
        names = ("index", "item", "price") if is_look_up else ("index", "item", "tail", "answer")
    else:
        names = ("total", "tail", "price copy", "tail", "sum")
    return names[agreed] if agreed < len(names) else "tail"


class RowSource:
    """Draws training rows: half with sampled candidates, half with written corruptions."""

    def __init__(self, encoder: Encoder, sampled: Sequence[Sampled], branches: int = 3) -> None:
        self._encoder = encoder
        self._sampled = sampled
        self._branches = branches

    def batch(self, rng: random.Random, rows: int) -> TreeBatch:
        """One batch of fresh rows."""
        return pack(self._encoder, [self._row(rng) for _ in range(rows)])

    def _row(self, rng: random.Random) -> tuple[Bill, Candidates]:
        if self._sampled and rng.random() < 0.5:
            example = rng.choice(self._sampled)
            bill, wrong = example.bill, example.wrong
        else:
            menu, purchases = rng.choice((16, 20, 24, 24, 28)), rng.randint(4, 8)
            bill = draw_bill(rng, "train", menu, purchases)
            wrong = [[] for _ in bill.steps]
        return bill, [
            [self._branch(bill, position, drawn, rng) for _ in range(self._branches)]
            for position, drawn in enumerate(wrong)
        ]

    def _branch(
        self, bill: Bill, position: int, drawn: list[tuple[int, ...]], rng: random.Random
    ) -> tuple[int, ...]:
        if drawn and rng.random() < 0.6:
            return rng.choice(drawn)
        if rng.random() < 0.12:
            return tuple(self._encoder.text(bill.steps[position]))
        return tuple(self._encoder.text(wrong_step(bill, position, rng)))


def _collate(trees: list[_Tree], next_tokens: list[tuple[int, int, int]]) -> TreeBatch:
    width = max(len(tree.tokens) for tree in trees)

    def padded(rows: list[list[int]], filler: int) -> Tensor:
        return torch.tensor([row + [filler] * (width - len(row)) for row in rows])

    positions = padded([tree.positions for tree in trees], 0)
    branch = padded([tree.branch for tree in trees], _NOWHERE)
    stem_seen = padded([tree.stem_seen for tree in trees], 0)
    same_branch = branch[:, :, None] == branch[:, None, :]
    not_later = positions[:, None, :] <= positions[:, :, None]
    on_stem = (branch == _STEM)[:, None, :] & (positions[:, None, :] < stem_seen[:, :, None])
    visible = (same_branch & not_later) | on_stem
    return TreeBatch(
        tokens=padded([tree.tokens for tree in trees], END_OF_TEXT_ID),
        positions=positions,
        mask=torch.zeros(visible.shape).masked_fill(~visible, _MASKED)[:, None],
        step_ends=_places([(t.row, *end) for t in trees for end in t.step_ends]),
        kinds=[kind for tree in trees for kind in tree.kinds],
        prefixes=_places([(t.row, *prefix) for t in trees for prefix in t.prefixes]),
        first_errors=_places([(t.row, *error) for t in trees for error in t.first_errors]),
        next_tokens=_places(next_tokens),
    )


def _places(entries: list[tuple[int, int, int]]) -> Places:
    rows, columns, labels = torch.tensor(entries).T
    return Places(rows, columns, labels)

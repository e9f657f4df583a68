"""The shopping bill: the synthetic task that the tiny trio is trained and measured on.

A problem lists what somebody has to buy, in a numbered order, and what everything costs. The
solution looks up one item, adds its price to a running total, and so on until the list says "pay".
Two things make the task useful here. A look-up and an addition are *different* steps, so models
with complementary weaknesses can rescue one another; and every step has exactly one right wording
given the steps before it, so a step can be checked without a judge (`Bill.check_step`).

Problems are split by their own text, not only by seed: a hash of the question puts each problem
into exactly one of train, validation and test, and `draw_bill` draws again until the problem
belongs to the split asked for. No choice of seeds can leak a test problem into training.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kvrescue.types import SEPARATOR

Split = Literal["train", "validation", "test"]

ITEMS: tuple[str, ...] = (
    *("apple", "pear", "fig", "kiwi", "plum", "lime", "lemon", "date", "nut", "mango"),
    *("grape", "melon", "peach", "cherry", "banana", "berry", "olive", "corn", "bean", "pea"),
    *("onion", "leek", "kale", "beet", "carrot", "radish", "rice", "bread", "milk", "egg"),
    *("cheese", "butter", "honey", "salt", "tea", "cocoa", "fish", "soup", "cake", "jam"),
)
NAMES: tuple[str, ...] = ("Ann", "Bob", "Cy", "Dee", "Eli", "Fay", "Gus", "Hal", "Ivy", "Jo")
PAY = "pay"

MAX_PRICE = 20
MAX_TOTAL = 199
MAX_INDEX = 10

# The size of the problems that are reported; training also uses smaller and larger menus.
MENU_SIZE = 24
PURCHASES = (6, 7, 8)

_HASH_BUCKETS = 16
_VALIDATION_BUCKET = 14
_TEST_BUCKET = 15

_BOXED = re.compile(r"\\boxed\{(\d+)\}")
_LOOK_UP = re.compile(r"#\d+ \w+ (\d+)\.")
_SUM = re.compile(r"\d+ \+ \d+ = (\d+)\.")


@dataclass(frozen=True, slots=True)
class Bill:
    """One problem.

    Attributes:
        name: who pays.
        purchases: what is bought, in the order of the list.
        prices: every item of the menu with its price, in the order of the menu.
    """

    name: str
    purchases: tuple[str, ...]
    prices: tuple[tuple[str, int], ...]

    @property
    def question(self) -> str:
        """The text that a model reads."""
        entries = ", ".join(f"#{i} {word}" for i, word in enumerate((*self.purchases, PAY), 1))
        menu = ", ".join(f"{item} {price}" for item, price in self.prices)
        return (
            f"To do for {self.name}: {entries}. Prices: {menu}. "
            f"How many coins does {self.name} pay?"
        )

    @property
    def steps(self) -> tuple[str, ...]:
        """The one right solution, as steps without separators."""
        price_of = dict(self.prices)
        steps: list[str] = []
        total = 0
        for index, item in enumerate(self.purchases, 1):
            price = price_of[item]
            steps.append(look_up_step(index, item, price))
            steps.append(sum_step(total, price, total + price))
            total += price
        steps.append(pay_step(len(self.purchases) + 1, total))
        return tuple(steps)

    @property
    def solution(self) -> str:
        """The right solution as one text."""
        return SEPARATOR.join(self.steps)

    @property
    def answer(self) -> int:
        """The right number of coins."""
        price_of = dict(self.prices)
        return sum(price_of[item] for item in self.purchases)

    @property
    def split(self) -> Split:
        """The split that this problem belongs to, decided by its text alone."""
        digest = hashlib.sha256(self.question.encode()).digest()
        bucket = digest[0] % _HASH_BUCKETS
        if bucket == _TEST_BUCKET:
            return "test"
        return "validation" if bucket == _VALIDATION_BUCKET else "train"

    def next_step(self, history: Sequence[str]) -> str | None:
        """The right continuation of ``history``, or None where there is none.

        The continuation is relative to what was written before: after a wrong sum the right next
        steps go on from that sum, so that one slip is counted once.

        Args:
            history: the steps so far, without separators.
        """
        position = len(history)
        item_index, is_sum = divmod(position, 2)
        if is_sum:
            price = _number(_LOOK_UP, history[-1])
            total = 0 if position == 1 else _number(_SUM, history[-2])
            if price is None or total is None:
                return None
            return sum_step(total, price, total + price)
        if item_index < len(self.purchases):
            item = self.purchases[item_index]
            return look_up_step(item_index + 1, item, dict(self.prices)[item])
        if item_index > len(self.purchases):
            return None
        total = _number(_SUM, history[-1])
        return None if total is None else pay_step(item_index + 1, total)

    def check_step(self, history: Sequence[str], step: str) -> bool:
        """Whether ``step`` is right after ``history`` (both without separators)."""
        return step == self.next_step(history)

    def grade(self, text: str) -> bool:
        """Whether ``text`` ends in the right boxed answer."""
        return extract_answer(text) == self.answer


def look_up_step(index: int, item: str, price: int) -> str:
    """The wording of a look-up."""
    return f"#{index} {item} {price}."


def sum_step(total: int, price: int, result: int) -> str:
    """The wording of an addition."""
    return f"{total} + {price} = {result}."


def pay_step(index: int, total: int) -> str:
    """The wording of the answer."""
    return f"#{index} {PAY} \\boxed{{{total}}}."


def extract_answer(text: str) -> int | None:
    """The last boxed number of ``text``, or None when there is none."""
    found = _BOXED.findall(text)
    return int(found[-1]) if found else None


def draw_bill(rng: random.Random, split: Split, menu_size: int, purchases: int) -> Bill:
    """Draw one problem of a given size from a split.

    Args:
        rng: the source of randomness.
        split: which split the problem must belong to.
        menu_size: how many items have a price.
        purchases: how many of them are bought.
    """
    if split not in get_args(Split):
        raise ValueError(f"unknown split {split!r}: use one of {', '.join(get_args(Split))}")
    if not 1 <= purchases < MAX_INDEX or not purchases <= menu_size <= len(ITEMS):
        raise ValueError(
            f"a bill needs 1 to {MAX_INDEX - 1} purchases out of at most {len(ITEMS)} items, "
            f"not {purchases} out of {menu_size}"
        )
    while True:
        menu = rng.sample(ITEMS, menu_size)
        bought = tuple(rng.sample(menu, purchases))
        prices = tuple((item, rng.randint(1, MAX_PRICE)) for item in menu)
        bill = Bill(rng.choice(NAMES), bought, prices)
        if bill.split == split and bill.answer <= MAX_TOTAL:
            return bill


def bills(split: Split, seed: int, count: int) -> list[Bill]:
    """The first ``count`` problems of a seed, at the size that is reported.

    Problem i depends on (split, seed, i) alone: asking for more never changes earlier ones.
    """
    return [bill_at(split, seed, index) for index in range(count)]


def bill_at(split: Split, seed: int, index: int) -> Bill:
    """The problem at one place of `bills`."""
    rng = random.Random(f"{split}/{seed}/{index}")
    return draw_bill(rng, split, MENU_SIZE, rng.choice(PURCHASES))


def _number(pattern: re.Pattern[str], step: str) -> int | None:
    match = pattern.fullmatch(step)
    return int(match[1]) if match else None

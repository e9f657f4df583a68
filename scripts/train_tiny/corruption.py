"""Wrong steps on right histories, of every kind that a PRM has to notice.

Some draws happen to be right; nothing relies on the name, the exact checker labels them all.
"""

from __future__ import annotations

import random

from kvrescue.evaluation.bill import (
    ITEMS,
    MAX_INDEX,
    MAX_PRICE,
    MAX_TOTAL,
    Bill,
    look_up_step,
    pay_step,
    sum_step,
)

_SLIPS = (1, -1, 2, -2, 3, -3, 4, 5, -5, 10, -10, 20)
_EMPTY = 0.02
"""A model may end its text at once; that step is empty."""


def wrong_step(bill: Bill, position: int, rng: random.Random) -> str:
    """A step that should not stand at ``position`` of the right solution."""
    if rng.random() < _EMPTY:
        return ""
    entry, is_sum = divmod(position, 2)
    if is_sum:
        return _wrong_sum(bill, entry, rng)
    if entry == len(bill.purchases):
        return _wrong_answer(bill, rng)
    return _wrong_look_up(bill, entry, rng)


def _wrong_look_up(bill: Bill, entry: int, rng: random.Random) -> str:
    price_of = dict(bill.prices)
    item = bill.purchases[entry]
    total = _total_before(bill, entry)
    index = entry + 1
    kinds, weights = ("index", "item", "pay", "price", "sum"), (25, 35, 7, 23, 10)
    match rng.choices(kinds, weights)[0]:
        case "index":
            other = _other_index(bill, index, rng)
            if rng.random() < 0.4:
                return look_up_step(other, item, price_of[item])
            return _entry_of_list(bill, other, total)
        case "item":
            pool = rng.choices((bill.purchases, tuple(price_of), ITEMS), (50, 40, 10))[0]
            other_item = rng.choice(pool)
            true_price = price_of.get(other_item, rng.randint(1, MAX_PRICE))
            price = true_price if rng.random() < 0.8 else rng.choice(list(price_of.values()))
            return look_up_step(index, other_item, price)
        case "pay":
            return pay_step(index, total)
        case "price":
            near = _within(1, price_of[item] + _slip(rng), MAX_PRICE)
            price = rng.choice(list(price_of.values())) if rng.random() < 0.6 else near
            return look_up_step(index, item, price)
        case _:
            return sum_step(total, price_of[item], _within(0, total + price_of[item], MAX_TOTAL))


def _wrong_sum(bill: Bill, entry: int, rng: random.Random) -> str:
    item = bill.purchases[entry]
    price = dict(bill.prices)[item]
    total = _total_before(bill, entry)
    other_price = _within(1, price + _slip(rng), MAX_PRICE)
    other_total = _within(0, total + _slip(rng), MAX_TOTAL)
    kinds, weights = ("result", "price", "total", "both", "look-up"), (60, 15, 15, 5, 5)
    match rng.choices(kinds, weights)[0]:
        case "result":
            near = _within(0, total + price + _slip(rng), MAX_TOTAL)
            result = near if rng.random() < 0.6 else rng.randint(0, MAX_TOTAL)
            return sum_step(total, price, result)
        case "price":
            added = other_price if rng.random() < 0.7 else price
            return sum_step(total, other_price, _within(0, total + added, MAX_TOTAL))
        case "total":
            start = other_total if rng.random() < 0.7 else total
            return sum_step(other_total, price, _within(0, start + price, MAX_TOTAL))
        case "both":
            result = _within(0, other_total + other_price, MAX_TOTAL)
            return sum_step(other_total, other_price, result)
        case _:
            return look_up_step(entry + 1, item, price)


def _wrong_answer(bill: Bill, rng: random.Random) -> str:
    price_of = dict(bill.prices)
    index = len(bill.purchases) + 1
    kinds, weights = ("total", "menu", "list", "index"), (30, 25, 15, 30)
    match rng.choices(kinds, weights)[0]:
        case "total":
            return pay_step(index, _within(0, bill.answer + _slip(rng), MAX_TOTAL))
        case "menu":
            item = rng.choice(list(price_of))
            return look_up_step(index, item, price_of[item])
        case "list":
            item = rng.choice(bill.purchases)
            return look_up_step(min(MAX_INDEX, index + 1), item, price_of[item])
        case _:
            other = _other_index(bill, index, rng)
            if rng.random() < 0.5:
                return pay_step(other, bill.answer)
            return _entry_of_list(bill, other, bill.answer)


def _entry_of_list(bill: Bill, index: int, total: int) -> str:
    """What the list really says at an index, as a step; "pay" beyond the last item."""
    if index > len(bill.purchases):
        return pay_step(index, total)
    item = bill.purchases[index - 1]
    return look_up_step(index, item, dict(bill.prices)[item])


def _other_index(bill: Bill, index: int, rng: random.Random) -> int:
    last = min(MAX_INDEX, len(bill.purchases) + 2)
    near = [other for other in (index - 1, index + 1) if 1 <= other <= last]
    anywhere = [other for other in range(1, last + 1) if other != index]
    return rng.choice(near if near and rng.random() < 0.3 else anywhere)


def _total_before(bill: Bill, entry: int) -> int:
    price_of = dict(bill.prices)
    return sum(price_of[item] for item in bill.purchases[:entry])


def _slip(rng: random.Random) -> int:
    return rng.choice((*_SLIPS, rng.randint(-30, 30)))


def _within(low: int, value: int, high: int) -> int:
    return max(low, min(high, value))

"""A plugin for tests: a scorer that checks steps exactly, parsing the bill from its question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from kvrescue import hookimpl
from kvrescue.evaluation.bill import PAY, Bill
from kvrescue.hookspecs import Register
from kvrescue.scorers.base import Scorer, ScorerSpec
from kvrescue.types import SEPARATOR, Candidate, Context


def parse(question: str) -> Bill:
    match = re.fullmatch(r"To do for (\w+): (.*)\. Prices: (.*)\. How many .*", question)
    assert match is not None
    name, todo, menu = match.groups()
    purchases = tuple(entry.split()[1] for entry in todo.split(", "))
    assert purchases[-1] == PAY
    prices = tuple((entry.split()[0], int(entry.split()[1])) for entry in menu.split(", "))
    return Bill(name, purchases[:-1], prices)


class BillOracle(ScorerSpec):
    kind: ClassVar[str] = "bill_oracle"

    def build(self) -> Scorer:
        return _Oracle()


class _Oracle(Scorer):
    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        bill = parse(context.question.text)
        history = [step.text.removesuffix(SEPARATOR) for step in context.steps]
        return [
            float(bill.check_step(history, candidate.text.removesuffix(SEPARATOR)))
            for candidate in candidates
        ]


@hookimpl
def kvrescue_register_scorers(register: Register) -> None:
    register("bill_oracle", BillOracle)

"""Measure a trio through the library: the numbers of the model card.

    python -m scripts.train_tiny.measure --models kvrescue/presets/tiny --split validation

Every method is stepwise and chooses with the same PRM: `full` is the full-context base alone,
`helper` the helper alone, `evicted` best-of-N on the evicted base, `rescue` KV-Rescue with N
candidates of each, `helper2` the helper alone with the 2N candidates that KV-Rescue draws.
No detector screens the candidates.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from kvrescue.evaluation.bill import Bill, bills, extract_answer
from kvrescue.pipeline import Rescue
from kvrescue.policies.base import Sampling
from kvrescue.policies.torch import TorchPolicy
from kvrescue.rules import Limits
from kvrescue.scorers.qwen_prm import QwenPRM
from kvrescue.selector import Proposer
from kvrescue.types import Question, Solution
from scripts.train_tiny.recipes import BUDGETS, MAX_OUTPUT_TOKENS, MAX_STEP_TOKENS, evictor

METHODS = ("full", "helper", "evicted", "rescue", "helper2")
_BASE, _HELPER = "base", "helper"


@dataclass(frozen=True)
class Row:
    """One cell of the table: means over problems."""

    accuracy: float
    base_tokens: float
    helper_tokens: float
    unfinished: float
    """Share without an answer at the output limit."""
    helper_share: float
    """Share of committed steps that are the helper's."""

    def __str__(self) -> str:
        """Markdown cells."""
        return (
            f"{self.accuracy:.1%} | {self.base_tokens:.1f} | {self.helper_tokens:.1f} | "
            f"{self.unfinished:.1%} | {self.helper_share:.1%}"
        )


class Trio:
    """The three models, each loaded once per configuration."""

    def __init__(self, models: Path) -> None:
        self._models = models
        self._scorer = QwenPRM(str(models / "prm"))
        self.policy = cache(self._policy)

    def _policy(self, name: str, budget: int | None) -> TorchPolicy:
        chosen = None if budget is None else evictor(budget)
        return TorchPolicy(str(self._models / name), evictor=chosen)

    def proposers(self, method: str, budget: int | None, candidates: int) -> list[Proposer]:
        """Who draws how many candidates in a method."""
        base = Proposer(self.policy(_BASE, budget), candidates, name=_BASE)
        helper = Proposer(self.policy(_HELPER, None), candidates, name=_HELPER)
        match method:
            case "full" | "evicted":
                return [base]
            case "helper":
                return [helper]
            case "helper2":
                return [Proposer(helper.policy, 2 * candidates, name=_HELPER)]
            case _:
                return [base, helper]

    def measure(self, proposers: Sequence[Proposer], problems: Sequence[Bill], seed: int) -> Row:
        """Solve all problems with one composition."""
        by_question = {bill.question: bill for bill in problems}
        questions = [Question(bill.question, f"bill-{i}") for i, bill in enumerate(problems)]
        with Rescue(
            proposers,
            self._scorer,
            sampling=Sampling(temperature=0.8, top_p=1.0, top_k=0, max_step_tokens=MAX_STEP_TOKENS),
            limits=Limits(max_output_tokens=MAX_OUTPUT_TOKENS),
            concurrency=128,
        ) as rescue:
            solutions = list(rescue.solve_many(questions, seed=seed))
        return _summary(solutions, by_question)


def _summary(solutions: list[Solution], by_question: dict[str, Bill]) -> Row:
    count = len(solutions)
    right = sum(by_question[s.question.text].grade(s.text) for s in solutions)
    steps = sum(len(s.steps) for s in solutions)
    helped = sum(s.tokens[_HELPER].committed_steps for s in solutions if _HELPER in s.tokens)

    def tokens(name: str) -> float:
        return sum(s.tokens[name].generated for s in solutions if name in s.tokens) / count

    return Row(
        accuracy=right / count,
        base_tokens=tokens(_BASE),
        helper_tokens=tokens(_HELPER),
        unfinished=sum(extract_answer(s.text) is None for s in solutions) / count,
        helper_share=helped / max(1, steps),
    )


def main() -> None:
    """Print one Markdown row per cell, as it is measured."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.train_tiny.measure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--problem-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0, help="of the sampling")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--budgets", nargs="+", type=int, default=BUDGETS)
    parser.add_argument("--candidates", nargs="+", type=int, default=(1, 8))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    trio = Trio(arguments.models)
    problems = bills(arguments.split, arguments.problem_seed, arguments.problems)
    print("| method | B | N | accuracy | base tokens | helper tokens | no answer | helper steps |")
    print("|---|---|---|---|---|---|---|---|")
    for method in arguments.methods:
        budgets = arguments.budgets if method in ("evicted", "rescue") else (None,)
        counts = (1,) if method in ("full", "helper") else arguments.candidates
        for budget in budgets:
            for candidates in counts:
                started = time.monotonic()
                proposers = trio.proposers(method, budget, candidates)
                row = trio.measure(proposers, problems, arguments.seed)
                seconds = time.monotonic() - started
                print(
                    f"| {method} | {budget or '-'} | {candidates} | {row} | {seconds:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""Accuracy of the evicted base, best of N, under three evictors: examples/value_norm.py among them.

python -m benchmarks.value_norm [PROBLEMS] [N] [BUDGET ...]
"""

from __future__ import annotations

import sys

import kvrescue
from examples.value_norm import ValueNorm
from kvrescue import Question, Rescue, load_config
from kvrescue.evaluation.methods import compose
from kvrescue.evaluation.sources import load_problems


def main() -> None:
    count, n, *budgets = [int(word) for word in sys.argv[1:]] or [40, 4, 64, 96, 128]
    kvrescue.register(ValueNorm)
    problems = load_problems(f"tiny:{count}").problems
    answers = {p.id: p.answer for p in problems}
    print(f"tiny trio, {count} problems, evicted base alone, best of {n}; correct of {count}:")
    for budget in budgets:
        for kind in ("value_norm", "snapkv", "rkv"):
            evictor = f"{{kind: {kind}, budget: {budget}, window: 12}}"
            config = load_config("tiny", [f"proposers.base.policy.evictor={evictor}"])
            with Rescue.from_config(compose(config, "best_of_n", n)) as rescue:
                solved = rescue.solve_many([Question(p.question, p.id) for p in problems])
                right = sum(s.answer == answers[s.question.id] for s in solved)
            print(f"budget {budget:3} {kind:10} {right:3}", flush=True)


if __name__ == "__main__":
    main()

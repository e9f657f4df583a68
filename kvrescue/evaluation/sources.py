"""Where problem sets come from.

- `tiny` or `tiny:200`: shopping bills of the embedded trio's test split.
- a JSONL file of `{"id": ..., "question": ..., "answer": ...}`.
- `gsm8k`, `math500`, `aime24`, `amc23`, `olympiadbench`: from the Hugging Face hub, or from a local
  file of the same problems; with the prompt and the number of seeds of the paper.
- another data set of the hub, `OWNER/NAME` or `OWNER/NAME:SPLIT`, with the fields `question` (or
  `problem`) and `answer`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvrescue.errors import InputError, UnknownNameError, nearest
from kvrescue.evaluation.bill import bills
from kvrescue.evaluation.grading.grade import GradingRule
from kvrescue.evaluation.problems import Problem, ProblemSet
from kvrescue.faults import whole_number
from kvrescue.questions import as_question
from kvrescue.registry import missing_package
from kvrescue.scorers.specs import SYSTEM

__all__ = ["PRESETS", "Preset", "load_problems"]

_TINY: Final = "tiny"
_TINY_SIZE: Final = 200
_MOST_TINY: Final = 10_000
_MOST_BYTES: Final = 1 << 30

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Preset:
    """A problem set of the paper."""

    hub: str
    """Name on the hub."""
    split: str
    config: str | None = None
    question: str = "question"
    answer: Callable[[Row], str] = lambda row: str(row["answer"])
    seeds: int = 1
    """Seeds that the paper averages over."""


def _after_hashes(row: Row) -> str:
    """GSM8K keeps the worked solution; its answer follows four hashes."""
    return str(row["answer"]).rpartition("####")[2].strip().replace(",", "")


def _first_final(row: Row) -> str:
    answers = row["final_answer"]
    return str(answers[0] if isinstance(answers, list) else answers).strip().strip("$")


PRESETS: Final[Mapping[str, Preset]] = {
    "gsm8k": Preset("openai/gsm8k", "test", "main", answer=_after_hashes),
    "math500": Preset("HuggingFaceH4/MATH-500", "test", question="problem"),
    "aime24": Preset("HuggingFaceH4/aime_2024", "train", question="problem", seeds=5),
    "amc23": Preset("math-ai/amc23", "test", seeds=5),
    "olympiadbench": Preset(
        "Hothan/OlympiadBench", "train", "OE_TO_maths_en_COMP", answer=_first_final
    ),
}


def load_problems(
    name: str, data: str | os.PathLike[str] | None = None, limit: int | None = None, seed: int = 0
) -> ProblemSet:
    """Load a problem set.

    Args:
        name: see the module.
        data: a local JSONL file with the problems of a named set.
        limit: only the first ones.
        seed: draws the problems of `tiny`; nothing else.

    Raises:
        UnknownNameError: no such set.
        InputError: the file cannot be read, or a line of it is no problem; the hub cannot be
            reached or has no such data set.
        DependencyError: a hub's data set needs the package `datasets`.
        ConfigError: a limit below 1.
    """
    if limit is not None:
        limit = whole_number("limit", limit, least=1)
    if name == _TINY or name.startswith(f"{_TINY}:"):
        if data is not None:
            raise InputError(f"problems {name!r} are drawn, not read: leave out the file")
        return _tiny(name, limit, seed)
    preset = PRESETS.get(name)
    path = Path(data).expanduser() if data is not None else None
    if path is None and preset is None and (name.endswith(".jsonl") or Path(name).is_file()):
        path = Path(name).expanduser()
    if path is not None:
        rows, where, title = _read(path), f"file {str(path)!r}", name if preset else path.stem
        problems = [_from_row(row, place, where) for place, row in rows]
    elif preset is not None:
        problems, title = _from_hub(name, preset), name
    elif "/" in name:
        hub, _, split = name.partition(":")
        problems, title = _from_hub(name, Preset(hub, split or "test")), hub
    else:
        names = [*PRESETS, _TINY]
        raise UnknownNameError(
            f"unknown problems {name!r}{nearest(name, names)} (or a .jsonl file, or OWNER/NAME)"
        )
    chosen = _checked(problems, name)[:limit]
    return ProblemSet(title, chosen, GradingRule.MATH, preset.seeds if preset else 1, SYSTEM)


def _tiny(name: str, limit: int | None, seed: int) -> ProblemSet:
    _, _, told = name.partition(":")
    try:
        count = int(told) if told else _TINY_SIZE
    except ValueError:
        raise InputError(f"problems {name!r}: write tiny:COUNT, for example tiny:200") from None
    if not 1 <= count <= _MOST_TINY:
        raise InputError(f"problems {name!r}: use 1 to {_MOST_TINY}")
    drawn = bills("test", seed, min(count, limit or count))
    problems = tuple(
        Problem(str(place), bill.question, str(bill.answer)) for place, bill in enumerate(drawn)
    )
    title = _TINY if seed == 0 else f"{_TINY} (seed {seed})"
    return ProblemSet(title, problems, GradingRule.EXACT)


def _read(path: Path) -> Iterable[tuple[int, Row]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{str(path)!r} is larger than {_MOST_BYTES >> 20} MiB")
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(
            f"problems {str(path)!r} cannot be read: {error.strerror or error}"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"problems {str(path)!r} are not UTF-8 text") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{str(path)!r}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InputError(f"{str(path)!r}, line {number}: expected an object {{...}}")
        yield number, row


def _from_row(row: Row, place: int, where: str) -> Problem:
    """A problem from `{id, question, answer}`; the id may be left out."""
    question = row.get("question", row.get("problem"))
    if not isinstance(question, str):
        raise InputError(f"{where}, line {place}: 'question' is {question!r}, expected a text")
    answer = row.get("answer")
    no_number = isinstance(answer, float) and not math.isfinite(answer)
    if isinstance(answer, bool) or no_number or not isinstance(answer, str | int | float):
        raise InputError(f"{where}, line {place}: 'answer' is {answer!r}, expected a text")
    identity = row.get("id", place)
    if not isinstance(identity, str | int) or not str(identity):
        raise InputError(f"{where}, line {place}: 'id' is {identity!r}, expected a text")
    return _problem(str(identity), question, str(answer), f"{where}, line {place}")


def _from_hub(name: str, preset: Preset) -> list[Problem]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise missing_package(f"problems {name!r}", error) from error
    try:
        rows = datasets.load_dataset(preset.hub, preset.config, split=preset.split)
    except Exception as error:  # network, name, split, format: `datasets` has a class for each
        raise InputError(
            f"problems {name!r}: the data set {preset.hub!r} (split {preset.split!r}) cannot be "
            f"loaded: {type(error).__name__}: {error}; a local JSONL file can be used instead"
        ) from error
    problems = []
    for place, row in enumerate(rows):
        where = f"data set {preset.hub!r}, row {place}"
        question = row.get(preset.question, row.get("question", row.get("problem")))
        try:
            answer = preset.answer(row)
        except (KeyError, IndexError) as error:
            raise InputError(f"{where}: no answer ({error}); it has {sorted(row)}") from error
        if not isinstance(question, str):
            raise InputError(f"{where}: no field {preset.question!r}; it has {sorted(row)}")
        identity = row.get("id", row.get("unique_id", place))
        problems.append(_problem(f"{name}-{identity}", question, answer, where))
    return problems


_CHOICES: Final = {"true": "True or False", "false": "True or False", "yes": "Yes or No"}


def _problem(identity: str, question: str, answer: str, where: str) -> Problem:
    try:
        text = as_question(question).text
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if not answer.strip():
        raise InputError(f"{where}: the answer is empty")
    # As Qwen2.5-Math's evaluation does: a question that wants a word says which.
    choice = _CHOICES.get(answer.strip().lower(), "Yes or No" if answer.lower() == "no" else None)
    return Problem(identity, f"{text} ({choice})" if choice else text, answer.strip())


def _checked(problems: list[Problem], name: str) -> tuple[Problem, ...]:
    """Non-empty, with unique ids and questions (seeds depend on a question's text)."""
    if not problems:
        raise InputError(f"problems {name!r}: there is none")
    ids: set[str] = set()
    questions: dict[str, str] = {}
    for problem in problems:
        if problem.id in ids:
            raise InputError(f"problems {name!r}: the id {problem.id!r} is there twice")
        key = re.sub(r"\s+", " ", problem.question)
        if problem.question in questions:
            other = questions[problem.question]
            raise InputError(
                f"problems {name!r}: {problem.id!r} asks the same as {other!r} ({key[:60]!r})"
            )
        ids.add(problem.id)
        questions[problem.question] = problem.id
    return tuple(problems)

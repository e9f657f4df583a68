"""The reports that the browser tests open."""

from __future__ import annotations

from pathlib import Path

from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.runs.record import Failure, Record
from kvrescue.evaluation.trajectories.data import collect
from kvrescue.evaluation.trajectories.page import write_page
from kvrescue.events import Event
from kvrescue.types import Degradation, Question
from tests.evaluation.trajectories.made import (
    HOSTILE,
    Drawn,
    entropy,
    problems_of,
    settings_of,
    told,
    write_run,
)
from tests.evaluation.trajectories.runs import record_of

FILLERS = 230
SHARED = 3
"""Steps that both settings of `rescued` begin with."""
LONG = 400
"""Steps of `long`."""
ABORT = entropy(3.1, 7)
CHOICES = {
    "rescued": ("Which colour is the sky?", "blue"),
    "lost": ("Which colour is grass?", "green"),
    "both": ("How many legs has a spider?", "8"),
    "degraded": ("How many legs has an ant?", "6"),
    "failed": ("What breaks?", "everything"),
    "long": ("What goes on?", "time"),
}
SETTINGS = settings_of()
OTHERS = settings_of(seed=1)


def _problems() -> dict[str, tuple[str, str]]:
    hostile = {f"hostile-{i}": (f"{i} {text}", text) for i, text in enumerate(HOSTILE)}
    fillers = {f"filler-{i}": (f"Filler number {i}?", str(i)) for i in range(FILLERS)}
    return CHOICES | hostile | fillers


def step(number: int, *, score: float = 0.9) -> list[Drawn]:
    """A pool whose first candidate is committed."""
    return [
        Drawn("base", f"Step {number} says so.\n\n", score),
        Drawn("base", f"Step {number} says otherwise.\n\n", 0.1),
    ]


def rescue(question: Question, answer: str, last: str = "rescued end") -> list[Event]:
    """Shared steps, a step of the helper where the base babbles, and an end."""
    pool = [
        Drawn("base", "babble", verdict=ABORT),
        Drawn("base", "Base goes astray.\n\n", 0.2),
        Drawn("helper", "Helper knows better.\n\n", 0.95),
    ]
    shared = [step(number) for number in range(SHARED)]
    return told(question, [*shared, pool, [Drawn("helper", last, 0.8)]], answer=answer)


def evicted(question: Question, answer: str | None) -> list[Event]:
    """The same shared steps, then the base alone."""
    pool = [
        Drawn("base", "babble on and on\n\n", 0.15),
        Drawn("base", "Base goes astray.\n\n", 0.2),
    ]
    shared = [step(number) for number in range(SHARED)]
    end = [Drawn("base", "evicted end", 0.3)]
    return told(question, [*shared, pool, end], proposers=("base",), answer=answer)


def events() -> dict[tuple[str, str], list[Event] | Failure | Record]:
    """The first run's."""
    problems = problems_of(_problems())
    asked = {problem.id: Question(problem.question, problem.id) for problem in problems}
    degraded = (Degradation("helper", "out of <b>memory</b>"),)
    found: dict[tuple[str, str], list[Event] | Failure | Record] = {
        ("best_of_n", "rescued"): evicted(asked["rescued"], "grey"),
        ("kv_rescue", "rescued"): rescue(asked["rescued"], "blue"),
        ("best_of_n", "lost"): evicted(asked["lost"], "green"),
        ("kv_rescue", "lost"): rescue(asked["lost"], "brown"),
        ("best_of_n", "both"): told(asked["both"], [step(0)], proposers=("base",), answer="8"),
        ("kv_rescue", "both"): told(asked["both"], [step(0)], answer="8"),
        ("kv_rescue", "degraded"): told(
            asked["degraded"], [step(0)], answer="7", degradations=degraded
        ),
        ("best_of_n", "failed"): Failure("PolicyError", "no <i>more</i>"),
        ("kv_rescue", "long"): told(
            asked["long"], [step(number) for number in range(LONG)], answer="time"
        ),
    }
    flagged = [Drawn("base", text, verdict=entropy(9.0, 1)) for text in HOSTILE]
    pool = [Drawn("helper", text, 0.5) for text in HOSTILE if text.strip()]
    for place, text in enumerate(HOSTILE):
        question = asked[f"hostile-{place}"]
        rounds = [[Drawn("helper", text, 0.9), *pool, *flagged], [Drawn("base", "done", 1.0)]]
        if place not in (0, len(HOSTILE) - 1):  # the whole pool twice is enough
            rounds[0] = rounds[0][:1]
        found["kv_rescue", question.id] = told(question, rounds, answer=text)
    for problem in problems:
        if problem.id.startswith("filler"):
            whole = told(asked[problem.id], [step(0)], proposers=("base",), answer="0")
            found["best_of_n", problem.id] = record_of(SETTINGS["best_of_n"], problem, whole)
    return found


def write_pages(folder: Path) -> dict[str, Path]:
    """`report`: one run; `two`: two runs; `trace`: nothing but a trace."""
    problems = problems_of(_problems())
    first = Run.read(write_run(folder / "first", problems, SETTINGS, events()))  # type: ignore[arg-type]
    asked = Question(CHOICES["rescued"][0], "rescued")
    again = {("kv_rescue", "rescued"): rescue(asked, "blue", last="another end")}
    few = problems_of({name: CHOICES[name] for name in ("rescued", "lost")})
    second = Run.read(write_run(folder / "second", few, OTHERS, again))  # type: ignore[arg-type]
    pages = {name: folder / f"{name} #1.html" for name in ("report", "two")}
    write_page(collect([first]), pages["report"])
    write_page(collect([first, second]), pages["two"])
    return pages

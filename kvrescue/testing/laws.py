"""Laws: what a component promises, and how a breach of it is told.

`search` looks for an input that breaks a law and shrinks it; the caller sees one `LawBroken` that
says which law, on which input, what was seen, what it means for a run, and the way out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st

from kvrescue.errors import ConfigError

__all__ = ["Law", "LawBroken", "Laws", "broken", "checked_examples", "clipped", "search"]

Case = TypeVar("Case")

SHRINK_SECONDS: Final = 3.0
"""Seconds of computing in which a breach is made smaller; what is found until then is told."""

WAIT_SECONDS: Final = 30.0
"""The same by the clock, for components that wait for something."""

_LONGEST = 600


@dataclass(frozen=True, slots=True)
class Law:
    """One promise."""

    name: str
    rule: str
    """What must hold, in one sentence."""
    meaning: str
    """What a breach does to a run."""
    way_out: str
    slow: bool = False
    """Whether an input that breaks it takes so long that none smaller is looked for."""

    def __str__(self) -> str:
        return self.name


Laws = tuple[Law, ...]
"""In the order in which they are searched."""


class _Enough(BaseException):
    """Ends a search from within; nothing that catches an Exception sees it."""


class LawBroken(AssertionError):  # noqa: N818 - says what happened
    """A component broke a law on the given input.

    `law` is the law, `component` who broke it, `case` the smallest input found (None where the
    law asks for none), `seen` and `expected` what happened and what should have.
    """

    def __init__(self, law: Law, component: str, case: object, seen: str, expected: str) -> None:
        self.law, self.component, self.case = law, component, case
        self.seen, self.expected = seen, expected
        rows = {
            "rule": law.rule,
            "input": "" if case is None else clipped(str(case)),
            "seen": seen,
            "expected": expected,
            "in a run": law.meaning,
            "way out": law.way_out,
        }
        lines = [f"{component} breaks the law {law.name!r}"]
        for head, text in rows.items():
            if text:
                lines.append(f"  {head:<8}  " + text.replace("\n", "\n" + " " * 12))
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.law, self.component, self.case, self.seen, self.expected)

    def again(self, case: object) -> LawBroken:
        """A new error of the same content, about `case` where it named none."""
        named = self.case if self.case is not None else case
        found = LawBroken(self.law, self.component, named, self.seen, self.expected)
        found.__cause__ = self.__cause__
        found.__suppress_context__ = True
        return found


def broken(law: Law, component: str, seen: str, expected: str, case: object = None) -> NoReturn:
    """Raise `LawBroken`; inside a `search` the case is added."""
    raise LawBroken(law, component, case, clipped(seen), clipped(expected))


def clipped(text: str, most: int = _LONGEST) -> str:
    """The text, its middle left out where it is longer than `most` characters."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


def checked_examples(examples: object) -> int:
    """Raises ConfigError unless it is a positive whole number."""
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 1:
        raise ConfigError(f"examples = {examples!r}: expected a whole number of 1 or more")
    return examples


def search(
    cases: st.SearchStrategy[Case],
    check: Callable[[Case], None],
    *,
    examples: int,
    component: str,
    runs: Law,
) -> None:
    """Run `check` on `examples` cases; raises the LawBroken of the smallest that breaks a law.

    The cases are the same on every run. What a check raises beyond `LawBroken` breaks the law
    `runs`. While a breach is made smaller only its own law counts, and a case that broke it once
    has broken it, so that a component that is not deterministic is told as what it is.

    Args:
        cases: hashable values whose text says how to make the input again.
        check: raises LawBroken.
        examples: how many cases, when all is well.
        component: who is checked, for the text.
        runs: the law that no valid input makes the component fail.
    """
    __tracebackhide__ = True
    found: dict[Case, LawBroken] = {}
    first: list[tuple[Law, float, float]] = []

    def breach(case: Case) -> LawBroken | None:
        if first and (time.process_time() > first[0][1] or time.monotonic() > first[0][2]):
            raise _Enough
        if case in found:
            return found[case]
        try:
            check(case)
        except LawBroken as error:
            seen = error.again(case)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            seen = LawBroken(runs, component, case, clipped(text), "no error")
            seen.__cause__ = error
        else:
            return None
        if not first:
            work, wait = time.process_time() + SHRINK_SECONDS, time.monotonic() + WAIT_SECONDS
            first.append((seen.law, work, wait))
        if seen.law is not first[0][0]:
            return None
        found[case] = seen
        if seen.law.slow:
            raise _Enough
        return seen

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(cases)
    def run(case: Case) -> None:
        seen = breach(case)
        if seen is not None:
            raise seen.again(case)  # one place for all, as hypothesis tells failures apart by it

    try:
        run()
    except LawBroken as error:
        smallest = error.again(error.case)
    except _Enough:
        smallest = list(found.values())[-1]  # cases that are not smaller are hardly ever tried
    else:
        return
    raise smallest from smallest.__cause__

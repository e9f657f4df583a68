"""A detector of loops of the whole trajectory: steps that are committed again and again.

The built-in detectors read one candidate. A step that is short and harmless alone, committed for
the tenth time, is invisible to them; it is what the KV-Rescue paper calls a runaway. This detector
overrides `start_in`, so it knows the committed steps, and aborts the candidate that would close the
loop, which leaves the round to the other candidates and proposers.

    proposers:
      base:
        detectors: [{kind: step_loop, times: 2, max_period: 8}]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from kvrescue import Context, Detector, DetectorState, TokenEvent, Verdict, hookimpl

if TYPE_CHECKING:
    from kvrescue.hookspecs import Register

__all__ = ["StepLoop", "normalised"]


def normalised(step: str) -> str:
    """A step without what does not tell it from another: case and white space. Numbers, signs and
    punctuation stay: "Step 3: 4 + 5" is not "Step 4: 4 + 5"."""
    return " ".join(step.casefold().split())


class StepLoop(Detector):
    """Fires where the candidate completes a cycle of steps for the `times`-th time in a row.

    With `times` = 2 that is A A, A B A B, A B C A B C, ... up to cycles of `max_period` steps; the
    last step is the candidate's. A step is complete at its separator, so the verdict's
    `char_position` is the same however the text is split into tokens. A candidate that ends
    otherwise (at EOS, or cut by a limit) gets no verdict.
    """

    kind: ClassVar[str] = "step_loop"

    times: int = Field(default=2, ge=2)
    """How often a cycle must stand in a row, the candidate's step included."""
    max_period: int = Field(default=8, ge=1)
    """Steps in the longest cycle."""
    separator: str = Field(default="\n\n", min_length=1)
    """What ends a step: `sampling.separator`."""

    def start(self) -> DetectorState:
        return StepLoopState(self, ())

    def start_in(self, context: Context) -> DetectorState:
        newest = context.steps[-self.times * self.max_period :]
        return StepLoopState(self, [step.text for step in newest])


class StepLoopState(DetectorState):
    """The newest steps of the trajectory, and the one that is being written."""

    def __init__(self, options: StepLoop, steps: Sequence[str]) -> None:
        self._options = options
        self._steps = [step for text in steps if (step := normalised(text))]
        self._text = ""
        self._tokens = self._chars = 0

    def update(self, event: TokenEvent) -> Verdict | None:
        self._tokens += 1
        self._text += event.text
        found: Verdict | None = None
        while found is None and self._options.separator in self._text:
            step, _, self._text = self._text.partition(self._options.separator)
            self._chars += len(step) + len(self._options.separator)
            if step := normalised(step):
                self._steps.append(step)
                found = self._verdict()
        return found

    def _verdict(self) -> Verdict | None:
        options = self._options
        for period in range(1, options.max_period + 1):
            count = _in_a_row(self._steps, period)
            if count >= options.times:
                return Verdict(
                    detector=options.kind,
                    reason=f"loop: the last {period} step(s) stand {count} times in a row",
                    position=self._tokens,
                    value=count,
                    threshold=options.times,
                    char_position=self._chars,
                )
        return None


def _in_a_row(steps: Sequence[str], period: int) -> int:
    """How often the last `period` steps stand at the end of `steps`."""
    end, count = len(steps), 0
    while (start := end - period) >= 0 and steps[start:end] == steps[-period:]:
        end, count = start, count + 1
    return count


@hookimpl
def kvrescue_register_detectors(register: Register) -> None:
    register("step_loop", StepLoop)

"""Where a replay leads away from its recording, and what it says then."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvrescue.config import load_config
from kvrescue.detectors.base import Source
from kvrescue.detectors.entropy import EntropyDetector
from kvrescue.errors import ConfigError, DetectorError, ReplayError, RunError, located
from kvrescue.events import (
    CandidateFinished,
    Event,
    StepCommitted,
    TrajectoryFinished,
    TrajectoryStarted,
    as_dict,
)
from kvrescue.policies.base import Sampling
from kvrescue.replay import Recording, ReplayPolicy, ReplayScorer
from kvrescue.rules import Limits
from kvrescue.scorers.base import Scorer
from kvrescue.selector import Proposer, StepwiseSelector
from kvrescue.types import Candidate, Context, Question, SolutionStop
from tests.replay.scripted import Habits, Letters, ScriptedPolicy

QUESTION = Question("how many?", "q1")
LIMITS = Limits(max_steps=4)
PLAIN = Habits(eos=0.0, context=200)


class Longest(Scorer):
    """Prefers long texts, or short ones."""

    def __init__(self, sign: int = 1) -> None:
        self.sign = sign

    async def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        return [0.5 + self.sign * len(c.text) / 200 for c in candidates]


async def told(
    policy: object, scorer: Scorer, seed: int = 3, most: int | None = None, **options: object
) -> list[Event]:
    n = options.pop("n", 3)
    name = options.pop("name", "base")
    question = options.pop("question", QUESTION)
    detectors = [] if most is None else [Letters(most=most)]
    options.setdefault("limits", LIMITS)
    selector = StepwiseSelector(
        [Proposer(policy, n, detectors, name)],  # type: ignore[arg-type]
        scorer,
        Sampling(max_step_tokens=6),
        **options,  # type: ignore[arg-type]
    )
    return [event async for event in selector.events(question, seed)]  # type: ignore[arg-type]


async def record(most: int | None = None, **options: object) -> Recording:
    events = await told(ScriptedPolicy(PLAIN), Longest(), most=most, **options)
    return Recording.of_events(events, "the recording 'run.jsonl'")


async def test_another_choice_names_where_and_what_and_the_way_out() -> None:
    recording = await record()
    policy = ReplayPolicy(recording)
    with pytest.raises(ReplayError) as caught:
        await told(policy, Longest(-1))
    error = caught.value
    assert (error.question_id, error.seed, error.step) == ("q1", 3, 0)
    message = str(error)
    winner = recording.trajectories[0].steps[0].step.candidate
    assert message.startswith("proposer 'base': question 'q1', seed 3, step 0: recorded base[")
    assert f"{winner.text[:40]!r}" in message
    assert ", chosen now base[" in message
    assert "after_divergence = 'stop'" in message
    assert error.exit_code == 16
    again = located("elsewhere", error)
    assert (again.question_id, again.seed, again.step) == ("q1", 3, 0)


async def test_what_is_not_recorded_is_no_failure_to_live_with() -> None:
    """Going on without a proposer or scores that a recording lacks would be another run."""
    recording = await record()
    with pytest.raises(ReplayError, match="chosen now"):
        await told(ReplayPolicy(recording), Longest(-1), on_policy_error="degrade")
    with pytest.raises(ReplayError, match="was not scored"):
        await told(
            ScriptedPolicy(PLAIN), ReplayScorer(recording), seed=8, on_scorer_error="degrade"
        )


async def test_stop_ends_the_trajectory_after_the_other_choice() -> None:
    policy = ReplayPolicy(await record(), after_divergence="stop")
    events = await told(policy, Longest(-1))
    assert isinstance(events[-1], TrajectoryFinished)
    assert events[-1].solution.stop is SolutionStop.CONTEXT
    assert len(events[-1].solution.steps) == 1
    assert [(e.question_id, e.seed, e.step) for e in policy.divergences] == [("q1", 3, 0)]


async def test_another_last_step_is_no_divergence() -> None:
    """Nothing follows from it that would have to be known."""
    recording = await record(limits=Limits(max_steps=1))
    policy = ReplayPolicy(recording)
    events = await told(policy, Longest(-1), limits=Limits(max_steps=1))
    assert isinstance(events[-1], TrajectoryFinished)
    assert events[-1].solution.steps != recording.trajectories[0].steps[0].step
    assert policy.divergences == []


async def test_fewer_candidates_are_some_of_the_recorded_ones() -> None:
    recording = await record(limits=Limits(max_steps=1))
    events = await told(ReplayPolicy(recording), Longest(), n=2, limits=Limits(max_steps=1))
    was = [e for e in recording.trajectories[0].events if isinstance(e, CandidateFinished)]
    assert [e for e in events if isinstance(e, CandidateFinished)] == was[:2]
    with pytest.raises(ReplayError, match="3 candidates of 'base' were recorded, 4 are asked for"):
        await told(ReplayPolicy(recording), Longest(), n=4)


async def test_more_steps_than_recorded() -> None:
    recording = await record(limits=Limits(max_steps=2))
    with pytest.raises(ReplayError, match=r"step 2: the recording ended there \(steps\)"):
        await told(ReplayPolicy(recording), ReplayScorer(recording))
    stopped = ReplayPolicy(recording, after_divergence="stop")
    events = await told(stopped, ReplayScorer(recording))
    assert isinstance(events[-1], TrajectoryFinished)
    assert len(events[-1].solution.steps) == 2


async def test_a_recording_that_breaks_off() -> None:
    events = (await record()).trajectories[0].events
    second = [i for i, event in enumerate(events) if isinstance(event, StepCommitted)][1]
    for cut in (second + 1, second + 2):  # with and without a candidate of the round after it
        recording = Recording.of_events(events[:cut])
        found: list[Event] = []
        with pytest.raises(ReplayError, match="step 2: the recording breaks off there"):
            await told(ReplayPolicy(recording), ReplayScorer(recording), observers=[found.append])
        assert found == events[: second + 1]


async def test_another_question_or_seed_or_text() -> None:
    policy = ReplayPolicy(await record())
    with pytest.raises(ReplayError, match=r"does not hold the question 'q2'.*it holds 'q1'"):
        await told(policy, Longest(), question=Question("x", "q2"))
    with pytest.raises(ReplayError, match="'q1' had another text"):
        await told(policy, Longest(), question=Question("x", "q1"))
    with pytest.raises(ReplayError, match="'q1' was recorded under the seeds 3; another"):
        await told(policy, Longest(), seed=4)


async def test_another_name() -> None:
    recording = await record(limits=Limits(max_steps=2))
    with pytest.raises(ReplayError, match="not drawn from a proposer 'mine' but from 'base'"):
        await told(ReplayPolicy(recording), Longest(), name="mine")
    two = Limits(max_steps=2)
    scorer = ReplayScorer(recording)
    events = await told(ReplayPolicy(recording, proposer="base"), scorer, name="mine", limits=two)
    steps = [e.step for e in events if isinstance(e, StepCommitted)]
    was = [event.step for event in recording.trajectories[0].steps]
    assert [step.candidate for step in steps] == [
        dataclasses.replace(step.candidate, policy="mine") for step in was
    ]
    assert [step.scores for step in steps] == [step.scores for step in was]


async def test_an_abort_that_no_longer_happens_ends_the_candidate() -> None:
    recording = await record(most=1, limits=Limits(max_steps=1), when_all_flagged="redraw")
    was = [
        e.candidate for e in recording.trajectories[0].events if isinstance(e, CandidateFinished)
    ]
    aborted = [c for c in was if c.verdict is not None]
    assert aborted, "the recording shows nothing"
    events = await told(
        ReplayPolicy(recording, after_divergence="stop"),
        Longest(),
        most=99,
        limits=Limits(max_steps=1),
        when_all_flagged="redraw",
    )
    now = [e.candidate for e in events if isinstance(e, CandidateFinished)]
    for old, new in zip(was, now, strict=False):
        if old.verdict is None:
            assert new == old
            continue
        assert new.verdict is not None
        assert new.verdict.detector == "replay"
        assert "letters aborted it" in new.verdict.reason
        assert (new.text, new.token_ids) == (old.text, old.token_ids)
    with pytest.raises(ReplayError, match=r"was aborted by letters.*give the proposer its detec"):
        await told(ReplayPolicy(recording), Longest())


async def test_candidates_without_places_in_the_text() -> None:
    def bare(event: Event) -> Event:
        if isinstance(event, CandidateFinished):
            return dataclasses.replace(
                event, candidate=dataclasses.replace(event.candidate, char_ends=())
            )
        if isinstance(event, StepCommitted):
            step = event.step
            pool = tuple(dataclasses.replace(c, char_ends=()) for c in step.candidates)
            winner = dataclasses.replace(step.candidate, char_ends=())
            return dataclasses.replace(
                event, step=dataclasses.replace(step, candidate=winner, candidates=pool)
            )
        return event

    events = (await record(most=9)).trajectories[0].events
    recording = Recording.of_events([bare(event) for event in events])
    with pytest.raises(ReplayError, match=r"char_ends.*verdicts = 'recorded'"):
        await told(ReplayPolicy(recording), ReplayScorer(recording), most=9)
    kept = ReplayPolicy(recording, verdicts="recorded")
    found = await told(kept, ReplayScorer(recording), most=9)
    assert found[:-1] == [bare(event) for event in events[:-1]]


async def test_lower_limits_name_the_candidate() -> None:
    recording = await record()
    with pytest.raises(ReplayError, match="tokens, at most 1 are asked for; raise the limit"):
        await told(ReplayPolicy(recording), Longest(), limits=Limits(max_output_tokens=1))


async def test_detectors_that_could_never_fire_are_refused_as_in_the_run() -> None:
    recording = await record()
    policy = ReplayPolicy(recording)
    assert policy.source_of("base") == ScriptedPolicy(PLAIN).source
    with pytest.raises(DetectorError, match="entropy"):
        StepwiseSelector([Proposer(policy, 1, (EntropyDetector(threshold=99.0),))], Longest())
    old = Recording.of_events([TrajectoryStarted(QUESTION, 0, ("base",))])
    assert isinstance(ReplayPolicy(old).source, Source)


async def test_a_score_that_was_not_recorded() -> None:
    recording = await record(limits=Limits(max_steps=1))
    other = ScriptedPolicy(Habits(eos=0.5, context=200))
    with pytest.raises(ReplayError, match=r"step 0: base.* was not scored when it was recorded"):
        await told(other, ReplayScorer(recording), seed=8)


async def test_one_question_in_two_settings() -> None:
    first = (await record()).trajectories[0].events
    second = await told(ScriptedPolicy(Habits(context=100)), Longest())
    policy = ReplayPolicy(Recording.of_events([*first, *second]))
    with pytest.raises(ReplayError, match="recorded in different settings"):
        await told(policy, Longest())
    twice = ReplayPolicy(Recording.of_events([*first, *first]))
    recording = Recording.of_events(first)
    assert await told(twice, ReplayScorer(recording)) == first
    third = await told(ScriptedPolicy(PLAIN), Longest(-1))
    with pytest.raises(ReplayError, match="recorded 2 times, with different candidates"):
        await told(ReplayPolicy(Recording.of_events([*first, *third])), Longest())


def test_files_that_are_no_recordings(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"does not exist; make one with kvrescue solve --trace"):
        ReplayPolicy(tmp_path / "none.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(ReplayError, match="tells of no trajectory"):
        ReplayScorer(empty)
    with pytest.raises(ConfigError, match="after_divergence = 'go on'"):
        ReplayPolicy(empty, after_divergence="go on")  # type: ignore[arg-type]
    with pytest.raises(ReplayError, match="does not hold the trajectory's beginning"):
        Recording.of_events([_step_event()])


def _step_event() -> Event:
    from tests.core.test_plugins import COMMITTED

    return COMMITTED


def test_from_a_configuration_and_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    events = asyncio.run(record()).trajectories[0].events
    path.write_text("".join(json.dumps(as_dict(event)) + "\n" for event in events))
    data = {
        "proposers": {"base": {"policy": {"kind": "replay", "trace": str(path)}, "candidates": 3}},
        "scorer": {"kind": "replay", "trace": str(path)},
        "sampling": {"max_step_tokens": 6},
        "limits": {"max_steps": 4},
        "seed": 3,
    }
    load_config(data)
    code = f"""
import json, sys
from kvrescue import Question, Rescue
from kvrescue.events import as_dict
with Rescue.from_config({data!r}) as rescue:
    events = list(rescue.stream(Question({QUESTION.text!r}, {QUESTION.id!r})))
assert "torch" not in sys.modules and "transformers" not in sys.modules
print(json.dumps([as_dict(event) for event in events]))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == [as_dict(event) for event in events]

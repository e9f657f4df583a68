"""Traces: events put together again, whatever their order, and files that are not whole."""

from __future__ import annotations

import gzip
import itertools
import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.errors import RunError
from kvrescue.evaluation.traces import read_events, write_events
from kvrescue.evaluation.trajectories.trace import Caps, read_trace, trajectories
from kvrescue.events import Event, StepCommitted, TraceWriter
from kvrescue.types import Candidate, Question, StopReason, Verdict
from tests.evaluation.trajectories.made import Drawn, entropy, told

verdicts = st.builds(entropy, st.floats(2.6, 9), st.integers(1, 9))
drawn = st.one_of(
    st.builds(Drawn, st.sampled_from(["base", "helper"]), st.text(max_size=5), st.floats(0, 1)),
    st.builds(Drawn, st.just("base"), st.text(max_size=5), st.none(), verdicts),
    st.builds(Drawn, st.just("helper"), st.just(" \n")),
)
rounds = st.lists(st.lists(drawn, min_size=1, max_size=4), max_size=5)


def solution_of(events: Sequence[Event]) -> object:
    return events[-1].solution  # type: ignore[union-attr]


@given(st.lists(rounds, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_events_of_several_questions_may_be_mixed(
    solved: list[list[list[Drawn]]], chance: random.Random
) -> None:
    lists = [told(Question(f"question {i}"), pools) for i, pools in enumerate(solved)]
    turns = [i for i, events in enumerate(lists) for _ in events]
    chance.shuffle(turns)
    queues = [iter(events) for events in lists]
    found = {t.question.text: t for t in trajectories(next(queues[turn]) for turn in turns)}
    assert len(found) == len(lists)
    for i, events in enumerate(lists):
        trajectory = found[f"question {i}"]
        assert trajectory == trajectories(events)[0]
        assert trajectory.solution == solution_of(events)


@given(rounds)
def test_every_candidate_is_in_one_round_and_steps_are_the_solution(
    pools: list[list[Drawn]],
) -> None:
    events = told(Question("q"), pools)
    trajectory = trajectories(events)[0]
    assert [[(c.policy, c.text) for c in r.candidates] for r in trajectory.rounds] == [
        [(one.source, one.text) for one in pool] for pool in pools
    ]
    solution = trajectory.solution
    assert solution is not None
    assert "".join(step.text or "" for step in trajectory.steps) == solution.text
    assert len(trajectory.rounds) - len(trajectory.steps) == solution.empty_rounds
    before = itertools.accumulate(
        (r.candidates[r.chosen].n_tokens if r.chosen is not None else 0 for r in trajectory.rounds),
        initial=0,
    )
    assert [round_.committed for round_ in trajectory.rounds] == list(before)[:-1]


@given(rounds, st.data())
def test_a_trace_may_break_off_anywhere(pools: list[list[Drawn]], data: st.DataObject) -> None:
    events = told(Question("q"), pools)
    whole = trajectories(events)[0]
    kept = events[: data.draw(st.integers(1, len(events)))]
    part = trajectories(kept)[0]
    decided = [round_ for round_ in part.rounds if round_.skipped != "undecided"]
    assert list(whole.rounds[: len(decided)]) == decided
    assert len(part.rounds) - len(decided) in (0, 1)
    assert (part.solution is None) == (len(kept) < len(events))


def test_a_question_may_be_solved_again() -> None:
    once = told(Question("q"), [[Drawn("base", "a\n\n", 1.0)]], seed=1)
    again = told(Question("q"), [[Drawn("base", "b\n\n", 1.0)]], seed=2)
    found = trajectories([*once[:-1], *again])  # the first was interrupted
    assert [(t.seed, t.steps[0].text, t.stop) for t in found] == [
        (1, "a\n\n", None),
        (2, "b\n\n", "eos"),
    ]


def test_entropies_that_are_no_numbers_do_not_hide_the_winner() -> None:
    events = told(Question("q"), [[Drawn("base", "a", 0.1), Drawn("base", "a", 0.9)]])
    committed = events[-2]
    assert isinstance(committed, StepCommitted)
    # Read back from a file, a NaN is another object in every place, and equals none of them.
    pool = [replace(one, entropies=(float("nan"),)) for one in committed.step.candidates]
    winner = replace(committed.step.candidate, entropies=(float("nan"),))
    step = replace(committed.step, candidate=winner, candidates=tuple(pool))
    found = trajectories([*events[:-2], replace(committed, step=step), events[-1]])[0]
    assert found.rounds[0].chosen == 1


class TestWhatDoesNotFit:
    def test_no_start(self) -> None:
        events = told(Question("q", "the-id"), [[Drawn("base", "a", 1.0)]])
        with pytest.raises(RunError, match="'the-id': the trace tells of no start"):
            trajectories(events[1:])

    def test_two_trajectories_of_one_question_at_once(self) -> None:
        pools = [[Drawn("base", "a", 1.0)], [Drawn("base", "b", 1.0)]]
        one, other = told(Question("q"), pools), told(Question("q"), pools)
        mixed = [event for pair in zip(one, other, strict=True) for event in pair]
        with pytest.raises(RunError, match="several trajectories of one question are mixed"):
            trajectories(mixed)


class TestFiles:
    EVENTS = told(Question("q"), [[Drawn("base", "a\n\n", 1.0), Drawn("helper", "b", 0.5)]] * 3)

    def written(self, path: Path) -> Path:
        with TraceWriter(path) as writer:
            for event in self.EVENTS:
                writer(event)
        return path

    def test_what_solve_writes(self, tmp_path: Path) -> None:
        path = self.written(tmp_path / "trace.jsonl")
        assert read_trace(path) == trajectories(self.EVENTS)
        packed = tmp_path / "trace.jsonl.gz"
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert read_trace(packed) == read_trace(path)

    def test_a_torn_last_line_is_left_out(self, tmp_path: Path) -> None:
        path = self.written(tmp_path / "trace.jsonl")
        content = path.read_bytes()
        path.write_bytes(content[: len(content) - 20])
        assert read_trace(path) == trajectories(self.EVENTS[:-1])

    @pytest.mark.parametrize(
        "line", ["{", "[]", "null", '{"schema": 9}', "\udcff", "[" * 100_000], ids=len
    )
    def test_a_wrong_line_is_named(self, tmp_path: Path, line: str) -> None:
        path = self.written(tmp_path / "trace.jsonl")
        with path.open("ab") as file:
            file.write(line.encode(errors="surrogateescape") + b"\n")
        with pytest.raises(RunError, match=f"line {len(self.EVENTS) + 1}: ") as told_:
            read_trace(path)
        assert str(path) in str(told_.value)

    @given(st.data())
    def test_a_cut_loses_the_end_and_nothing_else(self, data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = self.written(Path(folder, "trace.jsonl"))
            content = path.read_bytes()
            kept = data.draw(st.integers(0, len(content)))
            path.write_bytes(content[:kept])
            found = list(read_events(path))
            assert found == self.EVENTS[: len(found)]
            assert len(found) >= content[:kept].count(b"\n")

    @given(st.data())
    def test_a_packed_trace_is_whole_or_damaged(self, data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.jsonl.gz")
            write_events(path, self.EVENTS)
            assert list(read_events(path)) == self.EVENTS
            whole = path.read_bytes()
            path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
            with pytest.raises(RunError, match="damaged"):
                list(read_events(path, whole=True))

    def test_damaged_or_missing(self, tmp_path: Path) -> None:
        path = self.written(tmp_path / "trace.jsonl")
        packed = tmp_path / "trace.jsonl.gz"
        packed.write_bytes(gzip.compress(path.read_bytes())[:-12])
        for wrong in (packed, tmp_path / "missing.jsonl", tmp_path):
            with pytest.raises(RunError, match="the trace"):
                read_trace(wrong)


class TestCaps:
    @given(
        st.integers(1, 50), st.none() | st.integers(1, 99), st.integers(0, 99), st.integers(1, 50)
    )
    def test_no_more_is_saved_than_could_have_come(
        self, step: int, output: int | None, committed: int, tokens: int
    ) -> None:
        verdict = Verdict("d", "r", tokens, 1.0, 0.5)
        candidate = Candidate("base", 0, "x", (1,) * tokens, StopReason.ABORTED, verdict=verdict)
        saved = Caps(step, output).saved(candidate, committed)
        room = math.inf if output is None else output - committed
        assert saved == max(0, min(step, room) - tokens)

    def test_a_trace_does_not_tell(self) -> None:
        candidate = Candidate("base", 0, "x", (1,), StopReason.ABORTED)
        assert Caps().saved(candidate, 0) is None

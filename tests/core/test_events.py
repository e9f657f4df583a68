"""Events as data: JSON there and back, and a trace that survives an interruption."""

from __future__ import annotations

import json
import math
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue import events
from kvrescue.detectors.base import Source
from kvrescue.errors import ConfigError
from kvrescue.types import (
    CacheStats,
    Candidate,
    CommittedStep,
    Degradation,
    Question,
    Solution,
    SolutionStop,
    StopReason,
    TokenUse,
    Verdict,
)

floats = st.floats(allow_nan=False)
counts = st.integers(0, 2**62)
texts = st.text(max_size=12)
verdicts = st.builds(
    Verdict, texts, texts, counts, floats, floats, char_position=st.none() | counts
)
candidates = st.builds(
    Candidate,
    texts,
    counts,
    texts,
    st.lists(counts, max_size=3).map(tuple),
    st.sampled_from(StopReason),
    texts,
    st.lists(floats, max_size=3).map(tuple),
    st.none() | verdicts,
    counts,
    st.lists(counts, max_size=3).map(tuple),
)
faults = st.lists(st.builds(Degradation, texts, texts), max_size=2).map(tuple)
steps = st.builds(
    CommittedStep,
    counts,
    candidates,
    st.none() | floats,
    st.lists(candidates, max_size=2).map(tuple),
    st.lists(st.none() | floats, max_size=2).map(tuple),
    faults,
)
solutions = st.builds(
    Solution,
    st.builds(Question, texts, texts),
    st.lists(steps, max_size=2).map(tuple),
    st.sampled_from(SolutionStop),
    counts,
    st.none() | texts,
    st.dictionaries(texts, st.builds(TokenUse, counts, counts), max_size=2),
    st.dictionaries(texts, st.builds(CacheStats, counts, bound=st.none() | counts), max_size=2),
    faults,
    counts,
)
seeds = st.none() | counts
plain = st.recursive(
    st.none() | st.booleans() | counts | texts | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
every_event = st.one_of(
    st.builds(
        events.TrajectoryStarted,
        st.builds(Question, texts, texts),
        counts,
        st.lists(texts, max_size=2).map(tuple),
        rooms=st.dictionaries(texts, counts, max_size=2),
        sources=st.dictionaries(
            texts, st.builds(Source, counts, counts, texts, st.none() | counts), max_size=2
        ),
        rules=st.dictionaries(texts, plain, max_size=2),
    ),
    st.builds(events.CandidateFinished, texts, counts, counts, candidates, seeds),
    st.builds(
        events.RoundSkipped,
        texts,
        counts,
        counts,
        st.sampled_from(["empty", "flagged"]),
        counts,
        seeds,
    ),
    st.builds(events.StepCommitted, texts, steps, seed=seeds),
    st.builds(events.TrajectoryFinished, solutions),
)


@given(every_event)
def test_an_event_survives_json(event: events.Event) -> None:
    data = json.loads(json.dumps(events.as_dict(event), allow_nan=False))
    assert data["schema"] == events.SCHEMA_VERSION
    assert events.from_dict(data) == event


@given(solutions)
def test_a_solution_survives_json(solution: Solution) -> None:
    data = json.loads(json.dumps(events.solution_as_dict(solution), allow_nan=False))
    assert events.solution_from_dict(data) == solution


def test_nan_is_told_within_the_json_standard() -> None:
    verdict = Verdict("d", "r", 1, math.nan, math.inf)
    candidate = Candidate("p", 0, "x", (1,), StopReason.ABORTED, verdict=verdict)
    event = events.CandidateFinished("q", 0, 0, candidate)
    data = json.loads(json.dumps(events.as_dict(event), allow_nan=False))
    assert data["candidate"]["verdict"]["value"] == "nan"
    found = events.from_dict(data)
    assert isinstance(found, events.CandidateFinished)
    assert found.candidate.verdict is not None
    assert math.isnan(found.candidate.verdict.value)
    assert found.candidate.verdict.threshold == math.inf


def test_names_are_the_documented_ones() -> None:
    event = events.RoundSkipped("q", 1, 0, "empty", 1, 7)
    assert events.as_dict(event) == {
        "schema": 1,
        "event": "round_skipped",
        "question_id": "q",
        "draw": 1,
        "step": 0,
        "reason": "empty",
        "in_a_row": 1,
        "seed": 7,
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "schema None, event None"),
        ({"schema": 2, "event": "step_committed"}, "schema 2"),
        ({"schema": 1, "event": "step_comitted"}, "step_comitted"),
        ({"schema": 1, "event": "round_skipped"}, "not a RoundSkipped: question_id"),
    ],
)
def test_other_data_is_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        events.from_dict(data)


def test_a_trace_keeps_every_line_written_so_far(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    event = events.RoundSkipped("q\n", 0, 0, "empty", 1)
    for run in (1, 2):
        with events.TraceWriter(path) as trace:
            trace(event)
            lines = path.read_text().splitlines()
            assert len(lines) == run
            assert events.from_dict(json.loads(lines[-1])) == event
    trace.close()
    with pytest.raises(ConfigError, match="cannot be written"):
        trace.write(event)


def test_a_trace_may_be_shared_by_threads(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with events.TraceWriter(path) as trace:
        event = events.RoundSkipped("q" * 999, 0, 0, "empty", 1)
        threads = [Thread(target=lambda: [trace(event) for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [events.from_dict(json.loads(line)) for line in path.read_text().splitlines()]
    assert found == [event] * 200


@pytest.mark.parametrize("path", ["", "missing/folder/trace.jsonl"])
def test_a_path_that_cannot_be_written_is_a_typed_error(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written: .*; choose another path"):
        events.TraceWriter(tmp_path / path)


OLD = {
    "trajectory_started": {"question": {"text": "q", "id": "q"}, "seed": 3, "proposers": ["base"]},
    "round_skipped": {"question_id": "q", "draw": 0, "step": 0, "reason": "empty", "in_a_row": 1},
    "step_committed": {
        "question_id": "q",
        "step": {
            "number": 0,
            "candidate": {
                "policy": "base",
                "index": 0,
                "text": "a",
                "token_ids": [1],
                "stop": "eos",
            },
            "score": 0.5,
        },
    },
}


@pytest.mark.parametrize("name", OLD)
def test_traces_from_before_new_fields_are_read(name: str) -> None:
    event = events.from_dict({"schema": 1, "event": name, **OLD[name]})  # type: ignore[dict-item]
    if isinstance(event, events.TrajectoryStarted):
        assert (event.rooms, event.sources, event.rules) == ({}, {}, {})
    else:
        assert event.seed is None
    if isinstance(event, events.StepCommitted):
        assert event.step.candidate.char_ends == ()

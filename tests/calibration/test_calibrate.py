"""From samples to a calibration: halves, rates, refusals, what is written."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.calibration import (
    Calibration,
    Samples,
    calibrate,
    snippet,
    write_calibration,
)
from kvrescue.config import load_config
from kvrescue.detectors import EntropyDetector, NgramDetector
from kvrescue.errors import CalibrationError, ConfigError, KVRescueError, UnknownNameError
from tests.calibration.parts import bad, others, sample, samples

FACTS = {"base.model": "tiny/base", "tokenizer": "tok", "evictor": {"kind": "rkv", "window": 12}}


def separated(problems: int = 120, budget: int = 16) -> list[Any]:
    """Healthy ones at 1, degenerate ones at 5 nats, the same problems."""
    good = [sample(f"p{i}", 1.0 + i / 1000, budget=budget) for i in range(problems)]
    return good + [bad(f"p{i}", 5.0 + i / 1000, budget=budget) for i in range(problems)]


@st.composite
def anything(draw: st.DrawFn) -> Samples:
    """Samples of two detectors at one budget, in which the two kinds overlap."""
    value = st.none() | st.floats(0.1, 8)
    span = st.none() | st.integers(0, 9).map(float)
    problem = st.integers(0, 60).map(lambda place: f"p{place}")
    good = draw(st.lists(st.builds(sample, problem, value, span), min_size=20, max_size=120))
    wrong = draw(st.lists(st.builds(bad, problem, value, span), max_size=40))
    return samples(good + wrong, EntropyDetector(), NgramDetector(), **FACTS)


@given(anything(), st.sampled_from([0.2, 0.3, 0.5]), st.integers(0, 3))
@settings(max_examples=60)
def test_the_half_that_chose_meets_the_target_and_the_halves_share_no_problem(
    found: Samples, target: float, seed: int
) -> None:
    try:
        made = calibrate(found, false_aborts=target, seed=seed)
    except CalibrationError:
        return
    at = made.at(16)
    for threshold in at.detectors:
        if threshold.proposed is None:
            assert threshold.why_not
            assert threshold.chosen_on is threshold.measured is None
            continue
        assert threshold.chosen_on is not None
        assert threshold.measured is not None
        assert threshold.chosen_on.false_aborts.high <= target
        assert threshold.chosen_on.caught.aborted >= 1
        column = threshold.place
        problems = {s.problem for s in found.found if s.is_healthy("right") and s.values[column]}
        halves = threshold.chosen_on.false_aborts, threshold.measured.false_aborts
        measured = [s for s in found.found if s.is_healthy("right")]
        known = [s for s in measured if s.values[column] is not None]
        assert sum(half.problems for half in halves) == len({s.problem for s in known})
        assert sum(half.candidates for half in halves) == len(known)
        assert problems <= {s.problem for s in known}
    worst = max(
        t.measured.caught.aborted if t.measured else t.now.caught.aborted for t in at.detectors
    )
    assert at.together.caught.aborted >= worst  # together they catch what any of them catches


@given(anything(), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_the_order_of_samples_changes_nothing(found: Samples, shuffler: random.Random) -> None:
    def told(these: Samples) -> object:
        try:
            return calibrate(these, false_aborts=0.3)
        except CalibrationError as error:
            return str(error)

    shuffled = found.found.copy()
    shuffler.shuffle(shuffled)
    again = samples(shuffled, *found.detectors, **FACTS)
    assert told(again) == told(found)


def test_separated_kinds_are_divided_in_between() -> None:
    made = calibrate(samples(separated(), **FACTS), false_aborts=0.05)
    (threshold,) = made.at(16).detectors
    assert threshold.proposed == 3.0
    assert threshold.measured is not None
    assert threshold.measured.caught.share == 1.0
    assert threshold.measured.false_aborts.share == 0.0
    assert threshold.now.caught.share == 0.0  # the paper's 7 nats
    assert made.at(16).overrides() == ["proposers.base.detectors.entropy.threshold=3.0"]
    assert made.at(16).counts.healthy_problems == made.at(16).counts.degenerate_problems == 120


def test_many_candidates_of_few_problems_are_too_little_data() -> None:
    few = [s for s in separated(20) for _ in range(100)]
    with pytest.raises(CalibrationError, match=r"from 10 problems .* needs 299 at least"):
        calibrate(samples(few), false_aborts=0.01)


def test_each_budget_is_calibrated_alone() -> None:
    tight = [s for s in separated(120, 16) if not s.is_healthy("right")]
    found = samples(separated(120, 64) + tight, **FACTS)
    made = calibrate(found, false_aborts=0.05)
    assert [at.budget for at in made.budgets] == [16, 64]
    assert made.at(16).detectors[0].proposed is None
    assert "0 problems" in str(made.at(16).detectors[0].why_not)
    assert made.at(64).detectors[0].proposed == 3.0
    assert [at.budget for at in calibrate(found, false_aborts=0.05, budgets=[64]).budgets] == [64]
    with pytest.raises(CalibrationError, match="budget 32: the runs' traces have only 16, 64"):
        calibrate(found, budgets=[32])
    with pytest.raises(CalibrationError, match=r"B 16, entropy\.threshold"):
        calibrate(found, false_aborts=0.05, budgets=[16])


def test_what_the_full_cache_writes_may_stand_for_healthy() -> None:
    tight = [s for s in separated(120) if not s.is_healthy("right")]
    full = others(120, "full-KV", 2.0)
    cut_off = [sample("p1", 9.0, group="full-KV", budget=None, whole=False)]
    found = samples(tight + full + cut_off, **FACTS)
    made = calibrate(found, false_aborts=0.05, healthy="full-kv")
    assert made.at(16).detectors[0].proposed == 4.0
    assert made.at(16).counts.healthy == 120
    assert made.at(16).detectors[0].others["full-KV"].aborted == 1


@pytest.mark.parametrize(("definition", "caught"), [("cut", 1), ("loop", 2), ("either", 3)])
def test_what_counts_as_degenerate(definition: Any, caught: int) -> None:
    kinds = [{"cut": True, "loop": False}, *[{"cut": False, "loop": True}] * 2]
    wrong = [bad(f"q{i}", 5.0, **kind) for i, kind in enumerate(kinds)]
    spared = [
        bad("r", 5.0, right=True, committed=False),
        bad("s", 5.0, cut=False),
        bad("t", 5.0, group="full-KV"),
    ]
    good = [sample(f"p{i}", 1.0) for i in range(120)]
    made = calibrate(samples(good + wrong + spared), false_aborts=0.05, degenerate=definition)
    assert made.at(16).counts.degenerate == caught


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        (ConfigError, {"false_aborts": 0.0}, "false-aborts = 0.0"),
        (ConfigError, {"false_aborts": 0.6}, "at most 0.5"),
        (ConfigError, {"false_aborts": float("nan")}, "false-aborts = nan"),
        (ConfigError, {"false_aborts": True}, "false-aborts = True"),
        (UnknownNameError, {"healthy": "rigth"}, "did you mean 'right'"),
        (UnknownNameError, {"degenerate": "loops"}, "did you mean 'loop'"),
        (ConfigError, {"seed": 1.5}, "seed = 1.5"),
    ],
)
def test_what_is_refused(kind: type[KVRescueError], arguments: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        calibrate(samples(separated()), **arguments)


class TestFiles:
    @pytest.fixture
    def found(self) -> Samples:
        spans = [sample(s.problem, *s.values, 0.0, right=s.right, cut=s.cut) for s in separated()]
        return samples(
            [*spans, *others(120, "full-KV", 0.5, 0.0)], EntropyDetector(), NgramDetector(), **FACTS
        )

    def test_what_is_written_is_read_back(self, tmp_path: Path, found: Samples) -> None:
        made = calibrate(found, false_aborts=0.05)
        files = write_calibration(made, found, tmp_path / "new")
        assert Calibration.read(files.calibration) == made
        assert {file.name for file in files.figures} == {"figure_3_b16.png", "figure_3_b16.svg"}
        drawn = [file.read_bytes() for file in files.figures]
        again = write_calibration(made, found, tmp_path / "new")
        assert [file.read_bytes() for file in again.figures] == drawn
        assert b"proposed" not in drawn[0]
        assert all(len(data) > 1000 for data in drawn)

    def test_the_snippet_loads_with_the_proposed_thresholds(self, found: Samples) -> None:
        made = calibrate(found, false_aborts=0.05)
        text = snippet(made, made.at(16))
        assert "# for tiny/base, evictor rkv: budget 16, window 12" in text
        assert "# ngram.min_span as it was: no threshold" in text
        detectors = yaml.safe_load(text)["detectors"]
        plain = load_config("smollm2", [f"proposers.base.detectors={detectors}"])
        assert plain.proposers["base"].detectors == (
            EntropyDetector(threshold=3.0),
            NgramDetector(),
        )

    def test_overrides_reach_one_of_two_detectors_of_a_kind(self) -> None:
        twice = [sample(s.problem, *s.values * 2, right=s.right, cut=s.cut) for s in separated()]
        found = samples(twice, EntropyDetector(threshold=6.0), EntropyDetector(), **FACTS)
        lines = calibrate(found, false_aborts=0.05).at(16).overrides()
        smollm2 = load_config(
            "smollm2", ["proposers.base.detectors=[{kind: entropy}, {kind: entropy}]", *lines]
        )
        detectors = smollm2.proposers["base"].detectors
        assert detectors == (EntropyDetector(threshold=3.0), EntropyDetector(threshold=3.0))

    def test_files_that_are_none(self, tmp_path: Path, found: Samples) -> None:
        file = tmp_path / "calibration.json"
        with pytest.raises(CalibrationError, match="cannot be read"):
            Calibration.read(file)
        for text in ("{", "[]", "{}", '{"schema": 2}', '{"schema": 1}'):
            file.write_text(text)
            with pytest.raises(CalibrationError, match="calibration"):
                Calibration.read(file)
        made = calibrate(found, false_aborts=0.05)
        with pytest.raises(CalibrationError, match="cannot be used"):
            write_calibration(made, found, file)

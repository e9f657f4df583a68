"""Cells: how records become numbers, by laws and by hand-made runs."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrescue.errors import UnknownNameError
from kvrescue.evaluation.methods import BASE
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.runs.record import Failure, Record
from kvrescue.evaluation.statistics import wilson_interval
from kvrescue.evaluation.tables.cells import Cell, Cells, correct, generated, paired
from kvrescue.types import Degradation
from tests.evaluation.runs_parts import grid, record, right_up_to, run, setting, use, without

SEEDS = (0, 1, 2)


@st.composite
def outcomes(draw: st.DrawFn) -> Run:
    """Best-of-N under three seeds; some rows are missing."""
    count = draw(st.integers(1, 8))
    known = draw(st.lists(st.sampled_from([True, False, None]), min_size=24, max_size=24))
    settings = [setting("best_of_n", 16, 2, seed) for seed in SEEDS]

    def fill(of: object, problem: object, place: int) -> Record | None:
        found = next(s for s in settings if s is of)
        right = known[8 * found.seed + place]
        tokens = use(10 * place + found.seed)
        return None if right is None else record(found, problem, right, uses={BASE: tokens})  # type: ignore[arg-type]

    return run(settings, count, fill)


def only(found: Run) -> Cell:
    (cell,) = Cells.of(found)
    return cell


@given(outcomes())
def test_accuracy_is_the_mean_over_seeds(found: Run) -> None:
    cell = only(found)
    shares = [
        statistics.fmean(r.correct for r in records) for records in cell.seeds.values() if records
    ]
    accuracy = cell.accuracy
    if not shares:
        assert accuracy is None
        return
    assert accuracy is not None
    assert accuracy.value == pytest.approx(statistics.fmean(shares))
    if len(shares) > 1:
        assert accuracy.std == pytest.approx(statistics.stdev(shares))
    else:
        assert accuracy.std is None
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert 0 <= accuracy.low <= accuracy.value <= accuracy.high <= 1


@given(outcomes(), st.randoms())
def test_the_order_of_records_changes_nothing(found: Run, shuffler: random.Random) -> None:
    entries = list(found.records.items())
    shuffler.shuffle(entries)
    settings = list(found.settings.items())
    shuffler.shuffle(settings)
    other = replace(found, records=dict(entries), settings=dict(settings))
    one, two = only(found), only(other)
    assert one.accuracy == two.accuracy
    assert one.mean(generated(BASE)) == two.mean(generated(BASE))


@given(outcomes())
def test_means_lie_within_their_intervals(found: Run) -> None:
    mean = only(found).mean(generated(BASE))
    assert (mean is None) == (not only(found).rows)
    if mean is not None and mean.low is not None and mean.high is not None:
        assert mean.low <= mean.value <= mean.high


def test_one_seed_has_wilsons_interval_and_no_deviation() -> None:
    found = only(run([setting("best_of_n", 16, 2)], 10, right_up_to({("best_of_n", 16, 2): 7})))
    accuracy = found.accuracy
    assert accuracy is not None
    assert accuracy.std is None
    assert (accuracy.low, accuracy.high) == pytest.approx(wilson_interval(7, 10))


def test_seeds_that_repeat_each_other_do_not_narrow_the_interval() -> None:
    counts = {("best_of_n", 16, 2): 7}
    settings = [setting("best_of_n", 16, 2, seed) for seed in SEEDS]
    accuracy = only(run(settings, 10, right_up_to(counts))).accuracy  # type: ignore[arg-type]
    assert accuracy is not None
    assert (accuracy.low, accuracy.high) == pytest.approx(wilson_interval(7, 10))
    assert accuracy.std == 0


class TestWhatCounts:
    def test_degraded_rows_are_left_out_unless_they_are_asked_for(self) -> None:
        lost = (Degradation("scorer", "gone"),)

        def fill(of: object, problem: object, place: int) -> Record:
            return record(one, problem, place > 1, degradations=lost if place < 2 else ())  # type: ignore[arg-type]

        one = setting("best_of_n", 16, 2)
        found = run([one], 4, fill)
        (without_them,), (with_them,) = Cells.of(found), Cells.of(found, degraded=True)
        assert without_them.accuracy is not None
        assert with_them.accuracy is not None
        assert (without_them.accuracy.value, without_them.left_out) == (1.0, 2)
        assert (with_them.accuracy.value, with_them.left_out) == (0.5, 0)

    def test_failures_are_no_rows(self) -> None:
        one = setting("best_of_n", 16, 2)

        def fill(of: object, problem: object, place: int) -> Record:
            failure = Failure("PolicyError", "gone") if place == 0 else None
            return record(one, problem, True, failure=failure)  # type: ignore[arg-type]

        cell = only(run([one], 4, fill))
        assert (len(cell.rows), cell.planned) == (3, 4)

    def test_cells_are_of_one_composition(self) -> None:
        """Another temperature of the same cell, and a cell that the other composition lacks."""
        cold = ("sampling.temperature=0.5",)
        old = [setting("best_of_n", 16, 2, seed) for seed in (0, 1)] + [setting("full_kv")]
        new = setting("best_of_n", 16, 2, 0, cold)

        def fill(of: object, problem: object, place: int) -> Record:
            return record(of, problem, of is new)  # type: ignore[arg-type]

        whole = run([*old, new], 3, fill)
        keys = tuple(one.key for one in old)
        whole = replace(whole, compositions={"hot": keys, "cold": (new.key,)})
        last, first = Cells.of(whole), Cells.of(whole, "hot")
        assert (last.composition, first.composition) == ("cold", "hot")
        assert [(cell.method, list(cell.seeds)) for cell in last] == [("best_of_n", [0])]
        assert [cell.method for cell in first] == ["full_kv", "best_of_n"]
        values = [cells.by_key["best_of_n", 16, 2].accuracy for cells in (last, first)]
        assert [value.value for value in values if value is not None] == [1.0, 0.0]
        assert (last.others, first.others) == ({"hot": keys}, {"cold": (new.key,)})
        with pytest.raises(UnknownNameError, match="did you mean 'cold'"):
            Cells.of(whole, "gold")

    def test_a_run_without_settings_has_no_cells(self) -> None:
        nothing = replace(run([], 1, right_up_to({})), compositions={})
        assert list(Cells.of(nothing)) == []


class TestLookUp:
    @pytest.fixture
    def cells(self) -> Cells:
        counts = {
            ("full_kv", None, 1): 4,
            ("best_of_n", 16, 1): 0,
            ("best_of_n", 16, 8): 1,
            ("best_of_n", 16, 16): 2,
            ("kv_rescue", 16, 1): 3,
            ("kv_rescue", 16, 8): 4,
        }
        settings = grid(ns=(1, 8, 16))
        return Cells.of(run(settings, 4, right_up_to(counts)))  # type: ignore[arg-type]

    def test_a_cell_without_rows_is_none(self, cells: Cells) -> None:
        assert cells.get("best_of_n", 16, 8) is not None
        assert cells.get("best_of_n", 64, 8) is None
        assert cells.get("helper", None, 1) is None

    def test_a_reference_has_the_same_n_or_the_next_smaller_one(self, cells: Cells) -> None:
        for n in (1, 8, 16):
            found = cells.reference("full_kv", n)
            assert found is not None
            assert found.n == 1
        assert cells.reference("helper", 8) is None

    def test_what_was_run(self, cells: Cells) -> None:
        assert cells.budgets == [16, 64]
        assert cells.ns == [1, 8, 16]

    def test_the_ns_are_those_of_kv_rescue(self) -> None:
        settings = [setting("best_of_n", 16, n) for n in (1, 2, 4)] + [setting("kv_rescue", 16, 2)]
        assert Cells.of(run(settings, 1, right_up_to({}))).ns == [2]


@settings(max_examples=10)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_pairs_are_of_the_problems_that_both_have_solved(rows: list[tuple[bool, bool]]) -> None:
    one, two = setting("best_of_n", 16, 1), setting("kv_rescue", 16, 1)

    def fill(of: object, problem: object, place: int) -> Record:
        return record(of, problem, rows[place][of is two])  # type: ignore[arg-type]

    whole = run([one, two], len(rows), fill)
    part = without(whole, lambda made: made.setting == one.key or made.problem != "p0")
    cells = Cells.of(part)
    columns = [(cells.get(m, 16, 1), correct) for m in ("best_of_n", "kv_rescue")]  # type: ignore[arg-type]
    found = paired(columns, lambda sums: sums[1] - sums[0])
    if len(rows) == 1:
        assert found is None
    else:
        expected = statistics.fmean(b - a for a, b in rows[1:])
        assert found is not None
        assert found.value == pytest.approx(expected)

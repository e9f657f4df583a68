"""Every table of a run against hand-made runs whose answers are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.cost import ALPHA
from kvrescue.evaluation.methods import BASE, HELPER, Method
from kvrescue.evaluation.paper import ablation as paper_ablation
from kvrescue.evaluation.problems import Problem
from kvrescue.evaluation.runs.record import Record, Use
from kvrescue.evaluation.runs.settings import Setting
from kvrescue.evaluation.statistics import LEAST_GAP
from kvrescue.evaluation.tables.ablation import ablation_table
from kvrescue.evaluation.tables.accuracy import accuracy_table, recovery_table
from kvrescue.evaluation.tables.cells import Cells
from kvrescue.evaluation.tables.comparisons import (
    equal_candidates_table,
    equal_flops_table,
    interpolated,
)
from kvrescue.evaluation.tables.degeneration import DegenerationRule
from kvrescue.evaluation.tables.flops import (
    Prices,
    flops,
    flops_table,
    models_of,
    proposer_flops,
    verifier_flops,
)
from kvrescue.evaluation.tables.oracle import oracle_table
from kvrescue.evaluation.tables.quality import (
    degraded_table,
    disagreement_table,
    failure_table,
    grading_table,
)
from kvrescue.evaluation.tables.sources import source_table
from kvrescue.evaluation.tables.table import Estimate, Table
from kvrescue.evaluation.tables.tokens import token_table
from kvrescue.rules import Limits
from kvrescue.shapes import shape_of
from kvrescue.types import Degradation
from tests.evaluation.runs_parts import (
    Fill,
    config,
    grid,
    record,
    right_up_to,
    run,
    setting,
    use,
)

Counts = dict[tuple[Method, int | None, int], int]


def cells_of(settings: list[Setting], problems: int, fill: Fill) -> Cells:
    return Cells.of(run(settings, problems, fill))


def value(table: Table, column: str, **wanted: object) -> float | None:
    """The one value of a column in the row that holds these."""
    (row,) = table.where(**wanted)  # type: ignore[arg-type]
    found = row[column]
    return found.value if isinstance(found, Estimate) else found  # type: ignore[return-value]


class TestAccuracyAndRecovery:
    @pytest.fixture
    def cells(self) -> Cells:
        counts: Counts = {
            ("full_kv", None, 1): 18,
            ("helper", None, 1): 10,
            ("best_of_n", 16, 1): 2,
            ("best_of_n", 64, 1): 17,
            ("interleaved", 16, 1): 14,
            ("kv_rescue", 16, 1): 16,
            ("kv_rescue", 64, 1): 18,
            ("full_kv", None, 8): 20,
            ("best_of_n", 16, 8): 4,
            ("kv_rescue", 16, 8): 20,
        }
        return cells_of(grid(), 20, right_up_to(counts))

    def test_accuracy(self, cells: Cells) -> None:
        table = accuracy_table(cells)
        assert value(table, "accuracy", method="KV-Rescue", budget=16, n=1) == 0.8
        assert value(table, "accuracy", method="helper", budget="full", n=1) == 0.5
        assert value(table, "accuracy", method="helper", budget="full", n=8) is None
        assert value(table, "rows", method="helper", budget="full", n=8) == 0
        assert set(table.column("planned")) == {20}

    def test_rows_stand_as_in_the_paper(self, cells: Cells) -> None:
        rows = [(row["method"], row["budget"]) for row in accuracy_table(cells).where(n=1)]
        assert rows == [
            ("evicted best-of-N", 16),
            ("evicted best-of-N", 64),
            ("+ interleaving", 16),
            ("+ interleaving", 64),
            ("KV-Rescue", 16),
            ("KV-Rescue", 64),
            ("full-KV", "full"),
            ("helper", "full"),
        ]

    def test_recovery(self, cells: Cells) -> None:
        table = recovery_table(cells)
        assert value(table, "recovery", budget=16, n=1) == pytest.approx(14 / 16)
        assert value(table, "interleaved", budget=16, n=1) == pytest.approx(12 / 16)
        assert value(table, "recovery", budget=16, n=8) == pytest.approx(1.0)
        assert value(table, "recovery", budget=16, n="mean") == pytest.approx((14 / 16 + 1) / 2)

    def test_no_recovery_where_little_was_lost_or_something_is_missing(self, cells: Cells) -> None:
        table = recovery_table(cells)
        assert value(table, "gap", budget=64, n=1) == pytest.approx(0.05)
        assert value(table, "recovery", budget=64, n=1) is None
        assert value(table, "recovery", budget=64, n=8) is None
        assert value(table, "recovery", budget=64, n="mean") is None

    @given(st.integers(0, 40), st.integers(0, 40))
    def test_recovery_is_shown_from_the_least_gap_on(self, full: int, evicted: int) -> None:
        counts: Counts = {
            ("full_kv", None, 1): full,
            ("best_of_n", 16, 1): evicted,
            ("kv_rescue", 16, 1): 30,
        }
        settings = grid(("full_kv", "best_of_n", "kv_rescue"), budgets=(16,), ns=(1,))
        table = recovery_table(cells_of(settings, 40, right_up_to(counts)))
        found = value(table, "recovery", budget=16, n=1)
        if 100 * (full - evicted) >= LEAST_GAP * 40:
            assert found == pytest.approx((30 - evicted) / (full - evicted))
        else:
            assert found is None

    def test_full_kv_with_fewer_candidates_stands_in_and_is_named(self) -> None:
        counts: Counts = {
            ("full_kv", None, 1): 9,
            ("best_of_n", 16, 8): 1,
            ("kv_rescue", 16, 8): 9,
        }
        settings = [
            setting("full_kv", n=1),
            setting("best_of_n", 16, 8),
            setting("kv_rescue", 16, 8),
        ]
        table = recovery_table(cells_of(settings, 10, right_up_to(counts)))
        assert value(table, "full_n", budget=16, n=8) == 1
        assert value(table, "recovery", budget=16, n=8) == pytest.approx(1.0)


def test_tokens() -> None:
    tokens = {"full_kv": 90, "best_of_n": 200, "kv_rescue": 100}

    def fill(of: Setting, problem: Problem, place: int) -> Record:
        # Every second problem takes nothing, the others twice the mean.
        spent = 2 * tokens[of.method] * (place % 2)
        uses = {name: use(spent if name == BASE else spent // 2) for name in of.config.proposers}
        return record(of, problem, uses=uses, steps=6 * (place % 2), output_tokens=place)

    settings = grid(("full_kv", "best_of_n", "kv_rescue"), budgets=(16,), ns=(8,))
    table = token_table(cells_of(settings, 10, fill))
    full, evicted = table.where(n=8)
    assert (full["budget"], evicted["budget"]) == ("full", 16)
    assert value(table, "base_bon", budget="full") == 90
    assert value(table, "base_bon", budget=16) == 200
    assert value(table, "base_kvr", budget=16) == 100
    assert value(table, "helper_kvr", budget=16) == 50
    assert value(table, "steps_kvr", budget=16) == 3
    assert value(table, "length_bon", budget=16) == 4.5
    assert value(table, "saved", budget=16) == pytest.approx(0.5)


class TestDegeneration:
    @given(st.integers(0, 1024), st.booleans(), st.sampled_from(["eos", "context", "steps"]))
    def test_the_papers_limits_give_the_papers_rule(
        self, steps: int, right: bool, stop: str
    ) -> None:
        rule = DegenerationRule.of(Limits())
        made = record(setting("best_of_n"), Problem("p", "?", "1"), right, steps=steps, stop=stop)
        assert rule.steps == 256
        assert rule(made) == (not right and steps >= 256)

    @pytest.mark.parametrize(
        "limits",
        [Limits(max_output_tokens=256), Limits(max_context=2048), Limits(max_steps=255)],
    )
    def test_without_room_it_is_told_by_the_end(self, limits: Limits) -> None:
        rule = DegenerationRule.of(limits)
        problem = Problem("p", "?", "1")
        made = record(setting("best_of_n"), problem, False, stop="context", steps=3)
        assert rule.steps is None
        assert rule(made)
        assert not rule(replace(made, correct=True))
        assert not rule(replace(made, stop="eos", steps=400))


PAPER_METHODS: dict[str, Method] = {
    "full_kv": "full_kv",
    "best_of_n": "best_of_n",
    "interleaving": "interleaved",
    "kv_rescue": "kv_rescue",
}


@pytest.fixture(scope="module")
def table_2() -> Table:
    """Of a run that is made from the paper's Table 2: 500 problems, whose last ones run away."""
    theirs = {(PAPER_METHODS[row.method], row.budget): row for row in paper_ablation()}

    def fill(of: Setting, problem: Problem, place: int) -> Record:
        row = theirs[of.method, of.budget]
        right = place < round(5 * row.accuracy)
        runaway = place >= 500 - round(5 * row.degeneration)
        ended = round(10 * (row.early_exit or 0))
        shown = Use(candidates=1000, generated=row.base_tokens, aborted=ended)
        uses = dict.fromkeys(of.config.proposers, shown)
        return record(of, problem, right, steps=300 if runaway else 20, uses=uses)

    wide = ("limits.max_output_tokens=null", "limits.max_context=4096")
    settings = [setting(method, budget or 64, 8, 0, wide) for method, budget in theirs]
    return ablation_table(cells_of(settings, 500, fill))


class TestTheirTable2:
    def test_numbers(self, table_2: Table) -> None:
        labels = {
            "full_kv": "full-KV",
            "best_of_n": "best-of-N",
            "interleaving": "+ interleaving",
            "kv_rescue": "+ early exit",
        }
        for row in paper_ablation():
            where = {"method": labels[row.method], "budget": row.budget or "full"}
            assert value(table_2, "accuracy", **where) == pytest.approx(row.accuracy / 100)
            assert value(table_2, "degenerated", **where) == pytest.approx(row.degeneration / 100)
            assert value(table_2, "base_tokens", **where) == row.base_tokens
            early = value(table_2, "early_exit", **where)
            if row.method != "kv_rescue":
                assert early is None
            else:
                assert early == pytest.approx((row.early_exit or 0) / 100)

    def test_the_rule_is_told(self, table_2: Table) -> None:
        assert "at least 256 committed steps" in table_2.note


class TestOracle:
    def test_pairs_by_problem_and_seed(self) -> None:
        right = {  # by seed: the problems that each solves
            ("best_of_n", 0): {0, 1},
            ("best_of_n", 1): {0},
            ("helper", 0): {1, 2},
            ("helper", 1): {1, 3},
        }

        def fill(of: Setting, problem: Problem, place: int) -> Record:
            solved = right.get((of.method, of.seed), set(range(5)))
            return record(of, problem, place in solved)

        settings = grid(("full_kv", "helper", "best_of_n"), (16,), (1,), seeds=(0, 1))
        table = oracle_table(cells_of(settings, 5, fill))
        (row,) = table.where(budget=16)
        assert row["pairs"] == 10
        found = [value(table, name) for name in ("both", "evicted_only", "helper_only", "neither")]
        assert found == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert value(table, "oracle") == pytest.approx(0.6)
        assert value(table, "full") == 1.0
        assert value(table, "recovery") == pytest.approx((0.6 - 0.3) / (1.0 - 0.3))

    def test_without_a_helper_there_is_none(self) -> None:
        cells = cells_of([setting("best_of_n", 16, 1)], 3, right_up_to({("best_of_n", 16, 1): 1}))
        assert oracle_table(cells).rows == ()


def test_sources() -> None:
    def fill(of: Setting, problem: Problem, place: int) -> Record:
        helped = 3 if of.budget == 16 else 1
        return record(of, problem, sources=(HELPER,) * helped + (BASE,) * (4 - helped))

    table = source_table(cells_of(grid(("kv_rescue",)), 5, fill))
    for n in (1, 8):
        assert value(table, "helper", budget=16, n=n) == 0.75
        assert value(table, "base", budget=16, n=n) == 0.25
        assert value(table, "helper", budget=64, n=n) == 0.25


class TestFlops:
    def test_a_proposers_work(self) -> None:
        shape = shape_of("7B")
        made = Use(generated=100, encoded=20, prompt=50, attended=9000, bound=640, evictions=0)
        plain = proposer_flops(shape, made)
        tokens = 170 * shape.dense_flops
        entries = 9000 + 50 * 51 // 2
        assert plain == pytest.approx(tokens + shape.attention_flops(entries))
        evicting = proposer_flops(shape, replace(made, evictions=7), alpha=2.0)
        assert evicting - plain == pytest.approx(2 * shape.attention_flops(9000))
        seldom = proposer_flops(shape, replace(made, evictions=7), alpha=2.0, interval=4)
        assert seldom - plain == pytest.approx(0.5 * shape.attention_flops(9000))
        unbounded = proposer_flops(shape, replace(made, evictions=7, bound=None), alpha=2.0)
        assert unbounded == plain

    def test_a_verifier_that_compares_nothing_costs_nothing(self) -> None:
        problem = Problem("p", "?", "1")
        made = record(setting("kv_rescue"), problem)
        shape = shape_of("tiny/prm")
        assert verifier_flops(shape, replace(made, scored_tokens=0)) == 0
        assert verifier_flops(shape, made) > shape.dense_flops * made.scored_tokens

    def test_the_embedded_trio_is_known_and_its_parts_add_up(self) -> None:
        of = setting("kv_rescue", 16, 8)
        models = models_of(of.config)
        parts = flops(record(of, Problem("p", "?", "1")), models)
        assert parts is not None
        assert set(parts) == {BASE, HELPER, "verifier"}
        assert all(cost > 0 for cost in parts.values())
        cells = cells_of([of], 3, lambda s, p, _: record(s, p))
        (row,) = flops_table(cells, Prices(cells)).rows
        *each, total = row[3:]
        assert sum(part.value for part in each) == pytest.approx(total.value)  # type: ignore[union-attr]

    @pytest.mark.parametrize("part", ["proposers.helper.policy.model", "scorer.model"])
    def test_an_unknown_model_has_no_price(self, part: str) -> None:
        of = setting("kv_rescue", 16, 8, 0, (f"{part}=some/model",))
        cells = cells_of([of], 2, lambda s, p, _: record(s, p))
        assert flops_table(cells, Prices(cells)).rows[0][3:] == (None,) * 4
        (row,) = equal_flops_table(cells, Prices(cells)).where()
        assert row["measured"] == "a model's shape is not known"

    @given(
        st.lists(st.tuples(st.floats(1, 1e6), st.floats(0, 1)), min_size=1, max_size=6),
        st.floats(0.5, 2e6),
    )
    def test_interpolation_stays_between_its_points(
        self, points: list[tuple[float, float]], at: float
    ) -> None:
        found = interpolated(points, at)
        costs, accuracies = zip(*points, strict=True)
        if not min(costs) <= at <= max(costs):
            assert found is None
        elif found is not None:
            assert min(accuracies) - 1e-9 <= found <= max(accuracies) + 1e-9

    def test_interpolation_is_linear_in_the_logarithm(self) -> None:
        points = [(100.0, 0.2), (10_000.0, 0.6), (1.0, 0.0)]
        assert interpolated(points, 1000.0) == pytest.approx(0.4)
        assert interpolated(points, 100.0) == pytest.approx(0.2)
        assert interpolated(points, 10_001.0) is None
        assert interpolated([(5.0, 0.3)], 5.0) == 0.3


TOKENS = {
    ("kv_rescue", 2): 250,
    ("best_of_n", 2): 200,
    ("best_of_n", 4): 800,
    ("helper", 4): 400,
}


class TestEqualCost:
    def fill(self, of: Setting, problem: Problem, place: int) -> Record:
        right = {("kv_rescue", 2): 8, ("best_of_n", 2): 2, ("best_of_n", 4): 4, ("helper", 4): 5}
        uses = {
            name: Use(generated=TOKENS[of.method, of.n], prompt=0, attended=0)
            for name in of.config.proposers
        }
        correct = place < right.get((of.method, of.n), 0)
        return record(of, problem, correct, uses=uses, scored_tokens=0)

    settings = (
        setting("kv_rescue", 16, 2),
        setting("best_of_n", 16, 2),
        setting("best_of_n", 16, 4),
        setting("helper", 16, 4),
    )

    def test_equal_candidates(self) -> None:
        table = equal_candidates_table(cells_of(list(self.settings), 10, self.fill))
        (row,) = table.where(n=2)
        found = {name: value(table, name, n=2) for name in row}
        assert found["over_evicted_n"] == pytest.approx(0.6)
        assert found["over_evicted_2n"] == pytest.approx(0.4)
        assert found["over_helper_2n"] == pytest.approx(0.3)

    def test_equal_flops(self) -> None:
        cells = cells_of(list(self.settings), 10, self.fill)
        table = equal_flops_table(cells, Prices(cells))
        spent = value(table, "flops", n=2)
        assert spent is not None
        base = shape_of("tiny/base").dense_flops
        expected = interpolated([(200 * base, 0.2), (800 * base, 0.4)], spent)
        assert expected is not None
        assert value(table, "evicted", n=2) == pytest.approx(expected)
        assert value(table, "difference", n=2) == pytest.approx(0.8 - expected)

    def test_outside_of_what_was_measured_nothing_is_claimed(self) -> None:
        cells = cells_of(list(self.settings[:2]), 10, self.fill)
        table = equal_flops_table(cells, Prices(cells))
        (row,) = table.where(n=2)
        assert row["evicted"] is None
        assert "outside: above the most" in str(row["measured"])


class TestQuality:
    def test_degraded_rows_with_and_without(self) -> None:
        def fill(of: Setting, problem: Problem, place: int) -> Record:
            lost = (Degradation("scorer", "gone"), Degradation("scorer", "again"))
            return record(of, problem, place > 0, degradations=lost if place == 0 else ())

        settings = [setting("kv_rescue", 16, 8), setting("best_of_n", 16, 1)]
        cells = cells_of(settings, 4, lambda s, p, i: fill(s, p, i + (s is settings[1])))
        (row,) = degraded_table(cells).where()
        assert (row["method"], row["degraded"], row["where"]) == ("KV-Rescue", 1, "scorer: 1")
        table = degraded_table(cells)
        assert value(table, "with") == 0.75
        assert value(table, "without") == 1.0

    def test_rules_and_their_disagreements(self) -> None:
        verdicts = [(True, True), (True, False), (False, None), (False, True)]

        def fill(of: Setting, problem: Problem, place: int) -> Record:
            mine, other = verdicts[place]
            return record(of, problem, mine, rules={"exact": mine, "math": other})

        cells = cells_of([setting("best_of_n", 16, 1)], 4, fill)
        table = grading_table(cells)
        assert value(table, "rule_exact") == 0.5
        assert value(table, "rule_math") == 0.5
        assert (value(table, "disagreements"), value(table, "undecided")) == (2, 1)
        assert disagreement_table(cells).column("problem") == ("p1", "p3")

    def test_failures_are_counted_by_cause(self) -> None:
        from kvrescue.evaluation.runs.record import Failure

        def fill(of: Setting, problem: Problem, place: int) -> Record:
            return record(of, problem, failure=Failure("PolicyError", "gone" if place else "lost"))

        table = failure_table(cells_of([setting("best_of_n", 16, 1)], 3, fill))
        assert table.column("count") == (2, 1)


def test_alpha_is_the_cost_models() -> None:
    cells = cells_of([setting("kv_rescue", 16, 8)], 2, lambda s, p, _: record(s, p))
    assert f"alpha = {ALPHA:g}" in flops_table(cells, Prices(cells)).note
    assert config(16).proposers[BASE].candidates == 1

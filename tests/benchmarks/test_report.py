"""The report: JSON brings everything back, and the page shows every ratio."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.members import MEMBERS
from benchmarks.ratios import Goal, Ratio, Side, Size
from benchmarks.report import Outcome, Report, embedded, figure, main, markdown, read, write

WORDS = st.text("abcdefghij ,.", min_size=1, max_size=12).map(str.strip).filter(bool)
NUMBERS = st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), min_size=1, max_size=4)
GOALS = st.none() | st.builds(
    Goal, st.sampled_from(["at least", "at most", "exactly"]), st.floats(0.01, 1e3)
)


@st.composite
def ratios(draw: st.DrawFn) -> Ratio:
    above, below = zip(*draw(NUMBERS), strict=True)
    clock = draw(st.sampled_from(["cpu", "wall", "none"]))
    names = [draw(WORDS) for _ in range(7)]
    return Ratio(names[0], Side(names[1], above), Side(names[2], below), names[3], clock,
                 names[4], names[5], draw(GOALS), names[6])  # fmt: skip


OUTCOMES = st.builds(
    Outcome,
    st.sampled_from(sorted(MEMBERS)),
    st.sampled_from(["done", "failed", "timed out", "interrupted", "not run"]),
    WORDS,
    WORDS,
    st.floats(0, 1e4),
    st.floats(0, 1e4),
    st.dictionaries(WORDS, st.none() | WORDS, max_size=3),
    st.lists(ratios(), max_size=3).map(tuple),
)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    report = Report(draw(st.sampled_from(Size)), {"cores": 2}, draw(st.integers(1, 8)))
    for outcome in draw(st.lists(OUTCOMES, max_size=5)):
        report = report.with_outcome(outcome)
    return report


@given(reports())
def test_json_brings_everything_back(report: Report) -> None:
    text = json.dumps(report.as_dict(), allow_nan=False)
    assert Report.from_dict(json.loads(text)) == report


@given(reports(), OUTCOMES)
def test_a_new_outcome_takes_the_place_of_the_old_one(report: Report, outcome: Outcome) -> None:
    after = report.with_outcome(outcome)
    assert after[outcome.name] == outcome
    names = [o.name for o in after.outcomes]
    assert names == [name for name in MEMBERS if name in names]
    assert {o for o in names if o != outcome.name} == {
        o.name for o in report.outcomes if o.name != outcome.name
    }


@given(reports())
def test_the_page_shows_every_ratio_and_what_is_missing(report: Report) -> None:
    page = markdown(report).splitlines()
    rows = [line for line in page if line.startswith("| ") and "benchmark | ratio" not in line]
    shown = [ratio for o in report.outcomes for ratio in o.ratios]
    assert len(rows) == len(shown)
    assert all(row.count("|") == rows[0].count("|") for row in rows)
    for row, ratio in zip(rows, shown, strict=True):
        assert f"**{figure(ratio.value)}**" in row
        assert ("reached" in row or "missed" in row) == (ratio.goal is not None)
    told = [
        line for line in page if re.match(r"- \w+: (failed|timed out|interrupted|not run)", line)
    ]
    assert len(told) >= sum(o.status != "done" for o in report.outcomes)


@given(st.floats(1e-4, 1e7))
def test_figures_are_within_one_in_a_hundred(number: float) -> None:
    assert abs(float(figure(number)) - number) <= 0.0051 * number
    assert "e" not in figure(number)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    report = Report(Size.QUICK, {"cores": 2}, 1).with_outcome(Outcome("forks", "failed", "why"))
    assert read(tmp_path / "new") is None
    write(report, tmp_path / "new")
    assert read(tmp_path / "new") == report
    assert {f.name for f in (tmp_path / "new").iterdir()} == {"report.json", "report.md"}


BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


@given(reports(), reports())
def test_in_a_page_a_report_takes_the_place_of_the_old_one(old: Report, new: Report) -> None:
    page = f"# P\n\nbefore\n{BEGIN}\n{END}\nafter\n"
    once = embedded(new, page)
    assert embedded(new, embedded(old, page)) == once
    assert embedded(new, once) == once
    before, _, rest = once.partition(BEGIN)
    inside, _, after = rest.partition(END)
    assert (before, after) == ("# P\n\nbefore\n", "\nafter\n")
    shown = [ratio for o in new.outcomes for ratio in o.ratios]
    assert all(f"**{figure(ratio.value)}**" in inside for ratio in shown)
    assert not [line for line in inside.splitlines() if line.startswith(("# ", "## "))]


@pytest.mark.parametrize("page", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_its_two_marks_stays_as_it_is(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.md"
    file.write_text(page)
    write(Report(Size.FULL, {}, 1), tmp_path)
    assert main([str(tmp_path), str(file)]) != 0
    assert "RunError" in capsys.readouterr().err
    assert file.read_text() == page
    assert main([str(tmp_path / "nothing"), str(file)]) != 0
    assert "make bench" in capsys.readouterr().err

"""Reports: files that are there, agree, and come out the same every time; for any part of a run."""

from __future__ import annotations

import csv
import json
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from kvrescue.cli.bench_report import report
from kvrescue.errors import RunError, UnknownNameError
from kvrescue.evaluation.problems import Problem
from kvrescue.evaluation.runs.folder import Run, RunWriter
from kvrescue.evaluation.runs.record import Failure, Record
from kvrescue.evaluation.runs.settings import Setting
from kvrescue.evaluation.tables.cells import Cells
from kvrescue.evaluation.tables.exits import exit_table
from kvrescue.evaluation.tables.report import ReportFiles, tables_of, write_report
from kvrescue.evaluation.tables.signals import signals_of
from kvrescue.evaluation.tables.table import as_csv, as_data, as_markdown
from kvrescue.events import CandidateFinished, Event
from kvrescue.types import Candidate, Degradation, StopReason, Verdict
from tests.evaluation.runs_parts import grid, problem_set, record, run, setting, use, without

LABELS = {
    "figure_1a": ["KV budget B (entries)", "Problems (%)"],
    "figure_1b": ["Candidates N of each proposer", "Accuracy (%)"],
    "figure_3": ["Largest mean entropy over 4 tokens (nats)", "Candidates (%)"],
    "figure_5": ["KV budget B (entries)", "Accuracy (%)"],
    "figure_6": ["KV budget B (entries)", "Committed steps (%)"],
}
PROBLEMS = 6
SETTINGS = [
    *grid(ns=(1, 2), seeds=(0, 1)),
    *(setting(method, 16, 4) for method in ("best_of_n", "helper")),
]


def fill(of: Setting, problem: Problem, place: int) -> Record:
    """Something of everything."""
    right = place < {"full_kv": 6, "kv_rescue": 5, "interleaved": 4, "helper": 3}.get(of.method, 1)
    lost = (Degradation("scorer", "gone"),) if place == 5 and of.n == 2 else ()
    verdicts = {"exact": right, "math": None if place == 4 else right or place == 3}
    sources = tuple(name for name in of.config.proposers for _ in range(2))
    uses = {name: use(50 * of.n + place, aborted=1) for name in of.config.proposers}
    return record(of, problem, right, degradations=lost, rules=verdicts, sources=sources, uses=uses)


def trace(of: Setting) -> list[Event]:
    (name, *_) = of.config.proposers
    texts = ("ab" * 40, "0 + 4 = 4. and so on with many more different characters, 1239!", "x")
    return [
        CandidateFinished(
            "p0",
            0,
            0,
            Candidate(name, i, text, (1,) * 8, StopReason.EOS, entropies=(0.5 + i,) * 8),
        )
        for i, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run on disk, with traces of its first problem."""
    path = tmp_path_factory.mktemp("run") / "run"
    problems = problem_set(PROBLEMS)
    with RunWriter(path, problems, SETTINGS, "made", {"versions": {"kvrescue": "0"}}) as writer:
        for of in SETTINGS:
            for place, problem in enumerate(problems):
                traced = place == 0 and of.seed == 0 and of.method != "kv_rescue"
                writer.write(fill(of, problem, place), trace(of) if traced else ())
    return path


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportFiles:
    return write_report(Run.read(folder), tmp_path_factory.mktemp("report"))


class TestFiles:
    def test_pictures(self, written: ReportFiles) -> None:
        names = {file.name for file in written.figures}
        assert names == {f"{name}.{form}" for name in LABELS for form in ("png", "svg")}
        for file in written.figures:
            if file.suffix == ".png":
                with Image.open(file) as picture:
                    picture.verify()
                    assert min(picture.size) > 500
            else:
                text = file.read_text(encoding="utf-8")
                assert ElementTree.fromstring(text).tag.endswith("svg")
                for label in LABELS[file.stem]:
                    assert label in text

    def test_written_twice_they_are_the_same_bytes(
        self, folder: Path, written: ReportFiles, tmp_path: Path
    ) -> None:
        again = write_report(Run.read(folder), tmp_path)
        for one, two in zip(all_files(written), all_files(again), strict=True):
            assert one.name == two.name
            assert one.read_bytes() == two.read_bytes(), one.name

    def test_csv_json_and_markdown_hold_the_same_tables(
        self, folder: Path, written: ReportFiles
    ) -> None:
        data = json.loads(written.data.read_text(encoding="utf-8"))
        text = written.report.read_text(encoding="utf-8")
        cells = Cells.of(Run.read(folder))
        tables = tables_of(cells, signals_of(cells))
        assert [file.stem for file in written.tables] == list(data["tables"]) == list(tables)
        for file in written.tables:
            table = tables[file.stem]
            assert file.read_bytes().decode() == as_csv(table)
            assert data["tables"][file.stem] == json.loads(json.dumps(as_data(table)))
            with file.open(encoding="utf-8", newline="") as lines:
                assert len(list(csv.DictReader(lines))) == len(table.rows)
            if table.name not in ("disagreements", "failures"):
                assert as_markdown(table) in text

    def test_every_picture_is_embedded_where_it_lies(self, written: ReportFiles) -> None:
        text = written.report.read_text(encoding="utf-8")
        embedded = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
        assert {Path(path).stem for path in embedded} == set(LABELS)
        for path in embedded:
            assert (written.report.parent / path).is_file()

    def test_nothing_in_it_names_a_place_on_this_machine(
        self, folder: Path, written: ReportFiles
    ) -> None:
        for file in all_files(written):
            if file.suffix != ".png":
                text = file.read_text(encoding="utf-8")
                assert str(folder) not in text
                assert str(Path.home()) not in text

    def test_rows_are_accounted_for(self, written: ReportFiles) -> None:
        rows = json.loads(written.data.read_text(encoding="utf-8"))["run"]["rows"]
        assert rows["planned"] == rows["done"] == len(SETTINGS) * PROBLEMS
        assert (rows["failed"], rows["missing"]) == (0, 0)
        assert rows["degraded"] == sum(of.n == 2 for of in SETTINGS)


def all_files(files: ReportFiles) -> list[Path]:
    return [files.report, files.data, *files.tables, *files.figures]


WHOLE = run(SETTINGS, PROBLEMS, fill)


@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_tables_of_any_part_of_a_run(data: st.DataObject) -> None:
    part = some_of(data)
    cells = Cells.of(part)
    for table in tables_of(cells, signals_of(cells)).values():
        json.dumps(as_data(table), allow_nan=False)
        as_csv(table)
        as_markdown(table)


@settings(max_examples=2, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_reports_of_any_part_of_a_run(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as where:
        write_report(some_of(data), where)


def some_of(data: st.DataObject) -> Run:
    """The records of some settings and problems; some of them failures."""
    settings = data.draw(st.sets(st.sampled_from(sorted(WHOLE.settings))))
    keys = sorted(key for key in WHOLE.records if key[0] in settings)
    kept = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    failed = data.draw(st.booleans())
    part = without(WHOLE, lambda made: (made.setting, made.problem) in kept)
    if failed and kept:
        key = min(kept)
        old = part.records[key]
        broken = Record(
            old.setting, old.problem, old.digest, old.gold, failure=Failure("PolicyError", "x")
        )
        part = replace(part, records={**part.records, key: broken})
    return part


class TestSignals:
    def test_sources_and_thresholds(self, folder: Path) -> None:
        found = signals_of(Cells.of(Run.read(folder)))
        assert found is not None
        assert found.entropy is not None
        assert found.gzip is not None
        labels = [source.label for source in found.sources]
        assert labels == ["evicted base, B = 16", "evicted base, B = 64", "full-KV", "helper"]
        # Traces of N = 1 and N = 2, and of N = 4 at the smaller budget, three candidates each.
        assert [len(source.entropies) for source in found.sources] == [9, 6, 6, 9]
        for source in found.sources:
            # Eight tokens give a mean from the seventh on; one character gives no window.
            assert set(source.entropies) == {0.5, 1.5, 2.5}
            assert source.ratios.count(None) == len(source.ratios) // 3

    def test_damaged_traces_are_left_out_and_named(self, tmp_path: Path) -> None:
        copy, problems = tmp_path / "run", problem_set(PROBLEMS)
        few = [of for of in SETTINGS if of.n == 1 and of.seed == 0]
        with RunWriter(copy, problems, few, "made", {}) as writer:
            for of in few:
                for place, problem in enumerate(problems):
                    traced = place == 0 and of.method != "kv_rescue"
                    writer.write(fill(of, problem, place), trace(of) if traced else ())
        whole = signals_of(Cells.of(Run.read(copy)))
        assert whole is not None
        traces = sorted((copy / "traces").rglob("*.gz"))
        for count, file in enumerate(traces, 1):
            content = file.read_bytes()
            file.write_bytes(content[: len(content) // 2])
            if count < len(traces) - 1:
                continue
            files = write_report(Run.read(copy), tmp_path / "report")
            damaged = {str(path.relative_to(copy)) for path in traces[:count]}
            assert set(files.damaged) == damaged
            note = json.loads(files.data.read_text())["tables"]["signals"]["note"]
            assert all(name in note for name in damaged)
            assert ("figure_3" in {f.stem for f in files.figures}) == (count < len(traces))

    def test_exits_are_counted_by_detector(self, tmp_path: Path) -> None:
        of, problems = setting("kv_rescue", 16, 2), problem_set(2)
        ends = [Verdict("ngram", "loop", tokens, 3.0, 2.0) for tokens in (5, 9, 30)]
        drawn: list[Event] = [
            CandidateFinished("p0", 0, 0, Candidate(name, i, "x", (1,), stop, verdict=verdict))
            for name, i, stop, verdict in (
                ("base", 0, StopReason.EOS, None),
                *(("base", i, StopReason.ABORTED, end) for i, end in enumerate(ends, 1)),
                ("helper", 0, StopReason.ABORTED, ends[0]),
            )
        ]
        with RunWriter(tmp_path, problems, [of], "made", {}) as writer:
            for problem in problems:
                writer.write(fill(of, problem, 0), drawn)
        kinds = [part.kind for part in of.config.proposers["base"].detectors]
        rows = {row[2]: row for row in exit_table(Cells.of(Run.read(tmp_path))).rows}
        assert list(rows) == kinds
        assert rows["ngram"] == (16, 2, "ngram", 8, 6, 0.75, 9)
        for kind in kinds:
            if kind != "ngram":
                assert rows[kind] == (16, 2, kind, 8, 0, 0.0, None)

    def test_without_traces_there_is_no_figure(self, tmp_path: Path) -> None:
        settings = [of for of in SETTINGS if of.n == 1 and of.seed == 0]
        files = write_report(run(settings, 3, fill), tmp_path)
        assert "figure_5" in {file.stem for file in files.figures}
        assert "figure_3" not in {file.stem for file in files.figures}


class TestCommand:
    @pytest.fixture(name="folder")
    def small(self, tmp_path: Path) -> Path:
        """A run of one setting."""
        of, problems = setting("best_of_n", 16, 1), problem_set(2)
        with RunWriter(tmp_path / "run", problems, [of], "made", {}) as writer:
            for place, problem in enumerate(problems):
                writer.write(fill(of, problem, place))
        return tmp_path / "run"

    @pytest.fixture
    def app(self) -> typer.Typer:
        made = typer.Typer()
        made.command()(report)
        return made

    def test_shows_the_shape_and_says_where(self, app: typer.Typer, folder: Path) -> None:
        result = CliRunner().invoke(app, [str(folder)])
        assert result.exit_code == 0
        assert "The paper's shape" in result.stdout
        assert str(folder / "report" / "report.md") in result.stdout
        assert (folder / "report" / "report.md").is_file()

    def test_json_is_the_reports_data(self, app: typer.Typer, folder: Path, tmp_path: Path) -> None:
        result = CliRunner().invoke(app, [str(folder), "--out", str(tmp_path), "--json"])
        assert json.loads(result.stdout) == json.loads(
            (tmp_path / "report.json").read_text(encoding="utf-8")
        )

    def test_another_composition_is_shown_when_it_is_named(
        self, app: typer.Typer, folder: Path
    ) -> None:
        other = setting("best_of_n", 16, 1, 0, ("sampling.temperature=0.5",))
        with RunWriter(folder, problem_set(2), [other], "cold", {}) as writer:
            writer.write(fill(other, problem_set(2)[0], 0))
        told = [
            json.loads(CliRunner().invoke(app, [str(folder), *more, "--json"]).stdout)["run"]
            for more in ([], ["--composition", "made"])
        ]
        assert [run["composition"] for run in told] == ["cold", "made"]
        assert [run["rows"]["done"] for run in told] == [1, 2]
        assert list(told[0]["other_compositions"]) == ["made"]
        text = (folder / "report" / "report.md").read_text()
        assert "left out: `cold` (settings: 1)" in text
        result = CliRunner().invoke(app, [str(folder), "--composition", "mode"])
        assert isinstance(result.exception, UnknownNameError)

    def test_damaged_traces_do_not_end_it(self, app: typer.Typer, tmp_path: Path) -> None:
        of, problems = setting("kv_rescue", 16, 1), problem_set(1)
        evicted = setting("best_of_n", 16, 1)
        with RunWriter(tmp_path, problems, [of, evicted], "made", {}) as writer:
            writer.write(fill(of, problems[0], 0))
            writer.write(fill(evicted, problems[0], 0), trace(evicted))
        (file,) = tmp_path.rglob("*.gz")
        file.write_bytes(b"no trace")
        result = CliRunner().invoke(app, [str(tmp_path)])
        assert result.exit_code == 0
        assert f"the trace {str(file)!r} is damaged and left out; delete it" in result.stderr

    def test_a_folder_without_a_run(self, app: typer.Typer, tmp_path: Path) -> None:
        result = CliRunner().invoke(app, [str(tmp_path)])
        assert isinstance(result.exception, RunError)

    def test_a_place_that_cannot_be_written(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(RunError, match="cannot be written"):
            write_report(Run.read(folder), tmp_path / "file")

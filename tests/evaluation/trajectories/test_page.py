"""The page as a file: nothing in the data becomes markup, and nothing is asked of the outside."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvrescue.cli.bench_trajectories import trajectories as command
from kvrescue.cli.failures import CommandGroup
from kvrescue.errors import ConfigError
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.trajectories.data import Report, collect
from kvrescue.evaluation.trajectories.page import SCRIPTS, embedded, render, script, write_page
from kvrescue.events import TraceWriter, as_dict
from kvrescue.types import Question
from tests.evaluation.trajectories.made import (
    HOSTILE,
    Drawn,
    problems_of,
    settings_of,
    told,
    write_run,
)

ASSETS = resources.files("kvrescue.evaluation.trajectories") / "static"


class Scripts(HTMLParser):
    """The elements of a page that hold scripts or styles, and what addresses others have."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[str] = []
        self.addresses: list[str | None] = []
        self.policy = ""
        self._open: dict[str, str | None] | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        named = dict(attrs)
        self.addresses += [named[name] for name in ("src", "href", "srcset") if name in named]
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"] or ""
        if tag in ("script", "style"):
            self._open = {"tag": tag, **named}
            self.found.append((self._open, ""))

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            attributes, text = self.found.pop()
            self.found.append((attributes, text + data))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._open = None

    def data(self, name: str) -> Any:
        """What the script of the page reads from a block."""
        ((attributes, text),) = [item for item in self.found if item[0].get("id") == name]
        if attributes["type"] == "application/gzip":
            text = gzip.decompress(base64.b64decode(text)).decode()
        return json.loads(text)


values = st.recursive(
    st.text(st.characters(exclude_categories=()), max_size=20)
    | st.sampled_from(HOSTILE)
    | st.integers()
    | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(values)
@example("</script><script>alert(1)</script><!--")
@example(["x" * 9000, "</script>"])
def test_data_comes_back_as_it_was_and_ends_nothing(value: Any) -> None:
    page = Scripts(f"<p>{embedded('index', value)}</p>")
    assert page.tags == ["p", "script"]
    assert page.data("index") == value
    # Also nothing that parsers take for a comment or another script within a script.
    assert re.fullmatch(r"<script [^>]*>[ -%'-;=?-~]*</script>", embedded("index", value))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Every text of a run is hostile, those of problems included."""
    problems = problems_of(
        {f"{place}{text[:60]}": (f"{place}{text}", text) for place, text in enumerate(HOSTILE)}
    )
    pool = [Drawn("helper", text[:9000], 0.1 * place) for place, text in enumerate(HOSTILE)]
    events = {
        ("kv_rescue", problem.id): told(
            Question(problem.question, problem.id), [pool], answer=problem.answer
        )
        for problem in problems
    }
    path = tmp_path_factory.mktemp("hostile") / "a & <b>"
    return collect([Run.read(write_run(path, problems, settings_of(), events))])  # type: ignore[arg-type]


def test_hostile_texts_make_no_elements(hostile: Report) -> None:
    page = Scripts(render(hostile))
    blocks = 1 + len(hostile.chunks)
    assert [attributes["tag"] for attributes, _ in page.found] == [
        "style",
        *["script"] * blocks,
        "script",
    ]
    template = Scripts((ASSETS / "page.html").read_text())
    assert [tag for tag in page.tags if tag != "script"] == [
        tag for tag in template.tags if tag != "script"
    ]
    assert page.data("index") == hostile.index
    for place, chunk in enumerate(hostile.chunks):
        # JSON knows names of fields as texts only.
        assert page.data(f"chunk-{place}") == json.loads(json.dumps(chunk))


def test_nothing_is_asked_of_the_outside(hostile: Report) -> None:
    page = Scripts(render(hostile))
    assert set(page.addresses) <= {"#", "data:,"}
    style, program = page.found[0][1], page.found[-1][1]
    assert "url(" not in style
    assert "@import" not in style
    assert re.findall(r"\w+://[^\"'` ]*", program) == ["http://www.w3.org/2000/svg"]
    for word in ("fetch(", "XMLHttpRequest", "WebSocket", "import(", "innerHTML", "outerHTML"):
        assert word not in program
    for word in ("insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in program


def test_only_the_pages_own_script_may_run(hostile: Report) -> None:
    page = Scripts(render(hostile))
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules["default-src"] == "'none'"
    for kind, (_, text) in (("style-src", page.found[0]), ("script-src", page.found[-1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[kind] == f"'sha256-{digest}'"


def test_a_page_is_the_same_each_time(hostile: Report) -> None:
    assert render(hostile) == render(hostile)


class TestModules:
    def test_every_file_is_part_of_the_page(self) -> None:
        names = {file.name.removesuffix(".js") for file in ASSETS.iterdir() if "js" in file.name}
        assert names == set(SCRIPTS)

    def test_imports_are_exported_by_modules_before(self) -> None:
        exported: dict[str, set[str]] = {}
        for name in SCRIPTS:
            text = (ASSETS / f"{name}.js").read_text()
            imports = re.findall(r"^import \{([^}]*)\} from \"\./(\w+)\.js\";$", text, re.MULTILINE)
            assert len(imports) == len(re.findall(r"\bimport\b.*from", text))
            for names, module in imports:
                wanted = {part.strip() for part in names.split(",") if part.strip()}
                assert wanted <= exported[module], (name, module)
            exported[name] = set(
                re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", text, re.MULTILINE)
            )
            assert len(exported[name]) == len(re.findall(r"^export\b", text, re.MULTILINE))

    def test_nothing_of_modules_is_left(self) -> None:
        assert not re.search(r"^\s*(import|export)\b", script(), re.MULTILINE)
        assert "</script" not in script()
        assert "<!--" not in script()


class TestCommand:
    def run(self, *arguments: str) -> Any:
        app = typer.Typer(cls=CommandGroup)
        app.callback()(lambda: None)
        app.command()(command)
        return CliRunner().invoke(app, ["trajectories", *arguments])

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        problems = problems_of({"one": ("1 + 1?", "2")})
        events = told(Question("1 + 1?", "one"), [[Drawn("base", "a\n\n", 0.5)]], answer="2")
        found = {("kv_rescue", "one"): events, ("best_of_n", "one"): events}
        return write_run(tmp_path / "run", problems, settings_of(), found)  # type: ignore[arg-type]

    def test_one_run_two_runs_and_traces(self, folder: Path, tmp_path: Path) -> None:
        trace, out = tmp_path / "t.jsonl", tmp_path / "page.html"
        with TraceWriter(trace) as writer:
            for event in told(Question("1 + 1?"), [[Drawn("base", "a\n\n", 0.5)]]):
                writer(event)
        for sources, settings in (
            ([str(folder)], 2),
            ([str(folder), str(folder)], 4),
            (["--trace", str(trace)], 1),
            ([str(folder), "--trace", str(trace), "--trace", str(trace)], 4),
        ):
            ran = self.run(*sources, "--out", str(out), "--json")
            assert ran.exit_code == 0, ran.output
            assert json.loads(ran.stdout) == {
                "path": str(out),
                "bytes": out.stat().st_size,
                "problems": 1,
                "settings": settings,
                "trajectories": settings,
                "traced": settings,
                "damaged": [],
            }
            assert len(Scripts(out.read_text()).data("index")["settings"]) == settings

    def test_a_damaged_trace_of_a_run_is_left_out_and_named(
        self, folder: Path, tmp_path: Path
    ) -> None:
        mixed = gzip.compress(
            b"".join(
                json.dumps(as_dict(event)).encode() + b"\n"
                for event in told(Question("1 + 1?", "one"), [[Drawn("base", "a", 0.5)]] * 2)[2:]
            )
        )
        first, second = sorted(folder.rglob("*.gz"))
        for content in (b"", b"no trace", first.read_bytes()[:-9], mixed):
            first.write_bytes(content)
            ran = self.run(str(folder), "--out", str(tmp_path / "page.html"), "--json")
            assert ran.exit_code == 0, ran.output
            found = json.loads(ran.stdout)
            counts = (found["damaged"], found["trajectories"], found["traced"])
            assert counts == ([str(first)], 2, 1)
            assert f"the trace {str(first)!r} is damaged" in ran.stderr
        second.write_bytes(b"{")
        ran = self.run("--trace", str(second), "--out", str(tmp_path / "page.html"))
        assert ran.exit_code == 0  # one line, torn: nothing is left of it

    def test_in_words(self, folder: Path, tmp_path: Path) -> None:
        out = tmp_path / "[bold]page.html"
        ran = self.run(str(folder), "--out", str(out))
        assert ran.stdout == (
            f"{out}: 1 problem, 2 settings, 2 trajectories, 2 of them with their steps\n"
        )

    def test_where_it_goes_unless_told(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trace = tmp_path / "t.jsonl"
        TraceWriter(trace).close()
        monkeypatch.chdir(tmp_path)
        assert self.run(str(folder)).exit_code == 0
        assert self.run("--trace", str(trace)).exit_code == 0
        assert "trajectories.html" in {path.name for path in folder.iterdir()}
        assert Scripts((tmp_path / "trajectories.html").read_text()).data("index")["problems"] == []

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            ([], 3, "name the folder of a run, or a trace with --trace"),
            (["missing"], 14, "'missing' holds no run"),
            (["--trace", "missing.jsonl"], 14, "'missing.jsonl' cannot be read"),
        ],
    )
    def test_what_is_not_there(self, arguments: list[str], code: int, message: str) -> None:
        ran = self.run(*arguments)
        assert ran.exit_code == code
        assert message in ran.stderr

    def test_a_page_that_cannot_be_written(self, folder: Path, tmp_path: Path) -> None:
        for out in (tmp_path, tmp_path / "missing" / "page.html"):
            ran = self.run(str(folder), "--out", str(out))
            assert ran.exit_code == ConfigError.exit_code
            assert "cannot be written" in ran.stderr
        assert sorted(file.name for file in tmp_path.iterdir()) == ["run"]


def test_an_old_page_stays_when_writing_fails(
    hostile: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match="No space left on device; choose another path"):
        write_page(hostile, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]

"""The observers of examples/, on the tiny trio and through the command line."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import kept_tokens
from kvrescue.evaluation.bill import bills
from kvrescue.events import solution_from_dict
from kvrescue.types import Solution
from tests.cli.run import Ran

QUESTION = bills("test", seed=0, count=1)[0].question
Load = Callable[[str], list[str]]


def solve(options: list[str], *more: str) -> Solution:
    ran = Ran("solve", QUESTION, "--set", "limits.max_steps=3", "--json", *options, *more)
    assert ran.code == 0, ran.stderr
    return solution_from_dict(ran.json)


def test_the_log_tells_the_run(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    monkeypatch.setenv("KVRESCUE_LOG", str(log))
    solution = solve(load("jsonl_logger"))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(line["question"], line["seed"]) for line in lines} == {(solution.question.id, 0)}
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    kinds = [line["event"] for line in lines]
    assert (kinds[0], kinds[-1]) == ("started", "finished")
    assert kinds.count("candidate") == sum(use.candidates for use in solution.tokens.values())
    steps = [line for line in lines if line["event"] == "step"]
    assert [(line["step"], line["by"], line["score"]) for line in steps] == [
        (step.number, step.candidate.policy, step.score) for step in solution.steps
    ]
    assert lines[-1]["stop"] == "steps"
    fired = sum(line["fired"] for line in lines if line["event"] == "evictions")
    assert fired >= solution.caches["base"].evictions > 0  # those of lost candidates, too


def test_the_picture_shows_what_is_held(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVRESCUE_KEPT", str(tmp_path / "kept"))
    solution = solve(load("kept_tokens"))
    [path] = (tmp_path / "kept").iterdir()
    assert path.name == f"{solution.question.id}-0.html"
    page = path.read_text()
    assert QUESTION in unescape(page)
    assert "<h2>base</h2>" in page
    assert "<h2>helper</h2>" not in page
    labels = re.findall(r"<figcaption><b>(.*?)</b><span>(.*?)</span>", page)
    assert labels[0] == ("prompt", "")
    assert [unescape(said) for _, said in labels[1:]] == [
        f"{step.candidate.policy}: {step.text.strip()}" for step in solution.steps[:-1]
    ]
    held = solution.caches["base"].physical_length
    heads = re.findall(r"<g><title>.*?</title>(.*?)</g>", page)
    assert len(heads) == 3 * 2 * len(labels)  # layers and KV heads of tiny/base
    for head in heads:
        widths = re.findall(r'width="(\d+)"', head)
        assert sum(map(int, widths)) == held


def test_a_run_without_evictions_says_so(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVRESCUE_KEPT", str(tmp_path))
    solve(load("kept_tokens"), "--set", "proposers.base.policy.evictor=null")
    [path] = tmp_path.iterdir()
    assert "No eviction was told" in path.read_text()


@given(st.sets(st.integers(0, 40), max_size=20), st.sets(st.integers(1, 40), min_size=1))
def test_runs_are_the_kept_positions(kept: set[int], borders: set[int]) -> None:
    ends = sorted(borders)
    found = list(kept_tokens.runs(sorted(kept), ends))
    assert [p for _, start, stop in found for p in range(start, stop)] == sorted(kept)
    for part, start, stop in found:
        assert start < stop
        assert all(part == sum(end <= p for end in ends) for p in range(start, stop))
    for (part, _, stop), (next_part, start, _) in itertools.pairwise(found):
        assert (part, stop) != (next_part, start)  # as few as can be

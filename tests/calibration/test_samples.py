"""Samples of runs on disk: what is read, what is left out, what may not be pooled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvrescue.calibration import read_samples, recorded_config
from kvrescue.calibration.samples import is_cut, is_loop
from kvrescue.config import load_config
from kvrescue.detectors import EntropyDetector
from kvrescue.errors import CalibrationError
from kvrescue.evaluation.runs.folder import Run
from kvrescue.evaluation.tables.cells import Cells
from kvrescue.types import Candidate, StopReason, Verdict
from tests.calibration.parts import Rounds, candidate, setting, write_run

ENTROPY = EntropyDetector(guard=0, window=2, threshold=2.5)
BASE = candidate("base", [1.0, 2.0])
RIGHT: tuple[bool, Rounds] = (True, [[BASE]])


def read(*runs: Run) -> Any:
    detectors = "proposers.base.detectors=[{kind: entropy, guard: 0, window: 2, threshold: 2.5}]"
    return read_samples(runs, load_config("tiny", [detectors]))


def test_who_is_a_sample_and_what_is_known_of_it(tmp_path: Path) -> None:
    helper = candidate("helper", [0.5, 0.5])
    loser = candidate("base", [3.0, 3.0], StopReason.LENGTH)
    run = write_run(
        tmp_path / "run",
        [setting(name) for name in ("full_kv", "helper", "best_of_n", "interleaved", "kv_rescue")],
        {
            "full_kv": [(True, [[BASE], [candidate("base", [0.1], StopReason.EOS)]])],
            "helper": [(False, [[helper]])],
            "best_of_n": [(False, [[loser]])],
            "interleaved": [(True, [[BASE, helper], [helper, loser]])],
            "kv_rescue": [(True, [[BASE, helper]])],
        },
    )
    found = read(run)
    assert found.trajectories == 4
    assert found.screened == 1
    assert found.facts["tokenizer"] == "tok"
    assert found.facts["base.model"] == "tiny/base"
    assert "budget" not in found.facts["evictor"]
    assert found.facts["evictor"]["window"] == 12
    told = [
        (s.group, s.budget, s.values[0], s.committed, s.right, s.whole, s.cut) for s in found.found
    ]
    assert sorted(told, key=str) == sorted(
        [
            ("full-KV", None, 1.5, True, True, True, False),
            ("full-KV", None, None, True, True, True, False),
            ("helper", None, 0.5, True, False, True, False),
            ("evicted", 16, 3.0, True, False, False, False),  # 2 tokens of 24: no room, not cut
            ("evicted", 16, 1.5, True, True, True, False),
            ("evicted", 16, 3.0, False, True, False, False),
        ],
        key=str,
    )
    assert recorded_config([run]).proposers["base"].detectors[0] == ENTROPY


def test_failed_degraded_and_damaged_trajectories_are_left_out(tmp_path: Path) -> None:
    settings = [setting("best_of_n")]
    run = write_run(tmp_path / "run", settings, {"best_of_n": [RIGHT, RIGHT, RIGHT]})
    file = run.path / run.trace_file(settings[0].key, "p1")
    file.write_bytes(file.read_bytes()[:-9])
    found = read(run)
    assert len(found.found) == 2
    assert found.damaged == [str(Path("run") / run.trace_file(settings[0].key, "p1"))]
    from kvrescue.types import Degradation

    broken = write_run(
        tmp_path / "broken",
        settings,
        {"best_of_n": [RIGHT]},
        degradations=(Degradation("scorer", "gone"),),
    )
    with pytest.raises(CalibrationError, match="no traced candidate of the evicted base"):
        read(broken)


def test_one_problem_of_two_runs_is_one_cluster(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, [setting("best_of_n", budget)], {"best_of_n": [RIGHT] * 3})
        for name, budget in (("one", 16), ("two", 16), ("three", 64))
    ]
    found = read(*runs)
    assert found.runs == ("one", "two", "three")
    assert len(found.found) == 9
    assert len({s.problem for s in found.found}) == 3
    assert found.budgets == [16, 64]


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("proposers.base.policy.model=tiny/helper", "base.model"),
        ("proposers.base.policy.system=Think.", "base.system"),
        ("proposers.base.policy.evictor.window=13", "evictor"),
        ("proposers.base.policy.evictor={kind: snapkv, budget: 16, window: 12}", "evictor"),
        ("sampling.temperature=0.7", "sampling"),
        ("limits.max_output_tokens=200", "limits"),
        ("proposers.helper.policy.model=tiny/base", "helper.model"),
    ],
)
def test_what_differs_is_not_pooled(tmp_path: Path, override: str, name: str) -> None:
    one = write_run(tmp_path / "one", [setting("interleaved")], {"interleaved": [RIGHT]})
    changed = setting("interleaved", overrides=[override])
    two = write_run(tmp_path / "two", [changed], {"interleaved": [RIGHT]})
    with pytest.raises(CalibrationError, match=rf"^{name} = .* in two: .*may not be pooled"):
        read(one, two)


def test_two_tokenizers_are_not_pooled(tmp_path: Path) -> None:
    other = candidate("base", [1.0, 2.0], tokenizer="another")
    fill = {"best_of_n": [RIGHT, (True, [[other]])]}
    run = write_run(tmp_path / "run", [setting("best_of_n")], fill)
    with pytest.raises(CalibrationError, match="tok and another"):
        read(run)


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        (["kv_rescue"], "all recorded candidates were screened"),
        (["full_kv", "kv_rescue"], "no traced candidate of the evicted base"),
    ],
)
def test_screened_candidates_are_no_samples(
    tmp_path: Path, methods: Sequence[Any], text: str
) -> None:
    fill = {name: [RIGHT] for name in methods}
    run = write_run(tmp_path / "run", [setting(name) for name in methods], fill)
    with pytest.raises(CalibrationError, match=text):
        read(run)


def test_a_verdict_where_no_detector_should_be_is_refused(tmp_path: Path) -> None:
    verdict = Verdict("entropy", "incoherent", 2, 3.0, 2.5)
    aborted = candidate("base", [3.0, 3.0], StopReason.ABORTED, verdict=verdict)
    fill = {"best_of_n": [(True, [[aborted]])]}
    run = write_run(tmp_path / "run", [setting("best_of_n")], fill)
    with pytest.raises(CalibrationError, match="was aborted by 'entropy'"):
        read(run)


def test_runs_without_kv_rescue_or_thresholds(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [setting("best_of_n")], {"best_of_n": [RIGHT]})
    with pytest.raises(CalibrationError, match="name a configuration"):
        recorded_config([run])
    with pytest.raises(CalibrationError, match="nothing to calibrate"):
        read_samples([run], load_config("tiny", ["proposers.base.detectors=[]"]))
    with pytest.raises(CalibrationError, match="base is 'tiny/helper', that of the runs"):
        read_samples([run], load_config("tiny", ["proposers.base.policy.model=tiny/helper"]))


# -- definitions ------------------------------------------------------------------------------


def drawn(ids: Sequence[int], stop: StopReason = StopReason.LENGTH) -> Candidate:
    return Candidate("base", 0, "x", tuple(ids), stop)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=7),
    st.integers(0, 30),
    st.permutations(range(10, 40)),
)
def test_long_enough_loops_are_loops_and_new_text_is_not(
    pattern: list[int], head: int, fresh: list[int]
) -> None:
    looped = fresh[:head] + pattern * (2 * (head + 20))
    assert is_loop(drawn(looped))
    assert not is_loop(drawn(fresh))
    assert not is_loop(drawn(pattern * (15 // len(pattern))))  # too short to say


@given(st.sampled_from(StopReason), st.integers(1, 30))
def test_only_limits_cut_and_only_with_room(stop: StopReason, tokens: int) -> None:
    by_limit = stop in (StopReason.LENGTH, StopReason.CONTEXT)
    assert is_cut(drawn(range(tokens), stop), 24) == (by_limit and tokens >= 12)


def test_a_run_from_before_an_option_was_there_is_read_whole(tmp_path: Path) -> None:
    """Its settings have the keys under which that version wrote them, and no others."""
    path = tmp_path / "run"
    of = setting("best_of_n")
    now = read(write_run(path, [of], {"best_of_n": [RIGHT] * 3})).found
    old = f"{of.key[:-4]}0000"
    for name in ("plan.json", "records.jsonl"):
        told = (path / name).read_text().replace(of.key, old)
        (path / name).write_text(told.replace('"graphs": false, ', ""))
    (path / "traces" / of.key).rename(path / "traces" / old)
    before = Run.read(path)
    assert list(before.settings) == [old] == [found.key for found in before.settings.values()]
    assert read(before).found == now != []
    rows = [cell.rows for cell in Cells.of(before)]
    assert [[row.problem for row in found] for found in rows] == [["p0", "p1", "p2"]]

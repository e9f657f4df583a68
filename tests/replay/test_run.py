"""Whole traces: the library and the command, on fakes and on the tiny trio."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvrescue import Rescue, TraceWriter, plugins
from kvrescue.errors import ConfigError, ReplayError, UnknownNameError
from kvrescue.evaluation.bill import bills
from kvrescue.evaluation.traces import read_events
from kvrescue.events import CandidateFinished, Event, TrajectoryFinished, TrajectoryStarted
from kvrescue.replay import Recording, replay
from kvrescue.replay.run import replay_config
from tests.cli.parts import CONFIG
from tests.cli.run import Ran, fails

DETECTOR = """
from kvrescue import Detector, DetectorState, Verdict, hookimpl


class Digits(Detector):
    kind = "digits"
    most: int = 1

    def start(self):
        return State(self)


class State(DetectorState):
    def __init__(self, options):
        self.options, self.text, self.read = options, "", 0

    def update(self, event):
        self.read += 1
        self.text += event.text
        count = sum(c.isdigit() for c in self.text)
        if count > self.options.most:
            return Verdict("digits", "too many", self.read, count, self.options.most)


@hookimpl
def kvrescue_register_detectors(register):
    register("digits", Digits)
"""


@pytest.fixture(autouse=True)
def _own_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_default", None)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three problems, really solved, at once and under two seeds."""
    path = tmp_path_factory.mktemp("tiny") / "run.jsonl"
    overrides = [f"proposers.{name}.candidates=2" for name in ("base", "helper")]
    questions = [problem.question for problem in bills("test", seed=5, count=3)]
    with (
        TraceWriter(path) as writer,
        Rescue.from_config(
            "tiny", [*overrides, "limits.max_output_tokens=60"], observers=[writer]
        ) as rescue,
    ):
        for seed in (0, 1):
            list(rescue.solve_many(questions, seed))
    return path


def by_trajectory(events: list[Event]) -> dict[tuple[str, int | None], list[Event]]:
    found: dict[tuple[str, int | None], list[Event]] = {}
    for event in events:
        found.setdefault((event.question_id, event.seed), []).append(event)
    return found


# -- the tiny trio ----------------------------------------------------------------------------


def test_a_replay_of_the_tiny_trio_is_the_run(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.jsonl"
    with TraceWriter(out) as writer:
        found = list(replay(tiny, observers=[writer]))
    assert [replayed.outcome for replayed in found] == ["same"] * 6
    was, now = (by_trajectory(list(read_events(path))) for path in (tiny, out))
    assert was == now
    assert any(
        event.candidate.verdict is not None
        for events in was.values()
        for event in events
        if isinstance(event, CandidateFinished)
    )
    for replayed in found:
        assert replayed.error is None
        assert replayed.recorded.finished is not None
        assert replayed.solution == replayed.recorded.finished.solution
        assert replayed.solution.caches["base"].evictions > 0


def test_a_plugin_detector_reads_real_strings(tiny: Path, tmp_path: Path) -> None:
    """Where it aborts is where it would have in the run: computed here from the text alone."""
    plugin = tmp_path / "digits.py"
    plugin.write_text(DETECTOR)
    ran = Ran(
        "replay",
        str(tiny),
        "--plugin",
        str(plugin),
        "--set",
        "proposers.base.detectors=[{kind: digits, most: 3}]",
        "--json",
    )
    assert ran.code == 0, ran.stderr
    for replayed, data in zip(Recording.read(tiny).trajectories, ran.json, strict=True):
        assert (data["question"], data["seed"]) == (replayed.question.id, replayed.seed)
        changed = {(c["draw"], c["index"]): c for c in data["verdicts"]}
        assert all(c["proposer"] == "base" for c in data["verdicts"])
        for candidate in replayed.rounds[0].candidates:
            if candidate.policy != "base":
                continue
            digits = sum(c.isdigit() for c in candidate.text)
            change = changed.get((0, candidate.index))
            if digits > 3:
                assert change is not None
                position = change["now"]["position"]
                end = candidate.char_ends[position - 1]
                assert sum(c.isdigit() for c in candidate.text[:end]) > 3
                end = candidate.char_ends[position - 2] if position > 1 else 0
                assert sum(c.isdigit() for c in candidate.text[:end]) <= 3
            elif candidate.verdict is not None:
                assert change is not None
                assert change["now"]["detector"] == "replay"
            else:
                assert change is None


def test_the_command_on_the_tiny_trio(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.jsonl"
    ran = Ran("replay", str(tiny), "--trace", str(out))
    assert ran.code == 0, ran.stderr
    assert "6 trajectories: 6 same, 0 changed, 0 diverged" in ran.stdout
    lines = [path.read_text().splitlines() for path in (tiny, out)]
    assert sorted(lines[0]) == sorted(lines[1])
    message = fails(4, "ConfigError", "replay", str(tiny), "--trace", str(tiny))
    assert "the recording itself" in message
    message = fails(
        4,
        "DetectorError",
        "replay",
        str(tiny),
        "--set",
        "proposers.base.detectors.entropy.threshold=7",
    )
    assert "ln(542)" in message or "542" in message


# -- fakes ------------------------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    config = tmp_path / "fake.yaml"
    config.write_text(CONFIG.replace("flagged: 0.4", "flagged: 0.0"))
    path = tmp_path / "run.jsonl"
    for seed in ("1", "2", "3"):
        ran = Ran("solve", "q", "--config", str(config), "--seed", seed, "--trace", str(path))
        assert ran.code == 0, ran.stderr
    return path


WHOLE = "proposers.{}.policy.verdicts=recorded"
BOTH = [option for name in ("base", "helper") for option in ("--set", WHOLE.format(name))]


def test_another_scorer_diverges_and_says_where(fake: Path, tmp_path: Path) -> None:
    ran = Ran("replay", str(fake), "--json", *BOTH)
    assert [entry["outcome"] for entry in ran.json] == ["same"] * 3
    assert {entry["diverged_at"] for entry in ran.json} == {None}
    config = tmp_path / "worst.yaml"
    config.write_text("scorer: {kind: fake, wrong: 0.5}\n")  # all alike: the first wins
    out = tmp_path / "out.jsonl"
    ran = Ran("replay", str(fake), "--config", str(config), "--json", "--trace", str(out), *BOTH)
    assert ran.code == 0, ran.stderr
    assert "diverged" in {entry["outcome"] for entry in ran.json}
    trajectories = Recording.read(fake).trajectories
    for entry, recorded in zip(ran.json, trajectories, strict=True):
        wins = [
            event.step.number
            for event in recorded.steps
            if event.step.candidate.text
            != next(c.text for c in event.step.candidates if c.text.strip() or c.stop == "eos")
        ]
        if wins:
            assert entry["outcome"] == "diverged"
            assert entry["diverged_at"] == wins[0]
            assert entry["reason"].startswith("recorded ")
        else:
            assert entry["outcome"] in ("changed", "diverged")
    shown = Ran("replay", str(fake), "--config", str(config), *BOTH).stdout
    assert "diverged at step" in shown
    assert out.exists()


def test_a_configuration_changes_parts_of_the_rules(fake: Path) -> None:
    recorded = Recording.read(fake).trajectories[0]
    config = replay_config(
        recorded,
        "t",
        {
            "proposers": {"base": {"candidates": 1, "policy": {"kind": "nobody"}}},
            "limits": {"max_steps": 2},
        },
    )
    assert config.proposers["base"].candidates == 1
    assert config.proposers["base"].detectors == (
        replay_config(recorded, "t").proposers["base"].detectors
    )
    assert config.proposers["base"].policy.kind == "replay"
    assert config.limits.max_steps == 2
    assert config.limits.max_empty_steps == replay_config(recorded, "t").limits.max_empty_steps
    with pytest.raises(UnknownNameError, match="no proposer 'bse' was recorded; did you mean"):
        replay_config(recorded, "t", {"proposers": {"bse": {"candidates": 1}}})


def test_the_recorded_rules_need_their_plugins(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_default", None)
    message = fails(4, "UnknownNameError", "replay", str(fake))
    assert "'fake'" in message


def test_a_trace_from_before_rules_needs_a_configuration(fake: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.jsonl"
    with old.open("w") as file:
        for line in fake.read_text().splitlines():
            data = json.loads(line)
            for key in ("rules", "rooms", "sources", "seed") if "rules" in data else ("seed",):
                if data["event"] != "trajectory_started" or key != "seed":
                    data.pop(key, None)
            file.write(json.dumps(data) + "\n")
    with pytest.raises(ReplayError, match="does not tell the rules"):
        list(replay(old))
    fails(16, "ReplayError", "replay", str(old))
    config = tmp_path / "fake.yaml"
    scores = ["--set", f"scorer={{kind: replay, trace: {old}}}"]
    ran = Ran("replay", str(old), "--config", str(config), *scores, "--json", *BOTH)
    assert ran.code == 0, ran.stderr
    assert {entry["diverged_at"] for entry in ran.json} == {None}


def test_the_same_trajectory_twice_in_a_file(fake: Path) -> None:
    """A file that is appended to may hold a trajectory twice, from different settings even."""
    events = list(read_events(fake))
    twice = Recording.of_events([*events, *events])
    overrides = [WHOLE.format(name) for name in ("base", "helper")]
    found = list(replay(twice, overrides=overrides))
    assert [replayed.outcome for replayed in found] == ["same"] * 6
    assert all(isinstance(replayed.events[0], TrajectoryStarted) for replayed in found)
    assert all(isinstance(replayed.events[-1], TrajectoryFinished) for replayed in found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("proposers.base.candidates=9", "were recorded, 9 are asked for"),
        ("sampling.max_step_tokens=1", "at most 1 are asked for"),
    ],
)
def test_what_no_choice_could_give_is_an_error(fake: Path, change: str, text: str) -> None:
    assert text in fails(16, "ReplayError", "replay", str(fake), "--set", change, *BOTH)


def test_an_edited_score_is_told_with_its_place(fake: Path, tmp_path: Path) -> None:
    edited = tmp_path / "edited.jsonl"
    with edited.open("w") as file:
        for line in fake.read_text().splitlines():
            data = json.loads(line)
            if data["event"] == "step_committed":
                data["step"]["scores"] = [score and 7.0 for score in data["step"]["scores"]]
            file.write(json.dumps(data) + "\n")
    message = fails(9, "ScorerError", "replay", str(edited), *BOTH)
    assert "edited.jsonl" in message
    assert "seed 1" in message
    assert "7.0 is outside [0, 1]" in message


def test_bad_files_and_options(fake: Path, tmp_path: Path) -> None:
    assert "does not exist" in fails(14, "RunError", "replay", str(tmp_path / "no.jsonl"))
    torn = tmp_path / "torn.jsonl"
    torn.write_text("{}\n" + fake.read_text())
    assert "line 1" in fails(14, "RunError", "replay", str(torn))
    torn.write_text('{"a": \n' + fake.read_text())
    message = fails(14, "RunError", "replay", str(torn))
    assert message.endswith("line 1: Expecting value at character 8")
    with pytest.raises(ConfigError, match="limits"):
        list(replay(fake, {"limits": 3}))

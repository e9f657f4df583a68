"""Whole evaluations of the tiny trio by lm_eval, on local tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from kvrescue import Rescue
from kvrescue.config import load_config
from kvrescue.errors import ConfigError
from kvrescue.evaluation.bill import bills
from kvrescue.evaluation.harness import KVRescueLM
from kvrescue.evaluation.harness.__main__ import main
from kvrescue.evaluation.methods import compose
from tests.harness.tasks import write_task

ALONE = "concurrency=1"  # nothing that is batched along moves a sum


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For tasks; data sets are cached here, too, and lm_eval looks for a git repository here."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluate(folder: Path, *tasks: str, **options: Any) -> Any:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(
        model="kvrescue", tasks=list(tasks), task_manager=manager, bootstrap_iters=0, **options
    )


@pytest.mark.parametrize(("method", "count"), [("kv_rescue", 3), ("helper", 10)])
def test_a_task_is_graded_like_the_solutions_themselves(
    folder: Path, method: Any, count: int
) -> None:
    problems = bills("test", 0, count)
    args = f"preset=tiny,method={method},n=1,seed=4,set={ALONE}"
    results = evaluate(folder, write_task(folder, problems), model_args=args)
    config = compose(load_config("tiny", [ALONE, "seed=4"]), method, 1)
    with Rescue.from_config(config) as rescue:
        texts = [rescue.solve(bill.question).text for bill in problems]
    grades = [bill.grade(text) for bill, text in zip(problems, texts, strict=True)]
    assert [sample["resps"] for sample in results["samples"]["bill"]] == [[[t]] for t in texts]
    assert results["results"]["bill"]["exact_match,boxed"] == sum(grades) / len(grades)
    assert results["config"]["kvrescue_config"] == config.model_dump(mode="json")


@pytest.fixture(scope="module")
def helper() -> Iterator[KVRescueLM]:
    """One small model, for what needs no more."""
    with KVRescueLM(preset="tiny", method="helper", n=1) as built:
        yield built


def run(lm: KVRescueLM, folder: Path, *tasks: str, **options: Any) -> Any:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(
        model=lm, tasks=list(tasks), task_manager=manager, bootstrap_iters=0, **options
    )


def test_tasks_of_several_settings_at_once(helper: KVRescueLM, folder: Path) -> None:
    """Each answer is where it belongs, of its own length, and up to its own stop string."""
    problems = bills("test", 1, 3)
    short = {"until": ["4"], "max_gen_toks": 5, "do_sample": False}
    tasks = [
        write_task(folder, problems),
        write_task(folder, problems, "short", generation_kwargs=short, repeats=2),
    ]
    samples = run(helper, folder, *tasks)["samples"]
    greedy = load_config("tiny", ["sampling.temperature=0", "limits.max_output_tokens=5"])
    with Rescue.from_config(compose(greedy, "helper", 1)) as rescue:
        for bill, long, cut in zip(problems, samples["bill"], samples["short"], strict=True):
            assert "coins" not in long["resps"][0][0]
            assert f"#1 {bill.purchases[0]} " in long["resps"][0][0]
            text = rescue.solve(bill.question).text
            assert cut["resps"] == [[text.partition("4")[0]] * 2]


def test_few_shot_examples_are_part_of_the_question(helper: KVRescueLM, folder: Path) -> None:
    problems = bills("test", 2, 3)
    name = write_task(folder, problems, fewshot_split="test", num_fewshot=1)
    results = run(helper, folder, name, limit=1)
    (sample,) = results["samples"][name]
    context = sample["arguments"][0][0]
    assert context.endswith(problems[0].question)
    assert context.count("To do for") == 2
    with Rescue.from_config(helper.config) as rescue:
        assert sample["resps"] == [[rescue.solve(context).text.partition("To do for")[0]]]


@pytest.mark.parametrize(
    "fields",
    [
        {"output_type": "multiple_choice", "doc_to_choice": ["1", "2"], "doc_to_target": 0},
        {"output_type": "loglikelihood"},
        {"output_type": "loglikelihood_rolling", "doc_to_text": ""},
    ],
)
def test_tasks_of_likelihoods_are_refused(
    helper: KVRescueLM, folder: Path, fields: dict[str, Any]
) -> None:
    no = {"generation_kwargs": None, "filter_list": None, "metric_list": None}
    name = write_task(folder, bills("test", 0, 1), **no, **fields)
    with pytest.raises(ConfigError, match=r"\(bill\).*no single likelihood"):
        run(helper, folder, name)


def test_a_chat_template_is_refused(helper: KVRescueLM, folder: Path) -> None:
    name = write_task(folder, bills("test", 0, 1))
    with pytest.raises(ConfigError, match="templated twice"):
        run(helper, folder, name, apply_chat_template=True)


def test_gen_kwargs_of_the_caller_win(helper: KVRescueLM, folder: Path) -> None:
    name = write_task(folder, bills("test", 0, 1))
    (sample,) = run(helper, folder, name, gen_kwargs={"until": ["."]})["samples"][name]
    assert "." not in sample["resps"][0][0]
    with pytest.raises(ConfigError, match=r"doc 0: .*'temprature'; did you mean 'temperature'"):
        run(helper, folder, name, gen_kwargs="temprature=0.5")


# -- the command ------------------------------------------------------------------------------


def test_the_command(folder: Path) -> None:
    """Overrides with commas and several of them; the table is lm_eval's own."""
    name = write_task(folder, bills("test", 0, 2))
    arguments = [
        *("--model", "kvrescue", "--tasks", name, "--include_path", str(folder)),
        *("--model_args", "preset=tiny", "n=1", "method=helper"),
        "set=concurrency=1;sampling={temperature: 0.5, max_step_tokens: 24}",
        *("--gen_kwargs", "max_gen_toks=40", "--output_path", "out", "--log_samples"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "kvrescue.evaluation.harness", *arguments],
        env={**os.environ, "HF_HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "exact_match" in done.stdout
    assert "'temperature': 0.5" in done.stderr
    assert "'max_output_tokens': 40" in done.stderr
    assert "2 requests answered, 0 of them degraded; 0 failed" in done.stderr
    written = "".join(path.read_text() for path in folder.glob("out/**/*.json"))
    assert '"kvrescue_config_hash"' in written


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--model_args", "preset=tinny"], "did you mean 'tiny'"),
        (["--model_args", "preset=tiny", "budget=3"], "unknown field 'budget'"),
        (["--model_args", "preset=tiny,n=1,method=helper", "--apply_chat_template"], "twice"),
    ],
)
def test_errors_are_one_line_and_our_exit_code(
    folder: Path,
    arguments: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = write_task(folder, bills("test", 0, 1))
    task = ["--tasks", name, "--include_path", str(folder)]
    monkeypatch.setattr(sys, "argv", ["lm-eval", "--model", "kvrescue", *task, *arguments])
    # lm_eval reads thousands of tasks of its own to find this one.
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == ConfigError.exit_code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert text in line

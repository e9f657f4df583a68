"""`--engine` where vLLM is not installed: what can be shown is shown, and work is refused."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvrescue import Rescue
from kvrescue.config import load_config
from kvrescue.errors import DependencyError
from kvrescue.evaluation.demo import DemoPlan
from kvrescue.evaluation.methods import METHODS, compose
from kvrescue.policies.vllm.quiet import quiet_vllm, usable_cache
from tests.cli.run import Ran, fails


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)


def shown(*arguments: str) -> Any:
    ran = Ran("config", *arguments)
    assert ran.code == 0, ran.stderr
    return yaml.safe_load(ran.stdout)["proposers"]


def test_a_configuration_on_another_engine_can_be_seen() -> None:
    path = "proposers.base.policy"
    found = shown("--engine", "vllm", "--set", f"{path}.kv_cache_bytes=4096")
    assert found["base"]["policy"]["kind"] == found["helper"]["policy"]["kind"] == "vllm"
    assert found["base"]["policy"]["kv_cache_bytes"] == 4096
    assert found["base"]["policy"]["evictor"]["interval"] == 1
    assert shown("--engine", "torch") == shown()


@pytest.mark.parametrize(
    "arguments",
    [
        ["solve", "q", "--engine", "vllm"],
        ["solve", "q", "--set", "proposers.helper.policy.kind=vllm"],
        ["demo", "--engine", "vllm", "--quick"],
        ["demo", "--engine", "vllm", "--workers", "2"],
    ],
)
def test_work_without_vllm_is_refused_before_anything_is_loaded(arguments: list[str]) -> None:
    message = fails(7, "DependencyError", *arguments)
    assert message.startswith("kind 'vllm' needs vLLM: pip install 'kvrescue[vllm]'")
    assert "\n" not in message


def test_the_reward_model_is_named_by_its_own_kind() -> None:
    message = fails(7, "DependencyError", "solve", "q", "--set", "scorer.kind=vllm_prm")
    assert message.startswith("kind 'vllm_prm' needs vLLM")


def test_the_same_in_python() -> None:
    with pytest.raises(DependencyError, match=r"^proposers\.base\.policy: .*kvrescue\[vllm\]"):
        Rescue.from_config("tiny", engine="vllm")


def test_wrong_engines(config: str) -> None:
    for command in (["config"], ["solve", "q"], ["demo"]):
        message = fails(4, "UnknownNameError", *command, "--engine", "vlm")
        assert message == "unknown engine 'vlm'; did you mean 'vllm'?"
    message = fails(4, "ConfigError", "config", "--config", config, "--engine", "vllm")
    assert message.startswith("engine = 'vllm': no proposer runs on torch or vllm")


def test_the_demo_composes_its_methods_on_the_engine() -> None:
    plan = DemoPlan(engine="vllm", overrides=("proposers.base.policy.max_live_rows=7",))
    for budget, config in plan.configs.items():
        for method in METHODS:
            for part in compose(config, method, 8).proposers.values():
                assert part.policy.kind == "vllm"
        base: Any = compose(config, "best_of_n", 8).proposers["base"].policy
        assert (base.evictor.budget, base.evictor.interval, base.max_live_rows) == (budget, 1, 7)
        full: Any = compose(config, "full_kv", 1).proposers["base"].policy
        assert full.evictor is None
        assert load_config(config.model_dump(mode="json")) == config  # how it reaches a worker


class TestQuiet:
    @pytest.fixture(autouse=True)
    def kept(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        names = ("VLLM_LOGGING_LEVEL", "VLLM_LOGGING_STREAM", "TORCH_CPP_LOG_LEVEL")
        for name in (*names, "PYTHONWARNINGS"):
            monkeypatch.setenv(name, "")  # so that it is put back
            monkeypatch.delenv(name)
        monkeypatch.setattr(sys, "warnoptions", [])
        level = logging.getLogger("vllm").level
        with warnings.catch_warnings():
            warnings.resetwarnings()
            yield
        logging.getLogger("vllm").setLevel(level)

    def test_errors_only_and_on_stderr(self) -> None:
        quiet_vllm()
        assert os.environ["VLLM_LOGGING_LEVEL"] == os.environ["TORCH_CPP_LOG_LEVEL"] == "ERROR"
        assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
        assert not logging.getLogger("vllm.triton_utils").isEnabledFor(logging.WARNING)
        with warnings.catch_warnings(record=True) as seen:
            warnings.warn_explicit("old", FutureWarning, "f.py", 1, module="vllm.utils")
            warnings.warn_explicit("old", FutureWarning, "f.py", 1, module="vllmish")
        assert [str(w.message) for w in seen] == ["old"]

    def test_a_process_of_a_quiet_one_is_quiet(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """vLLM's ranks get what the environment says; workers of `demo` call it again."""
        quiet_vllm()
        said = os.environ["PYTHONWARNINGS"]
        run = "import warnings; warnings.warn('old', FutureWarning); print('alive')"
        child = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
        assert (child.stdout, child.stderr) == ("alive\n", "")
        warnings.resetwarnings()
        monkeypatch.setattr(sys, "warnoptions", [said])  # as in such a process
        quiet_vllm()
        with warnings.catch_warnings(record=True) as seen:
            warnings.warn_explicit("odd", UserWarning, "f.py", 1, module="vllm.utils")
        assert seen == []

    @pytest.mark.parametrize("variable", ["VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "HOME"])
    def test_a_cache_that_cannot_be_written(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
    ) -> None:
        for name in ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, "")  # so that it is put back
            monkeypatch.delenv(name)
        file = tmp_path / "file"
        file.touch()
        monkeypatch.setenv(variable, str(file / "folder"))
        told = usable_cache()
        assert told is not None
        assert str(file) in told
        assert "set VLLM_CACHE_ROOT" in told
        assert "\n" not in told
        instead = Path(os.environ["VLLM_CACHE_ROOT"])
        assert instead.is_dir()
        assert usable_cache() is None
        assert os.environ["VLLM_CACHE_ROOT"] == str(instead)

    def test_what_the_user_has_set_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VLLM_LOGGING_LEVEL", "debug")
        monkeypatch.setattr(sys, "warnoptions", ["default"])
        quiet_vllm()
        assert os.environ["VLLM_LOGGING_LEVEL"] == "debug"
        assert logging.getLogger("vllm").level == logging.DEBUG
        with warnings.catch_warnings(record=True) as seen:
            warnings.warn_explicit("old", FutureWarning, "f.py", 1, module="vllm.utils")
        assert len(seen) == 1

